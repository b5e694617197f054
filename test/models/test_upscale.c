/* Upscalers against PyTorch (test/golden/upscale.py), which gives the bits of spandrel: names of ESRGAN,
 * BSRGAN and Real-ESRGAN, pixel unshuffle of odd sizes, images of one row and of many bands. Pixels are equal
 * under every budget, after the decoder and alone; alpha is enlarged with Pillow's Lanczos; invalid requests
 * are refused.
 */
#include "engine/pictures/resample.h"
#include "loaders/loaders.h"
#include "test/lib/device.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

#include <math.h>

enum { IMAGE_BYTES = 83 * 1030 * 4, SIZES = 2 };

/* The image of upscale.py. */
static uint8_t image_bytes[IMAGE_BYTES];

static uint8_t pixel(uint64_t y, uint64_t x, uint64_t colour) {
    uint64_t mixed = (uint32_t)(y * 2654435761u + x * 40503u + colour * 2246822519u + 12345);
    return (uint8_t)((uint32_t)((mixed ^ mixed >> 15) * 2246822519u) >> 24);
}

static struct sluice_picture picture_of(int width, int height, bool alpha) {
    uint8_t *to = image_bytes;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++) *to++ = pixel((uint64_t)y, (uint64_t)x, (uint64_t)c);
    for (int i = 0; i < width * height && alpha; i++) to[i] = pixel((uint64_t)i, 3, 1);
    return (struct sluice_picture){.struct_size = sizeof(struct sluice_picture),
                                   .width = width,
                                   .height = height,
                                   .rgb = image_bytes,
                                   .alpha = alpha ? to : NULL,
                                   .name = "image.png"};
}

/* The last image that a run reported, and its alpha; n: number of images so far. */
static struct reported {
    int width, height, n;
    uint8_t *rgb, *alpha;
} reported;

static void on_image(void *user, const struct sluice_image *image) {
    (void)user;
    size_t pixels = (size_t)image->width * (size_t)image->height;
    free(reported.rgb);
    free(reported.alpha);
    reported = (struct reported){image->width, image->height, reported.n + 1, malloc(3 * pixels), NULL};
    memcpy(reported.rgb, image->rgb, 3 * pixels);
    if (image->alpha) reported.alpha = memcpy(malloc(pixels), image->alpha, pixels);
}

static bool open_upscaler(struct rig *rig, const char *model, const char *path) {
    const struct sluice_part part = {"--upscale-model", path};
    return rig_open_with(
        rig, (struct sluice_model_options){.model = model, .parts = &part, .n_parts = path != NULL},
        (struct sluice_session_options){.threads = 2, .device = test_device(), .on_image = on_image}, 3);
}

static struct sluice_request request_of(const struct sluice_picture *picture) {
    return (struct sluice_request){.struct_size = sizeof(struct sluice_request),
                                   .init_image = picture,
                                   .max_ram_bytes = (int64_t)1 << 40,
                                   .seed = 7};
}

/* Reads tensor NAME of a safetensors file into memory, which the caller frees; dim: its last three axes. */
static float *read_tensor(struct sys *sys, const char *path, const char *name, int32_t dim[3]) {
    struct tensor_index index;
    struct error e = {0};
    float *values = NULL;
    if (!check(component_open(sys, path, &index, &e) == OK, "%s: %s", path, e.what)) return NULL;
    const struct index_entry *entry = index_find(&index, name);
    if (entry) {
        int64_t n = index_elements(entry);
        for (int i = 0; i < 3; i++) dim[i] = entry->dim[entry->rank - 3 + i];
        values = malloc(sizeof *values * (size_t)n);
        source_read_values(&index.sources[entry->source], entry->offset, entry->dtype, 0, n, values, &e);
    }
    index_destroy(&index);
    return values;
}

/* Compares the enlarged image of the last run, read from its dump, with a reference at every `down`-th row
 * and `across`-th column. Returns the relative L2 error. */
static double error_of(struct sys *sys, const char *reference, int number, int down, int across,
                       double most) {
    int32_t want_dim[3], got_dim[3];
    float *want = read_tensor(sys, reference, format_text("enlarged%d", number), want_dim);
    float *got = read_tensor(sys, temporary_path("enlarged.safetensors"), "enlarged", got_dim);
    double error = 0, norm = 0;
    int bytes = 0;
    for (int32_t y = 0; want && got && y < want_dim[0]; y++)
        for (int32_t x = 0; x < want_dim[1]; x++)
            for (int32_t c = 0; c < 3; c++) {
                double w = (double)want[(y * want_dim[1] + x) * 3 + c];
                int32_t at = y * down * got_dim[2] + x * across;
                double g = (double)got[(int64_t)c * got_dim[1] * got_dim[2] + at];
                error += (g - w) * (g - w), norm += w * w;
                double byte = fmin(fmax(255 * (g / 2 + 0.5), 0), 255);
                bytes += fabs(reported.rgb[3 * at + c] - byte) > 0.51;
            }
    check(want && got && (got_dim[1] - 1) / down + 1 == want_dim[0] &&
              (got_dim[2] - 1) / across + 1 == want_dim[1],
          "%s: wrong size", reference);
    check(!bytes, "%s: %d bytes of the image differ from the numbers", reference, bytes);
    error = norm > 0 ? sqrt(error / norm) : 1;
    check(error <= most, "%s %d: relative error %.2e", reference, number, error);
    free(want);
    free(got);
    return error;
}

/* Measured: at most 2.5e-7 with AVX-512, 2.4e-7 with AVX2, and 4.0e-4 on the emulated GPU, which multiplies
 * in f16. Tolerances are three to four times that. */
static const struct {
    const char *name;
    int height[SIZES], width[SIZES], down, across;
    double most, most_gpu;
} goldens[] = {
    {"esrgan", {7, 1}, {5, 3}, 1, 1, 1e-6, 1.2e-3},
    {"x2plus", {5, 1}, {7, 4}, 1, 1, 1e-6, 1.2e-3},
    {"trunk", {6, 1}, {3, 1}, 1, 1, 1e-6, 1.2e-3},
    {"wide", {83, 0}, {1030, 0}, 37, 41, 1e-6, 1.2e-3},
    {"srvgg", {6, 1}, {5, 2}, 1, 1, 1e-6, 1.2e-3},
    {"srvgg_x2", {5, 1}, {4, 1}, 1, 1, 1e-6, 1.2e-3},
    {"srvgg_wide", {83, 0}, {1030, 0}, 37, 41, 1e-6, 1.2e-3},
};

static bool on_gpu(void) {
    return strcmp(test_device(), "cpu") != 0;
}

static void test_goldens(void) {
    bool gpu = on_gpu();
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        struct rig rig;
        double worst = 0;
        if (gpu && goldens[i].down > 1 && !thorough()) continue; /* minutes on the emulated GPU */
        if (open_upscaler(&rig, NULL,
                          format_text("test/golden/upscale/%s/model.safetensors", goldens[i].name)))
            for (int k = 0; k < SIZES && goldens[i].height[k]; k++) {
                struct sluice_picture picture = picture_of(goldens[i].width[k], goldens[i].height[k], false);
                struct sluice_request request = request_of(&picture);
                request.dump = temporary;
                struct result r = run_ok(&rig, &request, goldens[i].name);
                double error =
                    error_of(&rig.fault_sys.sys,
                             format_text("test/golden/upscale/%s/reference.safetensors", goldens[i].name), k,
                             goldens[i].down, goldens[i].across, gpu ? goldens[i].most_gpu : goldens[i].most);
                check(r.n_images == 1, "%s: %d images", goldens[i].name, r.n_images);
                if (error > worst) worst = error;
            }
        printf("  %-12s %.2e\n", goldens[i].name, worst);
        rig_close(&rig);
    }
}

/* Equal pixels from the least budget to all resident, with direct reads and under edited plans. */
static void test_residency(void) {
    static const struct {
        const char *family, *dims;
        uint64_t seed;
    } models[] = {
        {"rrdbnet", "rrdb_channels=24,rrdb_growth=16,rrdb_blocks=3,dtype=f32", 5},
        {"srvgg", "srvgg_channels=96,srvgg_convs=7,srvgg_scale=3,dtype=f32", 6},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct rig rig;
        const char *folder = random_model(models[i].family, models[i].family, models[i].dims, models[i].seed);
        struct sluice_picture picture = picture_of(37, 23, false);
        struct sluice_request request = request_of(&picture);
        if (open_upscaler(&rig, NULL, folder)) {
            struct result want = run_ok(&rig, &request, models[i].family);
            struct sluice_plan plan = {.struct_size = sizeof plan};
            if (on_gpu()) { /* the least VRAM: all blocks stream, the feature map lies in RAM */
                check(!sluice_plan_summary(rig.session, &plan, NULL), "no plan");
                request.max_vram_bytes = plan.vram_least_bytes;
                run_equal(&rig, &request, &want, models[i].family);
                rig_close(&rig);
                continue;
            }
            struct tally t = budgets(&rig, request, &want, thorough_or(10, 4), models[i].family);
            check(tally_of(&t, "upscale") > 0 && t.different > 1, "%s: no streamed run", models[i].family);
            edited_plans(&rig, request, &want, thorough_or(EDITS_ALL, 3), models[i].family);
        }
        rig_close(&rig);
    }
}

/* Alpha is enlarged with Pillow's Lanczos; colours are those of the image without alpha. */
static void test_alpha(void) {
    static uint8_t triples[3 * 64 * 64], larger[3 * 64 * 64];
    struct rig rig;
    if (open_upscaler(&rig, NULL, "test/golden/upscale/srvgg_x2/model.safetensors")) {
        struct sluice_picture picture = picture_of(13, 9, true), grey = picture;
        struct sluice_request request = request_of(&picture);
        struct error e = {0};
        run_ok(&rig, &request, "alpha");
        for (int i = 0; i < 13 * 9; i++) memset(triples + 3 * i, picture.alpha[i], 3);
        grey.rgb = triples, grey.alpha = NULL;
        picture_resize(&rig.fault_sys.sys, &grey, PILLOW_LANCZOS, (struct picture_size){26, 18}, larger, &e);
        int differing = 0;
        for (int i = 0; i < 26 * 18 && reported.alpha; i++) differing += larger[3 * i] != reported.alpha[i];
        check(reported.alpha && !differing && e.code == OK, "%d values of alpha differ", differing);
        uint8_t *with_alpha = memcpy(malloc(3 * 26 * 18), reported.rgb, 3 * 26 * 18);
        picture.alpha = NULL;
        run_ok(&rig, &request, "no alpha");
        check(!reported.alpha && !memcmp(with_alpha, reported.rgb, 3 * 26 * 18), "alpha changes colours");
        free(with_alpha);
    }
    rig_close(&rig);
}

/* An image enlarged after the decoder has the same pixels as the decoded image enlarged by sluice_upscale. */
static void test_after_decoder(void) {
    struct rig rig, alone;
    const char *path = "test/golden/upscale/x2plus/model.safetensors";
    struct sluice_request request = request_fox(48, 32, 1, 2, 1);
    if (open_upscaler(&rig, "test/golden/zimage_a/model", path) && open_upscaler(&alone, NULL, path)) {
        struct result plain = run_ok(&rig, &request, "plain");
        int width = reported.width, height = reported.height;
        uint8_t *rgb =
            memcpy(malloc((size_t)(3 * width * height)), reported.rgb, (size_t)(3 * width * height));
        request.upscale = true;
        struct result large = run_ok(&rig, &request, "upscale");
        check(reported.width == 2 * width && reported.height == 2 * height, "size %dx%d", reported.width,
              reported.height);
        check(large.n_images == 2 && strcmp(large.image[1], plain.image[1]), "the images are not enlarged");
        struct sluice_plan plan = {.struct_size = sizeof plan};
        check(!sluice_plan_summary(rig.session, &plan, NULL) && plan.width == 2 * width, "planned size");
        if (!on_gpu()) budgets(&rig, request, &large, 3, "after decoder");
        struct sluice_picture picture = {
            .struct_size = sizeof picture, .width = width, .height = height, .rgb = rgb};
        struct sluice_request single = request_of(&picture);
        struct result r = run_ok(&alone, &single, "alone");
        check(!strcmp(r.image[0], large.image[1]), "pixels differ from those of sluice_upscale");
        int status = sluice_upscale(rig.session, &picture, &single, NULL);
        check(!status && reported.width == 2 * width, "sluice_upscale with a whole model");
        rig_close(&alone);
        free(rgb);
    }
    rig_close(&rig);
}

static void test_refusals(void) {
    struct rig rig;
    struct sluice_picture picture = picture_of(5, 5, false);
    struct sluice_request request = request_of(NULL);
    if (open_upscaler(&rig, NULL, "test/golden/upscale/esrgan/model.safetensors")) {
        run_refused(&rig, &request, "USAGE", 2, "no image to enlarge");
        request.init_image = &picture;
        picture.width = 5000;
        run_refused(&rig, &request, "USAGE", 2, "5000x5, enlarged 4 times");
        picture.width = 5;
        request.precision = "int7";
        run_refused(&rig, &request, "USAGE", 2, "--precision");
        request.precision = NULL;
        request.max_ram_bytes = 1 << 20;
        run_refused(&rig, &request, "BUDGET", 4, "at least");
    }
    rig_close(&rig);
    struct sluice_request fox = request_fox(48, 32, 1, 1, 1);
    fox.upscale = true;
    if (open_upscaler(&rig, "test/golden/zimage_a/model", NULL))
        run_refused(&rig, &fox, "USAGE", 2, "--upscale-model");
    rig_close(&rig);
}

int main(void) {
    temporary_make();
    test_goldens();
    test_residency();
    test_alpha();
    test_after_decoder();
    test_refusals();
    free(reported.rgb);
    free(reported.alpha);
    return finish();
}
