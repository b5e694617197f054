/* Image to video: rejected requests, output size, plans without images, vision encoder input, encoder retries
 * when an operator has no memory. test_golden.c compares the videos with the reference. */
#include "engine/pictures/pictures.h"
#include "test/lib/failing_operators.h"

#include <math.h>

enum { FRAMES = 9 };

static struct sluice_picture wide;

static struct sluice_request request_of(const struct sluice_picture *first,
                                        const struct sluice_picture *last) {
    struct sluice_request r = request_fox(64, 32, 2, 1, 1);
    r.frames = FRAMES;
    r.negative_prompt = "";
    r.strength = 1;
    r.init_image = first;
    r.end_image = last;
    return r;
}

/* ends: the model accepts a last frame (--end-img). needs_first, needs_last: the model requires a first or a
 * last frame. */
static void test_invalid_requests_are_rejected(struct rig *rig, bool ends, bool needs_first,
                                               bool needs_last) {
    struct sluice_request r = request_of(NULL, NULL);
    if (needs_first) run_refused(rig, &r, "USAGE", 2, "expected --init-img");
    r = request_of(&wide, needs_last ? NULL : &wide);
    if (needs_last) run_refused(rig, &r, "USAGE", 2, "expected --end-img FILE in addition to --init-img");
    if (!ends) run_refused(rig, &r, "USAGE", 2, "--end-img cannot be used with this model");
    r = request_of(&wide, ends ? &wide : NULL);
    r.strength = 0.5;
    run_refused(rig, &r, "USAGE", 2, "invalid value for --strength: found 0.5");
    r = request_of(&wide, ends ? &wide : NULL);
    r.mask = &wide;
    run_refused(rig, &r, "USAGE", 2, "--mask cannot be used with this model");
    r = request_of(&wide, ends ? &wide : NULL);
    r.frames = 8;
    run_refused(rig, &r, "USAGE", 2, "found 8, expected 1 to 1021, one more than a multiple of 4");
    struct sluice_picture none = noise_picture(0, 0, 1);
    r = request_of(&none, ends ? &wide : NULL);
    run_refused(rig, &r, "LIMIT", 3, "0x1");
    r = request_of(&wide, &none);
    if (ends) run_refused(rig, &r, "LIMIT", 3, "0x1");
    r = request_of(&wide, ends ? &wide : NULL);
    r.control = &r.init_image;
    r.n_control = 1;
    run_refused(rig, &r, "USAGE", 2, "--control cannot be used with this model");
}

static void test_single_frame_is_rejected(struct rig *rig, bool ends, const char *words) {
    struct sluice_request r = request_of(&wide, ends ? &wide : NULL);
    r.frames = 1;
    run_refused(rig, &r, "USAGE", 2, words);
}

static void test_text_models_reject_images(struct rig *rig) {
    struct sluice_request r = request_of(&wide, NULL);
    run_refused(rig, &r, "USAGE", 2, "--init-img cannot be used with this model");
    r = request_of(NULL, &wide);
    run_refused(rig, &r, "USAGE", 2, "--end-img cannot be used with this model");
}

/* The default output size has the model's pixel count and the input image's aspect ratio; with one side
 * given, the other follows the aspect ratio. Sides are multiples of size_step. */
static void test_default_size_follows_image(struct rig *rig, bool ends) {
    struct sluice_request r = request_of(&wide, ends ? &wide : NULL);
    const struct sluice_model *m = rig->model;
    int step = m->size_step;
    double width = sqrt(m->width * (double)m->height * wide.width / wide.height);
    const struct {
        int width, height, expected_width, expected_height; /* 0: not given */
    } rows[] = {{0, 0, (int)(width / step) * step, (int)(width * wide.height / wide.width / step) * step},
                {6 * step, 0, 6 * step, 4 * step},
                {0, 4 * step, 6 * step, 4 * step}};
    for (int i = 0; i < 3; i++) {
        r.width = rows[i].width;
        r.height = rows[i].height;
        json_t *request = json_object_get(query(rig, &r, NULL), "request");
        check(number(request, "width") == rows[i].expected_width &&
                  number(request, "height") == rows[i].expected_height,
              "size %dx%d of a request for %dx%d", (int)number(request, "width"),
              (int)number(request, "height"), r.width, r.height);
        check(number(request, "frames") == FRAMES && !json_object_get(request, "frames_assumed") &&
                  !json_object_get(request, "strength"),
              "frames, frames_assumed or strength of the plan's request");
    }
}

/* Checks plans made without the input images. images: number of images in the vision stage; chunks: number of
 * frame chunks that the VAE encodes. */
static void test_plan_assumes_images(struct rig *rig, int images, int chunks) {
    struct sluice_request r = request_of(NULL, NULL);
    r.prompt = NULL;
    json_t *plan = query(rig, &r, NULL), *request = json_object_get(plan, "request");
    check(json_is_true(json_object_get(request, "frames_assumed")), "the plan assumes no first frame");
    check(number(stage_of(plan, "encode"), "evaluations") == chunks,
          "unexpected number of encoded chunks: %d", (int)number(stage_of(plan, "encode"), "evaluations"));
    check(images ? number(stage_of(plan, "vision"), "evaluations") == images : !stage_of(plan, "vision"),
          "the vision stage does not have %d images", images);
}

static char *dumped(const char *folder, const char *name, size_t *bytes) {
    const char *path = format_text("%s/%s", folder, name);
    return read_file(path, bytes);
}

/* One input image at two output sizes gives equal vision embeddings and different concat channels. */
static void test_vision_input_ignores_output_size(struct rig *rig, bool ends) {
    const char *folders[] = {temporary_path("seen_0"), temporary_path("seen_1")};
    char *seen[2], *concat[2];
    size_t n[2], m[2];
    for (int i = 0; i < 2; i++) {
        struct sluice_request r = request_of(&wide, ends ? &wide : NULL);
        shell("mkdir '%s'", folders[i]);
        r.width = i ? 32 : 64;
        r.height = i ? 64 : 32;
        r.dump = folders[i];
        run_ok(rig, &r, folders[i]);
        seen[i] = dumped(folders[i], "seen.safetensors", &n[i]);
        concat[i] = dumped(folders[i], "concat.safetensors", &m[i]);
    }
    check(n[0] && n[0] == n[1] && !memcmp(seen[0], seen[1], n[0]),
          "vision embeddings depend on the output size");
    check(m[0] > 512 && m[1] > 512 && (m[0] != m[1] || memcmp(concat[0], concat[1], m[0])),
          "concat channels ignore the output size");
    for (int i = 0; i < 2; i++) free(seen[i]), free(concat[i]);
}

/* A request with input images decodes a saved latent to the same frames as a request without input images. */
static void test_saved_latent_decodes_alike(struct rig *rig) {
    struct sluice_request r = request_of(&wide, NULL);
    const char *path = temporary_path("latent.safetensors");
    r.save_latent = path;
    struct result generated = run_ok(rig, &r, "with input images");
    r.save_latent = NULL;
    struct result got = run_or_decode(rig, &r, path);
    check(!got.code && !strcmp(generated.image[0], got.image[0]), "decoded: %s", got.error.what);
}

/* A retry of the VAE encoder restarts at the first frame; the host writes the input image again. */
static void test_encoder_retries_without_memory(struct rig *rig, bool ends) {
    struct sluice_request r = request_of(&wide, ends ? &wide : NULL);
    r.no_decode = true;
    operators_fail_in_turn(rig, &r);
}

int main(void) {
    struct rig rig;
    wide = noise_picture(0, 300, 200);
    temporary_make();
    if (rig_open(&rig, "test/golden/wan_i2v/model", 1, 1)) {
        test_invalid_requests_are_rejected(&rig, false, true, false);
        test_default_size_follows_image(&rig, false);
        test_plan_assumes_images(&rig, 1, 3);
        test_vision_input_ignores_output_size(&rig, false);
        test_encoder_retries_without_memory(&rig, false);
        rig_close(&rig);
    }
    if (rig_open(&rig, "test/golden/wan_flf2v/model", 1, 1)) {
        test_invalid_requests_are_rejected(&rig, true, true, true);
        test_single_frame_is_rejected(&rig, true, "(--end-img)");
        test_plan_assumes_images(&rig, 2, 3);
        test_encoder_retries_without_memory(&rig, true);
        rig_close(&rig);
    }
    if (rig_open(&rig, "test/golden/wan22_i2v/model", 1, 1)) {
        test_invalid_requests_are_rejected(&rig, true, true, false);
        test_plan_assumes_images(&rig, 0, 3);
        rig_close(&rig);
    }
    if (rig_open(&rig, "test/golden/wan_ti2v/model", 1, 1)) {
        test_invalid_requests_are_rejected(&rig, false, false, false);
        test_single_frame_is_rejected(&rig, false, "(--init-img)");
        test_saved_latent_decodes_alike(&rig);
        test_default_size_follows_image(&rig, false);
        test_encoder_retries_without_memory(&rig, false);
        rig_close(&rig);
    }
    if (rig_open(&rig, "test/golden/wan21/model", 1, 1)) {
        test_text_models_reject_images(&rig);
        rig_close(&rig);
    }
    return finish();
}
