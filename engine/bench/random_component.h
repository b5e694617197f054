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
    enum dtype type; /* of matrices that it fits; other weights are bf16 */
};

struct random_component {
    struct sys *sys;
    struct device *device;
    enum dtype type;
    struct component component;
    struct lane lane;
    struct block_ref *refs; /* those that run, in order */
    int n_blocks;
    char *structures; /* the blocks' weights structures, one after another */
    char *memory;     /* weights, state and workspace */
    uint64_t bytes;
    struct context context;
    struct arena scratch;
};

/* Lays out and fills one; the device has prepared what it needs. MEMORY. It stays where it is and
 * is destroyed, also after a failure. */
enum status random_component_make(struct random_component *c, struct sys *sys, struct device *device,
                                  const struct random_component_sizes *sizes, struct error *e);
/* Runs every block once, on its own device or on another that computes the same. */
enum status random_component_run(struct random_component *c, struct device *device, struct error *e);
void random_component_destroy(struct random_component *c);

#endif
