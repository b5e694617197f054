/* Counting of accesses, for the emulator's own files. */
#ifndef SLUICE_EMU_ACCESSES_H
#define SLUICE_EMU_ACCESSES_H

#include "internal.h"

/* Counts what the block's threads have asked for; at its end, while its shared memory is there. */
void accesses_of_block();

#endif
