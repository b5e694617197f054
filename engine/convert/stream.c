/* Converts tensors a few rows at a time: reads the rows, widens them to f32 (weights_widen) and quantises
 * them on several threads. The file writer takes the result in pieces of any size. Rows that keep their type
 * are copied. */
#include "engine/convert/convert.h"

#include "engine/machine/machine.h"
#include "engine/base/half.h"
#include "kernels/cpu/weights.h"
#include "loaders/quantise/quantise.h"
#include "loaders/quantised.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Type and shape of a tensor in the input. If quantisation blocks cross row boundaries, each block counts as
 * a row. */
static struct tensor stored_shape(const struct index_entry *entry) {
    struct tensor t = tensor_make(NULL, entry->dtype, entry->rank, entry->dim);
    int32_t values = dtype_block_values(entry->dtype);
    if (tensor_runs_on(&t))
        t = tensor_make(NULL, entry->dtype, 2, (int32_t[]){(int32_t)(tensor_elements(&t) / values), values});
    t.scale = entry->scale;
    return t;
}

enum status convert_prepare(struct conversion *c, struct error *e) {
    struct convert_buffers *b = &c->buffers;
    uint64_t scales = 0;
    b->values = 1;
    b->item = -1;
    for (int i = 0; i < c->n_items; i++) {
        const struct index_entry *entry = c->items[i].entry;
        struct tensor stored = stored_shape(entry);
        int64_t values = least(tensor_elements(&stored), CONVERT_VALUES);
        if (values < tensor_columns(&stored)) values = tensor_columns(&stored);
        if (values > b->values) b->values = values;
        if (entry->scales.bytes > scales) scales = entry->scales.bytes;
    }
    /* No stored type takes more than eight bytes a value. */
    b->stored = c->sys->alloc(c->sys, LINE_HOST, 8 * (size_t)b->values);
    b->out = c->sys->alloc(c->sys, LINE_HOST, 8 * (size_t)b->values);
    b->numbers = c->sys->alloc(c->sys, LINE_HOST, sizeof *b->numbers * (size_t)b->values);
    b->scales = c->sys->alloc(c->sys, LINE_HOST, scales + 1);
    if (!b->stored || !b->out || !b->numbers || !b->scales)
        return error_set(e, MEMORY, "no memory for the conversion buffers");
    c->thread_pool = thread_pool_open(c->sys, machine_threads(""), e);
    return c->thread_pool ? thread_pool_start(c->thread_pool, e) : e->code;
}

static int64_t rows_at_once(const struct conversion *c, const struct tensor *stored) {
    int64_t columns = tensor_columns(stored);
    return columns ? c->buffers.values / columns : 1;
}

/* Reads rows [first, first + rows) of a tensor and describes them as a matrix. */
static enum status read_rows(struct conversion *c, const struct index_entry *entry, int64_t first,
                             int64_t rows, struct tensor *read, struct error *e) {
    struct tensor whole = stored_shape(entry);
    int32_t dim[] = {(int32_t)rows, tensor_columns(&whole)};
    uint64_t row_bytes = (uint64_t)dtype_bytes(entry->dtype, dim[1]);
    *read = tensor_make(c->buffers.stored, entry->dtype, 2, dim);
    read->scale = entry->scale;
    read->scales = entry->scales.bytes ? c->buffers.scales : NULL;
    read->scale_row = (int32_t)first;
    read->scale_rows = whole.scale_rows;
    return source_read(&c->whole.sources[entry->source], c->buffers.stored, row_bytes * (uint64_t)rows,
                       entry->offset + row_bytes * (uint64_t)first, e);
}

struct convert_work {
    const struct converted *item;
    const struct tensor *read;
    const struct merge *merge; /* adapters to merge into the rows; NULL: none */
    float *numbers;
    char *to;             /* destination of converted rows; NULL: only scan the values */
    float *scales;        /* destination of row scales, or NULL */
    atomic_uint *largest; /* largest magnitude so far, as f32 bits */
};

static void convert_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct convert_work *w = context;
    int64_t columns = w->read->dim[1], row_bytes = dtype_bytes(w->item->dtype, columns);
    for (int64_t r = first; r < end; r++) {
        float *row = w->numbers + r * columns;
        weights_widen(row, w->read, r, 1);
        if (w->merge) merge_add(w->merge, (w->read->scale_row + r) * columns, columns, row);
        /* As integers, f32 magnitudes keep their order, with infinity above all numbers and NaN above
         * infinity. */
        uint32_t here = 0, largest = atomic_load(w->largest);
        for (int64_t i = 0; i < columns; i++) {
            uint32_t bits = (union float_bits){.value = row[i]}.bits & 0x7fffffff;
            here = bits > here ? bits : here;
        }
        while (here > largest && !atomic_compare_exchange_weak(w->largest, &largest, here)) {
        }
        if (w->scales) w->scales[r] = quantise_row_scale(w->item->dtype, row, columns);
        if (w->to) quantise_rows(w->item->dtype, w->item->scale, row, 1, columns, w->to + r * row_bytes);
    }
}

/* Converts the rows in the input buffer on all threads. Returns the largest magnitude (infinity or NaN if a
 * value is not finite). */
static float work(struct conversion *c, struct convert_work w) {
    atomic_uint largest = 0;
    w.numbers = c->buffers.numbers;
    w.merge = merge_changes(c->merge, w.item->entry) ? c->merge : NULL;
    w.largest = &largest;
    thread_pool_run(c->thread_pool, w.read->dim[0], convert_rows, &w);
    return (union float_bits){.bits = atomic_load(&largest)}.value;
}

static enum status check_finite(const struct conversion *c, const struct index_entry *entry, float largest,
                                struct error *e) {
    if (isfinite(largest)) return OK;
    return error_set(e, NONFINITE,
                     "tensor '%s' has a value that is not finite" WHERE "%s" EXPECTED "finite values",
                     entry->name, c->whole.sources[entry->source].path);
}

/* Fails if the largest magnitude is beyond the output type's range. */
static enum status check_held(const struct conversion *c, const struct converted *item, float largest,
                              struct error *e) {
    float most = quantise_most(item->dtype);
    if (check_finite(c, item->entry, largest, e) != OK || largest <= most) return e->code;
    return error_set(e, LIMIT,
                     "tensor '%s' has a value that %s cannot hold" WHERE "%s" FOUND "%g" EXPECTED
                     "at most %g, or another --type",
                     item->entry->name, dtype_name(item->dtype), c->whole.sources[item->entry->source].path,
                     (double)largest, (double)most);
}

static enum status report_progress(const struct conversion *c, const struct converted *item,
                                   struct error *e) {
    const struct sluice_convert_options *options = c->options;
    double fraction = c->bytes ? (double)c->done / (double)c->bytes : 1;
    if (!options->on_progress || options->on_progress(options->user, fraction, item->name)) return OK;
    return error_set(e, CANCELLED, "cancelled");
}

/* Computes a tensor's F8 scale in a first pass over the tensor. */
static enum status make_scale(struct conversion *c, struct converted *scale, struct error *e) {
    struct converted *item = scale + 1;
    const struct index_entry *entry = item->entry;
    struct tensor whole = stored_shape(entry), read;
    int64_t rows = tensor_rows(&whole), at_once = rows_at_once(c, &whole);
    float largest = 0;
    item->scale = entry->scale;
    for (int64_t first = 0; first < rows && is_rewritten(c, item) && e->code == OK; first += at_once) {
        if (report_progress(c, item, e) != OK) break;
        if (read_rows(c, entry, first, least(at_once, rows - first), &read, e) != OK) break;
        float here = work(c, (struct convert_work){.item = item, .read = &read});
        largest = here > largest ? here : largest;
        check_finite(c, entry, here, e);
    }
    if (is_rewritten(c, item)) item->scale = quantise_scale(item->dtype, largest);
    memcpy(c->buffers.out, &item->scale, sizeof item->scale);
    c->buffers.out_to = sizeof item->scale;
    return e->code;
}

static enum status make_rows(struct conversion *c, const struct converted *item, struct error *e) {
    struct convert_buffers *b = &c->buffers;
    struct tensor whole = stored_shape(item->entry), read;
    int64_t rows = least(rows_at_once(c, &whole), tensor_rows(&whole) - b->row);
    if (read_rows(c, item->entry, b->row, rows, &read, e) != OK) return e->code;
    b->row += rows;
    b->out_to = (uint64_t)(dtype_bytes(item->dtype, read.dim[1]) * rows);
    struct convert_work w = {.item = item, .read = &read, .to = b->out};
    if (is_rewritten(c, item)) return check_held(c, item, work(c, w), e);
    memcpy(b->out, b->stored, b->out_to);
    return OK;
}

/* Makes the scales of the next rows, by copying them or by computing them from the rotated rows. */
static enum status make_row_scales(struct conversion *c, const struct converted *item, struct error *e) {
    struct convert_buffers *b = &c->buffers;
    struct tensor whole = stored_shape(item->entry), read;
    int64_t first = b->row, rows = least(rows_at_once(c, &whole), tensor_rows(&whole) - first);
    struct convert_work w = {.item = item, .read = &read, .scales = (float *)(void *)b->out};
    b->row += rows;
    b->out_to = sizeof(float) * (uint64_t)rows;
    if (!is_rewritten(c, item)) {
        memcpy(b->out, b->scales + sizeof(float) * (uint64_t)first, b->out_to);
        return OK;
    }
    if (read_rows(c, item->entry, first, rows, &read, e) != OK) return e->code;
    return check_held(c, item, work(c, w), e);
}

static enum status make_more(struct conversion *c, int i, struct error *e) {
    struct convert_buffers *b = &c->buffers;
    struct converted *item = &c->items[i];
    b->out_at = b->out_to = 0;
    if (b->item != i) {
        b->item = i;
        b->row = 0;
        if (index_read_scales(&c->whole, item->entry, b->scales, e) != OK) return e->code;
        if (c->merge && merge_load(c->merge, item->entry, e) != OK) return e->code;
    }
    if (report_progress(c, item, e) != OK) return e->code;
    switch (item->what) {
    case CONVERTED_QUANT_FORMAT:
        b->out_to = strlen(quantised_format_text(item[2].dtype)); /* item[2]: the weight */
        memcpy(b->out, quantised_format_text(item[2].dtype), b->out_to);
        return OK;
    case CONVERTED_SCALE:
        return make_scale(c, item, e);
    case CONVERTED_ROW_SCALES:
        return make_row_scales(c, item + 1, e);
    default:
        return make_rows(c, item, e);
    }
}

enum status convert_make(void *conversion, int i, void *to, uint64_t bytes, struct error *e) {
    struct conversion *c = conversion;
    struct convert_buffers *b = &c->buffers;
    while (bytes) {
        if (b->out_at == b->out_to && make_more(c, i, e) != OK) return e->code;
        uint64_t n = b->out_to - b->out_at < bytes ? b->out_to - b->out_at : bytes;
        memcpy(to, b->out + b->out_at, n);
        to = (char *)to + n;
        b->out_at += n;
        bytes -= n;
        c->done += n;
    }
    return OK;
}
