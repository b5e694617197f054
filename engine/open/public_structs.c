#include "engine/open/public_structs.h"

#include "engine/sluice.h"

#include <string.h>

_Static_assert(sizeof(struct sluice_error) == 1024, "the public error keeps its size");
_Static_assert(sizeof(struct error) == offsetof(struct sluice_error, reserved) &&
                   offsetof(struct error, expected) == offsetof(struct sluice_error, expected),
               "the engine's error begins like the public error");

int publish_error(const struct error *e, struct sluice_error *public) {
    if (!public) return (int)e->code;
    memset(public, 0, sizeof *public);
    memcpy(public, e, sizeof *e);
    if (e->code == OK) public->exit_code = 0;
    return (int)e->code;
}

enum status adopt_error(const struct sluice_error *public, struct error *e) {
    bool known = public->code > OK;
    error_set(e, known ? (enum status) public->code : INTERNAL, "%s",
              known ? public->what : "a callback failed without setting an error");
    if (known && public->exit_code > 0) e->exit = public->exit_code;
    error_where(e, "%s", public->where);
    error_found(e, "%s", public->found);
    return error_expected(e, "%s", public->expected);
}

void copy_sized(void *to, size_t to_bytes, const void *from) {
    size_t bytes;
    memcpy(&bytes, from, sizeof bytes); /* struct_size is the first field of every public structure */
    memset(to, 0, to_bytes);
    memcpy(to, from, bytes < to_bytes ? bytes : to_bytes);
}

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
