/* Cases of a fixture, and their runs through the public header. */
#ifndef SLUICE_TEST_GOLDEN_RUN_H
#define SLUICE_TEST_GOLDEN_RUN_H

#include "engine/sample/noise.h"
#include "test/lib/rings.h"

#include <unistd.h>

enum { TAIL = 32, NAME = 64, PATH = 1024, IMAGES_MAX = 8 };

/* ---- cases ---- */

static inline const char *text_of(const json_t *c, const char *key) {
    return json_string_value(json_object_get(c, key));
}

static inline int number_of(const json_t *c, const char *key) {
    return (int)json_integer_value(json_object_get(c, key));
}

static inline bool is_image(const json_t *c) {
    return !strcmp(text_of(c, "kind"), "image");
}

/* "case3.hidden.cond" */
static inline char *case_ring(const json_t *c, const char *tail, char *out) {
    snprintf(out, NAME, "case%d.%s", number_of(c, "index"), tail);
    return out;
}

/* ---- runs through the public header ---- */

struct album {
    int n;
    uint8_t *rgb[IMAGES_MAX];
    size_t bytes;
};

static inline void keep_image(void *user, const struct sluice_image *image) {
    struct album *album = user;
    assert_true(image->index == album->n && album->n < IMAGES_MAX);
    album->bytes = (size_t)image->width * (size_t)image->height * 3;
    album->rgb[album->n] = test_memory(album->bytes);
    memcpy(album->rgb[album->n++], image->rgb, album->bytes);
}

struct public_run {
    const struct fixture *fixture;
    char folder[64];
    sluice_model *model;
    sluice_session *session;
    struct album album;
};

static inline void assert_public(int code, const struct sluice_error *error) {
    char line[1024];
    if (code) fail_msg("%s", sluice_error_line(error, line, sizeof line));
}

static inline const char *model_path(const struct fixture *f, char *path) {
    snprintf(path, PATH, "%s/model", f->path);
    return path;
}

/* A session on those parts and an empty folder for what it leaves. */
static inline struct public_run *open_parts(const struct fixture *f, const struct sluice_model_options *from,
                                            bool images) {
    struct public_run *p = test_memory(sizeof *p);
    struct sluice_error error;
    p->fixture = f;
    snprintf(p->folder, sizeof p->folder, "/tmp/sluice-golden-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    struct sluice_session_options options = {
        .struct_size = sizeof options, .device = test_device(), .threads = RING_THREADS, .user = &p->album};
    if (images) options.on_image = keep_image;
    assert_public(sluice_model_open(from, &p->model, &error), &error);
    assert_public(sluice_session_open(p->model, &options, &p->session, &error), &error);
    return p;
}

static inline struct public_run *open_run(const struct fixture *f, const char *model, bool images) {
    return open_parts(
        f, &(struct sluice_model_options){.struct_size = sizeof(struct sluice_model_options), .model = model},
        images);
}

static inline void close_run(struct public_run *p) {
    char command[PATH];
    sluice_session_close(p->session);
    sluice_model_close(p->model);
    snprintf(command, sizeof command, "rm -r '%s'", p->folder);
    assert_int_equal(system(command), 0);
}

/* A tensor that the run left in its folder as FILE.safetensors. */
static inline struct tensor read_dump(struct public_run *p, const char *file, const char *name) {
    char path[PATH];
    struct tensor_index index;
    struct error e = {0};
    snprintf(path, sizeof path, "%s/%s.safetensors", p->folder, file);
    safetensors_open(&rings_state.sys, path, &index, &e);
    assert_ok(&e);
    struct tensor t = read_tensor(&index, name);
    index_destroy(&index);
    return t;
}

/* What goes in: ring "case3.TAIL", or NULL. */
static inline const struct sluice_picture *picture_of(const struct fixture *f, const json_t *c,
                                                      const char *tail) {
    char full[NAME];
    case_ring(c, tail, full);
    if (!has_ring(f, full)) return NULL;
    struct tensor rgb = ring(f, full);
    struct sluice_picture *picture = test_memory(sizeof *picture);
    *picture = (struct sluice_picture){sizeof *picture, rgb.dim[1], rgb.dim[0], rgb.data, NULL};
    return picture;
}

static inline void take_pictures(const struct fixture *f, const json_t *c, struct sluice_request *r) {
    int n = (int)json_array_size(json_object_get(c, "references"));
    const struct sluice_picture **references = test_memory(sizeof *references * (size_t)(n + 1));
    r->init_image = picture_of(f, c, "picture.init");
    r->mask = picture_of(f, c, "picture.mask");
    for (int i = 0; i < n; i++) {
        char name[TAIL];
        snprintf(name, sizeof name, "picture.reference_%03d", i);
        references[i] = picture_of(f, c, name);
        assert_non_null(references[i]);
    }
    r->references = references;
    r->n_references = n;
    if (r->init_image) r->strength = json_number_value(json_object_get(c, "strength"));
}

static inline struct sluice_request request_of(struct public_run *p, const json_t *c) {
    struct sluice_request r = {.struct_size = sizeof r};
    sluice_request_defaults(p->model, &r);
    r.prompt = text_of(c, "prompt");
    r.negative_prompt = text_of(c, "negative_prompt");
    r.cfg_scale = json_number_value(json_object_get(c, "cfg_scale"));
    r.dump = p->folder;
    r.precision = precision_name(rings_state.precision);
    if (!is_image(c)) {
        r.width = r.height = p->model->size_step;
        r.steps = 1;
        r.no_decode = true;
        return r;
    }
    r.width = number_of(c, "width");
    r.height = number_of(c, "height");
    r.steps = number_of(c, "steps");
    r.seed = (uint64_t)json_integer_value(json_object_get(c, "seed"));
    r.batch = number_of(c, "batch");
    r.flow_shift = json_number_value(json_object_get(c, "flow_shift")); /* null gives 0: the model's */
    r.guidance = json_number_value(json_object_get(c, "guidance"));
    take_pictures(p->fixture, c, &r);
    return r;
}

/* ---- what came out ---- */

/* An angle of the conditioning is 1000 times the guidance times a frequency, of which PyTorch's are an ulp
 * off here and there (its exp is): from a guidance of 12 on that is what latents differ by. */
static inline bool guided_far(const json_t *c) {
    return rings_state.precision == PRECISION_F32 && json_number_value(json_object_get(c, "guidance")) > 10;
}

static inline void expect_dump(struct public_run *p, const json_t *c, const char *file, const char *gate,
                               const char *tail) {
    char name[NAME], detail[NAME];
    const struct fixture *f = p->fixture;
    if (!has_ring(f, case_ring(c, tail, name))) return;
    struct tensor truth = ring(f, name), ours = read_dump(p, file, file);
    int64_t n = tensor_elements(&truth);
    const char *lane = strchr(tail, '.');
    snprintf(detail, sizeof detail, "case %d %s", number_of(c, "index"), lane ? lane + 1 : tail);
    assert_int_equal(tensor_elements(&ours), n);
    expect_values(f, gate, detail, ours.data, truth.data, n);
}

static inline void expect_tokens(struct public_run *p, const json_t *c, const char *file, const char *tail) {
    char name[NAME];
    if (!has_ring(p->fixture, case_ring(c, tail, name))) return;
    struct tensor truth = ring(p->fixture, name), ours = read_dump(p, file, file);
    assert_int_equal(tensor_bytes(&ours), tensor_bytes(&truth));
    assert_memory_equal(ours.data, truth.data, (size_t)tensor_bytes(&truth));
}

/* What both prompts became. */
static inline void expect_texts(struct public_run *p, const json_t *c) {
    static const char *const files[][2] = {
        {"tokens", "ids.cond"},     {"tokens_uncond", "ids.uncond"},
        {"tokens_2", "ids_2.cond"}, {"tokens_2_uncond", "ids_2.uncond"},
        {"cond", "hidden.cond"},    {"uncond", "hidden.uncond"},
        {"pooled", "pooled.cond"},  {"pooled_uncond", "pooled.uncond"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (i < 4)
            expect_tokens(p, c, files[i][0], files[i][1]);
        else
            expect_dump(p, c, files[i][0], i < 6 ? "hidden" : "pooled", files[i][1]);
}

static inline double noise_error(struct tensor ring, uint64_t seed) {
    struct generator g;
    float *ours = test_memory((size_t)tensor_bytes(&ring));
    generator_seed(&g, seed);
    generator_normals(&g, ours, tensor_elements(&ring));
    return largest_difference(ours, ring.data, tensor_elements(&ring));
}

/* Each image of a batch by itself, against the reference's run with seed + k. */
static inline void expect_latents(struct public_run *p, const json_t *c) {
    char name[NAME], detail[NAME];
    struct tensor truth = ring(p->fixture, case_ring(c, "latent", name)),
                  ours = read_dump(p, "final", "latent");
    int64_t each = tensor_elements(&truth) / truth.dim[0];
    assert_int_equal(tensor_elements(&ours), tensor_elements(&truth));
    for (int k = 0; k < truth.dim[0]; k++) {
        snprintf(detail, sizeof detail, "case %d image %d", number_of(c, "index"), k);
        expect_values(p->fixture, guided_far(c) ? "latent, guided far" : "latent", detail,
                      (float *)ours.data + k * each, (float *)truth.data + k * each, each);
        if (!has_ring(p->fixture, case_ring(c, "noise", name))) continue;
        expect_error(p->fixture, "noise.randn", detail,
                     noise_error(tensor_slice(ring(p->fixture, name), k, 1),
                                 (uint64_t)(json_integer_value(json_object_get(c, "seed")) + k)));
    }
}

#endif
