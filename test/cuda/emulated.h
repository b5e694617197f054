/* What only the emulator can tell; on a GPU there is nothing to ask. */
#ifndef SLUICE_TEST_CUDA_EMULATED_H
#define SLUICE_TEST_CUDA_EMULATED_H

#if __has_include("emu.h")
#include "emu.h"

/* Copies so far out of memory that was not pinned. */
static inline uint64_t pageable_copies(void) {
    return emu_counts().pageable_copies;
}
#else
#include <stdint.h>

static inline uint64_t pageable_copies(void) {
    return 0;
}
#endif

#endif
