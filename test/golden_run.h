/* Cases of a fixture, and their runs through the public header. */
#ifndef SLUICE_TEST_GOLDEN_RUN_H
#define SLUICE_TEST_GOLDEN_RUN_H

#include "test/rings.h"

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

/* A session on that model and an empty folder for what it leaves. */
static inline struct public_run *open_run(const struct fixture *f, const char *model, bool images) {
    struct public_run *p = test_memory(sizeof *p);
    struct sluice_error error;
    p->fixture = f;
    snprintf(p->folder, sizeof p->folder, "/tmp/sluice-golden-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    struct sluice_model_options from = {.struct_size = sizeof from, .model = model};
    struct sluice_session_options options = {
        .struct_size = sizeof options, .device = test_device(), .threads = RING_THREADS, .user = &p->album};
    if (images) options.on_image = keep_image;
    assert_public(sluice_model_open(&from, &p->model, &error), &error);
    assert_public(sluice_session_open(p->model, &options, &p->session, &error), &error);
    return p;
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

#endif
