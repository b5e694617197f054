/* Tables of all families and recipes (models.h) in a separate file, so that tests can link other tables. */
#include "models/models.h"

#define FAMILY_ROW(name) &family_##name,
#define RECIPE_ROW(name) &recipe_##name,

const struct family *const families[] = {PUBLISHED_FAMILIES(FAMILY_ROW) NULL};

const struct recipe *const recipes[] = {PUBLISHED_RECIPES(RECIPE_ROW) NULL};
