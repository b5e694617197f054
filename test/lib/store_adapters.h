/* Sides of store_world's blocks: what adapters would bring, made up; and what one run keeps for the next. */
#ifndef SLUICE_TEST_STORE_ADAPTERS_H
#define SLUICE_TEST_STORE_ADAPTERS_H

#include "test/lib/store_fixture.h"

/* Every block is made anew of its own and of a side, or of none: of so many weights in a hundred, which are
 * read from elsewhere. The plan's rings grow to what streams. What is kept of sides that are the same as
 * before, world.same_adapters tells. */
void store_fixture_change_adapters(uint64_t percent);
/* The plan, of which each stage keeps a resident and a pooled block less. */
void store_fixture_keep_fewer(void);
/* Did the last run leave this part of a block that stays now, as a resident or in the pool? */
bool store_fixture_kept(int stage, int block, bool pool, enum packed_part part);
/* Lets go of the blocks. */
void store_fixture_remove_adapters(void);

#endif
