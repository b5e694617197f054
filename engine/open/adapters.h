/* Adapters (LoRA, LoHa, LoKr, weight differences): opens the files and matches their factors to a model's
 * weights.
 *
 * Trainers name modules in several ways, often with underscores for dots. Underscores cannot be converted
 * back to dots, so module names are looked up, not parsed: every weight of the model lists its names
 * (original checkpoint, diffusers, fused tensor). Before the lookup the prefix that adapters use for the slot
 * ("lora_unet_") is removed from the module's name. The naming in the base model's own file does not matter.
 *
 * A match holds the file's scales without the user's strength, which adapters_combine multiplies in. Only
 * headers and scalars (alpha) are read. Factors stay in their file, except LoHa and LoKr factors, which are
 * converted to LoRA form in memory. */
#ifndef SLUICE_OPEN_ADAPTERS_H
#define SLUICE_OPEN_ADAPTERS_H

#include "engine/open/model.h"
#include "engine/run/adapt.h"

/* An opened adapter file (adapter_file.h). Immutable; may be matched several times. */
struct adapter;

/* Opens a safetensors file and groups its tensors by module. UNSUPPORTED: a model instead of an adapter, or
 * an unsupported kind of adapter (OFT, ...), which the error names. SHAPE, DUP, MISSING: factors that do not
 * form a pair. META: alpha is not finite. Also errors of safetensors_open. */
enum status adapter_open(struct sys *sys, const char *path, struct adapter **adapter, struct error *e);
void adapter_close(struct adapter *adapter);
/* Returns the adapter's open file, valid until adapter_close. Used to compare adapters, for messages, and for
 * reading factors. */
struct byte_source *adapter_source(const struct adapter *adapter);
/* Path of the adapter_config.json next to peft's adapter_model.safetensors, which has the alphas if the file
 * lacks them; freed with sys->release. NULL: no such file, or no memory (*e). */
char *adapter_config_path(struct sys *sys, const char *path, struct error *e);
uint64_t adapter_host_bytes(const struct adapter *adapter);
/* Reads all factors of an adapter once. NONFINITE, with the tensor's name, if a value is NaN or infinite.
 * Call it before a run; a plan does not need it. */
enum status adapter_check_finite(const struct adapter *adapter, struct error *e);

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

/* An adapter matched to a model. Borrows the adapter and its file, which must outlive it. */
struct adapter_match {
    struct sys *sys;
    struct adapter_part part[SLOTS_MAX]; /* changes to the component in each slot */
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
/* True if every module of the adapter fits the model (adapter_match without `partial` succeeds). Keeps no
 * memory. */
bool adapter_fits(const struct adapter *adapter, const struct sluice_model *model);

/* A matched adapter with its strength. */
struct adapter_use {
    const struct adapter_match *match;
    double strength; /* not 0 */
};
struct adapter_combination {
    struct sys *sys;
    struct adapted_weight *weights;
    int n_weights;
    struct replaced_vector *vectors; /* f32: base + sum of strength * scale * change */
    int n_vectors;
    uint64_t host_bytes;              /* bytes allocated by the combination */
    struct adapter_combined *derived; /* private to adapter_combine.c */
};
/* Combines adapters for one slot. Reads the changed vectors from the model's component in that slot (zeros
 * for a model without files). The counts of changed weights and vectors are 0 if the adapters change nothing
 * in the slot. UNSUPPORTED: type of a base vector. IO, CHANGED: reading a base vector failed. MEMORY: no
 * memory. META: strength * scale overflows f32. The matches must outlive the combination, and the combination
 * every component adapted with it. */
enum status adapters_combine(const struct sluice_model *model, int slot, const struct adapter_use *uses,
                             int n_uses, struct adapter_combination *combination, struct error *e);
void adapter_combination_destroy(struct adapter_combination *combination);

/* Lists published recipes that all modules of the adapter fit, by name and shape. Returns the number, at most
 * n_max. For messages and `inspect`; takes some milliseconds per recipe. */
int adapter_recipes(const struct adapter *adapter, const struct recipe **fits, int n_max);

#endif
