/* Copies public structures: implements public_structs.h. */
#include "engine/open/public_structs.h"

#include <string.h>

#define SAME(name) _Static_assert((int)SLUICE_##name == (int)name, "public and internal codes agree")
SAME(OK);
SAME(TRUNC);
SAME(BADMAGIC);
SAME(LIMIT);
SAME(OVERFLOW);
SAME(BOUNDS);
SAME(OVERLAP);
SAME(DUP);
SAME(TYPE);
SAME(SHAPE);
SAME(ALIGN);
SAME(JSON);
SAME(UTF8);
SAME(META);
SAME(MISSING);
SAME(UNUSED);
SAME(IO);
SAME(CHANGED);
SAME(UNSUPPORTED);
SAME(INTERNAL);
SAME(USAGE);
SAME(BUDGET);
SAME(DEVICE);
SAME(MEMORY);
SAME(OUTPUT);
SAME(NONFINITE);
SAME(CANCELLED);
_Static_assert((int)SLUICE_VERSION_CODE == (int)VERSION, "public and internal codes agree");
_Static_assert(sizeof(struct sluice_error) == 1024, "the public error keeps its size");

int publish_error(const struct error *e, struct sluice_error *public) {
    if (!public) return (int)e->code;
    memset(public, 0, sizeof *public);
    public->code = (int32_t)e->code;
    public->exit_code = e->code == OK ? 0 : e->exit;
    memcpy(public->what, e->what, sizeof public->what);
    memcpy(public->where, e->where, sizeof public->where);
    memcpy(public->found, e->found, sizeof public->found);
    memcpy(public->expected, e->expected, sizeof public->expected);
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
