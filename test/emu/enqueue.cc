#include "enqueue.h"

#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

void emu_enqueue(const char *name, void (*call)(void *), const void *arguments, size_t bytes,
                 cudaStream_t stream) {
    /* library functions do not count as kernels loaded at launch: libraries load their own code */
    kernel_loaded(reinterpret_cast<const void *>(call));
    emu_launch(name, reinterpret_cast<const void *>(call), dim3(1), dim3(1), 0, stream, call, arguments,
               bytes);
}

int emu_release(const char *variable, int latest) {
    const char *text = getenv(variable);
    int major, minor;
    return text && sscanf(text, "%d.%d", &major, &minor) == 2 ? 100 * major + minor : latest;
}

int emu_major(void) {
    return now.major;
}

void emu_stop(const char *why) {
    refuse("%s", why);
}

void emu_require_aligned(const char *what, const void *address, uintptr_t align) {
    if (reinterpret_cast<uintptr_t>(address) % align)
        refuse("%s at %p is not aligned to %d", what, address, (int)align);
}

bool emu_absent(const char *library) {
    const char *absent = getenv("EMU_ABSENT");
    return absent && strstr(absent, library);
}
