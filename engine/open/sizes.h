/* Sizes of a pipeline that no file tells: the published ones, and what is typed instead of some. */
#ifndef SLUICE_OPEN_SIZES_H
#define SLUICE_OPEN_SIZES_H

#include "models/models.h"

struct sizes {
    int only; /* sizes are of that slot alone; SLOTS_MAX: of all that are parts of a model */
    int of[SLOTS_MAX][DIMENSIONS_MAX]; /* each slot's family's dimensions, as component_derive takes them */
    const char *dtype;                 /* what is said of stored types, not ended by a NUL; NULL: nothing */
    size_t dtype_bytes;
};

/* The recipe of that name; NULL with USAGE, which lists them. */
const struct recipe *sizes_find_recipe(const char *name, struct error *e);
/* only: as above. text: "name=value,..." with families' names of dimensions ("clip_g.name=value" or
 * "text_encoder_2.name=value": of the slot alone with this flag or folder) and "dtype=TYPE", or NULL. Borrows
 * it. USAGE for a name that is unknown, which lists them, or given twice, and for a value beyond its range.
 */
enum status sizes_read(struct sizes *sizes, const struct recipe *recipe, int only, const char *text,
                       struct error *e);

#endif
