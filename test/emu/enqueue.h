/* How the stand-ins for libraries compute: a host function on a stream, in order with kernels. */
#ifndef SLUICE_EMU_ENQUEUE_H
#define SLUICE_EMU_ENQUEUE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues call(arguments), as a kernel of one thread would be: delayed, failed and watched like any other. The
 * arguments are copied. name: for messages; lives on. */
void emu_enqueue(const char *name, void (*call)(void *), const void *arguments, size_t bytes,
                 cudaStream_t stream);
/* Ends the process as the emulator does: one line on stderr, and its status. */
void emu_stop(const char *why) __attribute__((noreturn));
/* Stops unless the address is a multiple of align. */
void emu_require_aligned(const char *what, const void *address, uintptr_t align);

/* Whether EMU_ABSENT names this library: then it is not there. */
bool emu_absent(const char *library);

#ifdef __cplusplus
}
#endif

#endif
