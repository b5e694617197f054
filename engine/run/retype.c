/* Blocks in other types: see retype.h. */
#include "engine/run/retype.h"

#include <string.h>

static bool of_tensor(const struct image_segment *segment, const struct image_tensor *t) {
    return segment->image_offset >= t->image_offset &&
           segment->image_offset < t->image_offset + (uint64_t)tensor_bytes(&t->shape);
}

static int64_t values_of(const struct image_segment *segment, enum dtype dtype) {
    return (int64_t)segment->bytes / dtype_block_bytes(dtype) * dtype_block_values(dtype);
}

/* Rows are whole blocks of either type, so segments are too. */
static void convert_tensor(const struct block *from, const struct image_tensor *t, enum dtype wanted,
                           struct block *to) {
    struct image_tensor *out = &to->tensors[to->n_tensors++];
    *out = *t;
    out->image_offset = to->bytes;
    out->shape = tensor_make(NULL, wanted, t->shape.rank, t->shape.dim);
    for (int i = 0; i < from->n_segments; i++) {
        if (!of_tensor(&from->segments[i], t)) continue;
        struct image_segment *segment = &to->segments[to->n_segments++];
        *segment = from->segments[i];
        segment->image_offset = to->bytes;
        segment->bytes = (uint64_t)dtype_bytes(wanted, values_of(&from->segments[i], t->shape.dtype));
        segment->conversion = (struct image_conversion){t->shape.dtype, wanted, t->shape.scale, 1};
        to->bytes += segment->bytes;
    }
    to->bytes = align_up(to->bytes, ARENA_ALIGN);
}

/* With its scales. */
static void keep_tensor(const struct block *from, int i_tensor, struct block *to) {
    const struct image_tensor *t = &from->tensors[i_tensor];
    bool last = i_tensor + 1 == from->n_tensors;
    uint64_t end = last ? from->bytes : from->tensors[i_tensor + 1].image_offset;
    struct image_tensor *out = &to->tensors[to->n_tensors++];
    *out = *t;
    out->image_offset = to->bytes;
    if (t->scales_offset) out->scales_offset = t->scales_offset - t->image_offset + to->bytes;
    for (int i = 0; i < from->n_segments; i++) {
        uint64_t at = from->segments[i].image_offset;
        if (at < t->image_offset || at >= end) continue;
        struct image_segment *segment = &to->segments[to->n_segments++];
        *segment = from->segments[i];
        segment->image_offset = at - t->image_offset + to->bytes;
    }
    to->bytes += end - t->image_offset;
}

static enum status block_retype(struct sys *sys, const struct block *from, enum dtype wanted,
                                struct block *to, struct error *e) {
    *to = *from;
    to->n_segments = to->n_tensors = 0;
    to->bytes = 0;
    to->segments = sys->alloc(sys, LINE_HOST, (size_t)from->n_segments * sizeof *to->segments);
    if (!to->segments) return error_set(e, MEMORY, "no memory for the layout of block '%s'", from->name);
    for (int i = 0; i < from->n_tensors; i++) {
        const struct image_tensor *t = &from->tensors[i];
        enum dtype stored = block_stored_type(from->kind, t->entry, wanted);
        if (stored == t->shape.dtype || t->scales_offset)
            keep_tensor(from, i, to);
        else
            convert_tensor(from, t, stored, to);
    }
    return OK;
}

enum status component_retype(const struct component *from, enum dtype wanted, struct component *to,
                             struct error *e) {
    struct sys *sys = from->sys;
    *to = *from;
    to->index = index_view(&from->index, from->index.prefix, from->index.view);
    to->n_blocks = to->n_tables = 0;
    to->blocks = sys->alloc(sys, LINE_HOST, (size_t)from->n_blocks * sizeof *to->blocks);
    if (!to->blocks) error_set(e, MEMORY, "no memory for %d blocks", from->n_blocks);
    for (int i = 0; i < from->n_blocks && e->code == OK; i++)
        block_retype(sys, &from->blocks[i], wanted, &to->blocks[to->n_blocks++], e);
    for (int i = 0; i < from->n_tables && e->code == OK; i++) /* which stay as they are */
        block_retype(sys, &from->tables[i], wanted, &to->tables[to->n_tables++], e);
    if (e->code != OK) component_destroy(to);
    return e->code;
}

/* Converted, of that entry. */
static bool is_made_of(const struct image_tensor *t, const struct index_entry *entry) {
    return t->entry == entry && t->shape.dtype != entry->dtype;
}

enum dtype retype_of_entry(const struct component *retyped, const struct index_entry *entry) {
    for (int b = 0; b < retyped->n_blocks; b++) {
        const struct block *block = &retyped->blocks[b];
        for (int i = 0; i < block->n_tensors; i++)
            if (is_made_of(&block->tensors[i], entry)) return block->tensors[i].shape.dtype;
    }
    return N_DTYPES;
}

static void set_scale(struct block *block, struct image_tensor *t, float scale) {
    t->shape.scale = scale;
    for (int i = 0; i < block->n_segments; i++)
        if (of_tensor(&block->segments[i], t)) block->segments[i].conversion.to_scale = scale;
}

void retype_set_scale(struct component *retyped, const struct index_entry *entry, float scale) {
    for (int b = 0; b < retyped->n_blocks; b++) {
        struct block *block = &retyped->blocks[b];
        for (int i = 0; i < block->n_tensors; i++)
            if (is_made_of(&block->tensors[i], entry)) set_scale(block, &block->tensors[i], scale);
    }
}

uint64_t block_file_bytes(const struct block *block) {
    uint64_t bytes = 0;
    for (int i = 0; i < block->n_segments; i++) {
        const struct image_segment *g = &block->segments[i];
        bytes += image_converts(g) ? (uint64_t)dtype_bytes(g->conversion.from, values_of(g, g->conversion.to))
                                   : g->bytes;
    }
    return bytes;
}

int64_t block_converted_values(const struct block *block) {
    int64_t values = 0;
    for (int i = 0; i < block->n_segments; i++) {
        const struct image_segment *g = &block->segments[i];
        if (image_converts(g)) values += values_of(g, g->conversion.to);
    }
    return values;
}
