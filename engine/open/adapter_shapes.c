#include "engine/open/adapter_shapes.h"

#include <inttypes.h>
#include <stdio.h>

static enum status shape_fail(const struct adapter *a, const struct change *c,
                              const struct index_entry *entry, const char *expected, struct error *e) {
    char shape[128];
    return error_set(e, SHAPE,
                     "tensor '%s' of the adapter does not fit '%s'" WHERE "%s" FOUND "%s" EXPECTED "%s",
                     entry->name, c->name->name, a->index.sources[0].path,
                     adapter_print_shape(entry, shape, sizeof shape), expected);
}

/* True if two shapes agree, ignoring dimensions of 1. */
static bool same_dims(const int32_t *x, int nx, const int32_t *y, int ny) {
    int i = 0, k = 0;
    for (;; i++, k++) {
        while (i < nx && x[i] == 1) i++;
        while (k < ny && y[k] == 1) k++;
        if (i == nx || k == ny) return i == nx && k == ny;
        if (x[i] != y[k]) return false;
    }
}

/* Prints the shape that a `down` tensor must have, such as "[r, 320, 3, 3]". */
static char *print_down(const struct weight_name *name, char *out, size_t bytes) {
    size_t n = (size_t)snprintf(out, bytes, "[r");
    for (int i = 1; i < name->rank && n < bytes; i++)
        n += (size_t)snprintf(out + n, bytes - n, ", %" PRId32, name->dim[i]);
    if (n < bytes) snprintf(out + n, bytes - n, "]");
    return out;
}

static enum status check_pair(const struct adapter *a, const struct change *c, struct error *e) {
    const struct index_entry *down = c->module->tensor[ADAPTER_DOWN], *up = c->module->tensor[ADAPTER_UP];
    const int32_t whole[] = {c->name->rows, up->dim[1]};
    char expected[128];
    if (!same_dims(down->dim + 1, down->rank - 1, c->name->dim + 1, c->name->rank - 1))
        return shape_fail(a, c, down, print_down(c->name, expected, sizeof expected), e);
    if (up->dim[0] == whole[0] && same_dims(up->dim + 2, up->rank - 2, NULL, 0)) return OK;
    snprintf(expected, sizeof expected, "[%" PRId32 ", r]", c->name->rows);
    return shape_fail(a, c, up, expected, e);
}

/* True if the dimensions of a LoKr module fit a convolution weight: the second matrix has the kernel
 * dimensions, or they are flattened into its columns. */
static bool kron_fits(const struct adapter_module *m, const struct weight_name *name) {
    const struct index_entry *one = m->tensor[ADAPTER_LOKR_W1], *other = m->tensor[ADAPTER_LOKR_W2];
    if (one && !same_dims(one->dim + 2, one->rank - 2, NULL, 0)) return false;
    return !other || other->rank <= 2 || name->rank < 2 ||
           same_dims(other->dim + 2, other->rank - 2, name->dim + 2, name->rank - 2);
}

static enum status check_derived(const struct adapter *a, const struct change *c, struct derived_size *size,
                                 struct error *e) {
    const struct adapter_module *module = c->module;
    const struct index_entry *diff = module->tensor[ADAPTER_DIFF];
    const struct weight_name *name = c->name;
    int64_t columns = weight_name_columns(name), rows = name->rows;
    if (adapter_derived_size(a, module, size, e) != OK) return e->code;
    bool fits = size->rows == rows && size->columns == columns;
    if (module->form == ADAPTER_LOKR) fits = fits && kron_fits(module, name);
    if (module->form == ADAPTER_DIFFERENCE)
        fits = fits && same_dims(diff->dim + 1, diff->rank - 1, name->dim + 1, name->rank - 1);
    if (fits) return OK;
    return error_set(e, SHAPE,
                     "module '%.*s' of the adapter does not fit '%s'" WHERE "%s" FOUND "%s [%" PRId64
                     ", %" PRId64 "]%s" EXPECTED "[%" PRId64 ", %" PRId64 "]",
                     module->name_bytes, module->name, name->name, a->index.sources[0].path,
                     adapter_form_name(module->form), size->rows, size->columns,
                     size->rows == rows && size->columns == columns ? " with other axes" : "", rows, columns);
}

static enum status check_vector(const struct adapter *a, const struct change *c, struct error *e) {
    const struct weight_name *name = c->name;
    char expected[64];
    int64_t n = name->rank > 1 ? (int64_t)name->rows * weight_name_columns(name) : name->rows;
    if (index_elements(c->vector) == n) return OK;
    snprintf(expected, sizeof expected, "%" PRId64 " values", n);
    return shape_fail(a, c, c->vector, expected, e);
}

enum status change_check_shape(const struct adapter *a, const struct change *c, struct derived_size *size,
                               struct error *e) {
    *size = (struct derived_size){0};
    if (c->vector) return check_vector(a, c, e);
    return adapter_is_derived(c->module) ? check_derived(a, c, size, e) : check_pair(a, c, e);
}
