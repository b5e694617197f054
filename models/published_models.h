/* Published models of each recipe: names, Hugging Face repositories, reference implementations of the
 * tests. For listings (`sluice families`, models/README.md) and advice in errors only: no file is chosen
 * by these tables. */
#ifndef SLUICE_PUBLISHED_MODELS_H
#define SLUICE_PUBLISHED_MODELS_H

#include "models/models.h"

enum { HF_SOURCE_RECIPES_MAX = 10 };

/* Files in a Hugging Face repository. All recipes of a row have the same denoiser family. */
struct hf_source {
    const char *repository;
    const char *flag; /* flag that loads the files; NULL: -m, a complete model or one without text encoders */
    const char *files; /* file name in the repository; NULL: the whole repository, in diffusers' layout */
    int megabytes;     /* file size in 10^6 bytes, rounded to three digits; 0: unknown */
    const struct recipe
        *recipe[HF_SOURCE_RECIPES_MAX + 1]; /* recipes that can use the files, NULL-terminated */
};

struct published_model {
    const struct recipe *recipe;
    const char *title; /* readable model names, such as "Flux.1 dev" */
    /* Reference implementation and version of the test fixture for whole pipelines of this recipe; NULL: no
     * fixture. */
    const char *reference;
    const struct recipe *parts_compared_in; /* if there is no fixture: recipe whose fixture covers all
                                               components of this recipe */
};

extern const struct hf_source hf_sources[]; /* all known files; the last row has repository NULL */
extern const struct published_model published_models[]; /* one row for each recipe; ends with recipe NULL */

/* Row of published_models for a recipe; NULL: none. */
const struct published_model *published_model_of(const struct recipe *recipe);
bool hf_source_has_recipe(const struct hf_source *source, const struct recipe *recipe);

#endif
