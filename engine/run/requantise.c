/* Lays out blocks whose weights are converted while loading: implements requantise.h. */
#include "engine/run/requantise.h"

#include <string.h>

/* True if the segment of a packed block holds values of this tensor. */
static bool of_tensor(const struct packed_segment *segment, const struct packed_tensor *t) {
    return segment->packed_offset >= t->packed_offset &&
           segment->packed_offset < t->packed_offset + (uint64_t)tensor_bytes(&t->shape);
}

/* Number of values in the segment, if they have this element type. */
static int64_t segment_values(const struct packed_segment *segment, enum dtype dtype) {
    return (int64_t)segment->bytes / dtype_block_bytes(dtype) * dtype_block_values(dtype);
}

/* Lays out one tensor whose type is converted. Rows, and so segments, are whole quantisation blocks of both
 * types. scales: receives the row scales of a rotated type. */
static void convert_tensor(const struct block *from, const struct packed_tensor *t, enum dtype wanted,
                           struct row_scales *scales, struct block *to) {
    struct packed_tensor *out = &to->tensors[to->n_tensors++];
    *out = *t;
    out->packed_offset = to->bytes;
    out->shape = tensor_make(NULL, wanted, t->shape.rank, t->shape.dim);
    for (int i = 0; i < from->n_segments; i++) {
        if (!of_tensor(&from->segments[i], t)) continue;
        struct packed_segment *segment = &to->segments[to->n_segments++];
        *segment = from->segments[i];
        segment->packed_offset = to->bytes;
        segment->bytes = (uint64_t)dtype_bytes(wanted, segment_values(&from->segments[i], t->shape.dtype));
        segment->conversion = (struct packed_conversion){
            .from = t->shape.dtype, .to = wanted, .from_scale = t->shape.scale, .to_scale = 1};
        if (dtype_is_rotated(wanted)) {
            segment->conversion.columns = tensor_columns(&t->shape);
            segment->conversion.row_scales = scales->scale + scales->n;
            scales->n += segment_values(segment, wanted) / tensor_columns(&t->shape);
        }
        to->bytes += segment->bytes;
    }
    if (dtype_is_rotated(wanted)) {
        uint64_t bytes = (uint64_t)tensor_rows(&out->shape) * sizeof(float);
        out->scales_offset = to->bytes;
        to->segments[to->n_segments++] = (struct packed_segment){
            .source = &scales->source,
            .file_offset = (uint64_t)scales->n * sizeof(float) - bytes,
            .packed_offset = to->bytes,
            .bytes = bytes,
        };
        to->bytes += bytes;
    }
    to->bytes = align_up(to->bytes, ARENA_ALIGN);
}

/* Lays out one tensor that keeps its type, with its scales. */
static void keep_tensor(const struct block *from, int i_tensor, struct block *to) {
    const struct packed_tensor *t = &from->tensors[i_tensor];
    bool last = i_tensor + 1 == from->n_tensors;
    uint64_t end = last ? from->bytes : from->tensors[i_tensor + 1].packed_offset;
    struct packed_tensor *out = &to->tensors[to->n_tensors++];
    *out = *t;
    out->packed_offset = to->bytes;
    if (t->scales_offset) out->scales_offset = t->scales_offset - t->packed_offset + to->bytes;
    for (int i = 0; i < from->n_segments; i++) {
        uint64_t at = from->segments[i].packed_offset;
        if (at < t->packed_offset || at >= end) continue;
        struct packed_segment *segment = &to->segments[to->n_segments++];
        *segment = from->segments[i];
        segment->packed_offset = at - t->packed_offset + to->bytes;
    }
    to->bytes += end - t->packed_offset;
}

/* Returns the type to which a tensor of a block is converted; its own type if it is not converted. A tensor
 * with scales in another tensor is not converted. A matrix whose rows exceed a reader's buffer is not
 * converted to a rotated type. */
static enum dtype converted_type(const struct block *block, const struct packed_tensor *t,
                                 struct weight_type wanted) {
    enum dtype stored = t->shape.dtype, type = block_stored_type(block->kind, t->entry, wanted.type);
    bool keeps = t->scales_offset || (wanted.unquantised_only && dtype_is_quantised(stored));
    if (dtype_is_rotated(type)) keeps |= t->shape.rank != 2 || t->shape.dim[1] > READER_VALUES;
    return keeps ? stored : type;
}

/* Lays out one block. */
static enum status block_requantise(struct sys *sys, const struct block *from, struct weight_type wanted,
                                    struct row_scales *scales, struct block *to, struct error *e) {
    *to = *from;
    to->base = NULL;
    to->n_segments = to->n_tensors = 0;
    to->bytes = 0;
    size_t most = (size_t)(from->n_segments + from->n_tensors);
    to->segments = sys_new(sys, most, sizeof *to->segments, "the layout of a converted block", e);
    if (!to->segments) return e->code;
    for (int i = 0; i < from->n_tensors; i++) {
        const struct packed_tensor *t = &from->tensors[i];
        enum dtype type = converted_type(from, t, wanted);
        if (type == t->shape.dtype)
            keep_tensor(from, i, to);
        else
            convert_tensor(from, t, type, scales, to);
    }
    return OK;
}

/* Allocates the scales of all rows that will be converted to a rotated type. */
static enum status row_scales_make(const struct component *from, struct weight_type wanted,
                                   struct row_scales *scales, struct error *e) {
    int64_t n = 0;
    *scales = (struct row_scales){0};
    for (int b = 0; b < from->n_blocks; b++) {
        const struct block *block = &from->blocks[b];
        for (int i = 0; i < block->n_tensors; i++) {
            enum dtype type = converted_type(block, &block->tensors[i], wanted);
            if (type != block->tensors[i].shape.dtype && dtype_is_rotated(type))
                n += tensor_rows(&block->tensors[i].shape);
        }
    }
    if (!n) return OK;
    scales->scale = sys_new(from->sys, (size_t)n, sizeof *scales->scale, "the row scales of weights", e);
    scales->source = source_of_memory(from->sys, "row scales of converted weights", scales->scale,
                                      (uint64_t)n * sizeof *scales->scale);
    return e->code;
}

void row_scales_free(struct sys *sys, struct row_scales *scales) {
    sys->release(sys, scales->scale);
    *scales = (struct row_scales){0};
}

enum status component_requantise(const struct component *from, struct weight_type wanted,
                                 struct row_scales *scales, struct component *to, struct error *e) {
    struct sys *sys = from->sys;
    if (row_scales_make(from, wanted, scales, e) != OK) return e->code;
    *to = *from;
    to->index = index_view(&from->index, from->index.prefix, from->index.view);
    to->n_blocks = to->n_tables = 0;
    to->blocks = sys_new(sys, (size_t)from->n_blocks, sizeof *to->blocks, "the list of blocks", e);
    for (int i = 0; i < from->n_blocks && e->code == OK; i++)
        block_requantise(sys, &from->blocks[i], wanted, scales, &to->blocks[to->n_blocks++], e);
    for (int i = 0; i < from->n_tables && e->code == OK; i++) /* embedding tables are not converted */
        block_requantise(sys, &from->tables[i], wanted, scales, &to->tables[to->n_tables++], e);
    if (e->code != OK) component_destroy(to);
    return e->code;
}

/* True if the packed tensor is converted from this entry. */
static bool is_made_of(const struct packed_tensor *t, const struct index_entry *entry) {
    return t->entry == entry && t->shape.dtype != entry->dtype;
}

enum dtype requantise_of_entry(const struct component *requantised, const struct index_entry *entry) {
    for (int b = 0; b < requantised->n_blocks; b++) {
        const struct block *block = &requantised->blocks[b];
        for (int i = 0; i < block->n_tensors; i++)
            if (is_made_of(&block->tensors[i], entry)) return block->tensors[i].shape.dtype;
    }
    return N_DTYPES;
}

void requantise_set_scale(struct component *requantised, const struct index_entry *entry, float scale) {
    for (int b = 0; b < requantised->n_blocks; b++) {
        struct block *block = &requantised->blocks[b];
        for (int i = 0; i < block->n_tensors; i++)
            if (is_made_of(&block->tensors[i], entry)) {
                block->tensors[i].shape.scale = scale;
                for (int k = 0; k < block->n_segments; k++)
                    if (of_tensor(&block->segments[k], &block->tensors[i]))
                        block->segments[k].conversion.to_scale = scale;
            }
    }
}

uint64_t block_file_bytes(const struct block *block) {
    uint64_t bytes = 0;
    for (int i = 0; i < block->n_segments; i++) {
        const struct packed_segment *g = &block->segments[i];
        uint64_t stored = g->bytes;
        if (packed_converts(g))
            stored = (uint64_t)dtype_bytes(g->conversion.from, segment_values(g, g->conversion.to));
        bytes += g->stride ? stored / g->run * g->stride : stored;
    }
    return bytes;
}

int64_t block_converted_values(const struct block *block) {
    int64_t values = 0;
    for (int i = 0; i < block->n_segments; i++) {
        const struct packed_segment *g = &block->segments[i];
        if (packed_converts(g)) values += segment_values(g, g->conversion.to);
    }
    return values;
}
