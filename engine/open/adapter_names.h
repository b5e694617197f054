/* Names in adapters. Trainers name modules in several ways, often with underscores for dots. Underscores
 * cannot be converted back to dots, so module names are looked up, not parsed: every weight of the model
 * lists its names (diffusers, original checkpoint, fused tensor), whatever the names in the model's own
 * files. Lookup treats dots and underscores as equal. Before the lookup the prefix that adapters use for the
 * component ("lora_unet_", "transformer.") is removed from the module's name. */
#ifndef SLUICE_OPEN_ADAPTER_NAMES_H
#define SLUICE_OPEN_ADAPTER_NAMES_H

#include "engine/open/adapter_file.h"
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

/* Lists up to n_max different names of the slot (-1: all slots) with the smallest edit distance, nearest
 * first. Returns the number of listed names. */
int weight_names_nearest(const struct weight_names *names, int slot, const char *name,
                         const struct weight_name **nearest, int n_max);

enum { ADAPTER_PREFIXES_MAX = 15 };

/* Possible prefixes of module names for each slot; a slot without prefixes is not adapted. If a recipe has
 * two denoisers of one family, prefixes ("transformer_2.") select the denoiser. Without such prefixes the
 * name of the adapter's file or folder selects the denoiser ("high_noise", or "high" at the end). Otherwise
 * the adapter applies to both denoisers. */
struct adapter_prefixes {
    const char *of[SLOTS_MAX][ADAPTER_PREFIXES_MAX + 1]; /* list of prefixes of each slot, ended by NULL */
    const struct slot *named; /* the denoiser selected by the name of the adapter's file or folder; or NULL */
    bool for_all; /* the adapter applies to both denoisers: no prefix or file name selects one denoiser */
};
void adapter_find_prefixes(const struct adapter *adapter, const struct recipe *recipe,
                           struct adapter_prefixes *prefixes);

/* Removes the prefix, and peft's "base_model.model." before it, from a module name. NULL: the name has
 * another prefix. */
const char *adapter_after_prefix(const char *name, const char *prefix);

/* Writes candidate i (from 0) for the module's name in the model to out, LOADER_NAME_MAX + 1 bytes. Candidate
 * 0 is the name in the file; old diffusers names have further candidates. False: no more
 * candidates. */
bool adapter_module_name(const struct adapter_module *module, int i, char *out);

#endif
