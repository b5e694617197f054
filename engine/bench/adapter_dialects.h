/* Dialects of made-up adapters: what trainers call the same factors of the same weights. */
#ifndef SLUICE_BENCH_ADAPTER_DIALECTS_H
#define SLUICE_BENCH_ADAPTER_DIALECTS_H

#include "engine/open/adapter_file.h"
#include "models/models.h"

/* What the names of a text encoder's modules begin with. */
enum adapter_texts {
    TEXTS_NONE,      /* the dialect has none */
    TEXTS_BY_FOLDER, /* "text_encoder_2." */
    TEXTS_BY_NUMBER, /* "lora_te2_" */
    TEXTS_BY_PREFIX, /* as ComfyUI's files of whole pipelines have it: "text_encoders.clip_g.transformer." */
};

enum adapter_alphas {
    ALPHAS_NONE, /* it is the rank */
    ALPHAS_OF_MODULES,
    ALPHAS_IN_METADATA, /* peft's configuration */
};

struct adapter_dialect {
    const char *name;
    const char *transformer, *unet; /* what the names of a denoiser's modules begin with */
    bool authors;                   /* a denoiser's modules are called as its authors do, not as diffusers */
    bool flattened;                 /* dots are underscores */
    bool vectors;                   /* norms and biases are changed too */
    enum adapter_form form;         /* a LoKr's first matrix is whole */
    enum adapter_texts texts;
    enum adapter_alphas alphas;
    const char *down, *up; /* endings of an ADAPTER_LORA's factors */
};

/* The dialect of that name; NULL with USAGE, which lists them. */
const struct adapter_dialect *adapter_dialect_find(const char *name, struct error *e);

/* What the names of the slot's modules begin with, of BLOCK_NAME_MAX bytes. False: this dialect does not name
 * them. */
bool adapter_dialect_prefix(const struct adapter_dialect *dialect, const struct recipe *recipe, int slot,
                         char *prefix);

/* A tensor of a module. */
struct adapter_factor {
    const char *end; /* of its name, behind the module's */
    int rank;
    int32_t dim[WEIGHT_FILE_RANK_MAX];
    double init_scale; /* as weight_spec.spread */
    float alpha;   /* it is this number, where it has no dimensions */
};

/* The factors that change a weight [dim[0], ...] of that shape by about a quarter of what it spreads, of at
 * most so high a rank; alpha: behind them, times the rank (0: there is none). Returns how many. */
enum { ADAPTER_FACTORS_MAX = 5 };
int adapter_dialect_factors(const struct adapter_dialect *dialect, int n_dims, const int32_t *dim, int rank,
                         double alpha, struct adapter_factor factors[ADAPTER_FACTORS_MAX]);

/* The rank that such a weight's factors have: no higher than it can be. */
int32_t adapter_rank_of(int n_dims, const int32_t *dim, int rank);

#endif
