/* Reads each fixture's reference tensors (test/golden) by name and compares the engine's results with them,
 * each within its own tolerance. golden_main runs all suites over all fixtures.
 *
 * A GPU computes in bf16: it runs only the bf16 tests and the tests with GPU tolerances. The environment
 * variable GOLDEN=DIR selects another folder than test/golden; make.py --seed N --out DIR writes reference
 * data with other sizes. */
#ifndef SLUICE_TEST_GOLDEN_H
#define SLUICE_TEST_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/machine/machine.h"
#include "engine/open/model.h"
#include "kernels/ops.h"
#include "test/lib/assert_ok.h"
#include "test/lib/fixtures.h"

#include <jansson.h>

enum { FIXTURES_MAX = 128, GOLDEN_THREADS = 2, GOLDEN_PATH = 512 };

/* A fixture's reference data. */
struct golden {
    const struct fixture *fixture;
    const char *name;
    char path[GOLDEN_PATH];
    json_t *expect, *bf16; /* bf16: PyTorch's own errors in bf16, by tensor (test/golden/bf16.py) */
    struct tensor_index tensors;
    struct sluice_model *model; /* opened by the first test that runs */
};

/* Tolerance of one tensor, a relative L2 error. measured: worst error on the committed data and on seeds 3
 * and 4, with AVX-512 and with DNNL_MAX_CPU_ISA=AVX2. most: about three times that, at most 1e-5 for a block
 * and 2e-5 for the final latent. An error equal to `most` passes, so `most` = 0 demands equal bits. An empty
 * row ends a table. */
struct tolerance {
    const char *tensor;
    double measured, most;
};

struct golden_test {
    const char *name;
    void (*body)(const struct golden *g);
    enum precision precision; /* In bf16 a tensor's tolerance is 1.5 times PyTorch's bf16 error. A tensor
                                 without a known PyTorch error keeps its f32 tolerance. */
    bool gpu;                 /* also runs on a GPU, in bf16 */
    /* Reference tensor without which the test does not run for a fixture; NULL: always runs. */
    const char *needs;
};

struct suite {
    const char *name;
    const struct golden_test *tests;
    int n_tests;
    const struct tolerance *tolerances, *gpu_tolerances;
};

extern struct golden_state {
    struct sys sys;
    struct device *device;
    struct golden data[FIXTURES_MAX]; /* reference data of each fixture, in the order of fixtures[] */
    /* The running test: its suite, tolerances, error count, precision and memory. */
    const struct suite *suite;
    const struct golden_test *test;
    const struct tolerance *tolerances;
    int misses;
    enum precision precision;
    void *memory; /* allocations of test_memory; each starts with a pointer to the previous one */
} golden_state;

bool on_gpu(void);

/* Returns zeroed memory that the device can access, aligned to ARENA_ALIGN. */
void *device_bytes(size_t bytes);
void device_bytes_free(void *memory, size_t bytes);

/* Returns zeroed memory, freed at the end of the test. */
void *test_memory(size_t bytes);
/* Frees the test memory allocated since golden_state.memory had the value `mark`; NULL: all test memory. */
void test_memory_free_to(void *mark);
struct tensor test_tensor(enum dtype dtype, int rank, const int32_t *dim);
struct tensor test_copy(struct tensor t);

struct tensor read_tensor(const struct tensor_index *index, const char *name);
bool has_golden(const struct golden *g, const char *name);
struct tensor golden(const struct golden *g, const char *name);

/* Returns the relative L2 distance of n values from `truth`; INFINITY if a value is not finite. */
double distance(const float *a, const float *truth, int64_t n);
double largest_difference(const float *a, const float *b, int64_t n);

/* Prints a row of the error table and counts errors above the tolerance. A test with errors above the
 * tolerance fails only at its end, so that all rows are printed. */
void expect_error(const struct golden *g, const char *name, const char *detail, double error);
void expect_values(const struct golden *g, const char *name, const char *detail, const float *a,
                   const float *truth, int64_t n);
void expect_close(const struct golden *g, const char *name, struct tensor t, const float *truth);

/* Writes the path of the fixture's reference data. */
void golden_folder(const struct fixture *f, char path[GOLDEN_PATH]);

/* Returns the path of the fixture's model, in test memory. */
const char *golden_model(const struct golden *g);

/* Returns options that open a model and the fixture's control networks, which lie in `folder`: g->path or a
 * copy of it. The options are in test memory and borrow `model`. */
const struct sluice_model_options *golden_options(const struct golden *g, const char *model,
                                                  const char *folder);

/* Opens the test device, or prints why it cannot be opened. */
bool golden_begin(void);
void golden_end(void);

/* Runs the suites that suites_of returns for each fixture (NULL: none). `names`, the program's arguments,
 * select fixtures or suites; empty: all. Returns the exit status for main. */
int golden_main(const char *group, const struct suite *const *(*suites_of)(const struct fixture *f),
                char **names);

#endif
