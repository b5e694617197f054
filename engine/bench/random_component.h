/* One component of a pipeline with random weights in memory, of any size and type, for compute benchmarks.
 * Its blocks run through the family's forwards on the CPU device, without files, plan or store. */
#ifndef SLUICE_BENCH_RANDOM_COMPONENT_H
#define SLUICE_BENCH_RANDOM_COMPONENT_H

#include "engine/run/family.h"

struct random_component_sizes {
    const struct family *family;
    const char *block; /* kind of block of which only the first runs; NULL: all blocks run */
    const int *chosen; /* values of the family's dimensions; NULL: published values */
    int32_t text_rows, text_columns;
    int32_t latent_channels, latent_side, picture_side;
    /* size of the latent; latent_frames 0: one frame; latent_columns 0: as many columns as rows */
    int32_t latent_frames, latent_columns;
    int32_t sound[3]; /* channels, length and bins of the sound's latent; 0: no sound */
    int chunk;        /* frames per chunk of a video VAE; 0: image mode */
    /* Precision of products; F32: the family's default precision (family_precision). */
    enum precision precision;
    enum dtype type; /* type of matrices whose rows are whole quantisation blocks; other weights are bf16 */
    /* rank of a bf16 adapter on every matrix; 0: no adapter. Allowed only for blocks whose matrices are all
     * used in products */
    int adapter_rank;
    struct {
        const char *kind;
        int number;
    } last; /* kind and number of the last block to run; kind NULL: all blocks run */
};

struct random_component {
    struct sys *sys;
    struct device *device;
    enum precision precision; /* as in sizes, resolved */
    enum dtype type;
    int adapter_rank;
    int chunk;
    struct component component;
    struct lane lane;
    struct block_ref *refs; /* blocks that run, in order */
    int n_blocks;
    int running;               /* index in refs of the block that is running */
    char *structures;          /* weight structs of all blocks, one after another */
    struct low_rank *adapters; /* adapters of all weights in order; NULL: none */
    char *memory;              /* memory of weights, state and workspace */
    uint64_t bytes;
    struct context context;
    struct arena scratch;
};

/* Returns the type of matrices. asked: --type. N_DTYPES: rotated int8 for --precision int8, as after
 * conversion on load, else the published type (f16 or bf16). */
enum dtype random_component_type(const struct family *family, enum precision precision, enum dtype asked);
/* True if ref is the last block to run (sizes->last). */
bool random_component_at_last(const struct random_component_sizes *sizes, const struct block_ref *ref);
/* Allocates, fills and prepares a component on the device. Fails with MEMORY. The component must not move,
 * and must be destroyed even after a failure. */
enum status random_component_make(struct random_component *c, struct sys *sys, struct device *device,
                                  const struct random_component_sizes *sizes, struct error *e);
/* Like random_component_make, but allocates no memory for weights and state: for devices that only count.
 * Fails with MEMORY. */
enum status random_component_count(struct random_component *c, struct sys *sys, struct device *device,
                                   const struct random_component_sizes *sizes, struct error *e);
/* Runs every block once, on the component's device or on another device with equal results. */
enum status random_component_run(struct random_component *c, struct device *device, struct error *e);
void random_component_destroy(struct random_component *c);

#endif
