/* The tables of what is published: see models.h. Nothing else is in this file, so that a test may have tables
 * of its own in its place. */
#include "models/models.h"

#define FAMILY_ROW(name) &family_##name,
#define RECIPE_ROW(name) &recipe_##name,

const struct family *const families[] = {PUBLISHED_FAMILIES(FAMILY_ROW) NULL};

const struct recipe *const recipes[] = {PUBLISHED_RECIPES(RECIPE_ROW) NULL};
