#include "test/lib/golden_run.h"

#include "engine/sample/noise.h"
#include "test/lib/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *text_of(const json_t *c, const char *key) {
    return json_string_value(json_object_get(c, key));
}

int number_of(const json_t *c, const char *key) {
    return (int)json_integer_value(json_object_get(c, key));
}

bool is_image(const json_t *c) {
    return !strcmp(text_of(c, "kind"), "image");
}

char *case_tensor(const json_t *c, const char *tail, char *out) {
    snprintf(out, NAME, "case%d.%s", number_of(c, "index"), tail);
    return out;
}

static void collect_image(void *user, const struct sluice_image *image) {
    struct album *album = user;
    assert_true(image->index * image->frames + image->frame == album->n && album->n < IMAGES_MAX);
    size_t pixels = (size_t)image->width * (size_t)image->height, channels = image->alpha ? 4 : 3;
    album->bytes = pixels * channels;
    uint8_t *to = album->pixels[album->n++] = test_memory(album->bytes);
    for (size_t i = 0; i < pixels; i++) {
        memcpy(to + i * channels, image->rgb + 3 * i, 3);
        if (image->alpha) to[i * channels + 3] = image->alpha[i];
    }
}

void assert_public(int code, const struct sluice_error *error) {
    char line[1024];
    if (code) fail_msg("%s", sluice_error_line(error, line, sizeof line));
}

const char *model_path(const struct golden *g, char *path) {
    snprintf(path, PATH, "%s", golden_model(g));
    return path;
}

struct public_run *open_parts(const struct golden *g, const struct sluice_model_options *from, bool images) {
    struct public_run *p = test_memory(sizeof *p);
    struct sluice_error error;
    p->golden = g;
    snprintf(p->folder, sizeof p->folder, "/tmp/sluice-golden-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    struct sluice_session_options options = {
        .struct_size = sizeof options, .device = test_device(), .threads = GOLDEN_THREADS, .user = &p->album};
    if (images) options.on_image = collect_image;
    assert_public(sluice_model_open(from, &p->model, &error), &error);
    assert_public(sluice_session_open(p->model, &options, &p->session, &error), &error);
    return p;
}

struct public_run *open_run(const struct golden *g, const char *model, bool images) {
    return open_parts(g, golden_options(g, model, g->path), images);
}

void close_run(struct public_run *p) {
    char command[PATH];
    sluice_session_close(p->session);
    sluice_model_close(p->model);
    snprintf(command, sizeof command, "rm -r '%s'", p->folder);
    assert_int_equal(system(command), 0);
}

struct tensor read_dump(struct public_run *p, const char *file, const char *name) {
    char path[PATH];
    struct tensor_index index;
    struct error e = {0};
    snprintf(path, sizeof path, "%s/%s.safetensors", p->folder, file);
    safetensors_open(&golden_state.sys, path, &index, &e);
    assert_ok(&e);
    struct tensor t = read_tensor(&index, name);
    index_destroy(&index);
    return t;
}

/* The run dumps each frame of a video to a file of its own. */
struct tensor read_decoded(struct public_run *p, int frames) {
    struct tensor all = {0};
    for (int i = 0; i < frames; i++) {
        char file[NAME];
        snprintf(file, sizeof file, frames > 1 ? "decoded_frame_%04d" : "decoded", i);
        struct tensor one = read_dump(p, file, file);
        int32_t dim[] = {frames, one.dim[1], one.dim[2], one.dim[3]};
        if (!i) all = test_tensor(DTYPE_F32, 4, dim);
        memcpy(tensor_slice(all, i, 1).data, one.data, (size_t)tensor_bytes(&one));
    }
    return all;
}

/* Returns the input image "caseN.TAIL", [H, W, 3] or with alpha [H, W, 4]; NULL: the case has none. */
static const struct sluice_picture *picture_of(const struct golden *g, const json_t *c, const char *tail) {
    char full[NAME];
    case_tensor(c, tail, full);
    if (!has_golden(g, full)) return NULL;
    struct tensor all = golden(g, full);
    size_t pixels = (size_t)all.dim[0] * (size_t)all.dim[1], channels = (size_t)all.dim[2];
    struct sluice_picture *picture = test_memory(sizeof *picture);
    uint8_t *rgb = test_memory(3 * pixels), *alpha = channels > 3 ? test_memory(pixels) : NULL;
    for (size_t i = 0; i < pixels; i++) {
        const uint8_t *from = (const uint8_t *)all.data + i * channels;
        memcpy(rgb + 3 * i, from, 3);
        if (alpha) alpha[i] = from[3];
    }
    *picture = (struct sluice_picture){.struct_size = sizeof *picture,
                                       .width = all.dim[1],
                                       .height = all.dim[0],
                                       .rgb = rgb,
                                       .alpha = alpha};
    return picture;
}

static void set_control(const struct golden *g, const json_t *c, struct sluice_request *r) {
    char full[NAME];
    if (!has_golden(g, case_tensor(c, "picture.control", full))) return;
    struct tensor all = golden(g, full);
    const struct sluice_picture **frames = test_memory(sizeof *frames * (size_t)all.dim[0]);
    for (int i = 0; i < all.dim[0]; i++) {
        struct sluice_picture *frame = test_memory(sizeof *frame);
        *frame = (struct sluice_picture){.struct_size = sizeof *frame,
                                         .width = all.dim[2],
                                         .height = all.dim[1],
                                         .rgb = tensor_slice(all, i, 1).data};
        frames[i] = frame;
    }
    r->control = frames;
    r->n_control = all.dim[0];
}

static double number_or(const json_t *about, const char *key, double otherwise) {
    const json_t *number = json_object_get(about, key);
    return number ? json_number_value(number) : otherwise;
}

/* Returns the image of a control whose tensor "caseN.TAIL" the control names with `key`; NULL: none. */
static const struct sluice_picture *control_picture_of(const struct golden *g, const json_t *c,
                                                       const json_t *control, const char *key) {
    const char *tail = text_of(control, key);
    const struct sluice_picture *picture = tail ? picture_of(g, c, tail) : NULL;
    if (tail) assert_non_null(picture);
    return picture;
}

/* Sets the control images from "controls" of a case: a list of {"network": index in fixture.control_nets, -1
 * for the model itself; "image", "mask", "inpaint": tails of tensor names; "strength", "start", "end";
 * "mode"; "canny": true}. Absent numbers are 1, 0, 1 and -1. */
static void set_control_nets(const struct golden *g, const json_t *c, struct sluice_request *r) {
    const json_t *list = json_object_get(c, "controls");
    int n = (int)json_array_size(list);
    struct sluice_control *controls = test_memory(sizeof *controls * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        const json_t *control = json_array_get(list, (size_t)i);
        controls[i] = (struct sluice_control){.struct_size = sizeof *controls,
                                              .network = number_of(control, "network"),
                                              .image = control_picture_of(g, c, control, "image"),
                                              .strength = number_or(control, "strength", 1),
                                              .start = number_or(control, "start", 0),
                                              .end = number_or(control, "end", 1),
                                              .mode = (int)number_or(control, "mode", -1),
                                              .mask = control_picture_of(g, c, control, "mask"),
                                              .inpaint = control_picture_of(g, c, control, "inpaint"),
                                              .canny = json_is_true(json_object_get(control, "canny"))};
    }
    r->controls = controls;
    r->n_controls = n;
    r->guess_mode = json_is_true(json_object_get(c, "guess_mode"));
}

/* Sets the images that join the prompt, "caseN.picture.redux_00I". */
static void set_redux(const struct golden *g, const json_t *c, struct sluice_request *r) {
    int n = (int)json_array_size(json_object_get(c, "redux"));
    const struct sluice_picture **images = test_memory(sizeof *images * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        char name[TAIL];
        snprintf(name, sizeof name, "picture.redux_%03d", i);
        images[i] = picture_of(g, c, name);
        assert_non_null(images[i]);
    }
    r->redux_images = images;
    r->n_redux_images = n;
    r->redux_strength = json_number_value(json_object_get(c, "redux_strength"));
}

static void set_skip_layers(const json_t *c, struct sluice_request *r) {
    const json_t *layers = json_object_get(c, "slg_layers");
    int n = (int)json_array_size(layers), *skipped = test_memory(sizeof *skipped * (size_t)(n + 1));
    for (int i = 0; i < n; i++) skipped[i] = (int)json_integer_value(json_array_get(layers, (size_t)i));
    if (!n) return;
    r->slg_layers = skipped;
    r->n_slg_layers = n;
    r->slg_scale = json_number_value(json_object_get(c, "slg_scale"));
    r->slg_start = json_number_value(json_object_get(c, "slg_start"));
    r->slg_end = json_number_value(json_object_get(c, "slg_end"));
}

/* Sets --cfg-norm and --cfg-until from expect.json; 0 if absent: the default. */
static void set_guidance_limits(const json_t *c, struct sluice_request *r) {
    r->cfg_norm = json_number_value(json_object_get(c, "cfg_norm"));
    r->cfg_until = json_number_value(json_object_get(c, "cfg_until"));
}

/* Sets the second pass from "hires" of a case: {"scale", "strength", "steps", "upscaler"}. */
static void set_second_pass(const json_t *c, struct sluice_request *r) {
    const json_t *hires = json_object_get(c, "hires");
    if (!hires) return;
    r->hires_scale = json_number_value(json_object_get(hires, "scale"));
    r->hires_strength = json_number_value(json_object_get(hires, "strength"));
    r->hires_steps = number_of(hires, "steps");
    r->hires_upscaler = text_of(hires, "upscaler");
}

/* Returns the sigmas of a case, NULL if the key is absent or null; sets *n. */
static const double *sigmas_of(const json_t *c, const char *key, int *n) {
    const json_t *list = json_object_get(c, key);
    *n = (int)json_array_size(list);
    double *sigmas = test_memory(sizeof *sigmas * (size_t)(*n + 1));
    for (int i = 0; i < *n; i++) sigmas[i] = json_number_value(json_array_get(list, (size_t)i));
    return *n ? sigmas : NULL;
}

/* Sets the sigmas of the case, and LTX-2's guidance if the case has stg_blocks. */
static void set_sigmas_and_guidance(const json_t *c, struct sluice_request *r) {
    const json_t *blocks = json_object_get(c, "stg_blocks");
    int n = (int)json_array_size(blocks), *numbers = test_memory(sizeof *numbers * (size_t)(n + 1));
    for (int i = 0; i < n; i++) numbers[i] = (int)json_integer_value(json_array_get(blocks, (size_t)i));
    r->sigmas = sigmas_of(c, "sigmas", &r->n_sigmas);
    r->upscale_sigmas = sigmas_of(c, "upscale_sigmas", &r->n_upscale_sigmas);
    r->upscale_latent = r->upscale_sigmas != NULL;
    if (!blocks) return;
    r->fps = number_of(c, "fps");
    r->stg_blocks = n ? numbers : NULL;
    r->n_stg_blocks = n;
    r->audio_cfg_scale = json_number_value(json_object_get(c, "audio_cfg_scale")); /* null: the video's */
    r->stg_scale = json_number_value(json_object_get(c, "stg_scale"));
    r->audio_stg_scale = json_number_value(json_object_get(c, "audio_stg_scale"));
    r->modality_scale = json_number_value(json_object_get(c, "modality_scale"));
    r->audio_modality_scale = json_number_value(json_object_get(c, "audio_modality_scale"));
    r->cfg_rescale = json_number_value(json_object_get(c, "cfg_rescale"));
    r->audio_cfg_rescale = json_number_value(json_object_get(c, "audio_cfg_rescale"));
}

static void set_images(const struct golden *g, const json_t *c, struct sluice_request *r) {
    int n = (int)json_array_size(json_object_get(c, "references"));
    const struct sluice_picture **references = test_memory(sizeof *references * (size_t)(n + 1));
    r->init_image = picture_of(g, c, "picture.init");
    r->end_image = picture_of(g, c, "picture.last");
    r->mask = picture_of(g, c, "picture.mask");
    for (int i = 0; i < n; i++) {
        char name[TAIL];
        snprintf(name, sizeof name, "picture.reference_%03d", i);
        references[i] = picture_of(g, c, name);
        assert_non_null(references[i]);
    }
    r->references = references;
    r->n_references = n;
    if (json_object_get(c, "strength")) r->strength = json_number_value(json_object_get(c, "strength"));
}

/* Sets the adapters of a request from expect.json; their files are in the fixture's folder. */
static void set_adapters(const struct golden *g, const json_t *c, struct sluice_request *r) {
    const json_t *adapters = json_object_get(c, "adapters");
    int n = (int)json_array_size(adapters);
    struct sluice_lora *loras = test_memory(sizeof *loras * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        const json_t *adapter = json_array_get(adapters, (size_t)i);
        char *path = test_memory(PATH);
        snprintf(path, PATH, "%s/%s", g->path, text_of(adapter, "file"));
        loras[i] = (struct sluice_lora){path, json_number_value(json_object_get(adapter, "strength"))};
    }
    r->loras = loras;
    r->n_loras = n;
}

struct sluice_request request_of(struct public_run *p, const json_t *c) {
    struct sluice_request r = {.struct_size = sizeof r};
    sluice_request_defaults(p->model, &r);
    r.prompt = text_of(c, "prompt");
    r.negative_prompt = text_of(c, "negative_prompt");
    r.cfg_scale = json_number_value(json_object_get(c, "cfg_scale"));
    r.dump = p->folder;
    /* NULL on a GPU: f16 for UNets, else bf16. */
    r.precision = on_gpu() ? NULL : precision_name(golden_state.precision);
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
    r.flow_shift = json_number_value(json_object_get(c, "flow_shift"));
    r.guidance = json_number_value(json_object_get(c, "guidance"));
    if (json_object_get(c, "frames")) r.frames = number_of(c, "frames");
    r.cfg_scale_low = json_number_value(json_object_get(c, "cfg_scale_low")); /* null: cfg_scale */
    r.sampler = text_of(c, "sampler");
    set_guidance_limits(c, &r);
    set_skip_layers(c, &r);
    set_images(p->golden, c, &r);
    set_control(p->golden, c, &r);
    set_control_nets(p->golden, c, &r);
    set_redux(p->golden, c, &r);
    set_adapters(p->golden, c, &r);
    set_second_pass(c, &r);
    set_sigmas_and_guidance(c, &r);
    return r;
}

bool has_high_guidance(const json_t *c) {
    return golden_state.precision == PRECISION_F32 && json_number_value(json_object_get(c, "guidance")) > 10;
}

/* Expects zeros from element `from` on, where a prompt's embedding is padded. */
static void expect_zeros(struct tensor ours, int64_t from) {
    for (int64_t i = from; i < tensor_elements(&ours); i++) assert_true(((float *)ours.data)[i] == 0);
}

void expect_dump(struct public_run *p, const json_t *c, const char *file, const char *tolerance,
                 const char *tail) {
    char name[NAME], detail[NAME];
    const struct golden *g = p->golden;
    if (!has_golden(g, case_tensor(c, tail, name))) return;
    struct tensor truth = golden(g, name), ours = read_dump(p, file, file);
    int64_t n = tensor_elements(&truth);
    const char *lane = strchr(tail, '.');
    snprintf(detail, sizeof detail, "case %d %s", number_of(c, "index"), lane ? lane + 1 : tail);
    if (!strcmp(tolerance, "hidden") && tensor_elements(&ours) > n)
        expect_zeros(ours, n);
    else
        assert_int_equal(tensor_elements(&ours), n);
    expect_values(g, tolerance, detail, ours.data, truth.data, n);
}

/* Compares token ids. Dump names number only the text encoders that the model has. */
static void expect_tokens(struct public_run *p, const json_t *c, const char *lane, const char *end) {
    static const char *const places[] = {"", "_2", "_3"};
    int n = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char tail[TAIL], name[NAME], file[TAIL];
        snprintf(tail, sizeof tail, "ids%s.%s", places[i], lane);
        if (!has_golden(p->golden, case_tensor(c, tail, name))) continue;
        snprintf(file, sizeof file, "tokens%s%s", places[n++], end);
        struct tensor truth = golden(p->golden, name), ours = read_dump(p, file, file);
        assert_int_equal(tensor_bytes(&ours), tensor_bytes(&truth));
        assert_memory_equal(ours.data, truth.data, (size_t)tensor_bytes(&truth));
    }
}

void expect_texts(struct public_run *p, const json_t *c) {
    expect_tokens(p, c, "cond", "");
    expect_tokens(p, c, "uncond", "_uncond");
    expect_dump(p, c, "cond", "hidden", "hidden.cond");
    expect_dump(p, c, "uncond", "hidden", "hidden.uncond");
    expect_dump(p, c, "pooled", "pooled", "pooled.cond");
    expect_dump(p, c, "pooled_uncond", "pooled", "pooled.uncond");
}

double noise_error(struct tensor truth, uint64_t seed) {
    struct generator g;
    float *ours = test_memory((size_t)tensor_bytes(&truth));
    generator_seed(&g, seed);
    generator_normals(&g, ours, tensor_elements(&truth));
    return largest_difference(ours, truth.data, tensor_elements(&truth));
}

void expect_latents(struct public_run *p, const json_t *c) {
    char name[NAME], detail[NAME];
    struct tensor truth = golden(p->golden, case_tensor(c, "latent", name)),
                  ours = read_dump(p, "final", "latent");
    int64_t each = tensor_elements(&truth) / truth.dim[0];
    assert_int_equal(tensor_elements(&ours), tensor_elements(&truth));
    for (int k = 0; k < truth.dim[0]; k++) {
        snprintf(detail, sizeof detail, "case %d image %d", number_of(c, "index"), k);
        expect_values(p->golden, has_high_guidance(c) ? "latent, high guidance" : "latent", detail,
                      (float *)ours.data + k * each, (float *)truth.data + k * each, each);
        if (!has_golden(p->golden, case_tensor(c, "noise", name))) continue;
        expect_error(p->golden, "noise.randn", detail,
                     noise_error(tensor_slice(golden(p->golden, name), k, 1),
                                 (uint64_t)(json_integer_value(json_object_get(c, "seed")) + k)));
    }
}

void expect_sounds(struct public_run *p, const json_t *c) {
    char name[NAME], detail[NAME];
    if (!has_golden(p->golden, case_tensor(c, "sound", name))) return;
    struct tensor truth = golden(p->golden, name), ours = read_dump(p, "final_sound", "latent");
    int64_t each = tensor_elements(&truth) / truth.dim[0];
    assert_int_equal(tensor_elements(&ours), tensor_elements(&truth));
    for (int k = 0; k < truth.dim[0]; k++) {
        snprintf(detail, sizeof detail, "case %d sound %d", number_of(c, "index"), k);
        expect_values(p->golden, "sound", detail, (float *)ours.data + k * each,
                      (float *)truth.data + k * each, each);
    }
}

void run_latents(struct public_run *p, const json_t *c) {
    char latent[PATH], file[TAIL];
    struct sluice_error error;
    struct sluice_request r = request_of(p, c);
    snprintf(latent, sizeof latent, "%s/final.safetensors", p->folder);
    r.save_latent = latent;
    r.no_decode = true;
    assert_public(sluice_run(p->session, &r, &error), &error);
    expect_texts(p, c);
    for (int step = 1; step < r.steps; step++) {
        snprintf(file, sizeof file, "latent_%03d", step);
        expect_dump(p, c, file, "latent after a step", file);
    }
    expect_latents(p, c);
}
