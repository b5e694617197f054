/* Matches an adapter to a model: finds the weights that its modules change, checks shapes, and makes low-rank
 * factors. A match holds the file's scales without the user's strength, which adapters_combine
 * (adapter_combine.h) multiplies in. Factors stay in their file, except LoHa and LoKr factors, which are
 * converted to LoRA form in memory. */
#ifndef SLUICE_OPEN_ADAPTER_MATCH_H
#define SLUICE_OPEN_ADAPTER_MATCH_H

#include "engine/open/adapter_factors.h"
#include "engine/open/adapter_names.h"
#include "engine/run/adapt.h"

/* A change to a vector (bias, norm) of the model: base + strength * scale * values. */
struct adapted_vector {
    int block, weight; /* index of the block in the component, and of the weight in the block */
    struct factor values;
    float scale;
};

/* An adapter's changes to the component in one slot, in the order of blocks. Scales do not include the user's
 * strength. */
struct adapter_part {
    struct adapted_weight *weights;
    int n_weights;
    struct adapted_vector *vectors;
    int n_vectors;
};

enum { ADAPTER_NOTES_MAX = SLOTS_MAX + 5 };

/* An adapter matched to a model. Borrows the adapter and its file; both must outlive the match. */
struct adapter_match {
    struct sys *sys;
    struct adapter_part part[SLOTS_MAX]; /* the adapter's changes to the component in each slot */
    uint64_t derived_bytes; /* bytes of LoHa and LoKr factors that were converted to LoRA form in memory */
    uint64_t host_bytes;    /* bytes allocated by the match, including derived_bytes */
    int n_modules;
    int n_unmatched; /* number of modules and tensors that fit no weight; 0 unless `partial` was set */
    /* Log messages, one line each: the ignored modules (no such weight, absent component, unused layer), and
     * for recipes with two denoisers the selected denoiser. */
    char note[ADAPTER_NOTES_MAX][MODEL_NOTE_BYTES];
    int n_notes;
    struct adapter_derived *derived; /* private to adapter_match.c */
};

/* Finds the weight of each module of the adapter. MISSING: some modules fit no weight; the error has the
 * first such module, their number, and the nearest names in the model. With `partial` a log message replaces
 * the error, unless no module fits. SHAPE: a tensor has the wrong shape. UNSUPPORTED: a module has no
 * low-rank form (DoRA, high-rank matrices), changes a weight that no matrix product uses, or is a LoHa or
 * LoKr that needs too much memory in LoRA form. `convert --lora` can merge high-rank matrices. DUP: two
 * modules of one naming convention change the same weight. On failure *match is empty. */
enum status adapter_match(const struct adapter *adapter, const struct sluice_model *model, bool partial,
                          struct adapter_match *match, struct error *e);
void adapter_match_destroy(struct adapter_match *match);

/* Lists published recipes that all modules of the adapter fit, by name and shape. Returns the number, at
 * most n_max. Used by messages and by `inspect`; takes some milliseconds per recipe. */
int adapter_recipes(const struct adapter *adapter, const struct recipe **fits, int n_max);

/* A change to one weight, or to one part of a fused tensor. */
struct change {
    const struct adapter_module *module;
    const struct weight_name *name;
    /* tensor that is multiplied by scale and added; NULL: low-rank factors are added */
    const struct index_entry *vector;
    float scale;
};

/* All changes of an adapter, in the order of slots, blocks and weights. */
struct changes {
    struct sys *sys;
    struct weight_names names;
    struct change *at;
    int n, capacity;
    bool nothing; /* true if no module of the adapter fits the model */
};

/* Purpose of the changes: operators add them at run time, or `convert --lora` merges them into weights.
 * Merging also changes embedding tables and unused layers, and keeps a matrix difference whole. */
enum changes_mode { CHANGES_AT_RUN_TIME, CHANGES_MERGED };

/* Lists the weights that an adapter changes: looks up each module's weight by name. If the adapter file has a
 * layer twice, under its checkpoint name and its diffusers name, the layer is used once. Fills *changes, and
 * the counts and log messages of *match. Fails like adapter_match, except that shapes are not checked. */
enum status changes_find(const struct adapter *adapter, const struct sluice_model *model,
                         enum changes_mode mode, bool partial, struct adapter_match *match,
                         struct changes *changes, struct error *e);
void changes_destroy(struct changes *changes);

/* Checks that the tensors of one change fit the weight. *size: sizes of the factors in LoRA form; all 0 if
 * the module is a plain LoRA, which needs no conversion. Fails with SHAPE, or with OVERFLOW if a size exceeds
 * 2^31. */
enum status change_check_shape(const struct adapter *adapter, const struct change *change,
                               struct derived_size *size, struct error *e);

#endif
