/* The bench on which blocks of a component run one by one: each forward for real, on the CPU device or on the
 * one that SLUICE_TEST_DEVICE names. */
#ifndef SLUICE_TEST_BENCH_H
#define SLUICE_TEST_BENCH_H

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
struct bench {
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
struct bench *bench_open(const struct golden *g, int slot, struct lane lane);

void bench_close(struct bench *b);

/* A tensor that the family publishes of its lane state. */
struct tensor bench_state(const struct bench *b, const char *name);

/* Reads the packed block and runs its forward once. */
void bench_visit(struct bench *b, const struct block *block, float timestep);

/* The block of that name. */
const struct block *bench_block(const struct bench *b, const char *name);

/* As many values, over what a tensor holds. */
void bench_put(struct tensor to, struct tensor from);

/* Of tokens of a denoiser whose text stands in front of its pictures. */
struct tensor bench_text_rows(const struct bench *b, struct tensor all);
struct tensor bench_picture_rows(const struct bench *b, struct tensor all);

enum { BENCH_PATCH = 2 };

/* A latent as rows of patches, channels first, as the reference's last products give them. */
struct tensor bench_patches(struct bench *b, struct tensor latent);

/* The rows of a table that the lane asks for. */
void bench_table(struct bench *b, int table);

/* The rows of these tokens, of a text encoder; where pictures stand the lane says. */
void bench_gather(struct bench *b, struct tensor ids);

/* All visits of one evaluation, as the family lists them. */
void bench_all(struct bench *b, float timestep);

/* All blocks, of one of them with segment `weight` left zero. */
void bench_all_without(struct bench *b, int block, int weight);

/* A convolution of a whole picture, of the test's memory. up: 1, or 2; residual, bias: of rank 0: none. */
struct tensor bench_convolve(struct bench *b, struct tensor in, struct tensor weight, struct tensor bias,
                             struct tensor residual, int up, enum finishing finish);

#endif
