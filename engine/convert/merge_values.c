/* Adds adapters to a tensor's values. Each change is computed for COLUMNS_AT_ONCE columns of a row at a time,
 * few enough for the CPU cache, and then added to the base values. */
#include "engine/convert/merge_values.h"

#include "engine/open/adapter_values.h"
#include "loaders/alloc_array.h"

#include <string.h>

static float *read_factor(const struct adapter *a, const struct index_entry *entry, struct error *e) {
    int64_t n = index_elements(entry);
    float *values = e->code == OK ? alloc_array(a->sys, (uint64_t)n, sizeof *values, e) : NULL;
    if (values) adapter_read_values(&a->index.sources[0], entry->offset, entry->dtype, 0, n, values, e);
    return values;
}

static enum status load_vector(const struct adapter *a, const struct index_entry *vector,
                               struct derived_half *half, struct error *e) {
    half->down = read_factor(a, vector, e);
    return e->code;
}

static enum status load_product(const struct adapter *a, const struct adapter_module *m,
                                struct derived_half *half, struct error *e) {
    const struct index_entry *down = m->tensor[ADAPTER_DOWN], *up = m->tensor[ADAPTER_UP];
    *half = (struct derived_half){.rows = up->dim[0], .rank = down->dim[0]};
    half->columns = index_elements(down) / down->dim[0];
    half->up = read_factor(a, up, e);
    half->down = read_factor(a, down, e);
    return e->code;
}

/* Loads the factors of a LoRA with a middle factor (lora_mid). */
static enum status load_middle(const struct adapter *a, const struct adapter_module *m,
                               struct derived_half *half, struct error *e) {
    struct derived_size size;
    if (adapter_derived_size(a, m, &size, e) != OK) return e->code;
    *half = (struct derived_half){.rows = size.rows, .rank = size.rank, .columns = size.columns};
    half->up = alloc_array(a->sys, (uint64_t)size.rows * (uint64_t)size.rank, sizeof *half->up, e);
    half->down = alloc_array(a->sys, (uint64_t)size.rank * (uint64_t)size.columns, sizeof *half->down, e);
    return half->up && half->down ? adapter_derive(a, m, half->up, half->down, e) : e->code;
}

/* Computes columns [first, first + n) of a row of the product up * down. Skips zeros in `up`, which is often
 * an identity matrix. */
static void sum_row(const struct derived_half *h, int64_t row, int64_t first, int64_t n, float *to) {
    memset(to, 0, (size_t)n * sizeof *to);
    for (int64_t j = 0; j < h->rank; j++) {
        float up = h->up[row * h->rank + j];
        const float *down = h->down + j * h->columns + first;
        if (up == 0) continue;
        for (int64_t i = 0; i < n; i++) to[i] += up * down[i];
    }
}

/* Multiplies the factors of one matrix of a LoKr's Kronecker product, since every row needs the whole matrix.
 */
static enum status multiply_half(const struct adapter *a, struct derived_half *h, struct error *e) {
    float *whole = alloc_array(a->sys, (uint64_t)h->rows * (uint64_t)h->columns, sizeof *whole, e);
    if (!whole) return e->code;
    for (int64_t row = 0; row < h->rows; row++) sum_row(h, row, 0, h->columns, whole + row * h->columns);
    a->sys->release(a->sys, h->up);
    a->sys->release(a->sys, h->down);
    h->up = NULL;
    h->down = whole;
    return OK;
}

static enum status load_piece(const struct merged_piece *piece, struct merged_values *v, struct error *e) {
    const struct adapter *a = piece->adapter->adapter;
    const struct adapter_module *m = piece->change->module;
    v->piece = piece;
    if (piece->change->vector) return load_vector(a, piece->change->vector, &v->half[0], e);
    if (!adapter_is_derived(m)) return load_product(a, m, &v->half[0], e);
    if (m->form == ADAPTER_LORA) return load_middle(a, m, &v->half[0], e);
    if (adapter_read_halves(a, m, v->half, e) != OK || m->form == ADAPTER_LOHA) return e->code;
    if (multiply_half(a, &v->half[0], e) == OK) multiply_half(a, &v->half[1], e);
    return e->code;
}

void merge_unload(struct merge *m) {
    for (int i = 0; i < m->n_loaded; i++)
        adapter_drop_halves(m->loaded[i].piece->adapter->adapter, m->loaded[i].half);
    m->sys->release(m->sys, m->loaded);
    m->loaded = NULL;
    m->n_loaded = 0;
}

enum status merge_load(struct merge *m, const struct index_entry *entry, struct error *e) {
    int first = merge_first(m, entry), n = 0;
    merge_unload(m);
    while (first + n < m->n_pieces && m->pieces[first + n].entry == entry) n++;
    if (!n) return OK;
    m->columns = m->pieces[first].columns;
    m->loaded = alloc_array(m->sys, (uint64_t)n, sizeof *m->loaded, e);
    if (!m->loaded) return e->code;
    memset(m->loaded, 0, (size_t)n * sizeof *m->loaded);
    for (int i = 0; i < n && e->code == OK; i++)
        load_piece(&m->pieces[first + i], &m->loaded[m->n_loaded++], e);
    return e->code;
}

enum { COLUMNS_AT_ONCE = 512 };

/* Computes columns [first, first + n) of a row of LoKr's Kronecker product. */
static void kronecker_row(const struct derived_half half[2], int64_t row, int64_t first, int64_t n,
                          float *to) {
    const struct derived_half *outer = &half[0], *inner = &half[1];
    const float *one = outer->down + row / inner->rows * outer->columns;
    const float *other = inner->down + row % inner->rows * inner->columns;
    for (int64_t at = 0, some; at < n; at += some) {
        int64_t column = (first + at) % inner->columns;
        float factor = one[(first + at) / inner->columns];
        some = inner->columns - column < n - at ? inner->columns - column : n - at;
        for (int64_t i = 0; i < some; i++) to[at + i] = factor * other[column + i];
    }
}

/* Computes what one change (merged_piece) adds to columns [first, first + n). row: row of the adapter's
 * tensor. */
static void piece_row(const struct merged_values *v, int64_t columns, int64_t row, int64_t first, int64_t n,
                      float *to) {
    const struct change *c = v->piece->change;
    if (c->vector) {
        memcpy(to, v->half[0].down + row * columns + first, (size_t)n * sizeof *to);
    } else if (c->module->form == ADAPTER_LOKR) {
        kronecker_row(v->half, row, first, n, to);
    } else {
        sum_row(&v->half[0], row, first, n, to);
    }
    if (c->vector || c->module->form != ADAPTER_LOHA) return;
    float other[COLUMNS_AT_ONCE];
    sum_row(&v->half[1], row, first, n, other);
    for (int64_t i = 0; i < n; i++) to[i] *= other[i];
}

static void add_to_row(const struct merged_values *v, int64_t columns, int64_t row, int64_t first, int64_t n,
                       float *numbers) {
    float sums[COLUMNS_AT_ONCE], scale = (float)v->piece->scale;
    for (int64_t at = 0; at < n; at += COLUMNS_AT_ONCE) {
        int64_t some = n - at < COLUMNS_AT_ONCE ? n - at : COLUMNS_AT_ONCE;
        piece_row(v, columns, row, first + at, some, sums);
        for (int64_t i = 0; i < some; i++) numbers[at + i] += scale * sums[i];
    }
}

static void add_piece_to_row(const struct merged_values *v, int64_t columns, int64_t row, int64_t first,
                             int64_t n, float *numbers) {
    for (int i = 0; i < v->piece->n_runs; i++) {
        const struct merged_run *run = &v->piece->runs[i];
        if (row < run->to || row >= (int64_t)run->to + run->rows) continue;
        add_to_row(v, columns, row - run->to + run->from, first, n, numbers);
    }
}

/* first and n need not be multiples of the row length: callers may convert by quantisation block. */
void merge_add(const struct merge *m, int64_t first, int64_t n, float *numbers) {
    while (n > 0) {
        int64_t row = first / m->columns, column = first % m->columns;
        int64_t some = m->columns - column < n ? m->columns - column : n;
        for (int i = 0; i < m->n_loaded; i++)
            add_piece_to_row(&m->loaded[i], m->columns, row, column, some, numbers);
        first += some;
        numbers += some;
        n -= some;
    }
}
