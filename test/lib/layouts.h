/* File layouts of a family's models: the Hugging Face folder, one file per part, everything in one file
 * behind prefixes; with diffusers' tensor names or those of the authors' checkpoints. layouts_FAMILY.c and
 * invalid_models_FAMILY.c hold the rows of one family; test_layouts.c and test_invalid_models.c loop over
 * them. */
#ifndef SLUICE_TEST_LAYOUTS_H
#define SLUICE_TEST_LAYOUTS_H

#include "test/lib/fixtures.h"
#include "test/lib/layout_checks.h"

#include <stddef.h>

enum { LAYOUT_PARTS = 5, EXTRA_TENSORS_MAX = 5 };

struct layout_part {
    const char *component; /* its folder in the Hugging Face layout */
    const char *file;      /* its file name in the layout with one file per part */
    size_t flag;           /* offset in options of the flag that selects its file */
    /* Converts to the checkpoint's tensor names; NULL: the names are the same. */
    struct tensor_set *(*to_checkpoint)(const struct tensor_set *of);
    const char *prefix; /* prefix of names in its own file, if the file has a tensor called prefix_if */
    const char *prefix_if;
    const char *found_text;                /* name in the error when this part is passed for another slot */
    const char *expected_text, *flag_text; /* words of the error when another part is passed for this slot */
};

/* Expected part in errors about slots that several families fit. */
#define EXPECTED_TRANSFORMER "transformer (zimage, flux, unet, qwen_image, wan or sd3)"
#define EXPECTED_LLM         "text encoder (qwen3 or qwen25vl)"
#define EXPECTED_VAE         "autoencoder (vae_kl, vae_wan or vae_wan22)"

struct all_in_one {
    const char *prefix[LAYOUT_PARTS];
    const char *key[LAYOUT_PARTS];               /* metadata key of each part's configuration */
    const char *extra_tensor[EXTRA_TENSORS_MAX]; /* extra tensors that such files hold, unused */
};

/* Layouts of a family; several fixtures share them. */
struct layout_family {
    const struct layout_part *parts;
    int n_parts;
    const struct all_in_one *all;
    int n_all;
};

/* Layouts of a fixture. */
struct layouts {
    const struct layout_family *family;
    const char *tokenizer_model; /* a model folder whose tokenizers the fixture uses; NULL: its own */
    const char *tokenizer;       /* subfolder of the tokenizer; NULL: none */
    int width, height, frames;   /* frames 0 is 1 */
    double guidance, flow_shift;
    bool no_configs;            /* its files have no configuration: sizes are the published ones */
    const char *warnings[2];    /* texts that the log must contain about assumed values */
    const char *folder_warning; /* text that the log must contain for the folder; NULL: nothing is logged */
    const char *two_in_file;    /* part whose file holds two parts, so that convert needs --part; or NULL */
    bool one_file;              /* also test everything in one file */
    bool wrong_slots;           /* also test each part in the slot of another */
    void (*const *extra_tests)(void); /* further tests, ended by NULL */
};

/* Expected recipe, T5 token limit and number of reference images of a fixture's folder. */
struct expected_recipe {
    const char *recipe;
    int t5_tokens, references;
};

/* An invalid model: a part of a fixture with one change. */
struct invalid_model {
    const char *component;
    const char *key, *value; /* sets this key of its configuration */
    const char *tensor;      /* gives this tensor n in this dimension; n 0 removes tensors with this prefix */
    int dimension;
    int32_t n;
    void (*change)(struct tensor_set *p); /* or applies this function */
    enum status code;
    const char *what, *words[4];
};

/* Members of a row: the change, and the expected error. */
#define CONFIG(k, v)       .key = k, .value = v
#define SHAPED(t, d, size) .tensor = t, .dimension = d, .n = size
#define REFUSED(c, ...)    .code = c, .words = {__VA_ARGS__}

/* For change functions: adds a tensor of one value whose name identifies a related model. */
void invalid_models_add_marker(struct tensor_set *p, const char *name);

struct invalid_models {
    const struct layout_family *family;
    const struct invalid_model *rows;
    int n_rows;
    void (*const *extra_tests)(void); /* further tests, ended by NULL */
};

extern const struct layout_family layouts_of_zimage, layouts_of_flux, layouts_of_sd1, layouts_of_qwen,
    layouts_of_wan, layouts_of_sd3, layouts_of_sd35;
extern const struct layouts layouts_zimage, layouts_zimage_wide, layouts_flux, layouts_flux_schnell,
    layouts_flux_published, layouts_sd1, layouts_sdxl, layouts_qwen, layouts_wan, layouts_wan22, layouts_sd3,
    layouts_sd35;
extern const struct expected_recipe expected_flux, expected_flux_schnell, expected_flux_kontext,
    expected_flux_fill;
extern const struct invalid_models invalid_models_zimage, invalid_models_flux, invalid_models_unet,
    invalid_models_qwen, invalid_models_qwen25vl, invalid_models_wan, invalid_models_wan_encoders,
    invalid_models_sd3;

/* ---- the current fixture ---- */

struct layout_model {
    const struct layout_family *family;
    const char *folder, *tokenizer;
    bool no_configs; /* as in struct layouts */
    struct tensor_set *part[LAYOUT_PARTS];
};
extern struct layout_model current_model;

void layouts_load(const struct layout_family *family, const char *folder);
void layouts_free(void);

struct tensor_set *layouts_part(const char *component);

/* The same with the checkpoint's tensor names. */
struct tensor_set *layouts_checkpoint_part(const char *component);

/* Sets the path of a part's file. */
void layouts_set_path(options *from, const char *component, const char *path);

/* Writes each part into its own file; configs: with its configuration in the metadata. */
void layouts_write_parts(const char *const *paths, bool configs);

/* Returns options that select the files written by layouts_write_parts under the parts' file names. */
options layouts_part_files(void);

/* Writes everything into one file; returns the number of tensors. */
int layouts_write_all(const char *path, const struct all_in_one *one);

/* Checkpoint names of VAEs: Flux's, and the VAE shared by WAN and Qwen-Image. */
struct tensor_set *layouts_vae_to_checkpoint(const struct tensor_set *of);
struct tensor_set *layouts_wan_vae_to_checkpoint(const struct tensor_set *of);
/* Checkpoint names of WAN's transformers. */
struct tensor_set *layouts_wan_to_checkpoint(const struct tensor_set *of);

/* Changes one dimension of a tensor; new values are zeros. */
void layouts_resize(struct tensor_set *p, const char *name, int dimension, int32_t n);

/* Writes p as that part of the current model; returns options that take all other parts from its folder.
 * Frees p. */
options layouts_replace_part(const char *component, struct tensor_set *p);

#endif
