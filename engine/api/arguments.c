#include "engine/api/arguments.h"

#include "engine/base/text.h"
#include "engine/sluice.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

bool check_not_null(const void *pointer, const char *name, struct error *e) {
    if (pointer) return true;
    error_set(e, USAGE, "a required argument is NULL" WHERE "%s" FOUND "NULL" EXPECTED "a valid pointer",
              name);
    return false;
}

bool check_struct_size(const void *pointer, const char *name, struct error *e) {
    size_t bytes;
    if (!check_not_null(pointer, name, e)) return false;
    memcpy(&bytes, pointer, sizeof bytes); /* struct_size is the first member of every public struct */
    if (bytes >= sizeof bytes) return true;
    error_set(e, USAGE,
              "struct_size is not set" WHERE "%s->struct_size" FOUND "%zu" EXPECTED "sizeof the struct", name,
              bytes);
    return false;
}

/* Bytes left on the thread's stack; SIZE_MAX on a coroutine's stack, whose size is unknown. */
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

bool check_stack(size_t bytes, struct error *e) {
    char found[SIZE_TEXT_BYTES], expected[SIZE_TEXT_BYTES];
    size_t left = stack_left();
    if (left >= bytes) return true;
    error_set(e, USAGE,
              "the calling thread's stack is too small" FOUND "%s left" EXPECTED
              "at least %s (raise ulimit -s, or set the thread's stack size)",
              size_text(left, found), size_text(bytes, expected));
    return false;
}

bool check_threads(int threads, struct error *e) {
    if (threads >= 1 && threads <= SLUICE_THREADS_MAX) return true;
    error_set(e, USAGE, "invalid number of threads (--threads, -t)" FOUND "%d" EXPECTED "1 to %d", threads,
              SLUICE_THREADS_MAX);
    return false;
}
