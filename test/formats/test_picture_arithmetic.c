/* engine/pictures against diffusers, Pillow and PyTorch (test/golden/pictures/arithmetic.py, fit.py): sizes,
 * resampling, image tensors, masks, posteriors; fitting images to a size, from memory or row by row, in the
 * declared memory; and refusals. */
#include "engine/base/random.h"
#include "engine/pictures/fit.h"
#include "engine/pictures/pictures.h"
#include "loaders/loaders.h"
#include "test/lib/cmocka_tests.h"

#include <math.h>

static struct sys machine;
static struct tensor_index truth, fits; /* arithmetic.safetensors, fit.safetensors */
static struct error problem;

static _Alignas(64) char pool[16 << 20];
static size_t pool_used; /* bytes of the pool that are allocated */

static void *pool_alloc(size_t bytes) {
    void *memory = pool + pool_used;
    pool_used += (bytes + 63) / 64 * 64;
    assert_true(pool_used <= sizeof pool);
    return memset(memory, 0, bytes);
}

static void assert_ok(void) {
    char line[1200];
    if (problem.code) fail_msg("%s", error_line(&problem, line, sizeof line));
}

static struct tensor floats(int32_t a, int32_t b, int32_t c) {
    struct tensor t = tensor_make(NULL, DTYPE_F32, 3, (int32_t[]){a, b, c});
    t.data = pool_alloc((size_t)tensor_bytes(&t));
    return t;
}

static struct tensor tensor_of_entry(const struct tensor_index *index, const struct index_entry *entry) {
    struct tensor t = tensor_make(pool_alloc(entry->bytes), entry->dtype, entry->rank, entry->dim);
    source_read(&index->sources[entry->source], t.data, entry->bytes, entry->offset, &problem);
    assert_ok();
    return t;
}

static struct tensor known(const char *name) {
    const struct index_entry *entry = index_find(&truth, name);
    if (!entry) fail_msg("the fixture has no tensor %s", name);
    return tensor_of_entry(&truth, entry);
}

/* Returns RGB noise, as drawn.py's draw() does. */
static struct sluice_picture drawn(uint64_t seed, int width, int height) {
    size_t n = (size_t)width * (size_t)height * 3;
    uint8_t *rgb = pool_alloc(n);
    for (size_t i = 0; i < n; i++) rgb[i] = (uint8_t)(random_next(&seed) >> 56);
    return (struct sluice_picture){.struct_size = sizeof(struct sluice_picture),
                                   .width = width,
                                   .height = height,
                                   .rgb = rgb,
                                   .name = "fox.png"};
}

static void assert_code(enum status code, const char *text) {
    char line[1200];
    error_line(&problem, line, sizeof line);
    if (problem.code != code || !strstr(line, text))
        fail_msg("expected %s '%s': %s", status_name(code), text, line);
    problem = (struct error){0};
}

TEST(invalid_pictures_refused) {
    static const int sides[][2] = {{0, 1}, {1, 0}, {-3, 5}, {16385, 1}, {1, 16385}};
    struct sluice_picture p = drawn(1, 5, 7);
    picture_check(&p, "the mask", &problem);
    assert_ok();
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        struct sluice_picture wrong = p;
        wrong.width = sides[i][0];
        wrong.height = sides[i][1];
        picture_check(&wrong, "the mask", &problem);
        assert_code(LIMIT, "fox.png");
    }
    p.rgb = NULL;
    picture_check(&p, "the mask", &problem);
    assert_code(USAGE, "the mask has no pixels and no read function (fox.png)");
}

static void assert_read_at(int width, int height, int multiple, int to_width, int to_height) {
    struct sluice_picture p = {.width = width, .height = height, .name = "fox.png"};
    struct picture_size size;
    picture_reference_size(&p, multiple, &size, &problem);
    assert_ok();
    if (size.width != to_width || size.height != to_height)
        fail_msg("%dx%d by %d: %dx%d, not %dx%d", width, height, multiple, size.width, size.height, to_width,
                 to_height);
}

TEST(reference_sizes) {
    assert_read_at(1024, 1024, 16, 1024, 1024);
    assert_read_at(16, 16, 16, 16, 16);
    assert_read_at(31, 47, 16, 16, 32);
    assert_read_at(1000, 1000, 16, 992, 992);
    assert_read_at(16384, 48, 16, 16384, 48); /* images of few pixels keep their size at any aspect ratio */
    assert_read_at(800, 1328, 16, 800, 1328); /* the trained size with the largest area is not reduced */
    assert_read_at(1031, 1031, 16, 1024, 1024);
    assert_read_at(4096, 1024, 16, 1568, 672);
    assert_read_at(2000, 1000, 32, 1440, 704); /* training size 1456 x 720 in multiples of 32 */
    struct tensor sizes = known("sizes");
    const int32_t *row = sizes.data;
    for (int i = 0; i < sizes.dim[0]; i++, row += 4) assert_read_at(row[0], row[1], 16, row[2], row[3]);
}

TEST(area_sizes) {
    struct tensor areas = known("areas");
    const int32_t *row = areas.data;
    for (int i = 0; i < areas.dim[0]; i++, row += 5) {
        struct picture_size size = picture_area_size((struct picture_size){row[0], row[1]}, row[2], 32);
        if (size.width != row[3] || size.height != row[4])
            fail_msg("%dx%d of %d: %dx%d, not %dx%d", row[0], row[1], row[2], size.width, size.height, row[3],
                     row[4]);
    }
    assert_int_equal(areas.dim[0], 300);
}

/* Output sizes of LongCat-Image-Edit. */
TEST(area_sizes_rounded_up) {
    struct tensor areas = known("areas_up");
    const int32_t *row = areas.data;
    for (int i = 0; i < areas.dim[0]; i++, row += 5) {
        struct picture_size size = picture_area_size_up((struct picture_size){row[0], row[1]}, row[2], 16);
        if (size.width != row[3] || size.height != row[4])
            fail_msg("%dx%d of %d: %dx%d, not %dx%d", row[0], row[1], row[2], size.width, size.height, row[3],
                     row[4]);
    }
    assert_int_equal(areas.dim[0], 201);
}

/* Sizes of Flux.2's reference images: large ones shrink; small or extreme ones are rejected. */
TEST(limited_sizes) {
    static const int sides[][2] = {{63, 64}, {64, 63}, {64, 513}, {4097, 512}};
    struct tensor sizes = known("limited");
    const int32_t *row = sizes.data;
    int n_shrunk = 0;
    for (int i = 0; i < sizes.dim[0]; i++, row += 6) {
        struct sluice_picture p = {.width = row[0], .height = row[1]};
        struct picture_size size = picture_limited_size((struct picture_size){row[0], row[1]}, 1024 * 1024);
        picture_limited_check(&p, &problem);
        assert_ok();
        if (size.width != row[2] || size.height != row[3])
            fail_msg("%dx%d: %dx%d, not %dx%d", row[0], row[1], size.width, size.height, row[2], row[3]);
        n_shrunk += row[0] != row[2];
    }
    assert_true(n_shrunk > 50 && n_shrunk < 150);
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        struct sluice_picture p = {.width = sides[i][0], .height = sides[i][1], .name = "fox.png"};
        char found[64];
        snprintf(found, sizeof found, "(fox.png): found %dx%d", p.width, p.height);
        picture_limited_check(&p, &problem);
        assert_code(SHAPE, found);
    }
}

TEST(extreme_aspect_ratios) {
    static const int sides[][2] = {{15, 64}, {64, 15}, {1, 1}, {4097, 1024}, {1024, 4097}, {16384, 65}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        struct sluice_picture p = {.width = sides[i][0], .height = sides[i][1], .name = "fox.png"};
        struct picture_size size;
        char found[64];
        snprintf(found, sizeof found, "(fox.png): found %dx%d", p.width, p.height);
        picture_reference_size(&p, 16, &size, &problem);
        assert_code(SHAPE, found);
    }
}

/* Resizes the image of reference "KIND/W/H/W2/H2"; compares all or every Yth row and Xth column. */
static void check_resized(const char *name, enum resampler by, int *differing, int *largest) {
    int w, h, every_row = 1, every_column = 1;
    struct picture_size size;
    int n = sscanf(strchr(name, '/'), "/%d/%d/%d/%d/%d/%d", &w, &h, &size.width, &size.height, &every_row,
                   &every_column);
    assert_true(n == 4 || n == 6);
    struct sluice_picture from = drawn((uint64_t)w * 65536 + (uint64_t)h, w, h);
    uint8_t *made = pool_alloc((size_t)size.width * (size_t)size.height * 3);
    picture_resize(&machine, &from, by, size, made, &problem);
    assert_ok();
    struct tensor t = known(name);
    for (int y = 0; y < t.dim[0]; y++)
        for (int x = 0; x < t.dim[1] * 3; x++) {
            int column = x / 3 * every_column * 3 + x % 3;
            int ours = made[y * every_row * size.width * 3 + column];
            int away = abs(ours - ((const uint8_t *)t.data)[y * t.dim[1] * 3 + x]);
            *differing += away > 0;
            if (away > *largest) *largest = away;
        }
}

static int check_all_resized(const char *kind, enum resampler by, int *differing, int *largest) {
    int n = 0;
    for (int i = 0; i < truth.n_entries; i++) {
        const char *name = truth.entries[i].name;
        if (strncmp(name, kind, strlen(kind)) != 0) continue;
        check_resized(name, by, differing, largest);
        pool_used = 0;
        n++;
    }
    printf("%s: %d values differ, by at most %d\n", kind, *differing, *largest);
    return n;
}

/* Measured on noise, where many values clip: all values equal those of Pillow (x86-64, with the sine of
 * glibc 2.36) and of PyTorch (which needs no library function). */
TEST(resizing_equals_pillow_and_pytorch) {
    int differing = 0, largest = 0;
    assert_int_equal(check_all_resized("resize/", PILLOW_LANCZOS, &differing, &largest), 7);
    assert_true(largest <= 1 && differing <= 20);
    differing = largest = 0;
    assert_int_equal(check_all_resized("bicubic/", TORCH_BICUBIC, &differing, &largest), 12);
    assert_int_equal(differing, 0);
}

/* Resizing keeps the pixels of an image of unchanged size, and the colour of a one-coloured image. */
static void check_uniform_images(enum resampler by) {
    struct sluice_picture p = drawn(3, 50, 40);
    uint8_t *made = pool_alloc(3 * 300 * 200), *plain = pool_alloc(50 * 40 * 3);
    picture_resize(&machine, &p, by, (struct picture_size){50, 40}, made, &problem);
    assert_memory_equal(made, p.rgb, 50 * 40 * 3);
    memset(plain, 255, 50 * 40 * 3);
    p.rgb = plain;
    static const struct picture_size sizes[] = {{300, 200}, {7, 200}, {300, 9}, {1, 1}, {13, 11}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int n = sizes[i].width * sizes[i].height * 3;
        picture_resize(&machine, &p, by, sizes[i], made, &problem);
        for (int j = 0; j < n; j++) assert_int_equal(made[j], 255);
    }
    assert_ok();
}

TEST(resizing_keeps_uniform_images) {
    check_uniform_images(PILLOW_LANCZOS);
    check_uniform_images(TORCH_BICUBIC);
}

static void *alloc_none(struct sys *sys, enum memory_line line, size_t bytes) {
    return NULL;
}

static uint64_t bytes_of(struct picture_size from, struct picture_size to) {
    return resample_bytes(from, &(struct picture_part){.whole = to, .size = to});
}

/* Resampling allocates exactly resample_bytes, little more than 2 MiB for any legal reference image. */
TEST(resizing_memory_bounded) {
    static const int sides[] = {16, 17, 33, 64, 700, 1031, 4096, 9999, 16383, 16384};
    enum { N = sizeof sides / sizeof *sides };
    uint64_t most = 0;
    for (int i = 0; i < N * N; i++) {
        struct sluice_picture p = {.width = sides[i / N], .height = sides[i % N]};
        struct picture_size from = {p.width, p.height}, to;
        if (picture_reference_size(&p, 16, &to, &problem) == OK && bytes_of(from, to) > most)
            most = bytes_of(from, to);
        problem = (struct error){0};
    }
    assert_true(most > 1 << 20 && most <= 2 << 20);
    struct sys counting;
    sys_init_machine(&counting);
    struct sluice_picture p = drawn(1, 100, 80);
    uint8_t *made = pool_alloc(48 * 32 * 3);
    picture_resize(&counting, &p, PILLOW_LANCZOS, (struct picture_size){48, 32}, made, &problem);
    assert_ok();
    struct memory_use use = sys_memory_use(&counting);
    assert_int_equal(use.peak_bytes[LINE_HOST],
                     bytes_of((struct picture_size){100, 80}, (struct picture_size){48, 32}));
    assert_int_equal(use.live_bytes[LINE_HOST], 0);
    counting.alloc = alloc_none;
    picture_resize(&counting, &p, PILLOW_LANCZOS, (struct picture_size){48, 32}, made, &problem);
    assert_code(MEMORY, "fox.png");
}

TEST(tensor_of_picture) {
    uint8_t rgb[768];
    for (int i = 0; i < 256; i++)
        for (int c = 0; c < 3; c++) rgb[3 * i + c] = (uint8_t)((i + 256 * c) % 256);
    struct sluice_picture p = {.width = 16, .height = 16, .rgb = rgb};
    struct tensor ours = floats(16, 16, 3), t = known("tensor");
    picture_to_tensor(&p, NULL, false, ours);
    const float *made = ours.data, *expected = t.data;
    for (int i = 0; i < 768; i++) assert_true(made[i] == expected[i % 3 * 256 + i / 3]);
    static const float mean[] = {0.48145466F, 0.4578275F, 0.40821073F},
                       deviation[] = {0.26862954F, 0.26130258F, 0.27577711F};
    picture_to_vision(&p, mean, deviation, ours);
    const float *seen = known("seen").data;
    for (int i = 0; i < 768; i++) assert_true(made[i] == seen[i % 3 * 256 + i / 3]);
}

TEST(mask_channels) {
    struct tensor rgb = known("mask_rgb"), t = known("masked"), channels = known("channels");
    struct sluice_picture mask = {.width = 48, .height = 32, .rgb = rgb.data}, init = drawn(7, 48, 32);
    struct tensor ours = floats(32, 48, 3);
    picture_to_tensor(&init, &mask, false, ours);
    const float *made = ours.data, *expected = t.data;
    for (int i = 0; i < 48 * 32 * 3; i++) assert_true(made[i] == expected[i % 3 * 48 * 32 + i / 3]);
    struct tensor control = floats(64, 4, 6);
    mask_to_channels(&mask, 8, control);
    const uint8_t *expected_channels = channels.data, *expected_mask = known("mask").data;
    int n = 0;
    for (int i = 0; i < 64 * 24; i++) {
        assert_true(((float *)control.data)[i] == (float)expected_channels[i]);
        n += expected_mask[i];
    }
    assert_true(n > 500 && n < 1000); /* mask pixels just below and above the repaint threshold */
    /* The latent-sized mask holds the upper left pixel of each 8 x 8 square. */
    struct tensor small = floats(1, 4, 6);
    mask_to_latent(&mask, 8, tensor_reshape(small, 2, small.dim + 1));
    assert_memory_equal(small.data, control.data, (size_t)tensor_bytes(&small));
}

/* Flux.2's inpainting mask: means of the four pixels around the centre of each 16 x 16 square. */
TEST(interpolated_mask) {
    struct tensor expected = known("mask_16");
    struct sluice_picture mask = {.width = 48, .height = 32, .rgb = known("mask_rgb").data};
    struct tensor made = floats(1, 2, 3), out = tensor_reshape(made, 2, made.dim + 1);
    int n_mixed = 0;
    mask_to_latent_bilinear(&mask, 16, out);
    for (int i = 0; i < 6; i++) {
        float share = ((const float *)made.data)[i];
        assert_true(share == ((const float *)expected.data)[i]);
        n_mixed += share > 0 && share < 1;
    }
    assert_true(n_mixed > 2);
}

TEST(posterior_sample) {
    struct tensor moments = known("moments"), noise = known("noise"), sampled = known("sampled");
    struct tensor ours = floats(4, 5, 7), mean = known("mean");
    const struct latent_format format = {.n = 1, .scale = {0.3611f}, .shift = {0.1159f}};
    posterior_sample(moments, NULL, &format, ours);
    assert_memory_equal(ours.data, mean.data, (size_t)tensor_bytes(&mean));
    posterior_sample(moments, noise.data, &format, ours);
    double most = 0;
    for (int i = 0; i < 140; i++) {
        double a = ((float *)ours.data)[i], b = ((float *)sampled.data)[i];
        double away = fabs(a - b) / (fabs(b) + 1);
        if (away > most) most = away;
    }
    printf("posterior: largest difference %.2g\n", most);
    assert_true(most <=
                2e-7); /* measured difference: 0; on other machines PyTorch's exp may differ in some bits */
    posterior_sample(moments, noise.data, &format, noise);
    assert_memory_equal(noise.data, ours.data, (size_t)tensor_bytes(&ours));
}

/* Test images are larger and smaller than the target size and have other aspect ratios. */
TEST(padding_to_size) {
    double most = 0;
    int n = 0;
    for (int i = 0; i < truth.n_entries; i++) {
        int width, height, to_width, to_height, white = 0;
        const char *name = truth.entries[i].name;
        if (sscanf(name, "canvas/%d/%d/%d/%d", &width, &height, &to_width, &to_height) != 4) continue;
        pool_used = 0;
        struct sluice_picture picture = drawn((uint64_t)width * 65536 + (uint64_t)height, width, height);
        struct tensor expected = known(name), ours = floats(to_height, to_width, 3);
        picture_letterbox(&picture, ours);
        int pixels = to_width * to_height;
        for (int v = 0; v < 3 * pixels; v++) {
            float a = ((float *)ours.data)[v], b = ((float *)expected.data)[v % 3 * pixels + v / 3];
            most = fmax(most, fabs((double)a - (double)b));
            white += a == 1;
        }
        assert_true(white < 5 * pixels / 2);
        n++;
    }
    printf("padded image: largest difference %.2g\n", most);
    assert_int_equal(n, 4);
    assert_true(most <= 3e-7); /* 3e-7 absolute, for values of at most 1 */
}

/* For the callbacks below: number of rows that they deliver, and the status that they return. */
static int rows_kept = INT32_MAX, failing;

static int read_noise(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    memcpy(rgb, picture->user, (size_t)picture->width * (size_t)picture->height * 3);
    e->code = failing;
    e->exit_code = 3;
    return failing;
}

static int read_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *e) {
    for (int y = 0; y < picture->height && y < rows_kept; y++)
        take(to, (const uint8_t *)picture->user + 3 * (size_t)y * (size_t)picture->width);
    e->code = failing;
    e->exit_code = 3;
    return failing;
}

/* Alpha of transparent() in arithmetic.py: about half of the pixels are opaque or fully transparent. */
static uint8_t *drawn_alpha(uint64_t seed, int width, int height) {
    struct sluice_picture from = drawn(seed + 1, width, height);
    size_t n = (size_t)width * (size_t)height;
    uint8_t *alpha = pool_alloc(n);
    for (size_t i = 0; i < n; i++) {
        int value = 2 * from.rgb[3 * i] - 128;
        alpha[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
    return alpha;
}

/* Callback read_rgba_rows. user: the picture in memory. */
static int read_rgba_rows(const struct sluice_picture *p, void (*take)(void *to, const uint8_t *row),
                          void *to, struct sluice_error *e) {
    static uint8_t row[4 * 256];
    const struct sluice_picture *from = p->user;
    (void)e;
    for (int y = 0; y < p->height; y++) {
        for (int x = 0; x < p->width; x++) {
            memcpy(row + 4 * x, from->rgb + 3 * (y * p->width + x), 3);
            row[4 * x + 3] = from->alpha[y * p->width + x];
        }
        take(to, row);
    }
    return 0;
}

/* Fits the image of reference "rgba/W/H/W2/H2" from memory and row by row, and keeps its size once. */
static void check_rgba(const struct index_entry *entry) {
    struct picture_size from, to;
    assert_int_equal(
        sscanf(entry->name, "rgba/%d/%d/%d/%d", &from.width, &from.height, &to.width, &to.height), 4);
    uint64_t seed = (uint64_t)from.width * 65536 + (uint64_t)from.height;
    struct sluice_picture kept = drawn(seed, from.width, from.height);
    kept.alpha = drawn_alpha(seed, from.width, from.height);
    struct tensor expected = tensor_of_entry(&truth, entry);
    size_t pixels = (size_t)to.width * (size_t)to.height, all = (size_t)from.width * (size_t)from.height;
    uint8_t *rgb = pool_alloc(3 * (pixels + all)), *alpha = pool_alloc(pixels + all);
    struct sluice_picture lazy = {
        .width = from.width, .height = from.height, .read_rgba_rows = read_rgba_rows, .user = &kept};
    for (int i = 0; i < 2; i++) {
        struct fitting f = fit_make(FIT_STRETCH, from, to);
        f.part.alpha = true;
        fit_read(&machine, i ? &lazy : &kept, &f, rgb, alpha, &problem);
        assert_ok();
        for (size_t k = 0; k < pixels; k++) {
            assert_memory_equal(rgb + 3 * k, (const uint8_t *)expected.data + 4 * k, 3);
            assert_int_equal(alpha[k], ((const uint8_t *)expected.data)[4 * k + 3]);
        }
    }
    struct fitting same = fit_make(FIT_STRETCH, from, from);
    same.part.alpha = true;
    fit_read(&machine, &lazy, &same, rgb, alpha, &problem);
    assert_ok();
    assert_memory_equal(rgb, kept.rgb, 3 * all);
    assert_memory_equal(alpha, kept.alpha, all);
}

/* Measured: all values equal Pillow's, which premultiplies by alpha. */
TEST(resizing_with_alpha_equals_pillow) {
    int n = 0;
    for (int i = 0; i < truth.n_entries; i++) {
        if (strncmp(truth.entries[i].name, "rgba/", 5) != 0) continue;
        check_rgba(&truth.entries[i]);
        pool_used = 0;
        n++;
    }
    assert_int_equal(n, 5);
}

/* A VAE with alpha reads four channels; a vision encoder reads the image over white, at any size. */
TEST(tensors_with_alpha) {
    static const float none[3], one[3] = {1 / 255.0F, 1 / 255.0F, 1 / 255.0F};
    enum { X = 31, Y = 23 };
    uint64_t seed = X * 65536 + Y;
    struct sluice_picture p = drawn(seed, X, Y);
    p.alpha = drawn_alpha(seed, X, Y);
    struct tensor four = floats(Y, X, RGBA), three = floats(Y, X, 3);
    const uint8_t *white = known("white/31/23").data;
    picture_to_tensor(&p, NULL, false, four);
    picture_to_vision(&p, none, one, three);
    const float *values = four.data, *seen = three.data;
    uint8_t *made = pool_alloc(X * Y * 3);
    picture_resize(&machine, &p, TORCH_BICUBIC, (struct picture_size){X, Y}, made, &problem);
    assert_ok();
    for (int i = 0; i < X * Y; i++) {
        assert_true(values[4 * i + 3] == 2 * ((float)p.alpha[i] / 255) - 1);
        for (int c = 0; c < 3; c++) {
            assert_true(values[4 * i + c] == 2 * ((float)p.rgb[3 * i + c] / 255) - 1);
            assert_int_equal(lrintf(seen[3 * i + c]), white[3 * i + c]);
            assert_int_equal(made[3 * i + c], white[3 * i + c]);
        }
    }
    p.alpha = NULL;
    picture_to_tensor(&p, NULL, false, four);
    for (int i = 0; i < X * Y; i++) assert_true(values[4 * i + 3] == 1);
}

enum delivery { HAS_PIXELS, IN_ROWS, WHOLE, N_DELIVERIES };

/* Returns the image as a program gives it: with its pixels, or with callbacks that read rows or all pixels.
 */
static struct sluice_picture delivered(enum delivery how, struct sluice_picture p) {
    p.user = (void *)(uintptr_t)p.rgb;
    p.read = read_noise;
    p.reading_bytes = 1000;
    if (how != HAS_PIXELS) p.rgb = NULL;
    if (how == IN_ROWS) p.read_rows = read_rows;
    return p;
}

/* The fixture's tensor "crop/W/H/W2/H2" is noise of W x H, fitted to W2 x H2. */
TEST(fitted_pixels_equal_diffusers) {
    static uint8_t made[64 * 64 * 3];
    for (int i = 0; i < fits.n_entries; i++)
        for (int how = 0; how < N_DELIVERIES; how++) {
            const struct index_entry *entry = &fits.entries[i];
            char name[16];
            struct picture_size from, to;
            enum fit fit;
            pool_used = 0;
            assert_int_equal(sscanf(entry->name, "%15[a-z]/%d/%d/%d/%d", name, &from.width, &from.height,
                                    &to.width, &to.height),
                             5);
            fit_find(name, &fit, &problem);
            struct tensor expected = tensor_of_entry(&fits, entry);
            struct fitting f = fit_make(fit, from, to);
            struct sluice_picture p = delivered(
                how, drawn((uint64_t)from.width * 65536 + (uint64_t)from.height, from.width, from.height));
            assert_int_equal(entry->bytes, 3 * f.size.width * f.size.height);
            memset(made, 1, sizeof made);
            fit_read(&machine, &p, &f, made, NULL, &problem);
            assert_ok();
            if (memcmp(made, expected.data, entry->bytes)) fail_msg("%s", entry->name);
            assert_int_equal(made[entry->bytes], 1);
        }
    assert_int_equal(fits.n_entries, 39);
}

/* Fitting an image takes exactly the declared memory: a few rows if the image is read row by row. */
TEST(fitting_memory_as_declared) {
    struct picture_size from = {500, 500}, to = {20, 30};
    for (int how = 0; how < N_DELIVERIES; how++) {
        struct sys counting;
        sys_init_machine(&counting);
        pool_used = 0;
        struct sluice_picture p = delivered(how, drawn(1, from.width, from.height));
        struct fitting f = fit_make(FIT_CROP, from, to);
        fit_read(&counting, &p, &f, pool_alloc(20 * 30 * 3), NULL, &problem);
        assert_ok();
        struct memory_use use = sys_memory_use(&counting);
        uint64_t pages = how == WHOLE ? 4096 : 0;
        uint64_t predicted = fit_bytes(&p, &f) - p.reading_bytes, took = use.peak_bytes[LINE_HOST];
        assert_true(took >= predicted && took <= predicted + pages);
        assert_int_equal(use.live_bytes[LINE_HOST], 0);
        assert_true(how == WHOLE ? predicted > 750000 : predicted < 100000);
    }
}

/* Images with the largest sides need little memory, also when very high and narrow. */
TEST(large_images_need_little_memory) {
    static const struct picture_size sizes[] = {
        {16384, 16384}, {8000, 16384}, {16384, 1}, {1, 16384}, {16384, 8000}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (enum fit fit = 0; fit < N_FITS; fit++) {
            struct sluice_picture p = delivered(
                IN_ROWS, (struct sluice_picture){.width = sizes[i].width, .height = sizes[i].height});
            struct fitting f = fit_make(fit, sizes[i], (struct picture_size){512, 512});
            assert_true(fit_bytes(&p, &f) < 6 << 20);
            assert_true(f.part.size.width >= 1 && f.part.size.height >= 1);
            assert_true(f.part.x >= 0 && f.part.x + f.part.size.width <= f.part.whole.width);
            assert_true(f.part.y >= 0 && f.part.y + f.part.size.height <= f.part.whole.height);
            assert_true(f.left >= 0 && f.left + f.part.size.width <= f.size.width);
            assert_true(f.top >= 0 && f.top + f.part.size.height <= f.size.height);
        }
}

static void expect_failure(struct sys *sys, enum delivery how, enum status code) {
    enum { ROWS_LOST = 3 };
    struct sluice_picture p = delivered(how, drawn(1, 50, 40));
    struct fitting f = fit_make(FIT_STRETCH, (struct picture_size){50, 40}, (struct picture_size){20, 30});
    rows_kept = 40 - ROWS_LOST;
    fit_read(sys, &p, &f, pool_alloc(20 * 30 * 3), NULL, &problem);
    rows_kept = INT32_MAX;
    assert_int_equal(problem.code, code);
    problem = (struct error){0};
}

TEST(read_failures_reported) {
    struct sys poor;
    enum fit fit;
    sys_init_machine(&poor);
    expect_failure(&machine, IN_ROWS, IO);
    failing = SLUICE_TRUNC;
    expect_failure(&machine, IN_ROWS, TRUNC);
    expect_failure(&machine, WHOLE, TRUNC);
    failing = 0;
    poor.map = alloc_none;
    expect_failure(&poor, WHOLE, MEMORY);
    poor.alloc = alloc_none;
    expect_failure(&poor, HAS_PIXELS, MEMORY);
    assert_int_equal(fit_find("fill", &fit, &problem), USAGE);
    problem = (struct error){0};
    assert_true(fit_find(NULL, &fit, &problem) == OK && fit == FIT_CROP);
}

static int open_truth(void **state) {
    sys_init_machine(&machine);
    safetensors_open(&machine, "test/golden/pictures/arithmetic.safetensors", &truth, &problem);
    safetensors_open(&machine, "test/golden/pictures/fit.safetensors", &fits, &problem);
    assert_ok();
    return 0;
}

static int close_truth(void **state) {
    index_destroy(&truth);
    index_destroy(&fits);
    return 0;
}

int main(void) {
    return run_all_tests(open_truth, close_truth);
}
