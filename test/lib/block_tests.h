/* Runs the block tests of all fixtures: single blocks on the reference's input, so that two errors cannot
 * cancel, and whole components. The tests are data, blocks.json in each fixture's folder, which
 * test/golden/block_tests.py writes and describes. Checks that are not comparisons with reference tensors are
 * C functions (struct block_check), which steps of the data call by name. */
#ifndef SLUICE_TEST_BLOCK_TESTS_H
#define SLUICE_TEST_BLOCK_TESTS_H

#include "test/lib/block_runner.h"

enum { KEPT_MAX = 2 };

/* Slot of the component of a fixture with one component and no pipeline. */
enum { ONLY_SLOT = 0 };

/* A running test. */
struct block_test {
    const struct golden *golden;
    const json_t *lanes;         /* lanes of the suite, by name */
    struct block_runner *runner; /* runner of the last step "open"; NULL before */
    struct {
        const char *name;
        struct tensor tensor;
    } kept[KEPT_MAX]; /* tensors of steps "keep" */
    int n_kept;
};

/* A step that is a check of its own. key: JSON key of the step. */
struct block_check {
    const char *key;
    void (*run)(struct block_test *t, const json_t *step);
};
extern const struct block_check block_checks[]; /* ended by a NULL key */

/* Checks of block_checks[] for CLIP, Qwen2.5-VL and CLIP's vision encoder (encoder_checks.c), for tiny
 * decoders (tiny_decoder_checks.c) and for levels computed in bands (band_checks.c). */
void check_clip_rows_in_wider_tensor(struct block_test *t, const json_t *step);
void check_clip_skip_visits(struct block_test *t, const json_t *step);
void check_two_hidden_states(struct block_test *t, const json_t *step);
void check_resized_pixels(struct block_test *t, const json_t *step);
void check_whole_picture(struct block_test *t, const json_t *step);
void check_whole_video(struct block_test *t, const json_t *step);
void check_bands(struct block_test *t, const json_t *step);

/* Opens a runner on the suite's lane of this name; the caller closes it. */
struct block_runner *block_test_open(const struct block_test *t, const char *lane);

/* Returns a copy of the runner's tensor that the data name. */
struct tensor block_test_tensor(const struct block_test *t, const json_t *what);

/* Returns the index of the model's component of this family. number: index among components of the family. */
int block_test_slot(const struct golden *g, const char *family, const char *folder, int number);

/* Returns random values from -most to most; equal seeds give equal values. */
struct tensor random_tensor(int rank, const int32_t *dim, double most, uint64_t seed);

/* Returns the suites in the fixture's blocks.json, ended by NULL; NULL: the fixture has none. */
const struct suite *const *block_suites(const struct fixture *f);

/* fixture.open and fixture.close of a fixture without a pipeline: "components" of its blocks.json. */
void block_components_open(struct golden *g);
void block_components_close(struct golden *g);

#endif
