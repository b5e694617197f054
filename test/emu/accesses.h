/* Access counting: declarations internal to the emulator. */
#ifndef SLUICE_EMU_ACCESSES_H
#define SLUICE_EMU_ACCESSES_H

#include "internal.h"

/* Counts a thread block's memory requests; called before the block's shared memory is freed. */
void accesses_of_block();

#endif
