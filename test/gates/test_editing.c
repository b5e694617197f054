/* Image editing (--ref-image): rejected requests, sizes of the vision input, VAE input and output, plans
 * without images, detection of the pipeline, models without vision or VAE encoder. test_vision_inputs.c
 * compares pixels, and test_golden.c images, with the reference. */
#include "engine/pictures/pictures.h"
#include "test/lib/gates.h"
#include "test/lib/layout_checks.h"

static struct sluice_request request_of(const struct sluice_picture *const *references, int n) {
    struct sluice_request r = request_fox(0, 0, 2, 1, 1);
    r.references = references;
    r.n_references = n;
    r.no_decode = true;
    return r;
}

static void test_image_count_is_checked(struct rig *rig, int most) {
    struct sluice_picture fox = noise_picture(0, 40, 30);
    const struct sluice_picture *const references[] = {&fox, &fox, &fox, &fox};
    struct sluice_request r = request_of(NULL, 0);
    run_refused(rig, &r, "USAGE", 2, "--ref-image");
    r = request_of(references, most + 1);
    run_refused(rig, &r, "USAGE", 2, most == 1 ? "found 2, expected 1" : "found 4, expected 1 to 3");
}

/* Encoders reject images whose side rounds to 0, or whose rounded aspect ratio exceeds 200. */
static void test_extreme_aspects_are_rejected(struct rig *rig) {
    static const int wrong[][2] = {{16384, 1}, {1, 16384}, {640, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sluice_picture thread = noise_picture(0, wrong[i][0], wrong[i][1]);
        const struct sluice_picture *one = &thread;
        struct sluice_request r = request_of(&one, 1);
        r.width = r.height = 64;
        run_refused(rig, &r, "SHAPE", 3, "fox.png");
    }
    struct sluice_picture dot = noise_picture(0, 1, 1), none = noise_picture(0, 0, 1);
    const struct sluice_picture *one = &dot, *nothing = &none;
    struct sluice_request r = request_of(&one, 1);
    r.width = r.height = 64;
    check(run_ok(rig, &r, "image of one pixel").n_latents == 1, "image of one pixel: no latent");
    r = request_of(&nothing, 1);
    run_refused(rig, &r, "LIMIT", 3, "0x1");
}

static json_t *planned_request(struct rig *rig, const struct sluice_request *r, json_t **plan) {
    *plan = query(rig, r, NULL);
    return json_object_get(*plan, "request");
}

static void test_sizes_follow_last_image(struct rig *rig) {
    const struct picture_areas *areas = &rig->model->recipe->images.areas;
    int n = rig->model->references_max;
    struct sluice_picture wide = noise_picture(0, 300, 200), tall = noise_picture(0, 100, 310);
    const struct sluice_picture *const references[] = {&wide, &wide, &tall}, *const *first =
                                                                                 references + 3 - n;
    struct sluice_request r = request_of(first, n);
    const struct sluice_picture *last = first[n - 1];
    struct picture_size from = {last->width, last->height},
                        output_size = picture_area_size(from, areas->output, areas->multiple),
                        read = picture_area_size(from, areas->vae, areas->multiple);
    json_t *plan, *request = planned_request(rig, &r, &plan);
    check(number(request, "width") == output_size.width && number(request, "height") == output_size.height,
          "output size %dx%d", (int)number(request, "width"), (int)number(request, "height"));
    json_t *references_json = json_object_get(request, "references"),
           *one = json_array_get(references_json, (size_t)n - 1);
    check((int)json_array_size(references_json) == n && number(one, "width") == read.width &&
              number(one, "height") == read.height,
          "VAE input size %dx%d", (int)number(one, "width"), (int)number(one, "height"));
    check(number(stage_of(plan, "vision"), "evaluations") == n &&
              number(stage_of(plan, "encode"), "lanes") == n,
          "images of the stages vision and encode");
    r.height = 80;
    request = planned_request(rig, &r, &plan);
    check(number(request, "width") == output_size.width && number(request, "height") == 80,
          "output size with --height");
}

static int tokens_of(json_t *request) {
    return (int)json_integer_value(json_array_get(json_object_get(request, "tokens"), 0));
}

/* Planning without a prompt and without images assumes one reference image. Each image adds prompt tokens. */
static void test_plan_assumes_one_image(struct rig *rig) {
    struct sluice_picture fox = noise_picture(0, 64, 64);
    const struct sluice_picture *const references[] = {&fox, &fox, &fox};
    struct sluice_request r = request_of(NULL, 0);
    r.prompt = NULL;
    json_t *plan, *request = planned_request(rig, &r, &plan);
    int tokens = tokens_of(request), last = 0;
    check(json_is_true(json_object_get(request, "reference_assumed")) &&
              json_array_size(json_object_get(request, "references")) == 1 && stage_of(plan, "vision"),
          "the plan assumes no image");
    for (int n = 1; n <= rig->model->references_max; n++) {
        r = request_of(references, n);
        request = planned_request(rig, &r, &plan);
        check(tokens_of(request) > last && !json_object_get(request, "reference_assumed"),
              "%d images: %d tokens", n, tokens_of(request));
        if (n == 1)
            check(tokens_of(request) < tokens, "the assumed longest prompt has only %d tokens", tokens);
        last = tokens_of(request);
    }
}

/* `sluice tokenize` counts an image as one <|image_pad|> token. */
static void test_image_is_one_token(struct rig *rig, const char *folder) {
    static const char prompt[] = "a fox";
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    int slot = recipe_slot(rig->model->recipe, FAMILY_TEXT), n = 0;
    int32_t pad = tokenizer_special(rig->model->tokenizer[slot], "<|image_pad|>");
    struct sluice_error e;
    char *text = NULL;
    check(!sluice_tokenize(&from, prompt, sizeof prompt - 1, &text, &e), "tokenize: %s", e.what);
    json_t *json = text ? json_loads(text, 0, NULL) : NULL, *id,
           *encoder = json_array_get(json_object_get(json, "encoders"), 0);
    size_t i;
    json_array_foreach(json_object_get(encoder, "ids"), i, id) n += json_integer_value(id) == pad;
    check(n == 1, "tokenize: %d <|image_pad|> tokens", n);
    json_decref(json);
    sluice_free(text);
}

static bool opened(struct rig *rig, const char *folder, const char *edit, const char *recipe, int least,
                   int most) {
    if (!rig_open_with(rig, (struct sluice_model_options){.model = folder, .edit = edit},
                       (struct sluice_session_options){.threads = 1}, 5))
        return false;
    const struct recipe *found = rig->model->recipe;
    return check(!strcmp(found->name, recipe) && found->images.references_min == least &&
                     rig->model->references_max == most,
                 "%s with --edit %s: recipe %s, %d to %d images", folder, edit ? edit : "unset", found->name,
                 found->images.references_min, rig->model->references_max);
}

static void test_edit_flag_selects_pipeline(const char *fixture) {
    const char *folder = copy_model_folder(fixture, "unnamed");
    struct sluice_picture fox = noise_picture(0, 64, 64);
    const struct sluice_picture *const references[] = {&fox, &fox, &fox};
    struct sluice_request r = request_of(references, 2), none = request_of(NULL, 0);
    struct rig rig;
    struct error e = {0};
    shell("rm '%s/model_index.json'", folder);
    if (opened(&rig, folder, NULL, "qwen_image", 0, 3)) {
        json_t *plan, *request = planned_request(&rig, &r, &plan);
        check(json_array_size(json_object_get(request, "references")) == 2,
              "images of a model without model_index.json");
        request = planned_request(&rig, &none, &plan);
        check(!stage_of(plan, "vision") && number(request, "width") == rig.model->width,
              "text request to a model without model_index.json");
        rig_close(&rig);
    }
    if (opened(&rig, folder, "plus", "qwen_image_edit_plus", 1, 3)) rig_close(&rig);
    if (opened(&rig, folder, "plain", "qwen_image_edit", 1, 1)) rig_close(&rig);
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder, .edit = "twice"};
    struct sluice_model *model = NULL;
    check(model_open(NULL, &from, &model, &e) == USAGE && strstr(e.expected, "plain, plus or 2511"), "%s: %s",
          e.what, e.expected);
    from = (struct sluice_model_options){
        .struct_size = sizeof from, .model = "test/golden/zimage_a/model", .edit = "plus"};
    e = (struct error){0};
    check(model_open(NULL, &from, &model, &e) == USAGE && strstr(e.where, "zimage_a"), "%s", e.what);
    if (opened(&rig, fixture, "plain", "qwen_image_edit", 1, 1)) rig_close(&rig);
}

/* Returns a copy of the fixture without a component's tensors whose names start with `prefix`. */
static const char *copy_without_tensors(const char *fixture, const char *component, const char *prefix,
                                        const char *name) {
    const char *folder = copy_model_folder(fixture, name);
    struct tensor_set *p = tensor_set_from_component(fixture, component);
    tensor_set_drop(p, prefix);
    shell("rm '%s/%s'/*.safetensors*", folder, component);
    const char *path = format_text("%s/%s/%s.safetensors", folder, component,
                                   strcmp(component, "vae") ? "model" : "diffusion_pytorch_model");
    write_tensor_set(p, path, NULL);
    tensor_set_free(p);
    return folder;
}

static void test_missing_encoder_is_named(const char *fixture) {
    struct sluice_picture fox = noise_picture(0, 64, 64);
    const struct sluice_picture *one = &fox;
    struct sluice_request r = request_of(&one, 1);
    struct rig rig;
    if (opened(&rig, copy_without_tensors(fixture, "text_encoder", "visual.", "blind"), NULL,
               "qwen_image_edit_plus", 1, 3)) {
        run_refused(&rig, &r, "MISSING", 3, "--llm_vision");
        rig_close(&rig);
    }
    if (opened(&rig, copy_without_tensors(fixture, "vae", "encoder.", "unread"), NULL, "qwen_image_edit_plus",
               1, 3)) {
        run_refused(&rig, &r, "MISSING", 3, "'encoder.'");
        rig_close(&rig);
    }
}

static int read_fails(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    struct error no = {0};
    error_set(&no, TRUNC, "the image is truncated");
    return publish_error(&no, e);
}

static int read_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *e) {
    for (int y = 0; y < picture->height; y++) take(to, noise_pixels(0) + y % 64);
    return SLUICE_OK;
}

/* Input images are scaled row by row: 6000x4000 takes only a few rows more memory than 60x40. */
static void test_large_image_is_scaled_by_rows(struct rig *rig) {
    enum { ROWS_BYTES = 2 << 20 };
    struct sluice_picture large = noise_picture(0, 6000, 4000), small = noise_picture(0, 60, 40);
    large.rgb = NULL;
    large.read = read_fails;
    large.read_rows = read_rows;
    const struct sluice_picture *const references[] = {&large, &small};
    json_int_t peak[2];
    for (int i = 0; i < 2; i++) {
        struct sluice_request r = request_of(references + i, 1);
        peak[i] = ram(query(rig, &r, NULL), "peak");
    }
    check(peak[0] - peak[1] < ROWS_BYTES, "a large image takes %lld bytes more",
          (long long)(peak[0] - peak[1]));
    struct sluice_request r = request_of(references, 1);
    r.width = r.height = 64;
    check(run_ok(rig, &r, "large image").n_latents == 1, "large image: no latent");
}

/* The latent depends on the order of reference images. An unreadable image ends the run without leaks. */
static void test_image_order_matters(struct rig *rig) {
    struct sluice_picture a = noise_picture(0, 60, 40), b = noise_picture(1, 60, 40),
                          broken = noise_picture(0, 60, 40);
    broken.rgb = NULL;
    broken.read = read_fails;
    const struct sluice_picture *const orders[][2] = {{&a, &b}, {&b, &a}, {&a, &a}, {&a, &b}, {&a, &broken}};
    struct result got[5];
    for (int i = 0; i < 5; i++) {
        struct sluice_request r = request_of(orders[i], 2);
        r.width = 64;
        r.height = 48;
        got[i] = run(rig, &r);
    }
    check(strcmp(got[0].latent[0], got[1].latent[0]) && strcmp(got[0].latent[0], got[2].latent[0]) &&
              strcmp(got[1].latent[0], got[2].latent[0]),
          "other images give the same latent");
    check(!got[0].code && !strcmp(got[0].latent[0], got[3].latent[0]),
          "the same images give another latent: %s", got[0].error.what);
    check(got[4].code && !strcmp(sluice_code_name(got[4].code), "TRUNC"), "unreadable image: %s",
          got[4].error.what);
    check_memory_released(rig, true, "image reading");
}

/* Replaces the rules for pictures of the opened model's recipe. */
static void set_images(struct rig *rig, struct recipe *changed, struct recipe_images images) {
    *changed = *rig->model->recipe;
    changed->images = images;
    rig->model->recipe = changed;
}

/* Returns `picture` resized to `whole` and cropped to `size` at (x, y). The caller frees the result's rgb. */
static struct sluice_picture resized_part(struct sluice_picture picture, struct picture_size whole, int x,
                                          int y, struct picture_size size) {
    struct error e = {0};
    struct sys sys;
    uint8_t *all = malloc(3 * (size_t)whole.width * (size_t)whole.height),
            *part = malloc(3 * (size_t)size.width * (size_t)size.height);
    sys_init_machine(&sys);
    check(all && part && picture_resize(&sys, &picture, PILLOW_LANCZOS, whole, all, &e) == OK, "%s", e.what);
    for (int row = 0; row < size.height; row++)
        memcpy(part + 3 * (size_t)row * (size_t)size.width,
               all + 3 * ((size_t)(y + row) * (size_t)whole.width + (size_t)x), 3 * (size_t)size.width);
    free(all);
    picture.rgb = part;
    picture.width = size.width;
    picture.height = size.height;
    return picture;
}

/* Runs a request with the reference `picture` and no output size. Its latent must equal that of a run with
 * the reference `ready` and ready's size as output size. Frees the pixels of `ready`. */
static void check_fits_like(struct rig *rig, const struct sluice_picture *picture,
                            const struct sluice_picture *ready, const char *what) {
    struct sluice_request r = request_of(&picture, 1), same = request_of(&ready, 1);
    same.width = ready->width;
    same.height = ready->height;
    struct result want = run_ok(rig, &same, what);
    run_equal(rig, &r, &want, what);
    free((void *)(uintptr_t)ready->rgb);
}

/* LongCat-Image-Edit's rules: the output has the reference's aspect ratio, sides rounded up; the VAE reads
 * the reference at this size, and the vision encoder reads half of that picture. */
static void test_reference_takes_output_size(const char *fixture) {
    struct sluice_picture picture = noise_picture(0, 70, 90);
    struct picture_size size = {96, 112};
    struct recipe changed;
    struct rig rig;
    if (!rig_open(&rig, fixture, 1, 5)) return;
    struct recipe_images images = rig.model->recipe->images;
    images.areas = (struct picture_areas){
        .output = 96 * 96, .multiple = 16, .rounds_up = true, .vae_of_output = true, .vision_divisor = 2};
    set_images(&rig, &changed, images);
    struct sluice_picture ready = resized_part(picture, size, 0, 0, size);
    check_fits_like(&rig, &picture, &ready, "reference of the output's size");
    rig_close(&rig);
}

/* Flux.2's rules: a reference shrinks to an area, then is cropped around its centre; its size is the output
 * size. When inpainting, the input image is the first reference. */
static void test_reference_is_cropped(const char *fixture) {
    struct sluice_picture picture = noise_picture(0, 130, 80), init = noise_picture(1, 112, 64),
                          mask = noise_picture(2, 112, 64);
    struct recipe changed;
    struct rig rig;
    if (!rig_open(&rig, fixture, 1, 5)) return;
    struct recipe_images images = rig.model->recipe->images;
    images.samples_posterior = false;
    images.mask_bilinear = true;
    images.areas = (struct picture_areas){.vae_max = 96 * 96, .multiple = 16, .output_of_first = true};
    set_images(&rig, &changed, images);
    /* sqrt(96 * 96 / (130 * 80)) is 0.941 */
    struct sluice_picture ready =
        resized_part(picture, (struct picture_size){122, 75}, 5, 5, (struct picture_size){112, 64});
    check_fits_like(&rig, &picture, &ready, "cropped reference");
    const struct sluice_picture *const both[] = {&init, &picture};
    struct sluice_request r = request_of(both, 2);
    r.init_image = &init;
    r.mask = &mask;
    r.strength = 0.7;
    struct result want = run_ok(&rig, &r, "input image as a reference of the request");
    images.init_is_reference = true;
    set_images(&rig, &changed, images);
    r.references = both + 1;
    r.n_references = 1;
    run_equal(&rig, &r, &want, "input image as the first reference");
    rig_close(&rig);
}

int main(void) {
    static const char plus[] = "test/golden/qwen_edit_plus/model", plain[] = "test/golden/qwen_edit/model";
    struct rig rig;
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    if (opened(&rig, plus, NULL, "qwen_image_edit_plus", 1, 3)) {
        test_image_count_is_checked(&rig, 3);
        test_extreme_aspects_are_rejected(&rig);
        test_sizes_follow_last_image(&rig);
        test_plan_assumes_one_image(&rig);
        test_image_order_matters(&rig);
        test_large_image_is_scaled_by_rows(&rig);
        rig_close(&rig);
    }
    if (opened(&rig, plain, NULL, "qwen_image_edit", 1, 1)) {
        test_image_count_is_checked(&rig, 1);
        test_image_is_one_token(&rig, plain);
        test_sizes_follow_last_image(&rig);
        test_plan_assumes_one_image(&rig);
        rig_close(&rig);
    }
    test_edit_flag_selects_pipeline(plus);
    test_missing_encoder_is_named(plus);
    test_reference_takes_output_size(plain);
    test_reference_is_cropped("test/golden/flux_kontext/model");
    return finish();
}
