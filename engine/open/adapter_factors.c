/* Reads adapter tensors and converts them to LoRA form: implements adapter_factors.h. */
#include "engine/open/adapter_factors.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static enum status check_tensor(const struct adapter *a, const struct index_entry *entry, float *values,
                                int64_t n_max, struct error *e) {
    int64_t all = index_elements(entry);
    for (int64_t first = 0; first < all; first += n_max) {
        int64_t n = all - first < n_max ? all - first : n_max;
        bool finite = true;
        if (source_read_values(&a->index.sources[0], entry->offset, entry->dtype, first, n, values, e) != OK)
            return e->code;
        for (int64_t i = 0; i < n; i++) finite &= isfinite(values[i]) != 0;
        if (finite) continue;
        return error_set(e, NONFINITE,
                         "tensor '%s' of the adapter has values that are NaN or infinite" WHERE "%s",
                         entry->name, a->index.sources[0].path);
    }
    return OK;
}

enum status adapter_check_finite(const struct adapter *a, struct error *e) {
    enum { BUFFER_VALUES = 1 << 14 };
    float *values = sys_new(a->sys, BUFFER_VALUES, sizeof *values, "an adapter's values", e);
    for (int i = 0; i < a->n_modules && values && e->code == OK; i++)
        for (int role = 0; role < N_ADAPTER_ROLES && e->code == OK; role++) {
            const struct index_entry *entry = a->modules[i].tensor[role];
            if (entry && role != ADAPTER_ALPHA && role != ADAPTER_SCALE)
                check_tensor(a, entry, values, BUFFER_VALUES, e);
        }
    a->sys->release(a->sys, values);
    return e->code;
}

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
    if (e->code == OK)
        m.at = sys_new(a->sys, (size_t)rows * (size_t)columns, sizeof *m.at, "an adapter's matrix", e);
    return m;
}

static struct matrix read_matrix(const struct adapter *a, const struct index_entry *entry, struct error *e) {
    struct matrix m = make(a, entry->dim[0], index_elements(entry) / entry->dim[0], e);
    if (m.at)
        source_read_values(&a->index.sources[0], entry->offset, entry->dtype, 0, index_elements(entry), m.at,
                           e);
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

static struct factors read_part(const struct adapter *a, const struct part *p, struct error *e) {
    struct factors f = {0};
    if (p->whole) {
        struct matrix whole = read_matrix(a, p->whole, e);
        int64_t n = whole.rows < whole.columns ? whole.rows : whole.columns;
        struct matrix identity = make(a, n, n, e);
        for (int64_t i = 0; identity.at && i < n; i++) identity.at[i * n + i] = 1;
        bool wide = whole.rows < whole.columns;
        return wide ? (struct factors){identity, whole} : (struct factors){whole, identity};
    }
    f.up = read_matrix(a, p->a, e);
    f.down = read_matrix(a, p->b, e);
    if (!p->core || e->code != OK) return f;
    struct matrix a_matrix = f.up, b = f.down;
    f.up = make(a, a_matrix.columns, a_matrix.rows, e);
    for (int64_t i = 0; f.up.at && i < f.up.rows; i++)
        for (int64_t k = 0; k < f.up.columns; k++)
            f.up.at[i * f.up.columns + k] = a_matrix.at[k * a_matrix.columns + i];
    a->sys->release(a->sys, a_matrix.at);
    int64_t kernel = kernel_of(p->core);
    struct matrix core = read_matrix(a, p->core, e);
    f.down = make(a, core.rows, b.columns * kernel, e);
    if (f.down.at) through_core(&core, kernel, &b, f.down.at);
    a->sys->release(a->sys, core.at);
    a->sys->release(a->sys, b.at);
    return f;
}

static void drop(const struct adapter *a, struct factors *f) {
    a->sys->release(a->sys, f->up.at);
    a->sys->release(a->sys, f->down.at);
}

static void kronecker(const struct matrix *one, const struct matrix *other, float *out) {
    for (int64_t i = 0; i < one->rows; i++)
        for (int64_t k = 0; k < other->rows; k++)
            for (int64_t j = 0; j < one->columns; j++)
                for (int64_t l = 0; l < other->columns; l++)
                    *out++ = one->at[i * one->columns + j] * other->at[k * other->columns + l];
}

/* Reads the factors of a LoRA with a middle factor, or of a matrix difference. */
static enum status derive_single(const struct adapter *a, const struct adapter_module *m, float *up,
                                 float *down, struct error *e) {
    const struct part whole = {.whole = m->tensor[ADAPTER_DIFF]};
    const struct index_entry *mid = m->tensor[ADAPTER_MID];
    struct factors f;
    struct matrix core = {0};
    if (m->form == ADAPTER_DIFFERENCE) {
        f = read_part(a, &whole, e);
    } else {
        f = (struct factors){read_matrix(a, m->tensor[ADAPTER_UP], e),
                             read_matrix(a, m->tensor[ADAPTER_DOWN], e)};
        core = read_matrix(a, mid, e);
    }
    if (e->code == OK) {
        memcpy(up, f.up.at, (size_t)(f.up.rows * f.up.columns) * sizeof *up);
        if (core.at)
            through_core(&core, kernel_of(mid), &f.down, down);
        else
            memcpy(down, f.down.at, (size_t)(f.down.rows * f.down.columns) * sizeof *down);
    }
    a->sys->release(a->sys, core.at);
    drop(a, &f);
    return e->code;
}

enum status adapter_derive(const struct adapter *a, const struct adapter_module *m, float *up, float *down,
                           struct error *e) {
    struct part parts[2];
    if (m->form == ADAPTER_LORA || m->form == ADAPTER_DIFFERENCE) return derive_single(a, m, up, down, e);
    module_parts(m, parts);
    struct factors one = read_part(a, &parts[0], e), other = read_part(a, &parts[1], e);
    if (e->code == OK && m->form == ADAPTER_LOHA) {
        for (int64_t o = 0; o < one.up.rows; o++) /* LoHa: B[o, (j, k)] = B1[o, j] B2[o, k] */
            for (int64_t j = 0; j < one.up.columns; j++)
                for (int64_t k = 0; k < other.up.columns; k++)
                    *up++ = one.up.at[o * one.up.columns + j] * other.up.at[o * other.up.columns + k];
        for (int64_t j = 0; j < one.down.rows; j++) /* LoHa: A[(j, k), i] = A1[j, i] A2[k, i] */
            for (int64_t k = 0; k < other.down.rows; k++)
                for (int64_t i = 0; i < one.down.columns; i++)
                    *down++ =
                        one.down.at[j * one.down.columns + i] * other.down.at[k * other.down.columns + i];
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
