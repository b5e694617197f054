/* All names by which an adapter may refer to a model's weights: names in diffusers, names in the original
 * checkpoint, and names of fused tensors. The list does not depend on the names in the model's files. Lookup
 * treats dots and underscores as equal. */
#ifndef SLUICE_OPEN_ADAPTER_NAMES_H
#define SLUICE_OPEN_ADAPTER_NAMES_H

#include "engine/open/model.h"

/* Naming convention of a weight's name. If an adapter has a layer in several conventions, the first
 * convention of this enum wins. */
enum weight_naming { NAMING_PRIMARY, NAMING_CHECKPOINT, NAMING_FUSED };

struct weight_name {
    const char *name; /* tensor name, ending in ".weight" or ".bias" */
    int slot;
    int block, weight; /* indices in component.blocks and kind->weights; block -1: unused layer */
    struct block_ref ref;
    const struct weight_spec *spec;
    enum weight_naming naming;
    const char *refused; /* why no adapter can change the weight; NULL: adapters can */
    int rank;
    int32_t dim[WEIGHT_RANK_MAX]; /* shape of the weight */
    int32_t rows;                 /* number of rows of the tensor with this name */
    int n_parts; /* number of entries in part: row ranges that make up the weight, in order; 0: all rows */
    struct {
        int32_t first, rows;
    } part[WEIGHT_SLICES_MAX];
};

/* Number of values per row of a weight: product of all dimensions but the first. */
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
    uint64_t bytes; /* bytes allocated for the list */
};

/* Lists the weight names of the model's text encoders and denoisers. Fails with MEMORY. */
enum status weight_names_list(const struct sluice_model *model, struct weight_names *names, struct error *e);
void weight_names_destroy(struct weight_names *names);

/* Finds a weight name in a slot. Returns the first of *n adjacent entries, or NULL if the name is unknown. A
 * fused tensor has one entry for each of its weights. */
const struct weight_name *weight_names_find(const struct weight_names *names, int slot, const char *name,
                                            int *n);

/* Lists up to n_max names of the slot (-1: all slots) with the smallest edit distance, nearest first. Returns
 * the number of listed names. */
int weight_names_nearest(const struct weight_names *names, int slot, const char *name,
                         const struct weight_name **nearest, int n_max);

#endif
