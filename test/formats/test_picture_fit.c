/* Fitting images to a size (engine/pictures/fit.c): every mode gives diffusers' pixels bit for bit
 * (test/golden/pictures/fit.py), from memory or row by row, in the declared memory. */
#include "test/lib/cmocka_tests.h"
#include "engine/pictures/fit.h"
#include "engine/base/random.h"
#include "loaders/loaders.h"

enum { SIDE_MAX = 512, ROWS_LOST = 3 };

static struct sys machine;
static struct tensor_index truth;
static struct error problem;
static uint8_t noise[SIDE_MAX * SIDE_MAX * 3], made[64 * 64 * 3], expected[64 * 64 * 3];
static int rows_kept, failing;

static void assert_ok(void) {
    char line[1200];
    if (problem.code) fail_msg("%s", error_line(&problem, line, sizeof line));
}

/* Fills `noise` with RGB noise, as drawn.py's draw() does. */
static void draw(uint64_t seed, struct picture_size size) {
    assert_true((size_t)size.width * (size_t)size.height * 3 <= sizeof noise);
    for (int i = 0; i < size.width * size.height * 3; i++) noise[i] = (uint8_t)(random_next(&seed) >> 56);
}

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

enum delivery { HAS_PIXELS, IN_ROWS, WHOLE, N_DELIVERIES };

static struct sluice_picture noise_image(enum delivery how, struct picture_size size) {
    struct sluice_picture p = {sizeof p,   size.width, size.height, NULL, "fox.png",
                               read_noise, noise,      NULL,        1000};
    if (how == HAS_PIXELS) p.rgb = noise;
    if (how == IN_ROWS) p.read_rows = read_rows;
    rows_kept = INT32_MAX;
    return p;
}

/* Returns the fitting that a fixture tensor's name describes: "crop/W/H/W2/H2". */
static struct fitting fitting_of_entry(const struct index_entry *entry) {
    char name[16];
    struct picture_size from, to;
    enum fit fit;
    assert_int_equal(
        sscanf(entry->name, "%15[a-z]/%d/%d/%d/%d", name, &from.width, &from.height, &to.width, &to.height),
        5);
    fit_find(name, &fit, &problem);
    assert_ok();
    draw((uint64_t)from.width * 65536 + (uint64_t)from.height, from);
    source_read(&truth.sources[entry->source], expected, entry->bytes, entry->offset, &problem);
    assert_ok();
    return fit_make(fit, from, to);
}

TEST(pixels_equal_diffusers) {
    for (int i = 0; i < truth.n_entries; i++)
        for (int how = 0; how < N_DELIVERIES; how++) {
            struct fitting f = fitting_of_entry(&truth.entries[i]);
            struct sluice_picture p = noise_image(how, f.from);
            assert_int_equal(truth.entries[i].bytes, 3 * f.size.width * f.size.height);
            memset(made, 1, sizeof made);
            fit_read(&machine, &p, &f, made, &problem);
            assert_ok();
            if (memcmp(made, expected, truth.entries[i].bytes)) fail_msg("%s", truth.entries[i].name);
            assert_int_equal(made[truth.entries[i].bytes], 1);
        }
    assert_int_equal(truth.n_entries, 39);
}

/* Fitting an image takes exactly the declared memory: a few rows if the image is read row by row. */
TEST(memory_as_declared) {
    struct picture_size from = {500, 500}, to = {20, 30};
    for (int how = 0; how < N_DELIVERIES; how++) {
        struct sys counting;
        sys_init_machine(&counting);
        struct sluice_picture p = noise_image(how, from);
        struct fitting f = fit_make(FIT_CROP, from, to);
        draw(1, from);
        fit_read(&counting, &p, &f, made, &problem);
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
            struct sluice_picture p = noise_image(IN_ROWS, sizes[i]);
            struct fitting f = fit_make(fit, sizes[i], (struct picture_size){512, 512});
            assert_true(fit_bytes(&p, &f) < 6 << 20);
            assert_true(f.part.size.width >= 1 && f.part.size.height >= 1);
            assert_true(f.part.x >= 0 && f.part.x + f.part.size.width <= f.part.whole.width);
            assert_true(f.part.y >= 0 && f.part.y + f.part.size.height <= f.part.whole.height);
            assert_true(f.left >= 0 && f.left + f.part.size.width <= f.size.width);
            assert_true(f.top >= 0 && f.top + f.part.size.height <= f.size.height);
        }
}

static void *alloc_none(struct sys *sys, enum memory_line line, size_t bytes) {
    (void)sys, (void)line, (void)bytes;
    return NULL;
}

static void expect_failure(struct sys *sys, enum delivery how, enum status code) {
    struct picture_size from = {50, 40};
    struct sluice_picture p = noise_image(how, from);
    struct fitting f = fit_make(FIT_STRETCH, from, (struct picture_size){20, 30});
    rows_kept = from.height - ROWS_LOST;
    fit_read(sys, &p, &f, made, &problem);
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
    (void)state;
    sys_init_machine(&machine);
    safetensors_open(&machine, "test/golden/pictures/fit.safetensors", &truth, &problem);
    assert_ok();
    return 0;
}

static int close_truth(void **state) {
    (void)state;
    index_destroy(&truth);
    return 0;
}

int main(void) {
    return run_all_tests(open_truth, close_truth);
}
