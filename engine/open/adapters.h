/* Adapters (LoRA and its relatives): what of a file's factors goes to which weight of a model.
 *
 * Trainers name the modules of a model in several ways and often with underscores for dots, which cannot be
 * undone. So no name is taken apart: every weight of the model says what it is called, in its authors'
 * naming, in diffusers' and as part of a fused tensor, and each key of the file is looked up among these
 * names, behind the prefixes that a slot's adapters have. Which naming the base's own file has does not
 * matter.
 *
 * Nothing here knows of strength: it is the user's, multiplies the scales of a match, and is only asked for
 * when matches are combined. Only headers, and scalars beside factors, are read; factors stay in their file
 * but for those of LoHa and LoKr, which are multiplied out in memory. */
#ifndef SLUICE_OPEN_ADAPTERS_H
#define SLUICE_OPEN_ADAPTERS_H

#include "engine/open/model.h"
#include "engine/run/adapt.h"

/* A file, opened: adapter_file.h has what is in it. Immutable; several matches may be made of it. */
struct adapter;

/* Opens a safetensors file and groups its tensors by the modules that they are for. All of safetensors_open's
 * errors; UNSUPPORTED for a model given as an adapter, and for forms that nothing here knows (OFT, ...), by
 * name; SHAPE, DUP, MISSING for factors that do not make a pair; META for an alpha that is no finite number.
 */
enum status adapter_open(struct sys *sys, const char *path, struct adapter **adapter, struct error *e);
void adapter_close(struct adapter *adapter);
/* Its file: for its identity, for messages, and to be opened for direct reads. Lives as long as the adapter.
 */
struct byte_source *adapter_source(const struct adapter *adapter);
/* Of peft's adapter_model.safetensors the adapter_config.json beside it, which has its alphas where the file
 * does not say them; freed with sys->release. NULL: there is none, or no memory (*e). */
char *adapter_config_path(struct sys *sys, const char *path, struct error *e);
/* Bytes of our allocator that it holds. */
uint64_t adapter_host_bytes(const struct adapter *adapter);
/* Reads all factors once: NONFINITE, naming the tensor, if one has a value that is no number. Matching does
 * not need it; a run that draws should ask before it begins, a plan need not. */
enum status adapter_check_finite(const struct adapter *adapter, struct error *e);

/* A vector to which something is added: base + strength * scale * values. */
struct adapted_vector {
    int block, weight; /* as in adapted_weight */
    struct factor values;
    float scale;
};

/* What concerns the component in one slot, in the order of its blocks. Scales are without strength. */
struct adapter_part {
    struct adapted_weight *weights;
    int n_weights;
    struct adapted_vector *vectors;
    int n_vectors;
};

enum { ADAPTER_NOTES_MAX = SLOTS_MAX + 5 };

/* What fits a model. Borrows the adapter and its file; both outlive it. */
struct adapter_match {
    struct sys *sys;
    struct adapter_part part[SLOTS_MAX]; /* of each slot of the model's recipe */
    uint64_t derived_bytes;              /* of factors that were multiplied out, in our memory */
    uint64_t host_bytes;                 /* of our allocator, derived_bytes included */
    int n_modules;                       /* of the adapter */
    int n_unmatched;                     /* of these, what fits nothing (only if partial) */
    /* One line each: what fits nothing, what is for parts that the model is without or layers that nothing
     * depends on, which of two denoisers it is for. */
    char note[ADAPTER_NOTES_MAX][MODEL_NOTE_BYTES];
    int n_notes;
    struct adapter_derived *derived; /* private */
};

/* Finds what each module of the adapter is for. MISSING if some fit nothing (partial: a note instead, unless
 * nothing fits at all), naming the first, how many more, and the nearest names that the model has; SHAPE,
 * naming tensor, found and expected; UNSUPPORTED for what no low rank equals (DoRA, whole matrices: what
 * can be merged is, by `convert --lora`), for a weight that is in no product, and beyond the bound of what is
 * multiplied out; DUP for a weight that two modules claim in one naming. On failure
 * *match is empty. */
enum status adapter_match(const struct adapter *adapter, const struct sluice_model *model, bool partial,
                          struct adapter_match *match, struct error *e);
void adapter_match_destroy(struct adapter_match *match);
/* Would it match, all of it? Nothing is made. */
bool adapter_fits(const struct adapter *adapter, const struct sluice_model *model);

/* Several adapters at their strengths, for one slot: what component_adapt takes. */
struct adapter_use {
    const struct adapter_match *match;
    double strength; /* not 0: who uses an adapter at 0 uses none */
};
struct adapter_combination {
    struct sys *sys;
    struct adapted_weight *weights;
    int n_weights;
    struct replaced_vector *vectors; /* base + sum of strength * scale * values, f32, in our memory */
    int n_vectors;
    uint64_t host_bytes;              /* of our allocator */
    struct adapter_combined *derived; /* private */
};
/* Reads the vectors of the base that are changed, from the model's component in that slot (of a model without
 * files none: then they are zeros). Both numbers may come out 0: nothing of these adapters is for the slot.
 * IO, MEMORY, CHANGED, UNSUPPORTED (a base's vector of a type that cannot be read); META where strength times
 * scale is beyond 32 bits' numbers. The matches outlive the
 * combination, and it every component that was adapted with it. */
enum status adapters_combine(const struct sluice_model *model, int slot, const struct adapter_use *uses,
                             int n_uses, struct adapter_combination *combination, struct error *e);
void adapter_combination_destroy(struct adapter_combination *combination);

/* The published recipes that every module of the adapter fits, by name and shape; returns how many, at most
 * n_max. For messages and `inspect`: some milliseconds a recipe. */
int adapter_recipes(const struct adapter *adapter, const struct recipe **fits, int n_max);

#endif
