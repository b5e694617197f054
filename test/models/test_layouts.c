/* How a model, its recipe and its components are found: by the names of tensors, files and folders, by flags
 * and by metadata. The scripts in layouts/ write model files in many layouts, made from the fixtures, and
 * state for each whether it gives exactly the result of the fixture's folder, or which error refuses it.
 * layouts/README.md describes their commands.
 *
 *     test_layouts [SCRIPT or FIXTURE]...      only these scripts (such as flux) or fixtures (flux_a) */
#include "engine/convert/convert.h"
#include "test/lib/fixtures.h"
#include "test/lib/layout_checks.h"
#include "test/lib/random_models.h"
#include "test/lib/script.h"
#include "test/lib/tensor_edits.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stddef.h>
#include <unistd.h>

enum { PARTS_MAX = 6, SETS_MAX = 12, PATHS_MAX = 24 };

/* A component of the current fixture, as the command `part` declares it. */
struct part {
    const char *component, *file, *flag;
    const char *names; /* list of edits that gives the tensors the checkpoint's names; "-": none */
    /* Words of the errors for this file in a wrong slot, and for a wrong file in this slot. */
    const char *found, *expected;
};

static struct {
    char folder[TENSOR_SET_PATH / 2]; /* the fixture's model */
    char tokenizer[TENSOR_SET_PATH];
    struct part part[PARTS_MAX];
    int n_parts;
} model;

#define FOLDER "test/models/layouts/"

/* ---- Paths and flags ---- */

/* Replaces $model and $tokenizer at the begin of a path; other relative paths lie in the temporary folder,
 * except those in the repository and "." and "..". */
static const char *path_of(const char *word) {
    static char paths[PATHS_MAX][2 * TENSOR_SET_PATH];
    static int next;
    char *path = paths[next++ % PATHS_MAX];
    bool as_is = *word == '/' || *word == '.' || is(word, "none") || !strncmp(word, "test/", 5);
    const char *folder = !strncmp(word, "$model", 6) ? model.folder : model.tokenizer;
    if (*word == '$')
        snprintf(path, sizeof *paths, "%s%s", folder, word + strcspn(word, "/"));
    else
        snprintf(path, sizeof *paths, "%s%s%s", as_is ? "" : temporary, as_is ? "" : "/", word);
    return path;
}

/* The component flags, and where struct model_paths has their values. */
#define FLAG(name, member)                                                                                   \
    { name, offsetof(options, member) }
static const struct {
    const char *name;
    size_t at;
} flags[] = {
    FLAG("--model", model),
    FLAG("--diffusion-model", diffusion_model),
    FLAG("--high-noise-diffusion-model", high_noise),
    FLAG("--llm", llm),
    FLAG("--llm_vision", llm_vision),
    FLAG("--llm_adapter", llm_adapter),
    FLAG("--clip_l", clip_l),
    FLAG("--clip_g", clip_g),
    FLAG("--clip_vision", clip_vision),
    FLAG("--redux", redux),
    FLAG("--t5xxl", t5xxl),
    FLAG("--vae", vae),
    FLAG("--text-projection", text_projection),
    FLAG("--connectors", connectors),
    FLAG("--audio-vae", audio_vae),
    FLAG("--vocoder", vocoder),
    FLAG("--control-net", control_net[0]),
    FLAG("--tokenizer", tokenizer),
    FLAG("--latent", latent),
    FLAG("--edit", edit),
};

/* Sets a flag, whose value is a path except for --edit; the value "-" unsets it. */
static void set_flag(options *to, const char *flag, const char *value) {
    int i = 0;
    while (i < COUNT_OF(flags) && !is(flags[i].name, flag)) i++;
    if (!check(i < COUNT_OF(flags), "there is no flag %s", flag)) return;
    const char *path = is(value, "-") ? NULL : is(flag, "--edit") ? value : path_of(value);
    memcpy((char *)to + flags[i].at, &path, sizeof path);
}

/* Options of the words: "parts" stands for the flags of all parts' files and the tokenizer. */
static options options_of(const char *const *words, int n) {
    options o = {0};
    for (int i = 0; i < n; i++) {
        if (is(words[i], "parts")) {
            for (int k = 0; k < model.n_parts; k++) set_flag(&o, model.part[k].flag, model.part[k].file);
            o.tokenizer = path_of("$tokenizer");
        } else if (is(words[i], "--decodes-only")) {
            o.decodes_only = true;
        } else if (check(i + 1 < n, "%s needs a value", words[i])) {
            set_flag(&o, words[i], words[i + 1]);
            i++;
        }
    }
    return o;
}

/* ---- Components ---- */

static struct {
    char path[2 * TENSOR_SET_PATH];
    struct tensor_set *set;
} loaded[SETS_MAX];
static int n_loaded;

static void forget_components(void) {
    while (n_loaded) tensor_set_free(loaded[--n_loaded].set);
}

/* Returns a copy of a component of the model ("vae"), of another fixture ("flux_a/vae"), or of a file
 * ("$model/unet/flux.gguf"). */
static struct tensor_set *component_of(const char *name) {
    char path[2 * TENSOR_SET_PATH];
    const char *slash = strrchr(name, '/');
    bool file = *name == '$';
    if (file)
        snprintf(path, sizeof path, "%s", path_of(name));
    else if (!slash)
        snprintf(path, sizeof path, "%s/%s", model.folder, name);
    else
        snprintf(path, sizeof path, "test/golden/%.*s/model%s", (int)(slash - name), name, slash);
    int i = 0;
    while (i < n_loaded && !is(loaded[i].path, path)) i++;
    if (i == n_loaded) {
        if (n_loaded == SETS_MAX) abort();
        snprintf(loaded[n_loaded].path, sizeof loaded->path, "%s", path);
        char *last = strrchr(path, '/');
        if (!file) *last = 0;
        loaded[n_loaded++].set =
            file ? tensor_set_from_file(path) : tensor_set_from_component(path, last + 1);
    }
    return tensor_set_copy(loaded[i].set, "");
}

/* Returns the tensors of "COMPONENT EDITS + COMPONENT EDITS ...", with the configurations of all components
 * by name if there are several. */
static struct tensor_set *set_of(const char *const *words, int n) {
    struct tensor_set *all = NULL;
    json_t *configs = json_object();
    bool several = find_word(words, 0, n, "+") < n;
    for (int first = 0, end; first < n; first = end + 1) {
        end = find_word(words, first, n, "+");
        struct tensor_set *p = component_of(words[first]);
        tensor_set_edit(p, words + first + 1, end - first - 1);
        json_t *config = p->config ? json_loads(p->config, 0, NULL) : NULL;
        if (config) json_object_set_new(configs, several && p->key ? p->key : words[first], config);
        if (!all) {
            all = p;
            continue;
        }
        tensor_set_append(all, p, "");
        if (all->n_gguf + p->n_gguf > GGUF_PAIRS) abort();
        memcpy(all->gguf + all->n_gguf, p->gguf, (size_t)p->n_gguf * sizeof *p->gguf);
        all->n_gguf += p->n_gguf;
        tensor_set_free(p);
    }
    if (several) {
        free(all->config);
        all->config = json_object_size(configs) ? json_dumps(configs, 0) : NULL;
        all->key = NULL;
    }
    json_decref(configs);
    return all;
}

/* Writes a set to PATH.safetensors or PATH.gguf, or as shards to PATH/. */
static void write_set(struct tensor_set *p, const char *path) {
    size_t n = strlen(path);
    shell("mkdir -p \"$(dirname '%s')\"", path);
    if (path[n - 1] == '/')
        write_sharded(p, path, p->config);
    else if (n > 5 && is(path + n - 5, ".gguf"))
        write_gguf(p, path);
    else
        write_tensors(p, 0, p->n, path, p->key ? p->key : "config", p->config);
}

static const struct part *part_of(const char *component) {
    int i = 0;
    while (i < model.n_parts && !is(model.part[i].component, component)) i++;
    if (!check(i < model.n_parts, "no command 'part' declares %s of %s", component, model.folder))
        exit(finish());
    return &model.part[i];
}

static struct tensor_set *checkpoint_part(const struct part *part) {
    struct tensor_set *p = component_of(part->component);
    if (!is(part->names, "-")) tensor_set_edit(p, (const char *[]){"as", part->names}, 2);
    return p;
}

/* ---- Expectations ---- */

static enum status status_of(const char *word) {
    enum status code = TRUNC;
    while (code <= CANCELLED && !is(status_name(code), word)) code++;
    return code;
}

/* Numbers of an opened model that `opens` compares. */
static double number_of(const struct sluice_model *m, const char *name) {
    const struct component *encoder = model_component(m, FAMILY_ENCODER),
                           *decoder = model_component(m, FAMILY_DECODER);
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"references", m->references_max},
        {"named", m->pipeline_named},
        {"steps", m->steps},
        {"cfg_scale", m->cfg_scale},
        {"cfg_norm", m->cfg_norm},
        {"cfg_until", m->cfg_until},
        {"guidance", m->guidance},
        {"strength", m->strength},
        {"flow_shift", m->flow_shift},
        {"shift_rule", m->shift_rule},
        {"base_shift", m->shift_line.base_shift},
        {"max_shift", m->shift_line.max_shift},
        {"base_tokens", m->shift_line.base_tokens},
        {"max_tokens", m->shift_line.max_tokens},
        {"encoder_unknown", encoder->family ? encoder->n_unknown : -1},
        {"latent_scale", (double)decoder->latent_format.scale[0]},
        {"latent_shift", (double)decoder->latent_format.shift[0]},
    };
    int i = 0;
    while (i < COUNT_OF(numbers) && !is(numbers[i].name, name)) i++;
    return check(i < COUNT_OF(numbers), "there is no number %s", name) ? numbers[i].value : 0;
}

/* Checks words [i, n): "log TEXT" must be in the session's log, "nolog TEXT" not. */
static void check_log(const struct command *c, int i) {
    for (; i + 1 < c->n; i += 2)
        check((is(c->word[i], "log") || is(c->word[i], "nolog")) &&
                  !strstr(captured_log, c->word[i + 1]) == is(c->word[i], "nolog"),
              "%s: %s '%s': %s", c->where, c->word[i], c->word[i + 1], captured_log);
    check(i == c->n, "%s: '%s' has no text", c->where, c->word[c->n - 1]);
}

/* Checks the file of each denoiser, in the order of the slots: its path must end with `ends`. */
static void check_denoisers(const struct command *c, const struct sluice_model *m, const char *const *ends,
                            int n) {
    int found = 0;
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct component *component = &m->component[slot];
        if (!component->family || component->family->kind != FAMILY_DENOISER) continue;
        const char *path = component->index.sources[0].path, *end = found < n ? ends[found] : "";
        size_t all = strlen(path), bytes = strlen(end);
        check(found < n && all >= bytes && is(path + all - bytes, end), "%s: denoiser %s, not %s", c->where,
              path, end);
        found++;
    }
    check(found >= n, "%s: only %d denoisers", c->where, found);
}

/* Checks that these blocks of the denoiser follow each other: "blocks.3,blocks.4". */
static void check_blocks(const struct command *c, const struct sluice_model *m, const char *list) {
    const struct component *denoiser = model_component(m, FAMILY_DENOISER);
    char names[4096] = "";
    for (int i = 0; i < denoiser->n_blocks; i++) {
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s,", denoiser->blocks[i].name);
    }
    check(strstr(names, list) != NULL, "%s: the blocks are %s", c->where, names);
}

/* opens RECIPE [NUMBER=VALUE]... [denoiser=END OF PATH]... [blocks=LIST] [log TEXT]...: opens the model,
 * without a run. The recipe "-" is any. */
static void expect_opens(const struct command *c, int i, options from) {
    const char *recipe = c->word[i++], *value, *ends[SLOTS_MAX];
    struct rig rig;
    int n_ends = 0;
    if (!rig_open_paths(&rig, from, c->where)) return;
    check(is(recipe, "-") || is(rig.model->recipe->name, recipe), "%s: opened as %s", c->where,
          rig.model->recipe->name);
    for (; i < c->n && (value = strchr(c->word[i], '=')); i++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)(value++ - c->word[i]), c->word[i]);
        if (is(name, "denoiser")) {
            ends[n_ends++] = value;
        } else if (is(name, "blocks")) {
            check_blocks(c, rig.model, value);
        } else {
            double found = number_of(rig.model, name);
            check((float)found == strtof(value, NULL), "%s: %s is %g", c->where, c->word[i], found);
        }
    }
    if (n_ends) check_denoisers(c, rig.model, ends, n_ends);
    check_log(c, i);
    rig_close(&rig);
}

static bool read_bytes(const struct component *c, const struct packed_tensor *t, char *to) {
    struct error e = {0};
    return source_read(&c->index.sources[t->entry->source], to, t->entry->bytes, t->entry->offset, &e) == OK;
}

/* Opens the model's folder, and the model of the options: expects equal tensors at equal places of their
 * blocks in all components. */
static void expect_same_tensors(options from, const char *what) {
    struct rig a, b;
    bool opened = rig_open_paths(&a, (options){.model = model.folder}, what);
    if (!rig_open_paths(&b, from, what) || !opened) return;
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct component *x = &a.model->component[slot], *y = &b.model->component[slot];
        check(x->family == y->family && x->n_blocks == y->n_blocks && !y->n_unknown,
              "%s: slot %d: %d blocks, %d unknown tensors", what, slot, y->n_blocks, y->n_unknown);
        check(!memcmp(x->dims, y->dims, sizeof x->dims) &&
                  !memcmp(x->settings, y->settings, sizeof x->settings),
              "%s: slot %d has other sizes or settings", what, slot);
        for (int i = 0; i < x->n_blocks && i < y->n_blocks; i++) {
            const struct block *one = &x->blocks[i], *other = &y->blocks[i];
            check(is(one->name, other->name) && one->n_tensors == other->n_tensors, "%s: block %s is not %s",
                  what, other->name, one->name);
            for (int k = 0; k < one->n_tensors && k < other->n_tensors; k++) {
                const struct packed_tensor *s = &one->tensors[k], *t = &other->tensors[k];
                uint64_t bytes = s->entry->bytes;
                char *left = malloc(bytes), *right = malloc(bytes);
                check(left && right && bytes == t->entry->bytes && s->offset == t->offset &&
                          read_bytes(x, s, left) && read_bytes(y, t, right) && !memcmp(left, right, bytes),
                      "%s: tensor %s is not %s", what, t->entry->name, s->entry->name);
                free(left);
                free(right);
            }
        }
    }
    rig_close(&a);
    rig_close(&b);
}

/* Runs expected_request; expects another latent than expected_result's. */
static void expect_other_latent(options from, const char *what) {
    struct rig rig;
    if (!rig_open_paths(&rig, from, what)) return;
    struct result got = run(&rig, &expected_request);
    check(got.n_latents == 1 && !is(got.latent[0], expected_result.latent[0]), "%s: the same latent: %s",
          what, got.error.what);
    rig_close(&rig);
}

/* Opens the model, whose run must be refused. */
static void expect_run_refused(const struct command *c, int i, options from) {
    struct rig rig;
    char line[1024];
    if (!rig_open_paths(&rig, from, c->where)) return;
    struct result got = run(&rig, &expected_request);
    sluice_error_line(&got.error, line, sizeof line);
    check(is(sluice_code_name(got.code), c->word[i]), "%s: %s: %s", c->where, sluice_code_name(got.code),
          line);
    while (++i < c->n)
        check(strstr(line, c->word[i]) != NULL, "%s: no '%s' in: %s", c->where, c->word[i], line);
    rig_close(&rig);
}

/* Opens the model of these options and checks the expectation in the words from `i` on. */
static void expect(const struct command *c, int i, options from) {
    const char *word = i < c->n ? c->word[i++] : "";
    if (is(word, "same")) {
        expect_same_result(from, c->where);
        check_log(c, i);
    } else if (is(word, "differs")) {
        expect_other_latent(from, c->where);
        check_log(c, i);
    } else if (is(word, "tensors")) {
        expect_same_tensors(from, c->where);
    } else if (is(word, "opens")) {
        expect_opens(c, i, from);
    } else if (is(word, "run")) {
        expect_run_refused(c, i, from);
    } else if (check(status_of(word) <= CANCELLED, "%s: nothing to expect: '%s'", c->where, word)) {
        expect_refused_as(from, status_of(word), is(word, "USAGE") ? 2 : 3, c->where, c->word + i);
    }
}

/* ---- Commands ---- */

/* names LIST, with one edit in each further line */
static void command_names(struct command *c) {
    const char **words = malloc((size_t)c->n * sizeof *words);
    if (!words) abort();
    memcpy(words, c->word + 1, (size_t)(c->n - 1) * sizeof *words);
    tensor_edits_define(c->word[0], words, c->n - 1);
}

static char **selected; /* arguments of the program: scripts or fixtures; none: all */
static int n_selected;  /* number of fixtures that have run */

/* fixture NAME [TOKENIZER]: the model that the following commands use; forgets the previous fixture's parts
 * and files */
static void command_fixture(struct command *c) {
    int i = 0;
    while (i < n_fixtures && !is(fixtures[i].name, c->word[0])) i++;
    forget_components();
    memset(&model, 0, sizeof model);
    if (!check(i < n_fixtures, "%s: there is no fixture %s", c->where, c->word[0])) exit(finish());
    char **s = selected;
    size_t script = strcspn(c->where, ".");
    while (*s && !is(*s, c->word[0]) && (strlen(*s) != script || strncmp(*s, c->where, script) != 0)) s++;
    script_only = *selected && !*s ? "fixture" : NULL;
    if (script_only) return;
    n_selected++;
    shell("rm -rf '%s'/*", temporary);
    snprintf(model.folder, sizeof model.folder, "%s", fixture_model(&fixtures[i]));
    snprintf(model.tokenizer, sizeof model.tokenizer, "%s", path_of(c->n > 1 ? c->word[1] : "$model"));
}

/* part COMPONENT FILE FLAG NAMES FOUND EXPECTED: see struct part */
static void command_part(struct command *c) {
    const char *const *w = c->word;
    if (model.n_parts == PARTS_MAX) abort();
    model.part[model.n_parts++] = (struct part){w[0], w[1], w[2], w[3], w[4], w[5]};
}

/* request WxH [frames=N] [guidance=X] [shift=X] [cfg=X] [init] [references] [control[=MODE]]: the request of
 * every run */
static void command_request(struct command *c) {
    static uint8_t rgb[48 * 32 * 3];
    static const struct sluice_picture picture = {
        .struct_size = sizeof picture, .width = 48, .height = 32, .rgb = rgb, .name = "a picture"};
    static const struct sluice_picture *const references[] = {&picture};
    static struct sluice_control control;
    int width = 0, height = 0;
    for (size_t k = 0; k < sizeof rgb; k++) rgb[k] = (uint8_t)(k * k % 251);
    sscanf(c->word[0], "%dx%d", &width, &height);
    expected_request = request_fox(width, height, 2, 1, 1);
    for (int i = 1; i < c->n; i++) {
        const char *word = c->word[i], *value = strchr(word, '=');
        double number = value ? strtod(value + 1, NULL) : 0;
        if (!strncmp(word, "frames=", 7))
            expected_request.frames = (int)number;
        else if (!strncmp(word, "guidance=", 9))
            expected_request.guidance = number;
        else if (!strncmp(word, "shift=", 6))
            expected_request.flow_shift = number;
        else if (!strncmp(word, "cfg=", 4))
            expected_request.cfg_scale = number;
        else if (!strncmp(word, "control", 7)) {
            control = (struct sluice_control){.struct_size = sizeof control,
                                              .image = &picture,
                                              .strength = 1,
                                              .end = 1,
                                              .mode = value ? (int)number : -1};
            expected_request.controls = &control;
            expected_request.n_controls = 1;
        } else if (is(word, "init")) {
            expected_request.init_image = &picture;
            expected_request.strength = 1;
        } else if (check(is(word, "references"), "%s: %s", c->where, word)) {
            expected_request.references = references;
            expected_request.n_references = 1;
            expected_request.no_decode = true;
        }
    }
}

/* expect FLAGS [=> quiet | log TEXT...]: runs the request, whose result later commands call `same` */
static void command_expect(struct command *c) {
    struct rig rig;
    if (!rig_open_paths(&rig, options_of(c->word, c->arrow), c->where)) return;
    if (c->arrow + 1 < c->n && is(c->word[c->arrow + 1], "quiet"))
        check(!captured_log[0], "%s: %s", c->where, captured_log);
    else if (c->arrow < c->n)
        check_log(c, c->arrow + 1);
    expected_result = run(&rig, &expected_request);
    check(expected_result.code == SLUICE_OK, "%s: %s", c->where, expected_result.error.what);
    rig_close(&rig);
}

/* write PATH COMPONENT [EDITS] [+ COMPONENT [EDITS]]... */
static void command_write(struct command *c) {
    struct tensor_set *p = set_of(c->word + 1, c->n - 1);
    write_set(p, path_of(c->word[0]));
    tensor_set_free(p);
}

/* write-parts [without-configs] [PATH...]: writes each part with the checkpoint's names to its file, or to
 * the paths */
static void command_write_parts(struct command *c) {
    bool bare = c->n && is(c->word[0], "without-configs");
    check(c->n == bare || c->n == bare + model.n_parts, "%s: %d paths", c->where, c->n - bare);
    for (int i = 0; i < model.n_parts; i++) {
        struct tensor_set *p = checkpoint_part(&model.part[i]);
        if (bare) tensor_set_edit(p, (const char *[]){"config", "none"}, 2);
        write_set(p, path_of(c->n > bare ? c->word[bare + i] : model.part[i].file));
        tensor_set_free(p);
    }
}

/* sh COMMAND: runs a shell command in the temporary folder; $M is the model's folder, $G is test/golden */
static void command_sh(struct command *c) {
    char text[4 * TENSOR_SET_PATH], real[PATH_MAX], golden[PATH_MAX];
    size_t at = (size_t)snprintf(text, sizeof text, "cd '%s' &&", temporary);
    for (int i = 0; i < c->n && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, " %s", c->word[i]);
    check(at < sizeof text && realpath(model.folder, real) && realpath("test/golden", golden), "%s",
          c->where);
    setenv("M", real, 1);
    setenv("G", golden, 1);
    shell("%s", text);
}

/* text PATH TEXT: a file of this text */
static void command_text(struct command *c) {
    write_file(path_of(c->word[0]), c->word[1], strlen(c->word[1]));
}

/* random FOLDER RECIPE SIZES SEED: a model of random weights, which the following commands use */
static void command_random(struct command *c) {
    const char *folder = random_model(c->word[0], c->word[1], c->word[2], (uint64_t)atoi(c->word[3]));
    forget_components();
    snprintf(model.folder, sizeof model.folder, "%s", folder);
    snprintf(model.tokenizer, sizeof model.tokenizer, "%s", folder);
}

/* open [in FOLDER] FLAGS => EXPECTATION; in FOLDER: as the working directory */
static void command_open(struct command *c) {
    int in = c->n > 1 && is(c->word[0], "in") ? 2 : 0;
    char here[PATH_MAX];
    if (in && !check(getcwd(here, sizeof here) && !chdir(path_of(c->word[1])), "%s: no folder", c->where))
        return;
    expect(c, c->arrow + 1, options_of(c->word + in, c->arrow - in));
    if (in) check(!chdir(here), "%s", here);
}

/* replace COMPONENT [EDITS] => EXPECTATION: the model's folder, with an edited file for one part */
static void command_replace(struct command *c) {
    struct tensor_set *p = set_of(c->word, c->arrow);
    options from = {.model = model.folder};
    write_set(p, path_of("part.safetensors"));
    tensor_set_free(p);
    set_flag(&from, part_of(c->word[0])->flag, "part.safetensors");
    expect(c, c->arrow + 1, from);
}

/* Checks words [i, n) KEY=VALUE: values of the JSON text. The key "components.1.tokenizer" is a path; the
 * value of an array is its length, of a truth value 0 or 1. */
static void check_values(const struct command *c, int i, const char *text) {
    json_t *root = json_loads(text ? text : "{}", 0, NULL);
    for (; i < c->n; i++) {
        char key[64], found[128];
        const char *value = strchr(c->word[i], '=');
        json_t *at = root;
        if (!check(value != NULL, "%s: '%s' has no value", c->where, c->word[i])) break;
        snprintf(key, sizeof key, "%.*s", (int)(value++ - c->word[i]), c->word[i]);
        for (char *part = strtok(key, "."); part; part = strtok(NULL, "."))
            at = isdigit((unsigned char)*part) ? json_array_get(at, strtoul(part, NULL, 10))
                                               : json_object_get(at, part);
        long long number = json_is_array(at)  ? (long long)json_array_size(at)
                           : json_is_true(at) ? 1
                                              : (long long)json_integer_value(at);
        snprintf(found, sizeof found, "%lld", number);
        if (json_is_string(at)) snprintf(found, sizeof found, "%s", json_string_value(at));
        check(at && is(found, value), "%s: %s, not %s", c->where, at ? found : "nothing", c->word[i]);
    }
    json_decref(root);
}

/* inspect FLAGS => KEY=VALUE... */
static void command_inspect(struct command *c) {
    options from = options_of(c->word, c->arrow);
    char *json = NULL;
    struct sluice_error e;
    check(!sluice_inspect(model_options(&from), false, &json, &e), "%s: %s", c->where, e.what);
    check_values(c, c->arrow + 1, json);
    sluice_free(json);
}

/* tokenize N FLAGS => KEY=VALUE... | CODE WORD...: N times the word "fox" */
static void command_tokenize(struct command *c) {
    options from = options_of(c->word + 1, c->arrow - 1);
    char *json = NULL, line[1024], prompt[4000] = "";
    struct sluice_error e = {0};
    for (int i = 0; i < atoi(c->word[0]); i++) strcat(prompt, "fox ");
    int code = sluice_tokenize(model_options(&from), prompt, strlen(prompt), &json, &e);
    sluice_error_line(&e, line, sizeof line);
    if (status_of(c->word[c->arrow + 1]) > CANCELLED) {
        check(!code, "%s: %s", c->where, line);
        check_values(c, c->arrow + 1, json);
    } else {
        check(is(sluice_code_name(code), c->word[c->arrow + 1]), "%s: %s", c->where, line);
        for (int i = c->arrow + 2; i < c->n; i++)
            check(strstr(line, c->word[i]) != NULL, "%s: no '%s' in: %s", c->where, c->word[i], line);
    }
    sluice_free(json);
}

/* faults FLAGS: every allocation of opening the model fails in turn */
static void command_faults(struct command *c) {
    expect_allocation_failures(options_of(c->word, c->n));
}

/* wrong-slots: each part's file in the slot of each other part is refused */
static void command_wrong_slots(struct command *c) {
    for (int slot = 0; slot < model.n_parts; slot++)
        for (int passed = 0; passed < model.n_parts; passed++) {
            const struct part *wanted = &model.part[slot], *part = &model.part[passed];
            char flag[64];
            if (passed == slot) continue;
            options from = options_of(WORDS("parts"), 1);
            set_flag(&from, wanted->flag, part->file);
            snprintf(flag, sizeof flag, "for %s", wanted->flag);
            expect_refused(from, UNSUPPORTED, c->where,
                           WORDS("holds another component", part->found, wanted->expected, flag));
        }
}

/* Converts one component of a file or folder to safetensors or GGUF with unchanged types; part NULL: the only
 * component. The converted file must give the same result. */
static void expect_converted_same(const struct part *part, options from, const char *input, const char *name,
                                  const char *form) {
    struct sys machine;
    struct error e = {0};
    char line[1024], what[TENSOR_SET_PATH + 64];
    const char *output = path_of(form);
    struct sluice_convert_options asked = {
        .struct_size = sizeof asked, .inputs = &input, .n_inputs = 1, .part = name, .output = output};
    snprintf(what, sizeof what, "convert %s%s%s", input, name ? " --part " : "", name ? name : "");
    sys_init_machine(&machine);
    if (!check(convert_files(&machine, &asked, NULL, &e) == OK, "%s: %s", what,
               error_line(&e, line, sizeof line)))
        return;
    set_flag(&from, part->flag, form);
    expect_same_result(from, what);
    remove(output);
}

/* convert [COMPONENT]: converts each part, of the folder by name and by path, and of its file. The
 * component's file also holds another component, so that it is chosen by name there. */
static void command_convert(struct command *c) {
    for (int i = 0; i < model.n_parts; i++) {
        const struct part *part = &model.part[i];
        char path[2 * TENSOR_SET_PATH];
        const char *name = c->n && is(c->word[0], part->component) ? part->component : NULL;
        options folder = {.model = model.folder, .tokenizer = model.tokenizer},
                parts = options_of(WORDS("parts"), 1);
        snprintf(path, sizeof path, "%s/%s", model.folder, part->component);
        expect_converted_same(part, folder, model.folder, part->component, "part.safetensors");
        expect_converted_same(part, folder, model.folder, part->component, "part.gguf");
        expect_converted_same(part, folder, path, name, "part.safetensors");
        expect_converted_same(part, parts, path_of(part->file), name, "part.safetensors");
    }
}

/* combine COUNT PREFIX... [keys KEY...] [extra TENSOR...]: writes all parts into all.safetensors under these
 * prefixes, with the configurations under these keys or the parts' names, and with unused tensors that
 * published files have. The file gives the same result, also after converting each part. `inspect` finds
 * COUNT components and all tensors. */
static void command_combine(struct command *c) {
    int keys = find_word(c->word, 0, c->n, "keys"), extra = find_word(c->word, 0, c->n, "extra"), found = 0;
    int prefixes = keys < extra ? keys : extra;
    struct tensor_set *all = calloc(1, sizeof *all);
    json_t *configs = json_object(), *component;
    size_t k;
    options from = {.model = path_of("all.safetensors"), .tokenizer = model.tokenizer};
    check(all && prefixes == 1 + model.n_parts, "%s: %d prefixes", c->where, prefixes - 1);
    for (int i = 0; i < model.n_parts; i++) {
        struct tensor_set *p = checkpoint_part(&model.part[i]);
        json_object_set_new(configs, keys < c->n ? c->word[keys + 1 + i] : model.part[i].component,
                            json_loads(p->config, 0, NULL));
        tensor_set_append(all, p, c->word[1 + i]);
        tensor_set_free(p);
    }
    for (int i = extra + 1; i < c->n; i++)
        tensor_set_edit(
            all, (const char *[]){"add", c->word[i], "F32", strstr(c->word[i], "lm_head") ? "1" : "-"}, 4);
    all->config = json_dumps(configs, 0);
    json_decref(configs);
    write_set(all, from.model);
    expect_same_result(from, c->where);
    check(!strstr(captured_log, "unknown"), "%s: %s", c->where, captured_log);
    json_t *root = inspect(from), *components = json_object_get(root, "components");
    json_array_foreach(components, k, component) found += (int)number(component, "tensors");
    check(count(root, "components") == strtoul(c->word[0], NULL, 10) && !count(root, "unknown") &&
              !count(root, "missing") && found == all->n,
          "%s: inspect finds %zu components, %d of %d tensors, %zu unknown, %zu missing", c->where,
          count(root, "components"), found, all->n, count(root, "unknown"), count(root, "missing"));
    json_decref(root);
    tensor_set_free(all);
    for (int i = 0; i < model.n_parts; i++)
        expect_converted_same(&model.part[i], from, from.model, model.part[i].component, "part.safetensors");
}

static const struct script_command commands[] = {
    {"names", 3, 0, command_names},
    {"fixture", 1, 0, command_fixture},
    {"part", 6, 0, command_part},
    {"request", 1, 0, command_request},
    {"expect", 2, 0, command_expect},
    {"write", 2, 0, command_write},
    {"write-parts", 0, 0, command_write_parts},
    {"sh", 1, 0, command_sh},
    {"text", 2, 0, command_text},
    {"random", 4, 0, command_random},
    {"open", 1, 1, command_open},
    {"replace", 1, 1, command_replace},
    {"inspect", 2, 1, command_inspect},
    {"tokenize", 3, 1, command_tokenize},
    {"faults", 2, 0, command_faults},
    {"wrong-slots", 0, 0, command_wrong_slots},
    {"convert", 0, 0, command_convert},
    {"combine", 3, 0, command_combine},
    {0},
};

static int is_script(const struct dirent *entry) {
    const char *end = strrchr(entry->d_name, '.');
    return end && is(end, ".txt") && !is(entry->d_name, "names.txt");
}

int main(int argc, char **argv) {
    struct dirent **scripts;
    char path[PATH_MAX];
    selected = argv + (argc > 0);
    temporary_make();
    script_run(FOLDER "names.txt", commands, "names ");
    int n = scandir(FOLDER, &scripts, is_script, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, FOLDER "%s", scripts[i]->d_name);
        script_only = "fixture";
        script_run(path, commands, NULL);
        free(scripts[i]);
    }
    free(scripts);
    check(n_selected > 0, "no script or fixture has the name %s", *selected);
    forget_components();
    return finish();
}
