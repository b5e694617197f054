/* A session's weights in the type that its requests ask for (`--type`): the transformer's and the text
 * encoders', converted on the way from their files. Made again when a request asks for another type. */
#ifndef SLUICE_API_REQUANTISED_H
#define SLUICE_API_REQUANTISED_H

#include "engine/open/model.h"
#include "engine/run/requantise.h"
#include "engine/run/store.h"

struct requantised {
    bool made, scaled[SLOTS_MAX];
    enum dtype wanted;
    struct component component[SLOTS_MAX]; /* without family: as the model has it */
};

/* The type of that name, N_DTYPES for NULL. converted: it may be one that only files have. USAGE, listing
 * those that there are. */
enum status requantised_type(const char *name, bool converted, enum dtype *wanted, struct error *e);
/* Lays the components out; reads nothing. A type of N_DTYPES frees them. */
enum status requantised_make(struct requantised *r, const struct sluice_model *model, enum dtype wanted,
                             struct error *e);
/* Finds the scales of that slot's weights in types that need one for a whole tensor (F8), which takes reading
 * them once; nothing for others, or if it has been done. tick: asked now and then; false ends it with the
 * error that it set. */
enum status requantised_scale(struct requantised *r, struct sys *sys, int slot,
                              bool (*tick)(void *user, struct error *e), void *user, struct error *e);
/* The component in that slot: converted if there is one. r: NULL for none. */
const struct component *requantised_component(const struct requantised *r, const struct sluice_model *model,
                                              int slot);
void requantised_destroy(struct requantised *r);

/* Of our allocator while a request runs: layouts, and what readers convert in; 0 for NULL. */
uint64_t requantised_bytes(const struct requantised *r, int readers);

/* What readers do with such weights. */
packed_converter requantised_convert;
/* Seconds that converting so many values takes one reader, a stated default. */
double requantised_seconds(enum dtype wanted, int64_t values);

#endif
