/* The tables of all families and recipes (models.h), in their own file so that tests can link others. */
#include "models/models.h"

#define FAMILY_ROW(name) &family_##name,
#define RECIPE_ROW(name) &recipe_##name,

const struct family *const families[] = {PUBLISHED_FAMILIES(FAMILY_ROW) NULL};

const struct recipe *const recipes[] = {PUBLISHED_RECIPES(RECIPE_ROW) NULL};
