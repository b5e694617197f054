/* The reference's tensors (test/golden): of each fixture's they are opened here, read by name and compared
 * with what the engine computes, each within a tolerance of its own; and the loop of all suites over all
 * fixtures.
 *
 * A GPU computes in bf16: it runs the tests of that precision and those that have tolerances for it.
 * GOLDEN=DIR takes other data than the committed: make.py --seed N --out DIR draws other sizes. */
#ifndef SLUICE_TEST_GOLDEN_H
#define SLUICE_TEST_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/api/devices.h"
#include "engine/open/model.h"
#include "kernels/ops.h"
#include "test/lib/assert_ok.h"
#include "test/lib/fixtures.h"

#include <jansson.h>

enum { FIXTURES_MAX = 64, GOLDEN_THREADS = 2, GOLDEN_PATH = 512 };

/* A fixture's data, opened. */
struct golden {
    const struct fixture *fixture;
    const char *name;
    char path[GOLDEN_PATH];
    json_t *expect, *bf16; /* bf16: the reference's errors there (test/golden/bf16.py) */
    struct tensor_index tensors;
    struct sluice_model *model; /* NULL where no test runs */
};

/* How close a tensor must be. measured: the worst of the committed data and seeds 3 and 4, under AVX-512 and
 * under DNNL_MAX_CPU_ISA=AVX2. most: about three times that, and never more than the project's (1e-5 a block,
 * 2e-5 the final latent). An error of exactly that passes, so that 0 asks for equal bits. A table ends with
 * an empty row. */
struct tolerance {
    const char *tensor;
    double measured, most;
};

struct golden_test {
    const char *name;
    void (*body)(const struct golden *g);
    enum precision precision; /* in bf16 a tensor of which the reference's errors there are known has 1.5
                                 times those; every other keeps its tolerance of f32 */
    bool gpu;                 /* runs there too, in bf16 */
    const char *needs;        /* a tensor: it runs on the fixtures that have it; NULL: on all */
};

/* What is compared of one part of a model. */
struct suite {
    const char *name;
    const struct golden_test *tests;
    int n_tests;
    const struct tolerance *tolerances, *gpu_tolerances;
};

extern struct golden_state {
    struct sys sys;
    struct device *device;
    struct golden data[FIXTURES_MAX]; /* in the order of fixtures[] */
    /* Of the test that runs: */
    const struct tolerance *tolerances;
    int misses;
    enum precision precision;
    void *memory; /* each piece starts with a pointer to the one before */
} golden_state;

/* ---- a component by itself ---- */

/* The slot of a component that is all that its model has. */
enum { ALONE_SLOT = 0 };

/* Opens the fixture's only component, of which `c` says the family and what no file tells, binds it and finds
 * all of its tensors known. configured: there is a config.json. What PyTorch errs by in bf16 is not known. */
void golden_open_alone(struct golden *g, struct component c, bool configured);
void golden_close_alone(struct golden *g);

/* ---- memory and tensors of one test ---- */

bool on_gpu(void);

/* That the device reaches; zeroed, aligned to ARENA_ALIGN. */
void *device_bytes(size_t bytes);
void device_bytes_free(void *memory, size_t bytes);

/* Zeroed, freed at the end of the test. */
void *test_memory(size_t bytes);
/* Back to what golden_state.memory was, NULL for everything. */
void test_memory_free_to(void *mark);
struct tensor test_tensor(enum dtype dtype, int rank, const int32_t *dim);
struct tensor test_copy(struct tensor t);

struct tensor read_tensor(const struct tensor_index *index, const char *name);
bool has_golden(const struct golden *g, const char *name);
struct tensor golden(const struct golden *g, const char *name);
/* Without its batch of one. */
struct tensor golden_single(const struct golden *g, const char *name);

/* ---- comparing ---- */

/* Relative L2 distance from the truth; infinite for what is no number. */
double distance(const float *a, const float *truth, int64_t n);
double largest_difference(const float *a, const float *b, int64_t n);

/* Prints a row of the table of errors and counts a miss; the test fails at its end, so that all rows are
 * seen. */
void expect_error(const struct golden *g, const char *name, const char *detail, double error);
/* n packed values against as many. */
void expect_values(const struct golden *g, const char *name, const char *detail, const float *a,
                   const float *truth, int64_t n);
void expect_close(const struct golden *g, const char *name, struct tensor t, const float *truth);

/* ---- running ---- */

/* Opens the device. Prints what is wrong. */
bool golden_begin(void);
void golden_end(void);

/* Runs the suites that a fixture has by suites_of, which may give NULL, over all fixtures: those that the
 * program's arguments name, or all. Returns main's status. */
int golden_main(const char *group, const struct suite *const *(*suites_of)(const struct fixture *f),
                char **names);

#endif
