/* Weights converted on load (--type): weights of transformer and text encoders are converted to another type
 * while being read. The converted components are rebuilt when a request asks for another type. */
#ifndef SLUICE_CACHE_REQUANTISED_H
#define SLUICE_CACHE_REQUANTISED_H

#include "engine/open/model.h"
#include "engine/run/requantise.h"
#include "engine/run/store.h"

struct requantised {
    bool made, scaled[SLOTS_MAX];
    enum dtype type;
    /* Components with converted weights; family NULL: slot not converted. */
    struct component component[SLOTS_MAX];
};

/* Finds a tensor type by name; N_DTYPES for NULL. converted: also allows types that only files written by
 * `sluice convert` have. Fails with USAGE, listing the types. */
enum status requantised_type(const char *name, bool converted, enum dtype *type, struct error *e);
/* Lays out the converted components; reads no weights. type N_DTYPES: frees the converted components instead.
 */
enum status requantised_prepare(struct requantised *r, const struct sluice_model *model, enum dtype type,
                                struct error *e);
/* Scans the weights of a slot once for types with one scale per tensor (F8); does nothing for other types or
 * on a second call. tick: called now and then; if tick returns false, the scan fails with the error that tick
 * has set. */
enum status requantised_scale(struct requantised *r, struct sys *sys, int slot,
                              bool (*tick)(void *user, struct error *e), void *user, struct error *e);
/* The component in the given slot, converted if --type applies to the slot. r NULL: no conversion. */
const struct component *requantised_component(const struct requantised *r, const struct sluice_model *model,
                                              int slot);
void requantised_destroy(struct requantised *r);

/* Host bytes during a request: converted components and the reader threads' conversion buffers; 0 for NULL.
 */
uint64_t requantised_bytes(const struct requantised *r, int readers);

/* The function with which the store's readers convert weights. */
packed_converter requantised_convert;
/* Estimated seconds that one reader thread takes to convert a number of values. */
double requantised_seconds(enum dtype type, int64_t values);

#endif
