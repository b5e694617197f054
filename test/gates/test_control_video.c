/* VACE requests with a control video and reference images: rejected requests, frame counts, VAE-encoded
 * chunks, frames from memory and from callbacks, saved latents, encoder retries. test_golden.c compares the
 * videos with the reference. */
#include "test/lib/failing_operators.h"

enum { FRAMES = 9, CONTROL_FRAMES = 10 };

static struct sluice_picture frames[CONTROL_FRAMES];
static const struct sluice_picture *list[CONTROL_FRAMES];
static struct sluice_picture fox, den;

static int read_noise(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    memcpy(rgb, picture->user, (size_t)picture->width * (size_t)picture->height * 3);
    return SLUICE_OK;
}

static int read_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *e) {
    const uint8_t *rgb = picture->user;
    for (int y = 0; y < picture->height; y++) take(to, rgb + (size_t)y * (size_t)picture->width * 3);
    return SLUICE_OK;
}

static int read_nothing(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    e->code = SLUICE_IO;
    e->exit_code = 3;
    snprintf(e->what, sizeof e->what, "frame is missing");
    return SLUICE_IO;
}

static void set_frames(int width, int height) {
    for (int i = 0; i < CONTROL_FRAMES; i++) {
        frames[i] = noise_picture(i, width, height);
        list[i] = &frames[i];
    }
}

static struct sluice_request request_of(int n_control) {
    struct sluice_request r = request_fox(48, 32, 2, 1, 1);
    r.frames = FRAMES;
    r.negative_prompt = "";
    r.strength = 1;
    r.control = list;
    r.n_control = n_control;
    return r;
}

static void test_invalid_requests_are_rejected(struct rig *rig) {
    const struct sluice_picture *const four[] = {&fox, &den, &fox, &den}, thread = noise_picture(0, 4096, 1),
                                       *thin = &thread, none = {0};
    struct sluice_request r = request_of(FRAMES - 1);
    run_refused(
        rig, &r, "USAGE", 2,
        "the control video (--control) has too few frames for --frames: found 8 frames for --frames 9");
    r = request_of(0);
    r.mask = &fox;
    run_refused(rig, &r, "USAGE", 2, "--control FOLDER in addition");
    r = request_of(-1);
    run_refused(rig, &r, "USAGE", 2, "invalid value for n_control");
    r = request_of(0);
    r.init_image = &fox;
    run_refused(rig, &r, "USAGE", 2, "--init-img cannot be used with this model");
    r = request_of(0);
    r.end_image = &fox;
    run_refused(rig, &r, "USAGE", 2, "--end-img cannot be used with this model");
    r = request_of(0);
    r.references = four;
    r.n_references = 4;
    run_refused(rig, &r, "USAGE", 2, "found 4, expected at most 3");
    r.references = &thin;
    r.n_references = 1;
    run_refused(rig, &r, "SHAPE", 3, "fox.png");
    r = request_of(FRAMES);
    frames[7].width--;
    run_refused(rig, &r, "USAGE", 2,
                "all frames of a control video (--control) must have one size (fox.png)");
    frames[7].width++;
    list[7] = &none;
    run_refused(rig, &r, "USAGE", 2, "--control: struct_size is not set");
    set_frames(48, 32);
    frames[7] = (struct sluice_picture){
        .struct_size = sizeof none, .width = 48, .height = 32, .read = read_nothing, .name = "gone.png"};
    run_refused(rig, &r, "IO", 3, "frame is missing");
    set_frames(48, 32);
}

/* Checks the planned evaluations of the stages encode, encode_2 and decode; 0: no such stage. */
static void check_evaluations(struct rig *rig, const struct sluice_request *r, int encode, int encode_2,
                              const char *what) {
    json_t *plan = query(rig, r, NULL);
    check(number(stage_of(plan, "encode"), "evaluations") == encode &&
              number(stage_of(plan, "encode_2"), "evaluations") == encode_2 &&
              number(stage_of(plan, "decode"), "evaluations") == 3,
          "%s: %d and %d encoded chunks", what, (int)number(stage_of(plan, "encode"), "evaluations"),
          (int)number(stage_of(plan, "encode_2"), "evaluations"));
}

/* Checks the number of encoded chunks in plans. Without a control video, one grey video replaces the inactive
 * and the reactive video. Each reference image is encoded separately. */
static void test_plan_counts_encoded_chunks(struct rig *rig) {
    const struct sluice_picture *const references[] = {&fox, &den};
    struct sluice_request r = request_of(0);
    check_evaluations(rig, &r, 3, 0, "without a control video");
    r = request_of(CONTROL_FRAMES);
    check_evaluations(rig, &r, 6, 0, "inactive and reactive video");
    r.references = references;
    r.n_references = 2;
    check_evaluations(rig, &r, 2, 6, "with two reference images");
    r.frames = 0;
    json_t *request = json_object_get(query(rig, &r, NULL), "request");
    check(number(request, "frames") == FRAMES && number(request, "control") == CONTROL_FRAMES,
          "default frame count with a control video: %d", (int)number(request, "frames"));
}

/* Control frames from memory and from a callback of either kind give bit-identical results. */
static void test_frame_callbacks_keep_bits(struct rig *rig, int width, int height) {
    struct sluice_request r = request_of(FRAMES);
    r.mask = &den;
    set_frames(width, height);
    struct result want = run_ok(rig, &r, "control video");
    for (int rows = 0; rows < 2; rows++) {
        for (int i = 0; i < CONTROL_FRAMES; i++) {
            frames[i].rgb = NULL;
            frames[i].user = noise_pixels(i);
            frames[i].read = read_noise;
            frames[i].read_rows = rows ? read_rows : NULL;
        }
        run_equal(rig, &r, &want, rows ? "frames read by rows" : "frames read whole");
    }
    set_frames(width, height);
    noise_pixels(FRAMES - 1)[100] ^= 0x55;
    struct result other = run(rig, &r);
    check(strcmp(other.latent[0], want.latent[0]) != 0, "the last control frame has no effect");
    noise_pixels(FRAMES - 1)[100] ^= 0x55;
    r.mask = NULL;
    struct result all = run(rig, &r);
    check(strcmp(all.latent[0], want.latent[0]) != 0, "the mask has no effect");
    set_frames(48, 32);
}

static void test_saved_latent_omits_reference_frames(struct rig *rig) {
    const struct sluice_picture *const references[] = {&fox, &den}, *const turned[] = {&den, &fox};
    const char *path = temporary_path("latent.safetensors");
    struct sluice_request r = request_of(0);
    r.references = references;
    r.n_references = 2;
    r.save_latent = path;
    struct result generated = run_ok(rig, &r, "with reference images");
    check(generated.n_images == 1, "%d videos", generated.n_images);
    r.save_latent = NULL;
    struct result decoded = run_or_decode(rig, &r, path);
    check(!decoded.code && !strcmp(generated.image[0], decoded.image[0]),
          "the saved latent decodes to another video: %s", decoded.error.what);
    r.n_control = CONTROL_FRAMES;
    r.control = NULL;
    decoded = run_or_decode(rig, &r, path);
    check(!decoded.code, "decoding fails with n_control set: %s", decoded.error.what);
    r.n_control = 0;
    r.references = turned;
    struct result other = run_ok(rig, &r, "turned reference images");
    check(strcmp(generated.latent[0], other.latent[0]) != 0, "the order of reference images has no effect");
}

/* The inactive video, the reactive video and the reference images share one VAE input buffer, so a retry of
 * the encoder must fill the buffer again. */
static void test_encoder_retries_without_memory(struct rig *rig) {
    const struct sluice_picture *const references[] = {&fox, &den};
    struct sluice_request r = request_of(FRAMES);
    r.mask = &den;
    r.references = references;
    r.n_references = 2;
    r.no_decode = true;
    operators_fail_in_turn(rig, &r);
}

int main(void) {
    struct rig rig;
    fox = noise_picture(0, 64, 40);
    den = noise_picture(1, 40, 64);
    set_frames(48, 32);
    temporary_make();
    if (rig_open(&rig, "test/golden/wan_vace/model", 1, 1)) {
        test_invalid_requests_are_rejected(&rig);
        test_plan_counts_encoded_chunks(&rig);
        test_frame_callbacks_keep_bits(&rig, 48, 32);
        test_frame_callbacks_keep_bits(&rig, 96, 64);
        test_saved_latent_omits_reference_frames(&rig);
        test_encoder_retries_without_memory(&rig);
        rig_close(&rig);
    }
    return finish();
}
