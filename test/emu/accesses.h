/* Access counting: declarations internal to the emulator. */
#ifndef SLUICE_EMU_ACCESSES_H
#define SLUICE_EMU_ACCESSES_H

#include "internal.h"

/* Counts the memory requests of a block's threads; called at the end of the block, before its shared memory
 * is freed. */
void accesses_of_block();

#endif
