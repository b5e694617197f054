/* Naming conventions (dialects) of random test adapters: how each trainer names the factors of a weight. */
#ifndef SLUICE_DEV_ADAPTER_DIALECTS_H
#define SLUICE_DEV_ADAPTER_DIALECTS_H

#include "engine/open/adapter_file.h"
#include "models/models.h"

/* Kinds of prefixes that naming conventions put before the module names of a text encoder. */
enum adapter_texts {
    TEXTS_NONE,      /* the trainer supports no text encoders */
    TEXTS_BY_FOLDER, /* prefix is the encoder's diffusers folder, such as "text_encoder_2." */
    TEXTS_BY_NUMBER, /* prefix contains the encoder's number, such as "lora_te2_" */
    TEXTS_BY_PREFIX, /* prefix as in ComfyUI, such as "text_encoders.clip_g.transformer." */
};

enum adapter_alphas {
    ALPHAS_NONE, /* no alpha tensors: alpha is the rank */
    ALPHAS_OF_MODULES,
    ALPHAS_IN_METADATA, /* alphas are in peft's configuration */
};

struct adapter_naming {
    const char *name;
    const char *transformer, *unet;
    bool authors;   /* true: denoiser modules have the authors' checkpoint names; false: diffusers' names */
    bool flattened; /* dots in module names are replaced by underscores */
    bool vectors;   /* the trainer's adapters change norms and biases too */
    enum adapter_form form; /* LoRA, LoHa, or LoKr with whole outer and factored inner matrix */
    enum adapter_texts texts;
    enum adapter_alphas alphas;
    const char *down, *up; /* name endings of LoRA factors */
};

/* Finds a naming convention by name. Returns NULL with the error USAGE, which lists the known names. */
const struct adapter_naming *adapter_naming_find(const char *name, struct error *e);

/* Writes the prefix of a component's module names (at most BLOCK_NAME_MAX bytes). Returns false if the
 * naming convention has no names for the component. */
bool adapter_naming_prefix(const struct adapter_naming *dialect, const struct recipe *recipe, int slot,
                           char *prefix);

struct adapter_factor {
    const char *end; /* ending of the tensor name, after the module's name: such as ".lora_A.weight" */
    int rank;
    int32_t dim[WEIGHT_FILE_RANK_MAX];
    double init_scale; /* standard deviation of the random values, as in weight_spec.init_scale */
    float alpha;       /* value of a scalar tensor (of rank 0) such as alpha */
};

/* Lists the adapter tensors for a weight of shape dim. The adapter changes the weight by a matrix of at most
 * rank `rank`, with about a quarter of the weight's standard deviation. alpha > 0: also lists an alpha tensor
 * with alpha times the rank. Returns the number of tensors. */
enum { ADAPTER_FACTORS_MAX = 5 };
int adapter_naming_factors(const struct adapter_naming *dialect, int n_dims, const int32_t *dim, int rank,
                           double alpha, struct adapter_factor factors[ADAPTER_FACTORS_MAX]);

/* Returns the rank of an adapter's factors for a weight: `rank`, limited by the weight's shape. */
int32_t adapter_rank_of(int n_dims, const int32_t *dim, int rank);

#endif
