/* What tests tell the emulator, and what they ask it.
 *
 * Settings hold for what is queued after them; emu_reset gives the defaults, or what the environment says:
 *   EMU_ORDER=forward|reverse|random  EMU_SEED=N  EMU_DELAY=US (copies)  EMU_DELAY_KERNELS=US
 *   EMU_DEVICES=N  EMU_CAPABILITY=8.6  EMU_INTEGRATED=1  EMU_MEMORY=BYTES  EMU_TAKEN=BYTES EMU_PINNABLE=BYTES
 *   EMU_GRANULE=BYTES
 *   EMU_DRIVER=13000 (0: there is none)  EMU_FAIL=CALL:N:ERROR, CALL as in enum emu_call from 0
 *   EMU_SHARED=BYTES of shared memory that a block may have, by what the device says; 99 KiB by default
 *   EMU_MMA=truncate: tensor cores cut sums off as hardware does, instead of rounding each
 *   EMU_CONTEXT=BYTES that a context takes, 256 MiB by default  EMU_CODE=BYTES that kernels take once one is
 * loaded EMU_ABSENT=cublaslt,cudnn,nvml: libraries that are not there The emulator refuses what CUDA leaves
 * undefined or what Sluice must not do: one line on stderr that begins with "emu: ", and the process ends
 * with status 86. */
#ifndef SLUICE_EMU_EMU_H
#define SLUICE_EMU_EMU_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum emu_order { EMU_FORWARD, EMU_REVERSE, EMU_RANDOM };

enum emu_call {
    EMU_MALLOC,
    EMU_MEM_CREATE,
    EMU_MEM_MAP,
    EMU_HOST_ALLOC,
    EMU_HOST_REGISTER,
    EMU_COPY,
    EMU_LAUNCH,
    EMU_STREAM_CREATE,
    EMU_EVENT_CREATE,
    EMU_SYNCHRONIZE, /* of a stream or event */
    EMU_CALLS
};

enum { EMU_FAULT_STATUS = 86 };

/* Defaults or the environment's, counters at 0, no error pending, no failures planned. Memory stays. */
void emu_reset(void);

/* In which order a block's threads go on wherever several could. */
void emu_set_order(enum emu_order order, uint64_t seed);
/* Each copy or kernel waits for a random time up to so many microseconds before it begins. */
void emu_set_delays(uint32_t copies_us, uint32_t kernels_us);

void emu_set_devices(int n, int major, int minor, uint64_t bytes);
/* As cudaDriverGetVersion says; 0: no driver. */
void emu_set_driver(int version);
/* What cuMemCreate's sizes are multiples of, 2 MiB by default; a multiple of 4,096. */
void emu_set_granule(uint64_t bytes);
/* So much of the device's memory is somebody else's from here on. */
void emu_set_taken(uint64_t bytes);
/* So much of the host's memory may be pinned together; UINT64_MAX: any. */
void emu_set_pinnable(uint64_t bytes);
/* The n-th such call from here on, counted from 1, gives this error (a number of CUDA's); it alone. With an
 * error that CUDA calls sticky every later call gives it too. A launch that fails so fails while it runs. */
void emu_fail(enum emu_call call, uint64_t n, int error);

/* Called on the stream's thread behind each kernel and each call of a library that has run, with its name as
 * the source launches it, before anything else begins there. NULL: nobody is. */
void emu_set_watcher(void (*behind)(void *user, const char *kernel), void *user);

struct emu_counts {
    uint64_t calls[EMU_CALLS];
    uint64_t pageable_copies;        /* copies from or to memory that is neither pinned nor registered */
    uint64_t copied_bytes;           /* by all copies */
    uint64_t late_kernels;           /* whose code comes with their first launch: nothing had asked for it */
    uint64_t live_bytes, peak_bytes; /* of the device, ours */
    uint64_t pinned_bytes, registered_bytes;
};

struct emu_counts emu_read_counts(void);

/* What a kernel's 16-byte accesses cost (accesses.cc): global memory in sectors of 32 bytes, and the fewest
 * that hold what was asked for; shared memory in phases of eight lanes, and how often its banks are gone
 * through for them: once each where there are no conflicts. */
struct emu_accesses {
    uint64_t requests, sectors, least_sectors;
    uint64_t phases, passes;
};

/* From here on they are counted, from 0, or not. Kernels that count take ten times as long. No kernel runs.
 */
void emu_count_accesses(bool on);
/* Sums over all kernels whose source name has this in it. */
struct emu_accesses emu_read_accesses(const char *kernel);

/* live_bytes becomes the peak. */
void emu_forget_peak(void);

#ifdef __cplusplus
}
#endif

#endif
