/* The tables that tests see in place of models/models.c's: what is published, and the toy behind it. */
#include "test/lib/toy_pipeline.h"

#define FAMILY_ROW(name) &family_##name,
#define RECIPE_ROW(name) &recipe_##name,

const struct family *const families[] = {PUBLISHED_FAMILIES(FAMILY_ROW) TOY_FAMILIES(FAMILY_ROW) NULL};

const struct recipe *const recipes[] = {PUBLISHED_RECIPES(RECIPE_ROW) TOY_RECIPES(RECIPE_ROW) NULL};
