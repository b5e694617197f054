/* Host functions queued on a stream in order with kernels, for the emulated cuBLASLt and cuDNN. */
#ifndef SLUICE_EMU_ENQUEUE_H
#define SLUICE_EMU_ENQUEUE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues call(arguments) like a kernel of one thread, with the same delays, failures and callback. Copies the
 * arguments; the name, for messages, must stay valid. */
void emu_enqueue(const char *name, void (*call)(void *), const void *arguments, size_t bytes,
                 cudaStream_t stream);
/* Returns the release of an emulated library as 100 * major + minor: `latest`, or the release in the
 * environment variable, such as EMU_CUDNN=9.5. */
int emu_release(const char *variable, int latest);
/* Returns the major compute capability of the emulated devices. */
int emu_major(void);
/* Prints the reason in one line to stderr and exits with the emulator's status. */
void emu_stop(const char *why) __attribute__((noreturn));
/* Exits with a message unless the address is a multiple of align. */
void emu_require_aligned(const char *what, const void *address, uintptr_t align);

/* Returns whether EMU_ABSENT names the given library. */
bool emu_absent(const char *library);

#ifdef __cplusplus
}
#endif

#endif
