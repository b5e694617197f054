/* JPEG and WebP input, and EXIF orientation: Pillow's files give Pillow's pixels
 * (test/golden/pictures/kinds.py). Truncated, damaged, too large or unsupported files are errors of exit
 * code 3. No file causes a crash, hang or leak.
 *
 * SEED in the environment varies the damage. */
#include "cli/picture.h"
#include "engine/base/random.h"
#include "test/lib/png_bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { MUTATIONS = 4000, WIDTH = 19, HEIGHT = 13 };

static const char *const names[] = {"full.jpg",         "halves.jpg",       "flat.jpg",        "scans.jpg",
                                    "grey_scans.jpg",   "turned_2.jpg",     "turned_3.jpg",    "turned_4.jpg",
                                    "turned_5.jpg",     "turned_6.jpg",     "turned_7.jpg",    "turned_8.jpg",
                                    "exact.webp",       "near.webp",        "near_clear.webp", "moving.webp",
                                    "exact_clear.webp", "turned_webp.webp", "turned_png.png"};
enum { N_NAMES = sizeof names / sizeof *names };

static struct sluice_error problem;
static struct sluice_picture picture;
static uint8_t *pixels, *next;
static unsigned notes;
static uint64_t random_state = 1;

static struct bytes golden(const char *name) {
    char path[128];
    unsigned char block[4096];
    struct bytes b = {0};
    snprintf(path, sizeof path, "test/golden/pictures/%s", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;) png_put(&b, block, n);
    fclose(file);
    return b;
}

static void put_row(void *to, const uint8_t *row) {
    (void)to;
    assert_true(next < pixels + 3 * (size_t)picture.width * (size_t)picture.height);
    memcpy(next, row, 3 * (size_t)picture.width);
    next += 3 * (size_t)picture.width;
}

/* Decodes the image, unless its (damaged) header needs more than 16 MiB, which memory budgets refuse. */
static int read_all(const char *name) {
    enum { LARGE = 1 << 24 };
    unsigned more = 0;
    int status = picture_open(name, &picture, &notes, &problem);
    if (status || picture.reading_bytes > LARGE) return status;
    pixels = next = realloc(pixels, 3 * (size_t)picture.width * (size_t)picture.height);
    status = picture_read(&picture, &(struct row_sink){put_row, NULL}, &more, &problem);
    notes |= more;
    if (!status) assert_ptr_equal(next, pixels + 3 * (size_t)picture.width * (size_t)picture.height);
    return status;
}

static int read_bytes(const struct bytes *b) {
    char name[64];
    int file = memfd_create("picture", MFD_CLOEXEC);
    assert_int_equal(write(file, b->at, b->n), (ssize_t)b->n);
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    memset(&problem, 0, sizeof problem);
    picture = (struct sluice_picture){0};
    notes = 0;
    int status = read_all(name);
    close(file);
    if (status && problem.exit_code != 3) fail_msg("exit code %d: %s", problem.exit_code, problem.what);
    return status;
}

static void test_pixels_equal_pillow(void **state) {
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        char rgb_name[64];
        snprintf(rgb_name, sizeof rgb_name, "%.*s.rgb", (int)strcspn(names[i], "."), names[i]);
        struct bytes b = golden(names[i]), rgb = golden(rgb_name);
        if (read_bytes(&b)) fail_msg("%s: %s (%s)", names[i], problem.what, problem.found);
        bool lies = strstr(names[i], "_5") || strstr(names[i], "_6") || strstr(names[i], "_7") ||
                    strstr(names[i], "_8") || strstr(names[i], "turned_webp") ||
                    strstr(names[i], "turned_png");
        assert_int_equal(picture.width, lies ? HEIGHT : WIDTH);
        assert_int_equal(picture.height, lies ? WIDTH : HEIGHT);
        if (memcmp(pixels, rgb.at, rgb.n)) fail_msg("%s: pixels differ from Pillow's", names[i]);
        assert_int_equal(!!(notes & PICTURE_TRANSPARENT), strstr(names[i], "clear") != NULL);
        assert_int_equal(!!(notes & PICTURE_ANIMATED), strstr(names[i], "moving") != NULL);
        free(b.at);
        free(rgb.at);
    }
}

static void expect(struct bytes *b, int code, const char *text) {
    char line[1024] = "";
    int status = read_bytes(b);
    if (status) sluice_error_line(&problem, line, sizeof line);
    if (status != code || !strstr(line, text))
        fail_msg("%s instead of %s with '%s': %s", sluice_code_name(status), sluice_code_name(code), text,
                 line);
    free(b->at);
    *b = (struct bytes){0};
}

/* Returns a pointer to byte `at` of the segment of a JPEG marker, counted from the segment's two length
 * bytes. */
static unsigned char *segment(struct bytes *b, unsigned marker, size_t at) {
    for (size_t i = 2; i + 4 < b->n; i += 2 + (size_t)(b->at[i + 2] << 8 | b->at[i + 3]))
        if (b->at[i + 1] == marker) return b->at + i + 2 + at;
    fail_msg("no JPEG marker %x", marker);
    return NULL;
}

static void set_sides(struct bytes *b, unsigned marker, unsigned side) {
    for (int i = 3; i <= 5; i += 2) {
        segment(b, marker, (size_t)i)[0] = (unsigned char)(side >> 8);
        segment(b, marker, (size_t)i)[1] = (unsigned char)side;
    }
}

enum { BASELINE = 0xC0, PROGRESSIVE = 0xC2 };

/* Size limits and the memory estimate are computed from the image header alone. */
static void test_size_limits(void **state) {
    (void)state;
    struct bytes b = golden("full.jpg");
    set_sides(&b, BASELINE, 65500);
    expect(&b, SLUICE_LIMIT, "sides of 1 to 16384");
    b = golden("full.jpg");
    set_sides(&b, BASELINE, 65535);
    expect(&b, SLUICE_LIMIT, "65500");
    b = golden("scans.jpg");
    set_sides(&b, PROGRESSIVE, 16384); /* progressive: the coefficients of the whole image are in memory */
    assert_int_equal(read_bytes(&b), SLUICE_OK);
    assert_true(picture.width == 16384 && picture.reading_bytes > 700u << 20);
    free(b.at);
    b = golden("full.jpg");
    set_sides(&b, BASELINE, 16384); /* baseline: decoded row by row; the first rows are in the file */
    expect(&b, SLUICE_IO, "premature end");
    assert_true(picture.reading_bytes < 16 << 20);
    b = golden("near.webp");
    memcpy(b.at + 26, "\377\77\377\77", 4); /* changes the header's size to 16383 x 16383 */
    assert_int_equal(read_bytes(&b), SLUICE_OK);
    assert_true(picture.width == 16383 && picture.reading_bytes > 700u << 20);
    free(b.at);
}

/* Checks the memory in bytes per pixel, besides the file and 2 MiB: lossy 3, lossy with alpha 5, lossless and
 * animations 7. */
static void test_webp_memory(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t a_pixel;
    } rows[] = {{"near.webp", 3}, {"near_clear.webp", 5}, {"exact.webp", 7}, {"moving.webp", 7}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bytes b = golden(rows[i].name);
        assert_int_equal(read_bytes(&b), SLUICE_OK);
        assert_int_equal(picture.reading_bytes, b.n + (2 << 20) + rows[i].a_pixel * WIDTH * HEIGHT);
        free(b.at);
    }
}

static void test_unsupported_kinds_refused(void **state) {
    (void)state;
    struct bytes b = golden("print.jpg");
    expect(&b, SLUICE_UNSUPPORTED, "CMYK");
    b = golden("full.jpg");
    *segment(&b, BASELINE, 2) = 12; /* bits per sample */
    expect(&b, SLUICE_UNSUPPORTED, "12");
    png_put(&b, "\xff\xd8\xff\xe0 JFIF", 9);
    expect(&b, SLUICE_TRUNC, "ends too early");
    png_put(&b, "RIFF\1\2\3\4WEBPVP8 ", 16);
    expect(&b, SLUICE_TRUNC, "ends too early");
    png_put(&b, "RIFF\1\2\3\4WEBP", 12);
    png_put(&b, (char[64]){0}, 64);
    expect(&b, SLUICE_TRUNC, "ends too early");
    b = golden("moving.webp"); /* an animation truncated after its first frame */
    b.n -= 2;
    expect(&b, SLUICE_TRUNC, "ends too early");
}

/* Refuses a progressive JPEG with many empty scans, because each scan costs a pass over the image. */
static void test_jpeg_scan_bomb_refused(void **state) {
    (void)state;
    struct bytes b = golden("grey_scans.jpg"), more = {0};
    size_t first = 2;
    while (b.at[first + 1] != 0xDA) first += 2 + (size_t)(b.at[first + 2] << 8 | b.at[first + 3]);
    png_put(&more, b.at, first);
    for (int i = 0; i < 200; i++) png_put(&more, "\xff\xda\0\10\1\1\0\0\0\0\0\0", 12);
    png_put(&more, b.at + first, b.n - first);
    free(b.at);
    int status = read_bytes(&more);
    assert_true(status == SLUICE_LIMIT || status == SLUICE_IO);
    free(more.at);
}

/* Opening every truncation of a file must fail, except within RIFF padding and EXIF at the end. */
static void test_truncation_refused(void **state) {
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        struct bytes whole = golden(names[i]);
        for (size_t n = 0; n < whole.n; n++) {
            struct bytes part = {whole.at, n, n};
            int status = read_bytes(&part);
            bool jpeg = strstr(names[i], ".jpg") != NULL;
            if (jpeg && status != SLUICE_TRUNC && status != SLUICE_IO)
                fail_msg("%s at %zu: %d", names[i], n, status);
            if (n < whole.n / 3) assert_true(status != SLUICE_OK);
        }
        free(whole.at);
    }
}

static void test_damage_never_crashes(void **state) {
    (void)state;
    int n_bad = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        struct bytes b = golden(names[i % N_NAMES]);
        for (uint64_t n = random_below(&random_state, 3) + 1; n > 0; n--)
            b.at[random_below(&random_state, b.n)] = (unsigned char)random_next(&random_state);
        n_bad += read_bytes(&b) != SLUICE_OK;
        free(b.at);
    }
    printf("damage: %d of %d files refused\n", n_bad, MUTATIONS);
    assert_true(n_bad > MUTATIONS / 8);
}

static int free_pixels(void **state) {
    (void)state;
    free(pixels);
    return 0;
}

int main(void) {
    if (getenv("SEED")) random_state = strtoull(getenv("SEED"), NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pixels_equal_pillow),       cmocka_unit_test(test_size_limits),
        cmocka_unit_test(test_unsupported_kinds_refused), cmocka_unit_test(test_webp_memory),
        cmocka_unit_test(test_jpeg_scan_bomb_refused),    cmocka_unit_test(test_truncation_refused),
        cmocka_unit_test(test_damage_never_crashes),
    };
    return cmocka_run_group_tests(tests, NULL, free_pixels);
}
