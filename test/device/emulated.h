/* The emulator's controls for tests that also run on a GPU, where the emulator is not linked and these
 * functions do nothing. */
#ifndef SLUICE_TEST_EMULATED_H
#define SLUICE_TEST_EMULATED_H

#include "test/emu/emu.h"

#include <stdbool.h>

#pragma weak emu_read_counts
#pragma weak emu_fail
#pragma weak emu_count_accesses
#pragma weak emu_read_accesses
#pragma weak emu_set_taken
#pragma weak emu_set_pinnable
#pragma weak emu_set_delays
#pragma weak emu_set_devices
#pragma weak emu_set_shared
#pragma weak emu_set_order

enum emulated_call { EMULATED_DEVICE_MEMORY, EMULATED_SHARED_MEMORY, EMULATED_PIN, EMULATED_COPY };

static inline bool emulated(void) {
    return emu_read_counts != NULL;
}

static inline long emulated_pageable_copies(void) {
    return emulated() ? (long)emu_read_counts().pageable_copies : 0;
}

/* Returns the number of launched kernels and library calls. */
static inline long emulated_launches(void) {
    return emulated() ? (long)emu_read_counts().calls[EMU_LAUNCH] : 0;
}

/* Returns the number of kernels whose code was loaded only at their first launch. */
static inline long emulated_late_kernels(void) {
    return emulated() ? (long)emu_read_counts().late_kernels : 0;
}

static inline void emulated_count_accesses(bool on) {
    if (emulated()) emu_count_accesses(on);
}

static inline struct emu_accesses emulated_accesses(const char *kernel) {
    return emulated() ? emu_read_accesses(kernel) : (struct emu_accesses){0};
}

static inline const char *emulated_call_name(enum emulated_call call) {
    static const char *const names[] = {"device memory", "shared memory", "pinned memory", "copy"};
    return names[call];
}

/* Makes the n-th CUDA call of a kind from now on fail with out of memory; n = 0: no call fails. */
static inline void emulated_fail(enum emulated_call call, long n) {
    static const enum emu_call calls[] = {EMU_MEM_CREATE, EMU_HOST_ALLOC, EMU_HOST_REGISTER, EMU_COPY};
    enum { OUT_OF_MEMORY = 2 }; /* cudaErrorMemoryAllocation */
    emu_fail(calls[call], n ? (uint64_t)n : UINT64_MAX, OUT_OF_MEMORY);
}

/* Limits further pinned host memory to `bytes`; a negative value removes the limit. */
static inline void emulated_pinnable(int64_t bytes) {
    struct emu_counts now = emu_read_counts();
    emu_set_pinnable(bytes < 0 ? UINT64_MAX : now.pinned_bytes + now.registered_bytes + (uint64_t)bytes);
}

/* Selects another order of the emulated CUDA threads, and delays copies by up to 3 ms. */
static inline void emulated_disorder(uint64_t n) {
    if (!emulated()) return;
    emu_set_order((enum emu_order)(n % 3), n);
    emu_set_delays(n % 2 ? 3000 : 0, 0);
}

#endif
