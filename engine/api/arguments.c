#include "engine/api/arguments.h"

#include "engine/sluice.h"

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
    memcpy(&bytes, pointer, sizeof bytes); /* every public struct begins with struct_size */
    if (bytes >= sizeof bytes) return true;
    error_set(e, USAGE,
              "struct_size is not set" WHERE "%s->struct_size" FOUND "%zu" EXPECTED "sizeof the struct", name,
              bytes);
    return false;
}

bool check_threads(int threads, struct error *e) {
    if (threads >= 1 && threads <= SLUICE_THREADS_MAX) return true;
    error_set(e, USAGE, "invalid number of threads (--threads, -t)" FOUND "%d" EXPECTED "1 to %d", threads,
              SLUICE_THREADS_MAX);
    return false;
}
