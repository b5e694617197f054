/* The bench on which blocks of a component run one by one: each forward for real, on the CPU device or on the
 * one that SLUICE_TEST_DEVICE names. */
#ifndef SLUICE_TEST_BLOCK_RUNNER_H
#define SLUICE_TEST_BLOCK_RUNNER_H

#include "test/lib/golden.h"

/* A device that prepares and runs each operator of `target` immediately, without a plan. It keeps one workspace,
 * which grows to the largest operator's. */
struct eager {
    struct device device;
    struct device *target;
    void *workspace;
    size_t workspace_bytes;
};

/* Returns an eager device over target. eager_close frees its workspace; target stays open. */
struct eager eager_open(struct device *target);
void eager_close(struct eager *eager);

/* One lane of a component, on which its blocks' forwards run one by one. */
struct block_runner {
    const struct component *component;
    struct lane lane;
    const void *settings;
    int chunk; /* of frames, that visits are for */
    struct eager eager;
    struct context context;
    struct arena state, scratch;
    struct error error;
};

/* The lane's tensors are the caller's; its state is declared here. */
struct block_runner *runner_open(const struct golden *g, int slot, struct lane lane);

void runner_close(struct block_runner *b);

/* A tensor that the family publishes of its lane state. */
struct tensor runner_state(const struct block_runner *b, const char *name);

/* Reads the packed block and runs its forward once. */
void runner_run(struct block_runner *b, const struct block *block, float timestep);

/* The block of that name. */
const struct block *runner_block(const struct block_runner *b, const char *name);

/* As many values, over what a tensor holds. */
void runner_put(struct tensor to, struct tensor from);

/* Of tokens of a denoiser whose text stands in front of its pictures. */
struct tensor runner_text_rows(const struct block_runner *b, struct tensor all);
struct tensor runner_image_rows(const struct block_runner *b, struct tensor all);

enum { RUNNER_PATCH = 2 };

/* A latent as rows of patches, channels first, as the reference's last products give them. */
struct tensor runner_patches(struct block_runner *b, struct tensor latent);

/* The rows of a table that the lane asks for. */
void runner_read_table(struct block_runner *b, int table);

/* The rows of these tokens, of a text encoder; where pictures stand the lane says. */
void runner_gather(struct block_runner *b, struct tensor ids);

/* All visits of one evaluation, as the family lists them. */
void runner_run_all(struct block_runner *b, float timestep);

/* All blocks, of one of them with segment `weight` left zero. */
void runner_run_all_without(struct block_runner *b, int block, int weight);

/* A convolution of a whole picture, of the test's memory. up: 1, or 2; residual, bias: of rank 0: none. */
struct tensor runner_convolve(struct block_runner *b, struct tensor in, struct tensor weight, struct tensor bias,
                             struct tensor residual, int up, enum finishing finish);

#endif
