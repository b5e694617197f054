/* The families and the recipes: what a pipeline is, as data. */
#ifndef SLUICE_MODELS_H
#define SLUICE_MODELS_H

#include "engine/run/family.h"

extern const struct family family_zimage; /* denoiser; models/zimage.c */
extern const struct family family_qwen3;  /* text encoder; models/qwen3.c */
extern const struct family family_vae_kl; /* autoencoder's decoder; models/vae_kl.c */

/* All families, NULL-terminated. */
extern const struct family *const families[];

/* A pipeline. One session runs every recipe. */
struct recipe {
    const char *name; /* "zimage" */
    const struct family *role[N_ROLES];
    /* Text: what stands before and after the prompt, and how many tokens are seen at most (the first ones).
     */
    const char *template_before, *template_after;
    int tokens_max;
    const char *special[3];     /* tokens of the template that the tokenizer must know, NULL-terminated */
    const char *tokenizer_from; /* where a missing tokenizer is usually found */
    const char *pipeline;       /* _class_name in model_index.json */
    int patch;         /* latent pixels on a token's side: width and height are multiples of patch * factor */
    double flow_shift; /* if scheduler_config.json has none */
    /* Defaults where the model's folder has no sluice.json. */
    int width, height, steps;
    double cfg_scale;
};

extern const struct recipe *const recipes[]; /* NULL-terminated */

#endif
