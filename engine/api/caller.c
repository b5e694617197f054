/* Callers: see caller.h. */
#include "engine/api/caller.h"

#include "engine/base/text.h"
#include "engine/sluice.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

bool caller_gave(const void *given, const char *name, struct error *e) {
    if (given) return true;
    error_set(e, USAGE, "something was not given");
    error_where(e, "%s", name);
    error_found(e, "NULL");
    return false;
}

bool caller_filled(const void *given, const char *name, struct error *e) {
    size_t bytes;
    if (!caller_gave(given, name, e)) return false;
    memcpy(&bytes, given, sizeof bytes); /* it comes first in every public structure */
    if (bytes >= sizeof bytes) return true;
    error_set(e, USAGE, "a struct does not say how large it is");
    error_where(e, "%s->struct_size", name);
    error_found(e, "%zu", bytes);
    error_expected(e, "its sizeof");
    return false;
}

/* Of the thread's own stack; SIZE_MAX where it runs on another. */
static size_t stack_left(void) {
    pthread_attr_t attributes;
    void *lowest = NULL;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    size_t all = 0;
    if (pthread_getattr_np(pthread_self(), &attributes)) return SIZE_MAX;
    int failed = pthread_attr_getstack(&attributes, &lowest, &all);
    pthread_attr_destroy(&attributes);
    bool inside = !failed && here > (uintptr_t)lowest && here - (uintptr_t)lowest <= all;
    return inside ? here - (uintptr_t)lowest : SIZE_MAX;
}

bool caller_has_stack(size_t bytes, struct error *e) {
    char size[SIZE_TEXT_BYTES];
    size_t left = stack_left();
    if (left >= bytes) return true;
    error_set(e, USAGE, "the calling thread's stack is too small");
    error_found(e, "%s left", size_text(left, size));
    error_expected(e, "%s (ulimit -s, or the thread's attributes)", size_text(bytes, size));
    return false;
}

bool caller_threads(int threads, struct error *e) {
    if (threads >= 1 && threads <= SLUICE_THREADS_MAX) return true;
    error_set(e, USAGE, "the number of threads (-t) cannot be used");
    error_found(e, "%d", threads);
    error_expected(e, "1 to %d", SLUICE_THREADS_MAX);
    return false;
}
