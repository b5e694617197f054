/* Components whose weights are converted to another type while loading (--type): fewer bytes to hold and to
 * move, slightly different results. Each segment of the new packed blocks records its conversion; readers
 * convert. block_stored_type decides which weights change; weights with row scales or scale tiles in another
 * tensor do not change. For rotated types only the layout is valid, for planning: no file holds their row
 * scales. */
#ifndef SLUICE_RUN_REQUANTISE_H
#define SLUICE_RUN_REQUANTISE_H

#include "engine/run/family.h"

/* Makes a component that borrows everything from `from` except the blocks, whose weights have type `wanted`.
 * Per-tensor scales (F8) are 1 until requantise_set_scale. `from` must outlive the result; free it with
 * component_destroy. Fails with MEMORY. */
enum status component_requantise(const struct component *from, enum dtype wanted, struct component *to,
                                 struct error *e);

/* The type that a tensor's weights are converted to; N_DTYPES: not converted. */
enum dtype requantise_of_entry(const struct component *requantised, const struct index_entry *entry);
/* Sets the per-tensor scale of all weights that are converted from this tensor of the file; conversion
 * divides by the scale. */
void requantise_set_scale(struct component *requantised, const struct index_entry *entry, float scale);

/* block_file_bytes: bytes read from files to load a block. block_converted_values: values converted. */
uint64_t block_file_bytes(const struct block *block);
int64_t block_converted_values(const struct block *block);

#endif
