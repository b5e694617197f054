/* What is published of each recipe: its models, where people find their files, what the recipe is compared
 * with. For lists (`sluice families`, README.md) and for advice in error messages; no file is looked for by it.
 */
#ifndef SLUICE_PUBLISHED_MODELS_H
#define SLUICE_PUBLISHED_MODELS_H

#include "models/models.h"

enum { HF_SOURCE_RECIPES_MAX = 10 };

/* A repository of Hugging Face, or a part of one. Its recipes are of one denoiser. */
struct hf_source {
    const char *repository;
    const char *flag;  /* of the part that these files are; NULL: they are all of a model, or what is not text
                          encoders, for -m */
    const char *files; /* of the repository; NULL: a folder as diffusers has it, all of it */
    int megabytes;     /* of 10^6 bytes, three digits, as the repository lists them; 0: not seen */
    const struct recipe *recipe[HF_SOURCE_RECIPES_MAX + 1]; /* that they are for, NULL-terminated */
};

struct published_model {
    const struct recipe *recipe;
    const char *title; /* models that are drawn with so: "Flux.1 dev" */
    /* Program and version that a fixture of whole pipelines of this recipe was made with; NULL: there is
     * none. */
    const char *reference;
    const struct recipe *parts_compared_in; /* then: whose fixture has its parts */
};

extern const struct hf_source hf_sources[];           /* ends with a repository of NULL */
extern const struct published_model published_models[]; /* one a recipe; ends with a recipe of NULL */

/* NULL: the recipe has none. */
const struct published_model *published_model_of(const struct recipe *recipe);
bool hf_source_has_recipe(const struct hf_source *source, const struct recipe *recipe);

#endif
