/* Weights converted while they are read: --type converts transformer and text encoders, --precision int8 the
 * transformer. A request with another conversion rebuilds the converted components. */
#ifndef SLUICE_CACHE_REQUANTISED_H
#define SLUICE_CACHE_REQUANTISED_H

#include "engine/open/model.h"
#include "engine/run/requantise.h"
#include "engine/run/store.h"

/* Conversion of weights on load. */
struct conversion_choice {
    enum dtype type; /* --type: type of text encoder and denoiser weights; N_DTYPES: no --type */
    /* --precision int8 without --type: converts the denoiser's unquantised weights to rotated int8. Otherwise
     * each product would rotate and quantise them again, and more bytes would be moved. */
    bool int8;
};

static inline bool conversion_equals(struct conversion_choice a, struct conversion_choice b) {
    return a.type == b.type && a.int8 == b.int8;
}

struct requantised {
    struct sys *sys; /* of the model; frees row_scales and component */
    bool made, scaled[MODEL_COMPONENTS];
    struct conversion_choice choice;
    struct row_scales row_scales[MODEL_COMPONENTS];
    /* Components with converted weights; owned. NULL: slot not converted. */
    struct component *component[MODEL_COMPONENTS];
};

/* Finds the conversion for --type and --precision (NULL: absent). Fails with USAGE for an unknown type; the
 * message lists the types. */
enum status requantised_choice(const char *type, const char *precision, struct conversion_choice *choice,
                               struct error *e);
/* Lays out the converted components; reads no weights. Without a conversion, frees the components instead. */
enum status requantised_prepare(struct requantised *r, const struct sluice_model *model,
                                struct conversion_choice choice, struct error *e);
/* Scans the weights of a slot for the scales of types with one scale per tensor (F8) or per row (rotated
 * types). Does nothing for other types, or if the slot has been scanned. readers: number of threads that scan
 * for row scales. tick: called during the scan; if it returns false, the scan fails with the error that it
 * has set. */
enum status requantised_scale(struct requantised *r, struct sys *sys, int slot, int readers,
                              bool (*tick)(void *user, struct error *e), void *user, struct error *e);
/* Returns the component in a slot, converted if the conversion applies to it. r NULL: no conversion. */
const struct component *requantised_component(const struct requantised *r, const struct sluice_model *model,
                                              int slot);
void requantised_destroy(struct requantised *r);

/* Host bytes during a request: converted components and the reader threads' conversion buffers; 0 for NULL.
 */
uint64_t requantised_bytes(const struct requantised *r, int readers);

/* The function with which the store's readers convert weights. */
packed_converter requantised_convert;
/* Estimated seconds that one thread takes to convert a number of values while they are read. */
double requantised_seconds(struct conversion_choice choice, int64_t values);
/* Estimated seconds that one thread takes to scan values for row scales, before a run; 0 for types without
 * row scales. */
double requantised_scan_seconds(struct conversion_choice choice, int64_t values);

#endif
