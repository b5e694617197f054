/* Callers: see caller.h. */
#include "engine/api/caller.h"

#include "engine/base/text.h"

#include <pthread.h>
#include <stdint.h>

bool caller_gave(const void *given, const char *name, struct error *e) {
    if (given) return true;
    error_set(e, USAGE, "something was not given");
    error_where(e, "%s", name);
    error_found(e, "NULL");
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
