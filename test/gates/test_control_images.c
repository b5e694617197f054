/* Control images of control networks: refused requests, plans, and pictures that must give the same result:
 * read by rows, stretched, replaced by their edges, the request's own mask; batches; encoder retries.
 * test_golden.c compares the results with diffusers. */
#include "engine/pictures/canny.h"
#include "engine/pictures/resample.h"
#include "test/lib/failing_operators.h"
#include "test/lib/fixtures.h"
#include "test/lib/plans.h"

#include <math.h>

enum { WIDTH = 32, HEIGHT = 48 };

/* Networks of the fixture control_zimage: a latent; a latent with mask and inpaint latent. */
enum { PLAIN, INPAINT };

static struct sluice_picture fox, den, mask;
static struct sluice_control controls[SLUICE_CONTROLS_MAX + 1];

static bool open_fixture(struct rig *rig, const char *name) {
    for (rig_fixture = fixtures; strcmp(rig_fixture->name, name); rig_fixture++) continue;
    return rig_open(rig, fixture_model(rig_fixture), 1, 1);
}

/* A request of one step with n control images, each for the next network. */
static struct sluice_request request_of(int n) {
    struct sluice_request r = request_fox(WIDTH, HEIGHT, 1, 1, 1);
    for (int i = 0; i <= SLUICE_CONTROLS_MAX; i++)
        controls[i] = (struct sluice_control){.struct_size = sizeof *controls,
                                              .network = i,
                                              .image = i ? &den : &fox,
                                              .strength = 1,
                                              .end = 1,
                                              .mode = -1};
    r.controls = controls;
    r.n_controls = n;
    r.no_decode = true;
    return r;
}

static void refuse(struct rig *rig, const struct sluice_request *r, const char *words) {
    run_refused(rig, r, "USAGE", 2, words);
    for (int i = 0; i <= SLUICE_CONTROLS_MAX; i++) controls[i] = (struct sluice_control){0};
}

static void test_invalid_controls_are_refused(struct rig *rig) {
    struct sluice_request r = request_of(SLUICE_CONTROLS_MAX + 1);
    refuse(rig, &r, "too many control images (--control-image): found 5, expected at most 4");
    r = request_of(1);
    r.controls = NULL;
    refuse(rig, &r, "controls is NULL: found n_controls 1");
    r = request_of(-1);
    refuse(rig, &r, "found -1");
    r = request_of(2);
    controls[1].network = 4;
    refuse(rig, &r, "control image 1 is for a control network that is not open");
    r = request_of(1);
    controls[0].struct_size = 0;
    refuse(rig, &r, "struct_size is not set");
    r = request_of(1);
    controls[0].network = -1;
    refuse(rig, &r, "reads no control image itself");
    r = request_of(1);
    controls[0].strength = NAN;
    refuse(rig, &r, "invalid value for --control-strength: found nan, expected 0 to 1000");
    r = request_of(1);
    controls[0].end = 1.5;
    refuse(rig, &r, "invalid value for --control-end: found 1.5, expected 0 to 1");
    r = request_of(1);
    controls[0].start = controls[0].end = 0.5;
    refuse(rig, &r, "--control-start must be below --control-end");
    r = request_of(1);
    controls[0].mode = 0;
    refuse(rig, &r, "--control-mode is only for union control networks");
    r = request_of(1);
    r.guess_mode = true;
    refuse(rig, &r, "--guess-mode cannot be used with this model");
    r = request_of(1);
    controls[0].image = NULL;
    refuse(rig, &r, "control 0 has no control image");
    r = request_of(1);
    controls[0].image = NULL;
    controls[0].network = INPAINT;
    refuse(rig, &r, "--control-image FILE, or for inpainting --control-inpaint FILE");
}

static void test_invalid_redux_images_are_refused(struct rig *rig) {
    const struct sluice_picture *images[16] = {NULL};
    for (int i = 0; i < 5; i++) images[i] = &fox;
    struct sluice_request r = request_of(0);
    r.redux_images = images;
    r.n_redux_images = 5;
    refuse(rig, &r, "(--redux-image): found 5, expected at most 4");
    r.n_redux_images = 16;
    refuse(rig, &r, "(--redux-image): found 16, expected at most 4");
    images[1] = NULL;
    r.n_redux_images = 2;
    refuse(rig, &r, "redux_images[1] is NULL");
}

static void test_invalid_pictures_are_refused(struct rig *rig) {
    const struct sluice_picture wide = {
        .struct_size = sizeof wide, .width = 17000, .height = 1, .rgb = fox.rgb};
    struct sluice_request r = request_of(1);
    controls[0].mask = &mask;
    refuse(rig, &r, "--control-mask cannot be used with this control network");
    r = request_of(1);
    controls[0].inpaint = &den;
    refuse(rig, &r, "--control-inpaint cannot be used with this control network");
    r = request_of(1);
    controls[0].network = INPAINT;
    controls[0].mask = &mask;
    refuse(rig, &r, "found no image, expected --control-inpaint FILE and --control-mask FILE");
    r = request_of(1);
    controls[0].network = INPAINT;
    controls[0].inpaint = &den;
    refuse(rig, &r, "found no mask");
    r = request_of(1);
    controls[0].network = INPAINT;
    controls[0].image = NULL;
    controls[0].mask = &mask;
    controls[0].inpaint = &den;
    controls[0].canny = true;
    refuse(rig, &r, "--canny needs a control image");
    const struct sluice_picture thin = {
        .struct_size = sizeof thin, .width = 500, .height = 1, .rgb = fox.rgb};
    r = request_of(1);
    r.width = r.height = 0;
    controls[0].image = &thin;
    refuse(rig, &r, "invalid value for the width, which follows from the control image (-W)");
    r = request_of(1);
    controls[0].image = &wide;
    run_refused(rig, &r, "LIMIT", 3, "--control-image has an unsupported size");
}

/* Plans list the control images; the default size has their aspect ratio. A plan without prompt and images
 * assumes an image for each network. */
static void test_plans_list_controls(struct rig *rig) {
    struct sluice_request r = request_of(2);
    controls[1].start = 0.25;
    r.width = r.height = 0;
    json_t *request = json_object_get(query(rig, &r, NULL), "request"),
           *list = json_object_get(request, "controls"), *second = json_array_get(list, 1);
    check(json_array_size(list) == 2 && number(second, "network") == 1, "the plan's controls");
    check(!strcmp(json_string_value(json_object_get(second, "name")), "controlnet_2"), "name of a network");
    check(json_real_value(json_object_get(second, "start")) == 0.25, "start of a window");
    check(number(request, "width") > number(request, "height"), "default size %dx%d of a wide image",
          (int)number(request, "width"), (int)number(request, "height"));
    r = request_of(0);
    r.prompt = NULL;
    request = json_object_get(query(rig, &r, NULL), "request");
    check(json_is_true(json_object_get(request, "controls_assumed")) &&
              json_array_size(json_object_get(request, "controls")) == 4,
          "assumed control images");
}

/* Number of planned blocks of control networks. */
static int control_blocks(struct rig *rig, const struct sluice_request *r) {
    const json_t *stages = json_object_get(query(rig, r, NULL), "stages");
    int n = 0;
    for (size_t s = 0; s < json_array_size(stages); s++) {
        const json_t *blocks = json_object_get(json_array_get(stages, s), "blocks");
        for (size_t i = 0; i < json_array_size(blocks); i++)
            n +=
                !strncmp(json_string_value(json_object_get(json_array_get(blocks, i), "name")), "control", 7);
    }
    return n;
}

/* With strength 0 the network is neither planned nor read, and the result is that without it. */
static void test_strength_0_leaves_out_the_network(struct rig *rig) {
    struct sluice_request r = request_of(0);
    struct result want = run_ok(rig, &r, "no control");
    r = request_of(1);
    check(control_blocks(rig, &r) > 0, "no blocks of the network in the plan");
    controls[0].strength = 0;
    check(!control_blocks(rig, &r), "the plan has blocks of a network of strength 0");
    run_equal(rig, &r, &want, "strength 0");
}

/* Callback of a picture; user: its pixels. */
static int read_whole(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    (void)e;
    memcpy(rgb, picture->user, (size_t)picture->width * (size_t)picture->height * 3);
    return SLUICE_OK;
}

static int read_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *e) {
    const uint8_t *rgb = picture->user;
    (void)e;
    for (int y = 0; y < picture->height; y++) take(to, rgb + (size_t)y * (size_t)picture->width * 3);
    return SLUICE_OK;
}

/* A picture of the output size that has the pixels of a larger picture, stretched, and their edges if
 * `canny`.
 */
static struct sluice_picture stretched(struct rig *rig, const struct sluice_picture *from, bool canny) {
    static uint8_t rgb[WIDTH * HEIGHT * 3];
    struct sys *sys = &rig->fault_sys.sys;
    struct error e = {0};
    picture_resize(sys, from, PILLOW_LANCZOS, (struct picture_size){WIDTH, HEIGHT}, rgb, &e);
    if (canny) canny_edges(sys, rgb, WIDTH, HEIGHT, &e);
    check(e.code == OK, "stretching: %s", e.what);
    return (struct sluice_picture){.struct_size = sizeof *from, .width = WIDTH, .height = HEIGHT, .rgb = rgb};
}

static void test_control_images_keep_bits(struct rig *rig) {
    struct sluice_request r = request_of(1);
    struct result want = run_ok(rig, &r, "control image");
    struct sluice_picture other = fox;
    other.user = (void *)(uintptr_t)fox.rgb;
    other.rgb = NULL;
    other.read = read_whole;
    controls[0].image = &other;
    run_equal(rig, &r, &want, "image read whole");
    other.read_rows = read_rows;
    run_equal(rig, &r, &want, "image read by rows");
    other = stretched(rig, &fox, false);
    run_equal(rig, &r, &want, "image stretched by the caller");
    controls[0].image = &den;
    check(strcmp(run_ok(rig, &r, "other image").latent[0], want.latent[0]) != 0, "no effect of the image");
    controls[0].image = &fox;
    controls[0].canny = true;
    struct result edges = run_ok(rig, &r, "edges");
    controls[0].canny = false;
    other = stretched(rig, &fox, true);
    controls[0].image = &other;
    run_equal(rig, &r, &edges, "edges by the caller");
    controls[0].canny = true;
    other = stretched(rig, &fox, false);
    run_equal(rig, &r, &edges, "edges of an image in memory that fits");
    check(strcmp(edges.latent[0], want.latent[0]) != 0, "no effect of --canny");
}

/* A network that inpaints reads the request's image and mask unless the control has its own. */
static void test_inpainting_takes_the_request(struct rig *rig) {
    struct sluice_request r = request_of(1);
    controls[0].network = INPAINT;
    r.init_image = &den;
    r.mask = &mask;
    r.strength = 1;
    r.fit = "stretch";
    struct result want = run_ok(rig, &r, "inpainting");
    controls[0].inpaint = &den;
    controls[0].mask = &mask;
    run_equal(rig, &r, &want, "image and mask of the control");
    controls[0].inpaint = &fox;
    check(strcmp(run_ok(rig, &r, "other image").latent[0], want.latent[0]) != 0, "no effect of the image");
    controls[0].inpaint = &den;
    controls[0].mask = &fox;
    check(strcmp(run_ok(rig, &r, "other mask").latent[0], want.latent[0]) != 0, "no effect of the mask");
    r = request_of(1);
    controls[0] = (struct sluice_control){.struct_size = sizeof *controls,
                                          .network = INPAINT,
                                          .strength = 1,
                                          .mode = -1,
                                          .mask = &mask,
                                          .inpaint = &den};
    run_ok(rig, &r, "no control image, end 0");
}

/* All images of a batch share the control images, which draw no random numbers. */
static void test_batches_share_control_images(struct rig *rig) {
    struct sluice_request r = request_of(2);
    r.init_image = &den;
    r.strength = 0.9;
    r.steps = 2;
    r.batch = 3;
    struct result want = run_ok(rig, &r, "batch of 3");
    r.batch = 1;
    r.seed += 2;
    struct result last = run_ok(rig, &r, "third image");
    check(!strcmp(last.latent[0], want.latent[2]), "the third image depends on the batch");
}

/* Decoding ignores control images. */
static void test_decoding_ignores_controls(struct rig *rig) {
    const char *path = temporary_path("latent.safetensors");
    struct sluice_request r = request_of(1);
    r.save_latent = path;
    run_ok(rig, &r, "saved latent");
    r = request_of(3);
    controls[2].network = 9;
    struct result decoded = run_or_decode(rig, &r, path);
    check(!decoded.code, "decoding fails with controls: %s", decoded.error.what);
}

static void test_encoder_retries_without_memory(struct rig *rig) {
    struct sluice_request r = request_of(2);
    controls[1].inpaint = &fox;
    controls[1].mask = &mask;
    operators_fail_in_turn(rig, &r);
}

static void test_union_modes(struct rig *rig) {
    struct sluice_request r = request_of(1);
    refuse(rig, &r, "needs the kind of its control image (--control-mode)");
    r = request_of(1);
    controls[0].mode = 7;
    refuse(rig, &r, "found 7, expected 0 ");
    r = request_of(1);
    controls[0].mode_name = "sketch";
    refuse(rig, &r, "found sketch, expected 0 canny, 1 tile, 2 depth");
    r = request_of(1);
    controls[0].mode = 2;
    struct result want = run_ok(rig, &r, "mode 2");
    controls[0].mode = -1;
    controls[0].mode_name = "depth";
    run_equal(rig, &r, &want, "mode depth");
    controls[0].mode_name = "tile";
    check(strcmp(run_ok(rig, &r, "mode tile").latent[0], want.latent[0]) != 0, "no effect of the mode");
}

int main(void) {
    struct rig rig;
    fox = noise_picture(0, 80, 60);
    den = noise_picture(1, 40, 64);
    mask = noise_picture(2, 48, 48);
    temporary_make();
    if (open_fixture(&rig, "control_zimage")) {
        test_invalid_controls_are_refused(&rig);
        test_invalid_redux_images_are_refused(&rig);
        test_invalid_pictures_are_refused(&rig);
        test_plans_list_controls(&rig);
        test_strength_0_leaves_out_the_network(&rig);
        test_control_images_keep_bits(&rig);
        test_inpainting_takes_the_request(&rig);
        test_batches_share_control_images(&rig);
        test_decoding_ignores_controls(&rig);
        test_encoder_retries_without_memory(&rig);
        rig_close(&rig);
    }
    if (open_fixture(&rig, "control_sd1")) {
        test_control_images_keep_bits(&rig);
        rig_close(&rig);
    }
    if (open_fixture(&rig, "control_flux_union")) {
        test_union_modes(&rig);
        rig_close(&rig);
    }
    return finish();
}
