/* Sizes of a pipeline without files: published values, or those of --dims. */
#ifndef SLUICE_OPEN_SIZES_H
#define SLUICE_OPEN_SIZES_H

#include "models/models.h"

struct sizes {
    int only; /* the only slot whose sizes are needed; SLOTS_MAX: all components of the model */
    int of[SLOTS_MAX][DIMENSIONS_MAX]; /* dimension values for the family of each slot */
    const char *dtype;                 /* value of "dtype=" in --dims, not NUL-terminated; NULL: absent */
    size_t dtype_bytes;
};

/* Finds a recipe by name; NULL with USAGE, which lists the names. */
const struct recipe *sizes_find_recipe(const char *name, struct error *e);
/* Reads --dims. only: the only slot that is needed, or SLOTS_MAX. text: "name=value,..." with names of the
 * families' dimensions and "dtype=TYPE"; borrowed; NULL: published sizes. "clip_g.name=value" or
 * "text_encoder_2.name=value" sets only the slot with that flag or folder. USAGE: an unknown name (lists
 * all), a repeated name, a value out of range. */
enum status sizes_read(struct sizes *sizes, const struct recipe *recipe, int only, const char *text,
                       struct error *e);

#endif
