/* File layouts of a family's models: the Hugging Face folder, one file per part, everything in one file
 * under prefixes; with diffusers' tensor names or those of the authors' checkpoints. layouts_FAMILY.c holds
 * the rows of one family, invalid_models.c those of all; test_layouts.c and test_invalid_models.c loop over
 * them. */
#ifndef SLUICE_TEST_LAYOUTS_H
#define SLUICE_TEST_LAYOUTS_H

#include "test/lib/fixtures.h"
#include "test/lib/layout_checks.h"

#include <stddef.h>

enum { LAYOUT_PARTS = 5, EXTRA_TENSORS_MAX = 5 };

struct layout_part {
    const char *component; /* name of the component's folder in the Hugging Face layout */
    const char *file;      /* name of the component's file in the layout with one file per component */
    size_t flag;           /* offset in struct options of the flag that selects the file */
    /* Renames tensors from diffusers' names to the checkpoint's; NULL: the names are the same. */
    struct tensor_set *(*to_checkpoint)(const struct tensor_set *of);
    const char *prefix; /* prefix of tensor names in a file with this component only; used if the component
                           has a tensor `prefix_if` */
    const char *prefix_if;
    const char *found_text; /* words that errors about this component's file in a wrong slot contain */
    const char *expected_text, *flag_text; /* words of the error for a wrong component */
};

/* Texts that errors about a wrong slot contain for slots that several families fit. */
#define EXPECTED_TRANSFORMER "transformer (zimage, flux, unet, qwen_image, wan or sd3)"
#define EXPECTED_LLM         "text encoder (qwen3 or qwen25vl)"
#define EXPECTED_VAE         "autoencoder (vae_kl, vae_wan or vae_wan22)"

struct all_in_one {
    const char *prefix[LAYOUT_PARTS];
    /* Key of the file's metadata under which each component's configuration is stored. */
    const char *key[LAYOUT_PARTS];
    const char *extra_tensor[EXTRA_TENSORS_MAX]; /* unused tensors that published files also hold */
};

/* File layouts of a model family; several fixtures share them. */
struct layout_family {
    const struct layout_part *parts;
    int n_parts;
    const struct all_in_one *all;
    int n_all;
};

struct layouts {
    const struct layout_family *family;
    const char
        *tokenizer_model; /* model folder whose tokenizers the fixture uses; NULL: the fixture's own folder */
    const char *tokenizer;     /* subfolder of the tokenizer in the model folder; NULL: none */
    int width, height, frames; /* size of the test request; `frames` 0: an image, not a video */
    double guidance, flow_shift;
    bool no_configs; /* true: the files have no configuration, so the sizes of published models apply */
    const char *warnings[2]; /* warnings about assumed values that the session's log must contain */
    /* Warning that opening the Hugging Face folder logs; NULL: nothing is logged. */
    const char *folder_warning;
    const char
        *two_in_file; /* component whose file also holds a second component, so that `convert` needs --part */
    bool one_file;    /* true: also test one file with all components */
    bool wrong_slots; /* true: also test each component's file in the slots of other components */
    void (*const *extra_tests)(void); /* further tests of the fixture, ended by NULL */
};

/* Recipe, T5 token limit and number of reference images that opening a fixture's folder must give. */
struct expected_recipe {
    const char *recipe;
    int t5_tokens, references;
};

/* An invalid model: one component of a fixture with one change. */
struct invalid_model {
    const char *component;
    const char *key, *value; /* configuration key to change, and the new value of the key */
    const char *tensor; /* tensor whose `dimension` becomes n; n 0: removes all tensors with this prefix */
    int dimension;
    int32_t n;
    const char *marker; /* one-value tensor to add, whose name identifies a related model; NULL: none */
    void (*change)(struct tensor_set *p); /* function that changes the component; NULL: none */
    enum status code;
    const char *what, *words[4];
};

/* Initialisers for a row of struct invalid_model: the change, and the expected error. */
#define CONFIG(k, v)       .key = k, .value = v
#define SHAPED(t, d, size) .tensor = t, .dimension = d, .n = size
#define REFUSED(c, ...)    .code = c, .words = {__VA_ARGS__}

/* Adds to a component a one-value tensor whose name identifies a related, unsupported model. For `change`
 * functions. */
void invalid_models_add_marker(struct tensor_set *p, const char *name);

struct invalid_models {
    const struct layout_family *family;
    const struct invalid_model *rows;
    int n_rows;
    /* Further tests of invalid models of the family, ended by NULL; NULL: none. */
    void (*const *extra_tests)(void);
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

struct layout_model {
    const struct layout_family *family;
    const char *folder, *tokenizer;
    bool no_configs; /* true: the files contain no configuration */
    struct tensor_set *part[LAYOUT_PARTS];
};
extern struct layout_model current_model;

void layouts_load(const struct layout_family *family, const char *folder);
void layouts_free(void);

struct tensor_set *layouts_part(const char *component);

/* Returns a component with the checkpoint's tensor names. */
struct tensor_set *layouts_checkpoint_part(const char *component);

/* Sets the component's flag in the options to the given file. */
void layouts_set_path(options *from, const char *component, const char *path);

/* Writes each component to its own file. configs: stores the configurations in the metadata. */
void layouts_write_parts(const char *const *paths, bool configs);

/* Returns options for files written by layouts_write_parts under the usual file names of the components. */
options layouts_part_files(void);

/* Writes all components into one file; returns the number of tensors. */
int layouts_write_all(const char *path, const struct all_in_one *one);

/* Return VAEs with the checkpoint names of Flux's VAE, and of the VAE that WAN and Qwen-Image share. */
struct tensor_set *layouts_vae_to_checkpoint(const struct tensor_set *of);
struct tensor_set *layouts_wan_vae_to_checkpoint(const struct tensor_set *of);
struct tensor_set *layouts_wan_to_checkpoint(const struct tensor_set *of);

/* Changes one dimension of a tensor; new values are zeros. */
void layouts_resize(struct tensor_set *p, const char *name, int dimension, int32_t n);

/* Writes p as the given component of the current model and frees p. Returns options that take all other
 * components from the model's folder. */
options layouts_replace_part(const char *component, struct tensor_set *p);

#endif
