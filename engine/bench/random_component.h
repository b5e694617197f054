/* One component of a pipeline in memory, of any size, with random weights, bf16 or any other type: its blocks
 * run through the family's own forwards on the real CPU device, without files, plan or store. For benches of
 * computing. */
#ifndef SLUICE_BENCH_RANDOM_COMPONENT_H
#define SLUICE_BENCH_RANDOM_COMPONENT_H

#include "engine/run/family.h"

struct random_component_sizes {
    const struct family *family;
    const char *block; /* only the first block of this kind; NULL: all */
    const int *chosen; /* the family's dimensions; NULL: the published ones */
    int32_t text_rows, text_columns;
    int32_t latent_channels, latent_side, picture_side;
    int32_t latent_frames, latent_columns; /* 0: one; as many as rows */
    int chunk;                             /* of an autoencoder of films; 0: it works on a picture */
    enum dtype type;                       /* of matrices that it fits; other weights are bf16 */
    int adapter_rank; /* of an adapter of bf16 on every matrix; 0: none. Of blocks whose matrices are products
                       */
    struct {
        const char *kind;
        int number;
    } last; /* no block behind this one; NULL: to the end */
};

struct random_component {
    struct sys *sys;
    struct device *device;
    enum dtype type;
    int adapter_rank;
    int chunk;
    struct component component;
    struct lane lane;
    struct block_ref *refs; /* those that run, in order */
    int n_blocks;
    int running;               /* the place in refs of the one that runs */
    char *structures;          /* the blocks' weights structures, one after another */
    struct low_rank *adapters; /* of all weights in turn; NULL: none */
    char *memory;              /* weights, state and workspace */
    uint64_t bytes;
    struct context context;
    struct arena scratch;
};

/* Is it the one that sizes call the last? */
bool random_component_at_last(const struct random_component_sizes *sizes, const struct block_ref *ref);
/* Lays out and fills one; the device has prepared what it needs. MEMORY. It stays where it is and
 * is destroyed, also after a failure. */
enum status random_component_make(struct random_component *c, struct sys *sys, struct device *device,
                                  const struct random_component_sizes *sizes, struct error *e);
/* The same without memory, for devices that only count. MEMORY. */
enum status random_component_count(struct random_component *c, struct sys *sys, struct device *device,
                                   const struct random_component_sizes *sizes, struct error *e);
/* Runs every block once, on its own device or on another that computes the same. */
enum status random_component_run(struct random_component *c, struct device *device, struct error *e);
void random_component_destroy(struct random_component *c);

#endif
