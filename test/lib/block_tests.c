#include "test/lib/block_tests.h"

#include "engine/base/random.h"
#include "engine/run/component.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "models/vae_blocks.h"
#include "test/lib/golden_run.h"
#include "test/lib/tensor_notation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUITES_MAX = 6, TESTS_MAX = 20, TOLERANCES_MAX = 24, FILE_SUITES_MAX = 128, TENSOR_NAME = 96 };

/* A suite of a blocks.json file. */
struct block_suite {
    struct suite suite;
    struct golden_test tests[TESTS_MAX];
    const json_t *steps[TESTS_MAX]; /* steps of each test */
    const json_t *lanes;
    struct tolerance tolerances[TOLERANCES_MAX], gpu_tolerances[TOLERANCES_MAX];
};

static struct block_suite suites[FILE_SUITES_MAX];
static int n_suites;

/* The parsed blocks.json of each fixture, in the order of fixtures[]. */
static struct block_file {
    json_t *json;
    const struct suite *suites[SUITES_MAX + 1];
} files[FIXTURES_MAX];

int block_test_slot(const struct golden *g, const char *family, const char *folder, int number) {
    for (int i = 0; i < MODEL_COMPONENTS; i++) {
        const struct component *c = &g->model->component[i];
        if (!c->family || strcmp(c->family->name, family)) continue;
        if (folder && i < SLOTS_MAX && strcmp(g->model->recipe->slot[i].folder, folder)) continue;
        if (!number--) return i;
    }
    fail_msg("the model has no component %s", family);
    return -1;
}

/* Fields of struct lane that blocks.json may set by name. */
#define TENSOR_FIELD(field)                                                                                  \
    { #field, offsetof(struct lane, field) }
static const struct state_tensor lane_tensors[] = {
    TENSOR_FIELD(text),    TENSOR_FIELD(pooled),  TENSOR_FIELD(source),           TENSOR_FIELD(latent),
    TENSOR_FIELD(concat),  TENSOR_FIELD(image),   TENSOR_FIELD(prediction),       TENSOR_FIELD(picture),
    TENSOR_FIELD(moments), TENSOR_FIELD(sound),   TENSOR_FIELD(sound_prediction), TENSOR_FIELD(mel),
    TENSOR_FIELD(wave),    TENSOR_FIELD(enlarged)};
static const struct state_tensor lane_numbers[] = {
    TENSOR_FIELD(n_tokens),       TENSOR_FIELD(window),     TENSOR_FIELD(clip_skip), TENSOR_FIELD(pooled_row),
    TENSOR_FIELD(n_clean_frames), TENSOR_FIELD(keys.first), TENSOR_FIELD(keys.n)};

static bool is_field(const struct state_tensor *fields, int n, const char *name) {
    while (n > 0 && strcmp(fields[n - 1].name, name)) n--;
    return n;
}

/* Fails if a lane in the data has a key that nothing reads. */
static void expect_known_keys(const json_t *lane) {
    static const char *const others[] = {"component", "folder",       "number",      "timestep",
                                         "settings",  "frames",       "tokens",      "reference",
                                         "guidance",  "add_time_ids", "skip_layers", "vision_spans",
                                         "fps",       "stg_blocks",   "isolated"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)lane, key, value) {
        int i = COUNT_OF(others);
        while (i > 0 && strcmp(others[i - 1], key)) i--;
        if (!i && !is_field(lane_tensors, COUNT_OF(lane_tensors), key) &&
            !is_field(lane_numbers, COUNT_OF(lane_numbers), key))
            fail_msg("unknown key %s of a lane", key);
    }
}

/* Returns the tensor of the runner with this name: a field of its lane or a state tensor of the family. */
static struct tensor runner_tensor(const struct block_runner *b, const char *name) {
    if (!strcmp(name, "full_frame")) return ((const struct vae_state *)b->lane.state)->full_frame.picture;
    if (!strcmp(name, "lane.frames")) return b->frames;
    if (strncmp(name, "lane.", 5)) return runner_state(b, name);
    for (int i = 0; i < COUNT_OF(lane_tensors); i++)
        if (!strcmp(lane_tensors[i].name, name + 5))
            return *(const struct tensor *)(const void *)((const char *)&b->lane + lane_tensors[i].offset);
    fail_msg("a lane has no tensor %s", name);
    return (struct tensor){0};
}

/* Returns the index of the kept tensor with this name, or n_kept. */
static int kept_place(const struct block_test *t, const char *name) {
    int i = 0;
    while (i < t->n_kept && strcmp(t->kept[i].name, name)) i++;
    return i;
}

static struct tensor kept_tensor(const struct block_test *t, const char *name) {
    int i = kept_place(t, name);
    if (i == t->n_kept) fail_msg("no step keeps a tensor %s", name);
    return t->kept[i].tensor;
}

/* Returns the tensor whose name `text` begins with; *part gets the text behind the name. b: the runner whose
 * tensor is meant; NULL: a reference tensor. */
static struct tensor tensor_named(const struct block_test *t, const struct block_runner *b, const char *text,
                                  const char **part) {
    char name[TENSOR_NAME];
    size_t n = strcspn(text, "[ ");
    *part = text + n;
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    bool is_flat = n > 5 && !strcmp(name + n - 5, ".flat");
    if (is_flat) name[n - 5] = 0;
    struct tensor found = b                           ? runner_tensor(b, name)
                          : strncmp(name, "kept.", 5) ? golden(t->golden, name)
                                                      : kept_tensor(t, name + 5);
    return is_flat ? tensor_reshape(found, 1, (int32_t[]){(int32_t)tensor_elements(&found)}) : found;
}

static int shape_of(const json_t *shape, int32_t *dim) {
    int rank = (int)json_array_size(shape);
    assert_in_range(rank, 1, TENSOR_RANK_MAX);
    for (int i = 0; i < rank; i++) dim[i] = (int32_t)json_integer_value(json_array_get(shape, (size_t)i));
    return rank;
}

struct tensor random_tensor(int rank, const int32_t *dim, double most, uint64_t seed) {
    struct tensor t = test_tensor(DTYPE_F32, rank, dim);
    for (int64_t i = 0; i < tensor_elements(&t); i++)
        ((float *)t.data)[i] = (float)(((double)random_below(&seed, 8001) / 4000 - 1) * most);
    return t;
}

/* Returns a latent's patches, one a row. */
static struct tensor patches_of(struct block_runner *b, struct tensor latent, const char *order) {
    enum { SIDE = 2 };
    struct tensor planes = latent_planes(latent);
    int32_t rows = planes.dim[1] / SIDE * (planes.dim[2] / SIDE);
    struct tensor out = test_tensor(DTYPE_F32, 2, (int32_t[]){rows, SIDE * SIDE * planes.dim[0]});
    bool first = !strcmp(order, "channels_first");
    op_patchify(&b->context, out, planes,
                (struct patches){.side = SIDE, .order = first ? PATCH_CHANNELS_FIRST : PATCH_CHANNELS_LAST});
    assert_ok(&b->error);
    return out;
}

/* Returns a copy of the tensor that the data describe: of the runner b, or of the reference if b is NULL. */
static struct tensor tensor_of(const struct block_test *t, struct block_runner *b, const json_t *what) {
    enum { RANDOM_MOST = 4, RANDOM_SEED = 10 };
    int32_t dim[TENSOR_RANK_MAX];
    const char *part;
    if (json_is_string(what)) {
        struct tensor found = tensor_named(t, b, json_string_value(what), &part);
        return notation_read(found, part);
    }
    const json_t *zeros = json_object_get(what, "zeros"), *random = json_object_get(what, "random"),
                 *patches = json_object_get(what, "patches"), *scale = json_object_get(what, "scale");
    if (zeros) return test_tensor(DTYPE_F32, shape_of(zeros, dim), dim);
    if (random) return random_tensor(shape_of(random, dim), dim, RANDOM_MOST, RANDOM_SEED);
    if (json_is_object(what)) {
        struct tensor out = patches ? patches_of(b, tensor_named(t, b, json_string_value(patches), &part),
                                                 text_of(what, "order"))
                                    : tensor_of(t, b, json_object_get(what, "scaled"));
        for (int64_t i = 0; scale && i < tensor_elements(&out); i++)
            ((float *)out.data)[i] *= (float)json_number_value(scale);
        return out;
    }
    /* A list concatenates tensors by rows. */
    struct tensor out = tensor_of(t, b, json_array_get(what, 0));
    for (size_t i = 1; i < json_array_size(what); i++) {
        struct tensor upper = out, lower = tensor_of(t, b, json_array_get(what, i));
        memcpy(dim, upper.dim, sizeof dim);
        dim[0] += lower.dim[0];
        out = test_tensor(upper.dtype, upper.rank, dim);
        runner_put(tensor_slice(out, 0, upper.dim[0]), upper);
        runner_put(tensor_slice(out, upper.dim[0], lower.dim[0]), lower);
    }
    return out;
}

struct tensor block_test_tensor(const struct block_test *t, const json_t *what) {
    return tensor_of(t, t->runner, what);
}

static struct tensor reference_of(const struct block_test *t, const json_t *what) {
    return tensor_of(t, NULL, what);
}

/* Normalises an image of bytes as the component expects, as its image processor does. */
static struct tensor normalised(const struct component *c, struct tensor pixels) {
    if (pixels.dtype == DTYPE_F32) return pixels;
    struct tensor picture = test_tensor(DTYPE_F32, pixels.rank, pixels.dim);
    const struct picture_format *format = &c->picture_format;
    for (int64_t i = 0; i < tensor_elements(&pixels); i++)
        ((float *)picture.data)[i] = ((float)((uint8_t *)pixels.data)[i] - format->mean[i % 3] * 255) /
                                     (format->deviation[i % 3] * 255);
    return picture;
}

/* A vision encoder reads the reference's images without resizing. */
static void expect_vision_grid(const struct component *c, const struct lane *lane) {
    struct vision_grid grid = c->family->lanes.vision_grid(c, lane->picture.dim[1], lane->picture.dim[0]);
    assert_int_equal(grid.width, lane->picture.dim[1]);
    assert_int_equal(grid.height, lane->picture.dim[0]);
    assert_int_equal(grid.columns * grid.rows, lane->text.dim[0]);
}

/* Returns a list of block numbers and sets their count. */
static const int *read_numbers(const json_t *list, int *n) {
    const json_t *item;
    size_t i;
    *n = (int)json_array_size(list);
    int *numbers = test_memory(sizeof *numbers * (size_t)(*n + 1));
    json_array_foreach(list, i, item) numbers[i] = (int)json_integer_value(item);
    return numbers;
}

/* Reads the lane's lists: token ids, add_time_ids, skip_layers, stg_blocks, reference images and images in
 * the prompt. */
static void read_lists(const struct block_test *t, const json_t *about, struct lane *lane) {
    const json_t *item;
    size_t i;
    if (json_object_get(about, "tokens")) {
        struct tensor ids = reference_of(t, json_object_get(about, "tokens"));
        lane->tokens = ids.data;
        lane->n_tokens = ids.dim[0];
    }
    json_array_foreach(json_object_get(about, "reference"), i, item) lane->reference[i] =
        reference_of(t, item);
    json_array_foreach(json_object_get(about, "vision_spans"), i, item) {
        lane->vision_spans[i] = (struct vision_span){.first = number_of(item, "first"),
                                                     .height = number_of(item, "height"),
                                                     .width = number_of(item, "width")};
        /* spans of a denoiser's lane have no rows */
        const json_t *rows = json_object_get(item, "rows");
        if (rows) lane->vision_spans[i].rows = reference_of(t, rows);
    }
    const json_t *sizes = json_object_get(about, "add_time_ids");
    lane->n_add_time_ids = (int)json_array_size(sizes);
    json_array_foreach(sizes, i, item) lane->add_time_ids[i] = (float)json_number_value(item);
    lane->skip_layers = read_numbers(json_object_get(about, "skip_layers"), &lane->n_skip_layers);
    lane->stg_blocks = read_numbers(json_object_get(about, "stg_blocks"), &lane->n_stg_blocks);
}

/* Returns a copy of the component's settings in which `values` replace some. */
static const void *settings_with(const struct component *c, const json_t *values) {
    struct component *changed = test_memory(sizeof *changed);
    const char *key;
    const json_t *value;
    *changed = *c;
    json_object_foreach((json_t *)values, key, value) {
        const struct setting *s = c->family->config.settings;
        while (strcmp(s->keys[0], key)) s++;
        float number = (float)json_number_value(value);
        memcpy(changed->settings + s->offset, &number, sizeof number);
    }
    return changed->settings;
}

struct block_runner *block_test_open(const struct block_test *t, const char *name) {
    const json_t *about = json_object_get(t->lanes, name);
    if (!about) fail_msg("no lane %s", name);
    expect_known_keys(about);
    int slot = block_test_slot(t->golden, text_of(about, "component"), text_of(about, "folder"),
                               number_of(about, "number"));
    const struct component *c = &t->golden->model->component[slot];
    struct lane lane = {.guidance = (float)json_number_value(json_object_get(about, "guidance")),
                        .fps = (float)json_number_value(json_object_get(about, "fps")),
                        .isolated = json_is_true(json_object_get(about, "isolated"))};
    for (int i = 0; i < COUNT_OF(lane_tensors); i++) {
        const json_t *what = json_object_get(about, lane_tensors[i].name);
        void *field = (char *)&lane + lane_tensors[i].offset;
        if (what) *(struct tensor *)field = reference_of(t, what);
    }
    for (int i = 0; i < COUNT_OF(lane_numbers); i++) {
        void *field = (char *)&lane + lane_numbers[i].offset;
        *(int *)field = number_of(about, lane_numbers[i].name);
    }
    read_lists(t, about, &lane);
    if (lane.pooled.rank == 1)
        lane.pooled = tensor_reshape(lane.pooled, 2, (int32_t[]){1, lane.pooled.dim[0]});
    if (lane.picture.rank) lane.picture = normalised(c, lane.picture);
    if (c->family->lanes.vision_grid) expect_vision_grid(c, &lane);
    if (c->family->kind == FAMILY_DENOISER)
        lane.prediction = test_tensor(DTYPE_F32, lane.latent.rank, lane.latent.dim);
    if (lane.sound.rank && c->family->kind == FAMILY_DENOISER)
        lane.sound_prediction = test_tensor(DTYPE_F32, lane.sound.rank, lane.sound.dim);
    struct block_runner *b = runner_open(t->golden, slot, lane);
    const json_t *timestep = json_object_get(about, "timestep"), *frames = json_object_get(about, "frames");
    int32_t dim[TENSOR_RANK_MAX];
    if (timestep) b->timestep = *(float *)reference_of(t, timestep).data;
    if (frames) b->frames = test_tensor(DTYPE_F32, shape_of(frames, dim), dim);
    if (json_object_get(about, "settings"))
        b->settings = settings_with(c, json_object_get(about, "settings"));
    return b;
}

static void close_runner(struct block_test *t) {
    if (t->runner) runner_close(t->runner);
    t->runner = NULL;
}

static void run_blocks(struct block_runner *b, const char *name) {
    size_t prefix = strcspn(name, "*");
    if (!name[prefix]) {
        runner_run(b, runner_block(b, name), b->timestep);
        return;
    }
    int n = 0;
    for (int i = 0; i < b->component->n_blocks; i++) {
        const struct block *block = &b->component->blocks[i];
        if (strncmp(block->name, name, prefix)) continue;
        runner_run(b, block, b->timestep);
        n++;
    }
    assert_true(n > 0);
}

static void put_reference(struct block_test *t, const json_t *step) {
    struct tensor from = reference_of(t, json_object_get(step, "put"));
    const json_t *level = json_object_get(step, "level");
    const char *part;
    if (level) { /* an image at the start of a VAE level's place in the full-frame buffer */
        struct vae_state *s = t->runner->lane.state;
        assert_true(tensor_bytes(&from) <= tensor_bytes(&s->full_frame.memory));
        full_frame_put(&s->full_frame, s->front[json_integer_value(level)], from.dim[0], from.dim[1],
                       from.dim[2]);
    }
    struct tensor to = tensor_named(t, t->runner, text_of(step, "to"), &part);
    notation_write(to, part, from);
}

static void expect_reference(struct block_test *t, const json_t *step) {
    const char *detail = text_of(step, "detail");
    struct tensor ours = block_test_tensor(t, json_object_get(step, "expect"));
    struct tensor truth = reference_of(t, json_object_get(step, "equals"));
    assert_int_equal(tensor_elements(&ours), tensor_elements(&truth));
    for (int i = 0; i < ours.rank && ours.rank == truth.rank; i++)
        assert_int_equal(ours.dim[i], truth.dim[i]);
    expect_values(t->golden, text_of(step, "as"), detail ? detail : "", ours.data, truth.data,
                  tensor_elements(&truth));
}

static void run_step(struct block_test *t, const json_t *step) {
    if (json_object_get(step, "open")) {
        close_runner(t);
        t->runner = block_test_open(t, text_of(step, "open"));
    } else if (json_object_get(step, "run")) {
        run_blocks(t->runner, text_of(step, "run"));
    } else if (json_object_get(step, "run_all")) {
        runner_run_all(t->runner);
    } else if (json_object_get(step, "table")) {
        runner_read_table(t->runner, number_of(step, "table"));
    } else if (json_object_get(step, "put")) {
        put_reference(t, step);
    } else if (json_object_get(step, "expect")) {
        expect_reference(t, step);
    } else if (json_object_get(step, "keep")) {
        int i = kept_place(t, text_of(step, "name"));
        assert_true(i < KEPT_MAX);
        if (i == t->n_kept) t->n_kept++;
        t->kept[i].name = text_of(step, "name");
        t->kept[i].tensor = block_test_tensor(t, json_object_get(step, "keep"));
    } else {
        const struct block_check *check = block_checks;
        while (check->key && !json_object_get(step, check->key)) check++;
        if (!check->key) fail_msg("unknown step %s", json_dumps(step, 0));
        check->run(t, step);
    }
}

static void run_steps(const struct golden *g) {
    const struct block_suite *s = (const void *)golden_state.suite;
    struct block_test t = {.golden = g, .lanes = s->lanes};
    const json_t *step;
    size_t i;
    json_array_foreach(s->steps[golden_state.test - s->tests], i, step) run_step(&t, step);
    close_runner(&t);
}

static void read_tolerances(const json_t *table, struct tolerance *to) {
    const char *name;
    json_t *row;
    json_object_foreach((json_t *)table, name, row) {
        *to++ = (struct tolerance){name, json_number_value(json_array_get(row, 0)),
                                   json_number_value(json_array_get(row, 1))};
    }
}

/* Adds a test in f32 and, if the data say so, one in bf16. */
static void add_test(struct block_suite *s, const json_t *test) {
    const char *name = text_of(test, "name");
    bool bf16 = json_is_true(json_object_get(test, "bf16")), gpu = json_is_true(json_object_get(test, "gpu"));
    for (int rounded = 0; rounded <= bf16; rounded++) {
        int n = s->suite.n_tests++;
        assert_true(n < TESTS_MAX);
        char *label = malloc(strlen(name) + sizeof ", bf16");
        assert_non_null(label);
        sprintf(label, "%s%s", name, rounded ? ", bf16" : "");
        s->tests[n] = (struct golden_test){label, run_steps, rounded ? PRECISION_BF16 : PRECISION_F32,
                                           rounded || gpu, NULL};
        s->steps[n] = json_object_get(test, "steps");
    }
}

static const struct suite *read_suite(const json_t *json) {
    struct block_suite *s = &suites[n_suites++];
    const json_t *gpu = json_object_get(json, "gpu_tolerances"), *test;
    size_t i;
    assert_true(n_suites <= FILE_SUITES_MAX);
    s->lanes = json_object_get(json, "lanes");
    read_tolerances(json_object_get(json, "tolerances"), s->tolerances);
    read_tolerances(gpu, s->gpu_tolerances);
    s->suite = (struct suite){.name = text_of(json, "name"),
                              .tests = s->tests,
                              .tolerances = s->tolerances,
                              .gpu_tolerances = gpu ? s->gpu_tolerances : s->tolerances};
    json_array_foreach(json_object_get(json, "tests"), i, test) add_test(s, test);
    return &s->suite;
}

/* Returns the parsed blocks.json of a fixture; NULL: the folder in GOLDEN lacks the fixture. */
static struct block_file *file_of(const struct fixture *f) {
    struct block_file *file = &files[f - fixtures];
    char path[GOLDEN_PATH + 32], folder[GOLDEN_PATH];
    json_error_t e;
    if (file->json) return file;
    golden_folder(f, folder);
    snprintf(path, sizeof path, "%s/blocks.json", folder);
    file->json = json_load_file(path, 0, &e);
    if (file->json) return file;
    printf("%s:%d: %s\n", path, e.line, e.text);
    if (!getenv("GOLDEN")) abort();
    return NULL;
}

const struct suite *const *block_suites(const struct fixture *f) {
    struct block_file *file = (f->pipeline && !f->without_blocks) || f->open ? file_of(f) : NULL;
    const json_t *suite;
    size_t i;
    if (!file) return NULL;
    json_array_foreach(json_object_get(file->json, "suites"), i, suite) {
        assert_true(i < SUITES_MAX);
        file->suites[i] = read_suite(suite);
    }
    return file->suites;
}

static struct text_reads reads_of(const json_t *about) {
    const json_t *layers = json_object_get(about, "layers"), *layer;
    struct hidden_states hidden = {.final_norm = json_is_true(json_object_get(about, "final_norm"))
                                                     ? FINAL_NORM_OF_ALL
                                                     : FINAL_NORM_OF_LAST};
    size_t i;
    json_array_foreach(layers, i, layer) hidden.layers[i] = (int16_t)json_integer_value(layer);
    return (struct text_reads){.hidden = hidden,
                               .tokens = json_is_true(json_object_get(about, "tokens")),
                               .pooled = json_is_true(json_object_get(about, "pooled")),
                               .projected = json_is_true(json_object_get(about, "projected"))};
}

/* Reads a configuration: "config" true: from config.json of the fixture; an object: from the object.
 * "pictures" true: also reads the image processor's configuration. */
static void read_config(const struct golden *g, const json_t *about, struct config *config, struct error *e) {
    const json_t *what = json_object_get(about, "config");
    char path[GOLDEN_PATH + 32];
    snprintf(path, sizeof path, "%s/config.json", g->path);
    if (json_is_true(what)) config_read(&golden_state.sys, path, config, e);
    if (json_is_object(what)) {
        char *text = json_dumps(what, 0);
        config_parse(&golden_state.sys, path, text, NULL, config, e);
        free(text);
    }
    if (!json_is_true(json_object_get(about, "pictures"))) return;
    snprintf(path, sizeof path, "%s/preprocessor_config.json", g->path);
    config->sys = &golden_state.sys;
    config->pictures = config->sys->alloc(config->sys, LINE_HOST, sizeof *config->pictures);
    config_read(config->sys, path, config->pictures, e);
}

static void expect_latent_format(const struct component *c, const json_t *format) {
    assert_int_equal(c->latent_format.n, 1);
    assert_true(*c->latent_format.scale == (float)json_number_value(json_array_get(format, 0)));
    assert_true(*c->latent_format.shift == (float)json_number_value(json_array_get(format, 1)));
}

/* True if blocks.json lists a component of this family in the file and under the prefix of `place`. */
static bool file_holds(const struct golden *g, const json_t *place, const struct family *family) {
    const json_t *about;
    size_t i;
    json_array_foreach(
        json_object_get(file_of(g->fixture)->json, "components"), i,
        about) if (!strcmp(text_of(about, "file"), text_of(place, "file")) &&
                   json_equal(json_object_get(about, "prefix"), json_object_get(place, "prefix")) ==
                       (json_object_get(about, "prefix") != NULL) &&
                   !strcmp(text_of(about, "family"), family->name)) return true;
    return false;
}

/* Opens a component. All tensors in its file must be known, and only the families that blocks.json lists for
 * the file may recognise it. */
static void open_component(const struct golden *g, const json_t *about, struct component *c) {
    static struct published_setting published[SLOTS_MAX][2];
    const json_t *format = json_object_get(about, "latent_format"), *value;
    const char *key;
    char path[GOLDEN_PATH + 64];
    struct config config = {0};
    struct error e = {0};
    const struct family *const *family = families;
    while (*family && strcmp((*family)->name, text_of(about, "family"))) family++;
    assert_non_null(*family);
    *c = (struct component){.family = *family,
                            .sys = &golden_state.sys,
                            .video = json_is_true(json_object_get(about, "video")),
                            .reads = reads_of(json_object_get(about, "reads"))};
    json_object_foreach(json_object_get(about, "published"), key, value) {
        struct published_setting *setting = published[c - g->model->component];
        *setting = (struct published_setting){key, number_of(json_object_get(about, "published"), key)};
        c->published = setting;
    }
    snprintf(path, sizeof path, "%s/%s", g->path, text_of(about, "file"));
    safetensors_open(c->sys, path, &c->index, &e);
    c->index.prefix = text_of(about, "prefix");
    for (int i = 0; i < c->index.n_entries && c->index.prefix; i++) /* tensors of other components */
        c->index.entries[i].view =
            strncmp(c->index.entries[i].name, c->index.prefix, strlen(c->index.prefix)) != 0;
    read_config(g, about, &config, &e);
    assert_ok(&e);
    for (const struct family *const *f = families; *f; f++)
        assert_int_equal((*f)->files.probe(&c->index), file_holds(g, about, *f));
    component_bind(c, &config, &e);
    assert_ok(&e);
    assert_int_equal(c->n_unknown, 0);
    config_destroy(&config);
    if (format) expect_latent_format(c, format);
}

void block_components_open(struct golden *g) {
    const json_t *about;
    size_t i;
    g->model = calloc(1, sizeof *g->model);
    assert_non_null(g->model);
    json_array_foreach(json_object_get(file_of(g->fixture)->json, "components"), i, about)
        open_component(g, about, &g->model->component[i]);
}

void block_components_close(struct golden *g) {
    for (int i = 0; i < SLOTS_MAX; i++) component_destroy(&g->model->component[i]);
    free(g->model);
}
