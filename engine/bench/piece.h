/* One part of a pipeline in memory, of any size, with made-up weights, bf16 or any other type: its blocks run
 * through the family's own forwards on the real CPU device, without files, plan or store. For benches of
 * computing. */
#ifndef SLUICE_BENCH_PIECE_H
#define SLUICE_BENCH_PIECE_H

#include "engine/run/family.h"

struct bench_part_sizes {
    const struct family *family;
    const char *block; /* only the first block of this kind; NULL: all */
    const int *chosen; /* the family's dimensions; NULL: the published ones */
    int32_t text_rows, text_columns;
    int32_t latent_channels, latent_side, picture_side;
    enum dtype type; /* of matrices that it fits; other weights are bf16 */
};

struct bench_part {
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

/* Lays out and fills a part; the device has prepared what it needs. MEMORY. The part stays where it is and
 * is destroyed, also after a failure. */
enum status bench_part_make(struct bench_part *part, struct sys *sys, struct device *device,
                            const struct bench_part_sizes *sizes, struct error *e);
/* Runs every block once, on its own device or on another that computes the same. */
enum status bench_part_run(struct bench_part *part, struct device *device, struct error *e);
void bench_part_destroy(struct bench_part *part);

#endif
