/* The family and recipe tables of the tests, instead of models/models.c: the published families and recipes,
 * followed by those of the synthetic pipeline.
 *
 * Recipes that resize input images to their own area (1024x1024) would be slow even with the smallest model.
 * These tables therefore use the areas of the reference data (test/golden/qwen/specs.py). */
#include "test/lib/tables.h"

#include "test/lib/synthetic_pipeline.h"

#define FAMILY_ROW(name) &family_##name,
#define RECIPE_ROW(name) &recipe_##name,

const struct family *const families[] = {PUBLISHED_FAMILIES(FAMILY_ROW) SYNTHETIC_FAMILIES(FAMILY_ROW) NULL};

#define RECIPE_PLACE(name) PLACE_##name,
#define RECIPE_COPY(name)  &published[PLACE_##name],

enum { PUBLISHED_RECIPES(RECIPE_PLACE) PUBLISHED };

static struct recipe published[PUBLISHED];

const struct recipe *const recipes[] = {PUBLISHED_RECIPES(RECIPE_COPY) SYNTHETIC_RECIPES(RECIPE_ROW) NULL};

static int64_t small_area(int64_t area) {
    return area >= 1024 * 1024 ? 96 * 96 : area ? 160 * 160 : 0;
}

static const struct recipe *const from[] = {PUBLISHED_RECIPES(RECIPE_ROW)};

void tables_use_published_areas(void) {
    for (int i = 0; i < PUBLISHED; i++) published[i].images.areas = from[i]->images.areas;
}

__attribute__((constructor)) static void copy_published(void) {
    for (int i = 0; i < PUBLISHED; i++) {
        published[i] = *from[i];
        struct picture_areas *areas = &published[i].images.areas;
        areas->vision = small_area(areas->vision);
        areas->vae = small_area(areas->vae);
        areas->output = small_area(areas->output);
    }
}
