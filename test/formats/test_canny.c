/* engine/pictures/canny.h against OpenCV (test/golden/pictures/canny.py), and without memory. */
#include "engine/pictures/canny.h"
#include "loaders/loaders.h"
#include "test/lib/cmocka_tests.h"

#include <stdlib.h>
#include <string.h>

static struct sys machine;
static struct tensor_index truth;
static struct error problem;

static void *alloc_none(struct sys *sys, enum memory_line line, size_t bytes) {
    (void)sys, (void)line, (void)bytes;
    return NULL;
}

static uint8_t *read_bytes(const char *name, const char *tail, const struct index_entry **entry) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, tail);
    *entry = index_find(&truth, full);
    assert_non_null(*entry);
    uint8_t *bytes = malloc((*entry)->bytes);
    assert_non_null(bytes);
    source_read(&truth.sources[(*entry)->source], bytes, (*entry)->bytes, (*entry)->offset, &problem);
    assert_int_equal(problem.code, OK);
    return bytes;
}

static void expect_edges(const char *name) {
    const struct index_entry *picture, *known;
    uint8_t *rgb = read_bytes(name, "rgb", &picture), *edges = read_bytes(name, "edges", &known);
    int height = picture->dim[0], width = picture->dim[1], n_edges = 0;
    assert_int_equal(canny_edges(&machine, rgb, width, height, &problem), OK);
    for (size_t i = 0; i < known->bytes; i++) {
        for (size_t c = 0; c < 3; c++)
            if (rgb[3 * i + c] != edges[i])
                fail_msg("%s: pixel %zu is %d, OpenCV's is %d", name, i, rgb[3 * i + c], edges[i]);
        n_edges += edges[i] != 0;
    }
    printf("  %-12s %d x %d, %d edge pixels\n", name, width, height, n_edges);
    free(rgb);
    free(edges);
}

TEST(equal_to_opencv) {
    static const char *const names[] = {"noise_1_1", "noise_1_6", "noise_7_1", "noise_2_3", "noise_37_29",
                                        "shapes",    "blurred",   "spiral",    "slopes"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) expect_edges(names[i]);
}

TEST(no_memory_reported) {
    struct sys poor = machine;
    uint8_t rgb[3] = {0};
    poor.alloc = alloc_none;
    assert_int_equal(canny_edges(&poor, rgb, 1, 1, &problem), MEMORY);
    assert_int_equal(canny_bytes(1022), 3 * 1024 * 6);
    problem = (struct error){0};
}

static int open_truth(void **state) {
    (void)state;
    sys_init_machine(&machine);
    safetensors_open(&machine, "test/golden/pictures/canny.safetensors", &truth, &problem);
    return problem.code != OK;
}

static int close_truth(void **state) {
    (void)state;
    index_destroy(&truth);
    return 0;
}

int main(void) {
    return run_all_tests(open_truth, close_truth);
}
