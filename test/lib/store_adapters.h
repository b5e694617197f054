/* Random adapters for the blocks of store_fixture, and the block memory that one run keeps for the next run.
 */
#ifndef SLUICE_TEST_STORE_ADAPTERS_H
#define SLUICE_TEST_STORE_ADAPTERS_H

#include "test/lib/store_fixture.h"

/* Gives every block new random adapters. Each weight gets an adapter with a chance of `percent` %; adapter
 * values come from elsewhere in the files. Rings grow to fit the streamed blocks. Sets
 * store_fixture.same_adapters for stages whose adapters did not change. */
void store_fixture_change_adapters(uint64_t percent);
/* Removes from the plan, for each stage, one resident block and one block of the host pool. */
void store_fixture_keep_fewer(void);
/* True if this part (adapter bytes or base weights) of a block stays in memory from the previous run: as a
 * resident, or in the pool. */
bool store_fixture_kept(int stage, int block, bool pool, enum packed_part part);
void store_fixture_remove_adapters(void);

#endif
