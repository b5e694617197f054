/* The second pass with a latent upscaler (--upscaler), with a video model and a random upscaler of its latent
 * channels: sizes, the noise of the second pass in the order of tokens, the same bits for every budget and
 * batch, the first frame at the larger size, and refusals. Also --sigmas. */
#include "engine/sample/noise.h"
#include "loaders/loaders.h"
#include "test/lib/device.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

#include <math.h>

enum { CHANNELS = 48, WIDTH = 64, HEIGHT = 32, FACTOR = 16, FRAMES = 5, SHORT = 2 };

static const char model[] = "test/golden/wan_ti2v/model";
static const double one[] = {1}, two[] = {0.9, 0.3};

static bool open_model(struct rig *rig, const char *upscaler) {
    const struct sluice_part part = {"--upscaler", upscaler};
    return rig_open_with(
        rig, (struct sluice_model_options){.model = model, .parts = &part, .n_parts = upscaler != NULL},
        (struct sluice_session_options){.threads = 2, .device = test_device()}, 3);
}

static const char *upscaler_folder(void) {
    return random_model("upscaler", "ltx2_upsampler",
                        "latent_channels=48,upsampler_channels=64,upsampler_resnets=2,dtype=f32", 9);
}

static struct sluice_request request_video(void) {
    struct sluice_request r = request_fox(WIDTH, HEIGHT, 2, 1, 3);
    r.frames = FRAMES;
    r.upscale_latent = true;
    r.sampler = "euler";
    r.upscale_sigmas = two;
    r.n_upscale_sigmas = COUNT_OF(two);
    return r;
}

/* Reads a tensor of the last run's dump, which the caller frees; *n: number of values. */
static float *read_dump(struct sys *sys, const char *name, int64_t *n) {
    struct tensor_index index;
    struct error e = {0};
    float *values = NULL;
    *n = 0;
    const char *path = temporary_path(format_text("%s.safetensors", name));
    if (!check(component_open(sys, path, &index, &e) == OK, "%s: %s", name, e.what)) return NULL;
    const struct index_entry *entry = index_find(&index, name);
    if (check(entry != NULL, "%s: no tensor", name)) {
        *n = index_elements(entry);
        values = malloc(sizeof *values * (size_t)*n);
        source_read_values(&index.sources[entry->source], entry->offset, entry->dtype, 0, *n, values, &e);
    }
    index_destroy(&index);
    return values;
}

/* At sigma 1 the second pass begins with noise alone. The generator continues after the first pass's noise,
 * and its values are in token order: all channels of a token, then the next token. */
static void test_noise(struct rig *rig) {
    enum { FIRST = CHANNELS * SHORT * (HEIGHT / FACTOR) * (WIDTH / FACTOR), SECOND = 4 * FIRST };
    static float noise[SECOND];
    struct generator generator;
    struct sluice_request r = request_video();
    int64_t n, differing = 0, tokens = SECOND / CHANNELS;
    r.upscale_sigmas = one;
    r.n_upscale_sigmas = 1;
    r.dump = temporary;
    run_ok(rig, &r, "noise");
    generator_seed(&generator, r.seed);
    generator_normals(&generator, noise, FIRST);
    generator_normals(&generator, noise, SECOND);
    float *latent = read_dump(&rig->fault_sys.sys, "latent_003", &n);
    if (check(n == SECOND, "%lld values", (long long)n))
        for (int64_t i = 0; i < n; i++) differing += latent[i] != noise[i % tokens * CHANNELS + i / tokens];
    check(!differing, "%lld values of the noise differ", (long long)differing);
    free(latent);
}

/* sample = sigma noise + (1 - sigma) enlarged: the samples of two sigmas give the same enlarged latent. */
static void test_noise_levels(struct rig *rig) {
    static const double sigmas[2][1] = {{0.75}, {0.25}};
    struct sluice_request r = request_video();
    float *latent[2], *noise;
    int64_t n;
    double error = 0, norm = 0;
    r.dump = temporary;
    r.n_upscale_sigmas = 1;
    r.upscale_sigmas = one;
    run_ok(rig, &r, "noise");
    noise = read_dump(&rig->fault_sys.sys, "latent_003", &n);
    for (int i = 0; i < 2; i++) {
        r.upscale_sigmas = sigmas[i];
        run_ok(rig, &r, "levels");
        latent[i] = read_dump(&rig->fault_sys.sys, "latent_003", &n);
    }
    for (int64_t i = 0; i < n; i++) {
        double a = ((double)latent[0][i] - 0.75 * (double)noise[i]) / 0.25,
               b = ((double)latent[1][i] - 0.25 * (double)noise[i]) / 0.75;
        error += (a - b) * (a - b);
        norm += b * b;
    }
    check(norm > 0 && sqrt(error / norm) < 1e-6, "levels: %.2e", sqrt(error / norm));
    for (int i = 0; i < 2; i++) free(latent[i]);
    free(noise);
}

static void test_residency(struct rig *rig) {
    struct sluice_request r = request_video();
    r.batch = 2;
    struct result want = run_ok(rig, &r, "second pass");
    struct sluice_plan plan = {.struct_size = sizeof plan};
    check(!sluice_plan_summary(rig->session, &plan, NULL) && plan.width == 2 * WIDTH &&
              plan.height == 2 * HEIGHT && plan.frames == FRAMES,
          "planned size");
    if (strcmp(test_device(), "cpu") != 0) { /* the least VRAM: all blocks stream */
        r.max_vram_bytes = plan.vram_least_bytes;
        run_equal(rig, &r, &want, "least VRAM");
        r.max_vram_bytes = 0;
    } else {
        struct tally t = budgets(rig, r, &want, thorough_or(10, 3), "second pass");
        check(tally_of(&t, "upsample") > 0, "the upscaler was never streamed");
        edited_plans(rig, r, &want, thorough_or(EDITS_ALL, 1), "second pass");
    }
    r.batch = 1;
    r.seed++;
    struct result alone = run_ok(rig, &r, "alone");
    check(!strcmp(alone.image[0], want.image[1]), "a video of a batch differs from that of its seed");
    r.upscale_latent = false;
    r.upscale_sigmas = NULL;
    r.n_upscale_sigmas = 0;
    struct result small = run_ok(rig, &r, "one pass");
    check(strcmp(alone.image[0], small.image[0]) != 0, "the second pass changes nothing");
}

/* The first latent frame of the result is the input image, encoded at the larger size. */
static void test_first_frame(struct rig *rig) {
    static uint8_t rgb[WIDTH * HEIGHT * 3];
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)(i * 37 % 251);
    const struct sluice_picture picture = {
        .struct_size = sizeof picture, .width = WIDTH, .height = HEIGHT, .rgb = rgb, .name = "frame.png"};
    struct sluice_request r = request_video();
    int64_t n, n_first;
    r.init_image = &picture;
    r.strength = 1;
    r.dump = temporary;
    r.save_latent = temporary_path("latent.safetensors");
    run_ok(rig, &r, "first frame");
    float *encoded = read_dump(&rig->fault_sys.sys, "encoded", &n_first),
          *final = read_dump(&rig->fault_sys.sys, "latent", &n);
    int64_t plane = n / CHANNELS / SHORT, differing = 0;
    if (check(n_first == CHANNELS * plane, "%lld values of the first frame", (long long)n_first))
        for (int64_t c = 0; c < CHANNELS; c++)
            for (int64_t i = 0; i < plane; i++)
                differing += final[c * SHORT * plane + i] != encoded[c * plane + i];
    check(!differing, "%lld values of the first frame differ", (long long)differing);
    free(encoded);
    free(final);
}

/* --sigmas replaces the schedule and --steps, with every kind of sampler for flow models. */
static void test_sigmas(struct rig *rig) {
    struct sluice_request r = request_fox(WIDTH, HEIGHT, 7, 1, 1);
    int64_t n;
    r.frames = FRAMES;
    r.sampler = "euler";
    r.sigmas = two;
    r.n_sigmas = COUNT_OF(two);
    r.dump = temporary;
    run_ok(rig, &r, "sigmas");
    float *sigmas = read_dump(&rig->fault_sys.sys, "sigmas", &n);
    check(n == 3 && sigmas[0] == 0.9F && sigmas[1] == 0.3F && sigmas[2] == 0, "the sigmas are not used");
    free(sigmas);
    static const char *const others[] = {"dpm++2m", "unipc", "heun", "euler_a"};
    static const double full[] = {1, 0.99375, 0.725, 0.421875};
    r.sigmas = full;
    r.n_sigmas = COUNT_OF(full);
    r.dump = NULL;
    for (int i = 0; i < COUNT_OF(others); i++) {
        r.sampler = others[i];
        run_ok(rig, &r, others[i]);
    }
}

static void test_refusals(struct rig *rig) {
    static const double rising[] = {0.5, 0.7}, large[] = {1.5}, zero[] = {0.5, 0}, equal[] = {0.5, 0.5};
    static const struct {
        const double *sigmas;
        int n;
        const char *message;
    } wrong[] = {{rising, 2, "must decrease"}, {large, 1, "above 0, to 1"}, {zero, 2, "sigma 2"},
                 {equal, 2, "0.5 after 0.5"},  {two, 0, "sigmas"},          {NULL, 3, "NULL"}};
    for (int i = 0; i < COUNT_OF(wrong); i++) {
        struct sluice_request r = request_video();
        r.upscale_sigmas = wrong[i].sigmas;
        r.n_upscale_sigmas = wrong[i].n;
        run_refused(rig, &r, "USAGE", 2, wrong[i].message);
        r = request_fox(WIDTH, HEIGHT, 2, 1, 1);
        r.sigmas = wrong[i].sigmas;
        r.n_sigmas = wrong[i].n;
        run_refused(rig, &r, "USAGE", 2, wrong[i].message);
    }
    struct sluice_request r = request_fox(WIDTH, HEIGHT, 2, 1, 1);
    r.sigmas = two;
    r.n_sigmas = COUNT_OF(two);
    r.flow_shift = 3;
    run_refused(rig, &r, "USAGE", 2, "--flow-shift");
    r.flow_shift = 0;
    r.scheduler = "karras";
    run_refused(rig, &r, "USAGE", 2, "--scheduler");
    r = request_video();
    r.hires_scale = 2;
    run_refused(rig, &r, "USAGE", 2, "--hires");
    r = request_video();
    r.upscale_latent = false;
    run_refused(rig, &r, "USAGE", 2, "--upscale-sigmas");
    r = request_video();
    r.width = SLUICE_SIDE_MAX;
    run_refused(rig, &r, "USAGE", 2, "-W and -H are the first pass's size");
}

/* A model without an upscaler, a VAE with other latent channels, and a model of images. */
static void test_models(void) {
    struct rig rig;
    struct sluice_request r = request_video();
    if (open_model(&rig, NULL)) run_refused(&rig, &r, "USAGE", 2, "--upscaler FILE");
    rig_close(&rig);
    struct error e = {0};
    static const struct {
        const char *model, *message;
        enum status code;
    } others[] = {{model, "12 latent channels", SHAPE}, {"test/golden/flux_a/model", "videos", USAGE}};
    for (int i = 0; i < COUNT_OF(others); i++) {
        const struct sluice_part part = {"--upscaler", "test/golden/ltx2_upsampler/x2/model"};
        struct sluice_model *m;
        struct sluice_model_options options = {
            .struct_size = sizeof options, .model = others[i].model, .parts = &part, .n_parts = 1};
        char line[1024];
        e = (struct error){0};
        check(model_open(NULL, &options, &m, &e) == others[i].code, "%s: code %d", others[i].model, e.code);
        error_line(&e, line, sizeof line);
        check(strstr(line, others[i].message) != NULL, "%s", line);
        model_close(m);
    }
}

int main(void) {
    struct rig rig;
    temporary_make();
    if (open_model(&rig, upscaler_folder())) {
        test_noise(&rig);
        test_noise_levels(&rig);
        test_first_frame(&rig);
        test_residency(&rig);
        test_sigmas(&rig);
        test_refusals(&rig);
    }
    rig_close(&rig);
    test_models();
    return finish();
}
