/* The layouts that people have of a family's models: Hugging Face's folder, a file for each part, everything
 * in one file behind prefixes; tensors under diffusers' names or their authors'. What is of one family is in
 * layouts_FAMILY.c and misfits_FAMILY.c; test_layouts.c and test_invalid_models.c go over the rows. */
#ifndef SLUICE_TEST_LAYOUTS_H
#define SLUICE_TEST_LAYOUTS_H

#include "test/lib/fixtures.h"
#include "test/lib/layout_checks.h"

#include <stddef.h>

enum { LAYOUT_PARTS = 5, LAYOUT_STRAYS = 5 };

struct layout_part {
    const char *component;                           /* its folder in Hugging Face's layout */
    const char *file;                                /* that it lies in where each part has its own */
    size_t flag;                                     /* of options: the one that chooses it */
    struct tensor_set *(*original)(const struct tensor_set *of); /* under its authors' names; NULL: those are the same */
    const char *prefix;                              /* in a file of its own, where `bare` is a name in it */
    const char *bare;
    const char *found;      /* what it is called in another's slot */
    const char *asked, *by; /* and what another is told in its own */
};

/* What a slot of several families is told to want. */
#define ASKED_TRANSFORMER "transformer (zimage, flux, unet, qwen_image, wan or sd3)"
#define ASKED_LLM         "text encoder (qwen3 or qwen25vl)"
#define ASKED_VAE         "autoencoder (vae_kl, vae_wan or vae_wan22)"

struct all_in_one {
    const char *prefix[LAYOUT_PARTS];
    const char *key[LAYOUT_PARTS];    /* of each part's configuration */
    const char *stray[LAYOUT_STRAYS]; /* tensors that stand beside the encoders' own */
};

/* A family's, which several fixtures have. */
struct layout_family {
    const struct layout_part *parts;
    int n_parts;
    const struct all_in_one *all;
    int n_all;
};

/* A fixture's. */
struct layouts {
    const struct layout_family *family;
    const char *tokenizer_of;  /* a model whose tokenizers it has; NULL: its own */
    const char *tokenizer;     /* what comes behind that folder; NULL: nothing */
    int width, height, frames; /* frames 0: one */
    double guidance, flow_shift;
    bool no_configs;          /* in its files: sizes are the published ones */
    const char *warnings[2];      /* of what is assumed */
    const char *of_folder;    /* the same of the folder itself; NULL: nothing is */
    const char *both;         /* a part whose file holds another, too: which is converted must be said */
    bool one_file;            /* all in one file, too */
    bool wrong_slots;         /* and each part in another's slot */
    void (*const *own)(void); /* then these, up to NULL */
};

/* What is said of a fixture's folder. */
struct named_recipe {
    const char *recipe;
    int t5_tokens, references;
};

/* A model that is nearly one: a part of a fixture with one change. */
struct invalid_model {
    const char *component;
    const char *key, *value; /* its configuration says this */
    const char *tensor;      /* has n of this dimension; 0: what begins so is not there */
    int dimension;
    int32_t n;
    void (*change)(struct tensor_set *p); /* or this is done to it */
    enum status code;
    const char *what, *words[4];
};

/* Of a row: what is changed, and what comes of it. */
#define CONFIG(k, v)       .key = k, .value = v
#define SHAPED(t, d, size) .tensor = t, .dimension = d, .n = size
#define REFUSED(c, ...)    .code = c, .words = {__VA_ARGS__}

/* For changes: a tensor of one value that tells a relative by its name. */
void invalid_models_add_marker(struct tensor_set *p, const char *name);

struct invalid_models {
    const struct layout_family *family;
    const struct invalid_model *rows;
    int n_rows;
    void (*const *own)(void); /* as in struct layouts */
};

extern const struct layout_family layouts_of_zimage, layouts_of_flux, layouts_of_sd1, layouts_of_qwen,
    layouts_of_wan, layouts_of_sd3, layouts_of_sd35;
extern const struct layouts layouts_zimage, layouts_zimage_wide, layouts_flux, layouts_flux_schnell,
    layouts_flux_published, layouts_sd1, layouts_sdxl, layouts_qwen, layouts_wan, layouts_wan22, layouts_sd3,
    layouts_sd35;
extern const struct named_recipe named_flux, named_flux_schnell, named_flux_kontext, named_flux_fill;
extern const struct invalid_models invalid_models_zimage, invalid_models_flux, invalid_models_unet, invalid_models_qwen, invalid_models_qwen25vl,
    invalid_models_wan, invalid_models_wan_encoders, invalid_models_sd3;

/* ---- the fixture at hand ---- */

struct layout_model {
    const struct layout_family *family;
    const char *folder, *tokenizer;
    bool no_configs; /* see struct layouts */
    struct tensor_set *part[LAYOUT_PARTS];
};
extern struct layout_model current_model;

void layouts_load(const struct layout_family *family, const char *folder);
void layouts_free(void);

struct tensor_set *layouts_part(const char *component);

/* Under its authors' names. */
struct tensor_set *layouts_checkpoint_part(const char *component);

/* A file of it by its flag. */
void layouts_set_path(options *from, const char *component, const char *path);

/* Each part in a file of its own, of its path; configs: in the metadata. */
void layouts_write_parts(const char *const *paths, bool configs);

/* The flags for files of each part as they are called. */
options layouts_part_files(void);

/* The number of tensors. */
int layouts_write_all(const char *path, const struct all_in_one *one);

/* Autoencoders are published alike: Flux's, and WAN's and Qwen-Image's. */
struct tensor_set *layouts_vae_to_checkpoint(const struct tensor_set *of);
struct tensor_set *layouts_wan_vae_to_checkpoint(const struct tensor_set *of);
/* WAN's transformers as their authors name them. */
struct tensor_set *layouts_wan_to_checkpoint(const struct tensor_set *of);

/* The tensor has another shape; what is new of it is zeros. */
void layouts_resize(struct tensor_set *p, const char *name, int dimension, int32_t n);

/* A part of the fixture at hand, changed, and all else from its folder. Frees the pile. */
options layouts_replace_part(const char *component, struct tensor_set *p);

#endif
