#include "engine/open/adapter_derive.h"

#include "engine/open/adapter_values.h"
#include "loaders/alloc_array.h"

#include <inttypes.h>
#include <string.h>

struct matrix {
    float *at;
    int64_t rows, columns;
};

struct factors {
    struct matrix up, down;
};

bool adapter_is_derived(const struct adapter_module *m) {
    return m->form != ADAPTER_LORA || m->tensor[ADAPTER_MID];
}

/* Number of values in a convolution kernel: product of a tensor's third and later dimensions. */
static int64_t kernel_of(const struct index_entry *entry) {
    return index_elements(entry) / entry->dim[0] / entry->dim[1];
}

/* Tensors of one of the two matrices of a LoHa or LoKr module. The matrix is `whole`, or the product a b, or
 * with a Tucker core (t1, t2) the product of a transposed, core and b. Absent tensors are NULL. */
struct part {
    const struct index_entry *whole, *a, *b, *core;
};

static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static struct derived_size part_size(const struct part *p) {
    if (p->whole) {
        int64_t rows = p->whole->dim[0], columns = index_elements(p->whole) / rows;
        return (struct derived_size){rows, columns, rows < columns ? rows : columns};
    }
    if (!p->core)
        return (struct derived_size){p->a->dim[0], index_elements(p->b) / p->b->dim[0], p->b->dim[0]};
    return (struct derived_size){p->a->dim[1], times(p->b->dim[1], kernel_of(p->core)), p->core->dim[0]};
}

static void module_parts(const struct adapter_module *m, struct part parts[2]) {
    const struct index_entry *const *t = m->tensor;
    if (m->form == ADAPTER_LOHA) {
        parts[0] = (struct part){NULL, t[ADAPTER_HADA_W1_A], t[ADAPTER_HADA_W1_B], t[ADAPTER_HADA_T1]};
        parts[1] = (struct part){NULL, t[ADAPTER_HADA_W2_A], t[ADAPTER_HADA_W2_B], t[ADAPTER_HADA_T2]};
    } else {
        parts[0] = (struct part){t[ADAPTER_LOKR_W1], t[ADAPTER_LOKR_W1_A], t[ADAPTER_LOKR_W1_B], NULL};
        parts[1] =
            (struct part){t[ADAPTER_LOKR_W2], t[ADAPTER_LOKR_W2_A], t[ADAPTER_LOKR_W2_B], t[ADAPTER_LOKR_T2]};
    }
}

enum status adapter_derived_size(const struct adapter *a, const struct adapter_module *m,
                                 struct derived_size *size, struct error *e) {
    const char *path = a->index.sources[0].path;
    if (m->form == ADAPTER_LORA) {
        const struct index_entry *mid = m->tensor[ADAPTER_MID], *down = m->tensor[ADAPTER_DOWN];
        int64_t columns = times(index_elements(down) / down->dim[0], kernel_of(mid));
        *size = (struct derived_size){m->tensor[ADAPTER_UP]->dim[0], columns, mid->dim[0]};
        return OK;
    }
    struct part parts[2] = {{.whole = m->tensor[ADAPTER_DIFF]}};
    if (m->form == ADAPTER_DIFFERENCE) {
        *size = part_size(&parts[0]);
        return OK;
    }
    module_parts(m, parts);
    struct derived_size one = part_size(&parts[0]), other = part_size(&parts[1]);
    size->rank = times(one.rank, other.rank);
    if (m->form == ADAPTER_LOHA) {
        size->rows = one.rows;
        size->columns = one.columns;
        if (one.rows != other.rows || one.columns != other.columns) {
            return error_set(e, SHAPE,
                             "the two matrices of module '%.*s' of the adapter differ in shape" WHERE
                             "%s" FOUND "[%" PRId64 ", %" PRId64 "] and [%" PRId64 ", %" PRId64 "]",
                             m->name_bytes, m->name, path, one.rows, one.columns, other.rows, other.columns);
        }
    } else {
        size->rows = times(one.rows, other.rows);
        size->columns = times(one.columns, other.columns);
    }
    if (size->rank <= INT32_MAX && size->rows <= INT32_MAX && size->columns <= INT32_MAX) return OK;
    return error_set(
        e, OVERFLOW,
        "the weight change of module '%.*s' of the adapter is too large: more than 2^31 rows, columns "
        "or ranks" WHERE "%s",
        m->name_bytes, m->name, path);
}

static struct matrix make(const struct adapter *a, int64_t rows, int64_t columns, struct error *e) {
    struct matrix m = {NULL, rows, columns};
    if (e->code == OK) m.at = alloc_array(a->sys, (uint64_t)rows * (uint64_t)columns, sizeof *m.at, e);
    return m;
}

static struct matrix read_matrix(const struct adapter *a, const struct index_entry *entry, struct error *e) {
    struct matrix m = make(a, entry->dim[0], index_elements(entry) / entry->dim[0], e);
    if (m.at)
        adapter_read_values(&a->index.sources[0], entry->offset, entry->dtype, 0, index_elements(entry), m.at,
                            e);
    return m;
}

static struct matrix transposed(const struct adapter *a, struct matrix from, struct error *e) {
    struct matrix to = make(a, from.columns, from.rows, e);
    for (int64_t i = 0; to.at && i < to.rows; i++)
        for (int64_t k = 0; k < to.columns; k++) to.at[i * to.columns + k] = from.at[k * from.columns + i];
    a->sys->release(a->sys, from.at);
    return to;
}

static struct matrix identity(const struct adapter *a, int64_t n, struct error *e) {
    struct matrix m = make(a, n, n, e);
    for (int64_t i = 0; m.at && i < n; i++) m.at[i * n + i] = 1;
    return m;
}

/* Multiplies a Tucker core by b: out[j, i, y] = sum over k of core[j, k, y] b[k, i], shape [rank, columns].
 */
static void through_core(const struct matrix *core, int64_t kernel, const struct matrix *b, float *out) {
    int64_t ranks = core->columns / kernel;
    for (int64_t j = 0; j < core->rows; j++)
        for (int64_t i = 0; i < b->columns; i++)
            for (int64_t y = 0; y < kernel; y++) {
                double sum = 0;
                for (int64_t k = 0; k < ranks; k++)
                    sum += (double)core->at[j * core->columns + k * kernel + y] *
                           (double)b->at[k * b->columns + i];
                out[(j * b->columns + i) * kernel + y] = (float)sum;
            }
}

static struct matrix apply_core(const struct adapter *a, const struct index_entry *core_entry,
                                struct matrix b, struct error *e) {
    int64_t kernel = kernel_of(core_entry);
    struct matrix core = read_matrix(a, core_entry, e);
    struct matrix out = make(a, core.rows, b.columns * kernel, e);
    if (out.at) through_core(&core, kernel, &b, out.at);
    a->sys->release(a->sys, core.at);
    a->sys->release(a->sys, b.at);
    return out;
}

static struct factors read_part(const struct adapter *a, const struct part *p, struct error *e) {
    struct factors f = {0};
    if (p->whole) {
        struct matrix whole = read_matrix(a, p->whole, e);
        bool wide = whole.rows < whole.columns;
        struct matrix one = identity(a, wide ? whole.rows : whole.columns, e);
        return wide ? (struct factors){one, whole} : (struct factors){whole, one};
    }
    f.up = read_matrix(a, p->a, e);
    f.down = read_matrix(a, p->b, e);
    if (!p->core || e->code != OK) return f;
    f.up = transposed(a, f.up, e);
    f.down = apply_core(a, p->core, f.down, e);
    return f;
}

static void drop(const struct adapter *a, struct factors *f) {
    a->sys->release(a->sys, f->up.at);
    a->sys->release(a->sys, f->down.at);
}

/* Computes the factor B of a LoHa module: B[o, (j, k)] = B1[o, j] B2[o, k]. */
static void multiply_rows(const struct matrix *one, const struct matrix *other, float *out) {
    for (int64_t o = 0; o < one->rows; o++)
        for (int64_t j = 0; j < one->columns; j++)
            for (int64_t k = 0; k < other->columns; k++)
                *out++ = one->at[o * one->columns + j] * other->at[o * other->columns + k];
}

/* Computes the factor A of a LoHa module: A[(j, k), i] = A1[j, i] A2[k, i]. */
static void multiply_columns(const struct matrix *one, const struct matrix *other, float *out) {
    for (int64_t j = 0; j < one->rows; j++)
        for (int64_t k = 0; k < other->rows; k++)
            for (int64_t i = 0; i < one->columns; i++)
                *out++ = one->at[j * one->columns + i] * other->at[k * other->columns + i];
}

static void kronecker(const struct matrix *one, const struct matrix *other, float *out) {
    for (int64_t i = 0; i < one->rows; i++)
        for (int64_t k = 0; k < other->rows; k++)
            for (int64_t j = 0; j < one->columns; j++)
                for (int64_t l = 0; l < other->columns; l++)
                    *out++ = one->at[i * one->columns + j] * other->at[k * other->columns + l];
}

static enum status derive_middle(const struct adapter *a, const struct adapter_module *m, float *up,
                                 float *down, struct error *e) {
    const struct index_entry *mid = m->tensor[ADAPTER_MID];
    struct factors f = {read_matrix(a, m->tensor[ADAPTER_UP], e), read_matrix(a, m->tensor[ADAPTER_DOWN], e)};
    struct matrix core = read_matrix(a, mid, e);
    if (e->code == OK) {
        memcpy(up, f.up.at, (size_t)(f.up.rows * f.up.columns) * sizeof *up);
        through_core(&core, kernel_of(mid), &f.down, down);
    }
    a->sys->release(a->sys, core.at);
    drop(a, &f);
    return e->code;
}

static enum status derive_whole(const struct adapter *a, const struct adapter_module *m, float *up,
                                float *down, struct error *e) {
    const struct part whole = {.whole = m->tensor[ADAPTER_DIFF]};
    struct factors f = read_part(a, &whole, e);
    if (e->code == OK) {
        memcpy(up, f.up.at, (size_t)(f.up.rows * f.up.columns) * sizeof *up);
        memcpy(down, f.down.at, (size_t)(f.down.rows * f.down.columns) * sizeof *down);
    }
    drop(a, &f);
    return e->code;
}

enum status adapter_derive(const struct adapter *a, const struct adapter_module *m, float *up, float *down,
                           struct error *e) {
    struct part parts[2];
    if (m->form == ADAPTER_LORA) return derive_middle(a, m, up, down, e);
    if (m->form == ADAPTER_DIFFERENCE) return derive_whole(a, m, up, down, e);
    module_parts(m, parts);
    struct factors one = read_part(a, &parts[0], e), other = read_part(a, &parts[1], e);
    if (e->code == OK && m->form == ADAPTER_LOHA) {
        multiply_rows(&one.up, &other.up, up);
        multiply_columns(&one.down, &other.down, down);
    } else if (e->code == OK) {
        kronecker(&one.up, &other.up, up);
        kronecker(&one.down, &other.down, down);
    }
    drop(a, &one);
    drop(a, &other);
    return e->code;
}

enum status adapter_read_halves(const struct adapter *a, const struct adapter_module *m,
                                struct derived_half halves[2], struct error *e) {
    struct part parts[2];
    module_parts(m, parts);
    for (int i = 0; i < 2; i++) {
        struct factors f = read_part(a, &parts[i], e);
        halves[i] = (struct derived_half){.up = f.up.at,
                                          .down = f.down.at,
                                          .rows = f.up.rows,
                                          .rank = f.up.columns,
                                          .columns = f.down.columns};
    }
    return e->code;
}

void adapter_drop_halves(const struct adapter *a, struct derived_half halves[2]) {
    for (int i = 0; i < 2; i++) {
        a->sys->release(a->sys, halves[i].up);
        a->sys->release(a->sys, halves[i].down);
        halves[i] = (struct derived_half){0};
    }
}
