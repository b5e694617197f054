/* What is published of each recipe: its models, where people find their files, what the recipe is compared
 * with. For lists (`sluice families`, README.md); nothing is decided by it, and no file is looked for by it.
 */
#ifndef SLUICE_PUBLICATIONS_H
#define SLUICE_PUBLICATIONS_H

#include "models/models.h"

enum { SOURCE_RECIPES_MAX = 10 };

/* A repository of Hugging Face, or a part of one. Its recipes are of one denoiser. */
struct source {
    const char *repository;
    const char *flag;  /* of the part that these files are; NULL: they are all of a model, or what is not text
                          encoders, for -m */
    const char *files; /* of the repository; NULL: a folder as diffusers has it, all of it */
    int megabytes;     /* of 10^6 bytes, three digits, as the repository lists them; 0: not seen */
    const struct recipe *recipe[SOURCE_RECIPES_MAX + 1]; /* that they are for, NULL-terminated */
};

struct publication {
    const struct recipe *recipe;
    const char *title; /* models that are drawn with so: "Flux.1 dev" */
    /* Program and version that a fixture of whole pipelines of this recipe was made with; NULL: there is
     * none. */
    const char *reference;
    const struct recipe *like; /* then: whose fixture has its parts */
};

extern const struct source sources[];           /* ends with a repository of NULL */
extern const struct publication publications[]; /* one a recipe; ends with a recipe of NULL */

/* NULL: the recipe has none. */
const struct publication *publication_of(const struct recipe *recipe);
bool source_is_of(const struct source *source, const struct recipe *recipe);

#endif
