/* Components whose weights are converted to another type while loading (--type): fewer bytes to hold and to
 * move, slightly different results. Each segment of the new packed blocks records its conversion; readers
 * convert. block_stored_type decides which weights change; weights with row scales or scale tiles in another
 * tensor do not change. Converted weights of rotated types have row scales in memory (struct row_scales). */
#ifndef SLUICE_RUN_REQUANTISE_H
#define SLUICE_RUN_REQUANTISE_H

#include "engine/run/family.h"
#include "engine/run/reader.h"

/* Type to which the weights of a component are converted. */
struct weight_type {
    enum dtype type;       /* N_DTYPES: weights keep their types */
    bool unquantised_only; /* quantised weights keep their types */
};

/* Row scales of all weights of a component that are converted to a rotated type, in the order of the blocks.
 */
struct row_scales {
    float *scale; /* zeros until requantised_scale; NULL: no weight is converted to a rotated type */
    int64_t n;
    struct byte_source source; /* `scale` as a source that readers read like a file */
};

/* Makes a component that borrows everything from `from` except the blocks, whose weights have type `wanted`.
 * Per-tensor scales (F8) are 1 until requantise_set_scale, row scales 0 until requantised_scale. Fills
 * *scales. `from` and *scales must outlive the result and must not move. Free the result with
 * component_destroy, then the scales with row_scales_free. Fails with MEMORY. */
enum status component_requantise(const struct component *from, struct weight_type wanted,
                                 struct row_scales *scales, struct component *to, struct error *e);
void row_scales_free(struct sys *sys, struct row_scales *scales);

/* The type that a tensor's weights are converted to; N_DTYPES: not converted. */
enum dtype requantise_of_entry(const struct component *requantised, const struct index_entry *entry);
/* Sets the per-tensor scale of all weights that are converted from this tensor of the file; conversion
 * divides by the scale. */
void requantise_set_scale(struct component *requantised, const struct index_entry *entry, float scale);

/* block_file_bytes: bytes read from files to load a block. block_converted_values: values converted. */
uint64_t block_file_bytes(const struct block *block);
int64_t block_converted_values(const struct block *block);

#endif
