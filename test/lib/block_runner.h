/* Runs single blocks of a component on the CPU, or on the device that SLUICE_TEST_DEVICE names. */
#ifndef SLUICE_TEST_BLOCK_RUNNER_H
#define SLUICE_TEST_BLOCK_RUNNER_H

#include "engine/run/stage.h"
#include "test/lib/golden.h"

/* A device that prepares and runs each operator of `target` immediately, without a plan. It keeps one
 * workspace, which grows to the size of the largest operator's. */
struct eager {
    struct device device;
    struct device *target;
    void *workspace;
    size_t workspace_bytes;
};

/* One lane of a component whose blocks are run one by one. */
struct block_runner {
    const struct component *component;
    struct lane lane;
    const void *settings;
    float timestep;       /* timestep of runner_run_all */
    int chunk;            /* index of the chunk of frames that runner_run computes */
    struct tensor frames; /* [N, Y, X, 3]: all frames of a video that is decoded in chunks; rank 0: none */
    const struct packed_segment *zeroed; /* weight that runner_run replaces with zeros; NULL: none */
    struct eager eager;
    struct context context;
    struct arena state, scratch;
    struct error error;
};

/* Opens a runner for the component in `slot` of the fixture's model. The caller owns the lane's tensors; the
 * runner allocates the lane's state. */
struct block_runner *runner_open(const struct golden *g, int slot, struct lane lane);

void runner_close(struct block_runner *b);

/* Returns the lane's state tensor that the family publishes under the given name; fails the test if absent.
 */
struct tensor runner_state(const struct block_runner *b, const char *name);

/* Reads the block's weights from its file and runs its forward once. */
void runner_run(struct block_runner *b, const struct block *block, float timestep);

/* Returns the block with the given name; fails the test if there is none. */
const struct block *runner_block(const struct block_runner *b, const char *name);

void runner_put(struct tensor to, struct tensor from);

/* Reads the rows of embedding table number `table` that the lane uses, such as those of its token ids. */
void runner_read_table(struct block_runner *b, int table);

/* Lists the visits of the lane in one evaluation. */
void runner_list_visits(struct block_runner *b, struct visit_list *list);

/* Runs all blocks of one denoiser evaluation, in the family's order. Decodes all chunks of a video if
 * `frames` is set. */
void runner_run_all(struct block_runner *b);

/* Convolves a whole image [Y, X, C]; the result is in test memory, freed after the test. up: 1, or 2 for
 * nearest upsampling; a residual or bias of rank 0 is absent. */
struct tensor runner_convolve(struct block_runner *b, struct tensor in, struct tensor weight,
                              struct tensor bias, struct tensor residual, int up, enum finishing finish);

#endif
