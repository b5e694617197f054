/* What the weights of a model's components are called, in every naming: by their authors, by diffusers, and
 * as parts of a fused tensor, whatever naming the files have that the model was opened from. Dots and
 * underscores are one. */
#ifndef SLUICE_OPEN_ADAPTER_NAMES_H
#define SLUICE_OPEN_ADAPTER_NAMES_H

#include "engine/open/model.h"

/* Which of its names: where a file has one layer under several, the first counts. */
enum weight_naming { NAMED_FIRST, NAMED_ORIGINALLY, NAMED_FUSED };

struct weight_name {
    const char *name; /* with its ".weight" or ".bias" */
    int slot;
    int block, weight; /* places in component.blocks and kind->weights; block -1: nothing depends on it */
    struct block_ref ref;
    const struct weight_spec *spec;
    enum weight_naming naming;
    const char *refused; /* why nothing can be added to it; NULL: it can */
    int rank;
    int32_t dim[WEIGHT_RANK_MAX]; /* the weight's shape */
    int32_t rows;                 /* of the tensor of that name */
    int n_parts;                  /* of its rows, which make up the weight in this order; 0: all of them */
    struct {
        int32_t first, rows;
    } part[WEIGHT_SLICES_MAX];
};

/* Values of a row of it, also of a convolution. */
static inline int64_t weight_name_columns(const struct weight_name *name) {
    int64_t columns = 1;
    for (int i = 1; i < name->rank; i++) columns *= name->dim[i];
    return columns;
}

struct weight_names {
    struct sys *sys;
    struct weight_name *at; /* sorted by slot and name */
    int n;
    char *text;
    uint64_t bytes; /* of our allocator */
};

/* Of the components that prompts and latents go through: text encoders and denoisers. MEMORY. */
enum status weight_names_list(const struct sluice_model *model, struct weight_names *names, struct error *e);
void weight_names_destroy(struct weight_names *names);

/* The first of that name in a slot; *n follow each other, as a fused tensor has parts. NULL: none. */
const struct weight_name *weight_names_find(const struct weight_names *names, int slot, const char *name,
                                            int *n);

/* Up to n_max names of that slot, or of any (-1), that differ least from this one, the nearest first. Returns
 * how many. */
int weight_names_nearest(const struct weight_names *names, int slot, const char *name,
                         const struct weight_name **nearest, int n_max);

#endif
