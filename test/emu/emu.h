/* The emulator's settings and counters for tests.
 *
 * A setting applies to work queued after the setting is made. emu_reset restores the defaults or the values
 * of the environment:
 *   EMU_ORDER=forward|reverse|random  EMU_SEED=N  EMU_DELAY=US (copies)  EMU_DELAY_KERNELS=US
 *   EMU_DEVICES=N  EMU_CAPABILITY=8.6  EMU_INTEGRATED=1  EMU_DRIVER=13000 (0: no driver)
 *   EMU_MEMORY=BYTES  EMU_TAKEN=BYTES  EMU_PINNABLE=BYTES  EMU_GRANULE=BYTES
 *   EMU_FAIL=CALL:N:ERROR          CALL: number of enum emu_call
 *   EMU_SHARED=BYTES               shared memory per block, 99 KiB by default
 *   EMU_COMPILED_FOR=89            architecture for which kernels are compiled, the capability by default
 *   EMU_MMA=truncate               tensor cores truncate sums as hardware does, instead of rounding each
 *   EMU_CONTEXT=BYTES              size of a context, 256 MiB by default
 *   EMU_CODE=BYTES                 size of kernel code once a kernel is loaded
 *   EMU_ABSENT=cublaslt,cudnn,nvml missing libraries
 *   EMU_CUBLASLT=12.4  EMU_CUDNN=9.5    releases of the libraries
 *
 * On undefined behaviour in CUDA, or a call that Sluice must not make, the emulator prints one line that
 * starts with "emu: " to stderr and exits with status 86. */
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
    EMU_SYNCHRONIZE, /* waits of the host for a CUDA stream or event */
    EMU_CALLS
};

enum { EMU_FAULT_STATUS = 86 };

/* Restores the settings; clears counters, pending errors and injected failures. Allocations stay. */
void emu_reset(void);

/* Sets the order in which the runnable CUDA threads of a block continue. */
void emu_set_order(enum emu_order order, uint64_t seed);
/* Delays each copy or kernel by a random time up to the given microseconds. */
void emu_set_delays(uint32_t copies_us, uint32_t kernels_us);

void emu_set_devices(int n, int major, int minor, uint64_t bytes);
/* Sets the shared memory per block in bytes, and the architecture for which kernels were compiled (89: 8.9;
 * 0: the device's capability). */
void emu_set_shared(uint64_t bytes, int compiled_for);
/* Sets the version that cudaDriverGetVersion returns; 0: no driver. */
void emu_set_driver(int version);
/* Sets the bytes of device memory that other programs use. */
void emu_set_taken(uint64_t bytes);
/* Limits the total pinned host memory; UINT64_MAX: no limit. */
void emu_set_pinnable(uint64_t bytes);
/* Makes only the n-th `call` from now on, counted from 1, return the given CUDA error. After a sticky error
 * every later call returns the error too. A launch fails while the kernel runs. */
void emu_fail(enum emu_call call, uint64_t n, int error);

/* Sets a callback (NULL: none) that the stream's thread calls after each kernel or library call with its
 * source name, before the next operation. */
void emu_set_watcher(void (*after_kernel)(void *user, const char *kernel), void *user);

struct emu_counts {
    uint64_t calls[EMU_CALLS];
    uint64_t pageable_copies; /* number of copies from or to memory that is neither pinned nor registered */
    uint64_t copied_bytes;
    uint64_t late_kernels;           /* number of kernels whose code was loaded only at their first launch */
    uint64_t live_bytes, peak_bytes; /* current and peak device memory of this process */
    uint64_t pinned_bytes, registered_bytes;
};

struct emu_counts emu_read_counts(void);

/* Cost of a kernel's 16-byte accesses (accesses.cc): touched 32-byte sectors of global memory and the fewest
 * possible; phases of eight lanes that access shared memory, and passes for these phases (one per phase
 * without bank conflicts).
 */
struct emu_accesses {
    uint64_t requests, sectors, least_sectors;
    uint64_t phases, passes;
};

/* Starts counting memory accesses from 0, or stops. Kernels run ten times slower while counting. No kernel
 * may run during the call. */
void emu_count_accesses(bool on);
/* Returns the access counts, summed over all kernels whose source name contains `kernel`. */
struct emu_accesses emu_read_accesses(const char *kernel);

#ifdef __cplusplus
}
#endif

#endif
