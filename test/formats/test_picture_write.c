/* Image output with alpha (cli/picture.c): PNG keeps every value, WebP keeps alpha and changes colours
 * little, JPEG lays the image over white. Each with and without generation parameters. */
#include "cli/picture.h"
#include "test/lib/check.h"
#include "test/lib/cmocka_tests.h"
#include "test/lib/temporary_folder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 37, HEIGHT = 23, PIXELS = WIDTH * HEIGHT };

static uint8_t rgb[3 * PIXELS], alpha[PIXELS], found[4 * PIXELS];
static size_t n_found;

/* Smooth colours; alpha from 0 to 255, with rows of both. */
static void make_image(void) {
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            int i = y * WIDTH + x;
            for (int c = 0; c < 3; c++)
                rgb[3 * i + c] = (uint8_t)lrint(127.5 + 100 * sin(0.1 * x + 0.07 * y * (c + 1)));
            alpha[i] = (uint8_t)(y < 2 ? 0 : y > 19 ? 255 : 7 * x);
        }
}

static void take_row(void *to, const uint8_t *row) {
    (void)to;
    assert_true(n_found + 4 * WIDTH <= sizeof found);
    memcpy(found + n_found, row, 4 * WIDTH);
    n_found += 4 * WIDTH;
}

/* Writes the image and reads the file as RGBA. */
static void write_and_read(const char *name, const char *parameters) {
    struct sluice_image image = {.struct_size = sizeof image,
                                 .width = WIDTH,
                                 .height = HEIGHT,
                                 .rgb = rgb,
                                 .frames = 1,
                                 .alpha = alpha};
    struct picture_content content = {&image, parameters, PICTURE_QUALITY};
    struct sluice_picture picture;
    struct sluice_error e = {0};
    unsigned notes;
    make_image();
    n_found = 0;
    if (picture_write(name, &content, &e) || picture_open(name, &picture, &notes, &e) ||
        picture_read(&picture, &(struct row_sink){take_row, NULL, true}, &notes, &e))
        fail_msg("%s: %s", name, e.what);
    assert_int_equal(n_found, sizeof found);
}

/* The largest difference between the colours of the file and those of the image, where alpha is at least
 * `least`. */
static int largest_difference(int least, bool over_white) {
    int most = 0;
    for (int i = 0; i < 3 * PIXELS; i++) {
        int a = alpha[i / 3], ours = over_white ? picture_over_white(rgb[i], a) : rgb[i];
        int away = abs(found[i / 3 * 4 + i % 3] - ours);
        if (a >= least && away > most) most = away;
    }
    return most;
}

/* False, with a line, if this build lacks the format's library. */
static bool can_write(const char *name) {
    struct sluice_error e;
    bool can = !picture_check_name(name, &e);
    if (!can) printf("SKIP %s: this build cannot write it\n", name);
    return can;
}

static const char *const texts[] = {NULL, "a fox\nSteps: 4"};

TEST(png_keeps_every_value) {
    for (int i = 0; i < 2; i++) {
        write_and_read(temporary_path("a.png"), texts[i]);
        assert_int_equal(largest_difference(0, false), 0);
        for (int k = 0; k < PIXELS; k++) assert_int_equal(found[4 * k + 3], alpha[k]);
    }
}

/* Colours of opaque pixels measured: at most 15 away. */
TEST(webp_keeps_alpha) {
    if (!can_write("a.webp")) return;
    for (int i = 0; i < 2; i++) {
        write_and_read(temporary_path("a.webp"), texts[i]);
        for (int k = 0; k < PIXELS; k++) assert_int_equal(found[4 * k + 3], alpha[k]);
        printf("WebP: colours differ by at most %d\n", largest_difference(255, false));
        assert_true(largest_difference(255, false) <= 24);
    }
}

/* Measured: at most 16 away. */
TEST(jpeg_lies_over_white) {
    if (!can_write("a.jpg")) return;
    for (int i = 0; i < 2; i++) {
        write_and_read(temporary_path("a.jpg"), texts[i]);
        for (int k = 0; k < PIXELS; k++) assert_int_equal(found[4 * k + 3], 255);
        printf("JPEG: colours differ by at most %d\n", largest_difference(0, true));
        assert_true(largest_difference(0, true) <= 24);
        for (int k = 0; k < 3 * WIDTH; k++) assert_true(found[k / 3 * 4 + k % 3] >= 250);
    }
    assert_false(picture_keeps_alpha("a.jpg"));
    assert_true(picture_keeps_alpha("a.png"));
}

int main(void) {
    temporary_make();
    return run_all_tests(NULL, NULL);
}
