/* Components whose weights are kept in another type than their files have: fewer bytes to hold and to move,
 * other numbers to compute with.
 *
 * The new packed blocks say of each segment what it is converted from; readers convert on the way from the
 * file. Which weights change is block_stored_type's to say; of those that do not lie in a file as blocks or
 * single values (rows of scales, tiles) none. Of rotated types, whose rows have scales that no file holds,
 * only the layout is right: for plans. */
#ifndef SLUICE_RUN_REQUANTISE_H
#define SLUICE_RUN_REQUANTISE_H

#include "engine/run/family.h"

/* A component that borrows everything from another but its blocks, whose weights are of the type wanted.
 * Scales of weights that need one for all (F8) are 1 until requantise_set_scale. The other must outlive it.
 * Freed with component_destroy. MEMORY. */
enum status component_requantise(const struct component *from, enum dtype wanted, struct component *to,
                                 struct error *e);

/* Is this what a weight of the tensor is converted to there? N_DTYPES: it stays. */
enum dtype requantise_of_entry(const struct component *requantised, const struct index_entry *entry);
/* Tells all weights that are made of that tensor by what they are divided. */
void requantise_set_scale(struct component *requantised, const struct index_entry *entry, float scale);

/* Bytes that filling the block reads from files, and values that it converts. */
uint64_t block_file_bytes(const struct block *block);
int64_t block_converted_values(const struct block *block);

#endif
