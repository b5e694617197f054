/* Builds packed blocks that start with adapter bytes: implements adapt.h. */
#include "engine/run/adapt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Describes the used rows of an adapter tensor as a matrix tensor; `data` stays NULL. */
static struct tensor factor_tensor(const struct factor *f) {
    return tensor_make(NULL, f->dtype, 2, (int32_t[]){factor_rows(f), (int32_t)factor_columns(f)});
}

static enum status factor_mismatch(const struct factor *f, const struct packed_tensor *t, enum status status,
                                   const char *expected, struct error *e) {
    char found[128];
    block_print_shape(f->rank, f->dim, found, sizeof found);
    return error_set(
        e, status, "adapter tensor '%s' does not fit the weight '%s'" WHERE "%s" FOUND "%s %s" EXPECTED "%s",
        f->name, t->entry->name, f->source->path, dtype_name(f->dtype), found, expected);
}

/* Checks that an adapter tensor has no scales in other tensors, that rows are whole quantisation blocks, and
 * that all used rows exist. */
static enum status check_factor(const struct factor *f, const struct packed_tensor *t, struct error *e) {
    bool computed = dtype_is_weight(f->dtype) && !dtype_tiled_values(f->dtype) && !dtype_is_rotated(f->dtype);
    if (!computed || factor_columns(f) % dtype_block_values(f->dtype))
        return factor_mismatch(f, t, UNSUPPORTED,
                               "F32, F16, BF16, or a quantised type whose block size divides the rows", e);
    for (int i = 0; i < f->n_parts; i++) {
        int32_t first = f->part[i].first, rows = f->part[i].rows;
        if (first >= 0 && rows > 0 && rows <= f->dim[0] - first) continue;
        char expected[64];
        snprintf(expected, sizeof expected, "a tensor that has rows %" PRId32 " to %" PRId64, first,
                 (int64_t)first + rows);
        return factor_mismatch(f, t, SHAPE, expected, e);
    }
    return OK;
}

/* Checks that the low-rank factors fit the weight: rows of `down` and of the weight have equal shapes
 * (ignoring axes of size 1) or equally many values; `up` changes all rows of a convolution, or any existing
 * range of rows of a matrix. */
static enum status check_pair(const struct adapted_weight *a, const struct packed_tensor *t,
                              struct error *e) {
    const struct tensor *weight = &t->shape;
    const struct factor *down = &a->down;
    int32_t left[WEIGHT_FILE_RANK_MAX] = {0}, right[TENSOR_RANK_MAX] = {0};
    int n = 0, m = 0;
    char expected[128];
    if (check_factor(down, t, e) != OK || check_factor(&a->up, t, e) != OK) return e->code;
    for (int i = 1; i < down->rank; i++)
        if (down->dim[i] != 1) left[n++] = down->dim[i];
    for (int i = 1; i < weight->rank; i++)
        if (weight->dim[i] != 1) right[m++] = weight->dim[i];
    bool fits = weight->rank >= 2 && down->rank >= 2;
    if (fits && n > 1)
        fits = n == m && !memcmp(left, right, (size_t)n * sizeof *left);
    else if (fits)
        fits = factor_columns(down) == tensor_elements(weight) / weight->dim[0];
    if (!fits) {
        int32_t dim[TENSOR_RANK_MAX];
        memcpy(dim, weight->dim, sizeof dim);
        dim[0] = down->dim[0];
        block_print_shape(weight->rank, dim, expected, sizeof expected);
        return factor_mismatch(down, t, SHAPE, expected, e);
    }
    int32_t up[] = {weight->dim[0], factor_rows(down)}, rows = factor_rows(&a->up);
    fits =
        weight->rank > 2 ? !a->row && rows == weight->dim[0] : a->row >= 0 && rows <= weight->dim[0] - a->row;
    if (factor_columns(&a->up) == up[1] && fits) return OK;
    block_print_shape(2, up, expected, sizeof expected);
    strcat(expected, ", or some of its rows");
    return factor_mismatch(&a->up, t, SHAPE, expected, e);
}

/* Adds a word to an FNV-1a hash. Multiplication carries bits upwards only, so the upper half is folded down.
 */
static void hash_word(uint64_t *hash, uint64_t word) {
    *hash = (*hash ^ word) * 0x100000001b3;
    *hash ^= *hash >> 32;
}

/* Hashes where a packed segment's bytes come from: the bytes themselves if they lie in memory, else the
 * file's identity (not its path). */
static void hash_segment(uint64_t *hash, const struct packed_segment *g) {
    const struct byte_source *source = g->source;
    hash_word(hash, g->packed_offset);
    hash_word(hash, g->bytes);
    for (uint64_t at = 0, n; source->memory && at < g->bytes; at += n) {
        uint64_t word = 0;
        n = g->bytes - at < sizeof word ? g->bytes - at : sizeof word;
        memcpy(&word, source->memory + g->file_offset + at, n);
        hash_word(hash, word);
    }
    if (source->memory) return;
    hash_word(hash, g->file_offset);
    hash_word(hash, source->identity.device);
    hash_word(hash, source->identity.inode);
    hash_word(hash, (uint64_t)source->identity.bytes);
    hash_word(hash, (uint64_t)source->identity.modified_ns);
}

/* State while one block gets its adapter bytes. */
struct block_adapter {
    const struct adaptation *all;
    int block; /* index of the block in the adaptation; -1: no adapter applies */
    struct block *to;
};

static int factor_segments(const struct factor *f) {
    return f->n_parts ? f->n_parts : 1;
}

/* Appends the used rows of an adapter tensor to the block's adapter bytes. Returns their offset. */
static uint64_t add_factor(struct block *to, const struct factor *f) {
    uint64_t row_bytes = (uint64_t)dtype_bytes(f->dtype, factor_columns(f)), at = to->adapter_bytes;
    for (int i = 0; i < factor_segments(f); i++) {
        int32_t first = f->n_parts ? f->part[i].first : 0, rows = f->n_parts ? f->part[i].rows : f->dim[0];
        uint64_t bytes = (uint64_t)rows * row_bytes;
        to->segments[to->n_segments++] =
            (struct packed_segment){.source = f->source,
                                    .file_offset = f->offset + (uint64_t)first * row_bytes,
                                    .packed_offset = to->adapter_bytes,
                                    .bytes = bytes};
        to->adapter_bytes += bytes;
    }
    to->adapter_bytes = align_up(to->adapter_bytes, ARENA_ALIGN);
    return at;
}

/* Returns the index of the block's first adapter with the same `down` factor as this adapter; the two
 * adapters then share the bytes of the factor. */
static int down_of(const struct block_adapter *x, int i_pair) {
    const struct factor *down = &x->all->weights[i_pair].down;
    int n = 0;
    for (int i = 0; i < i_pair; i++) {
        const struct factor *other = &x->all->weights[i].down;
        if (x->all->weights[i].block != x->block) continue;
        bool same = down->source == other->source && down->offset == other->offset &&
                    down->dtype == other->dtype && factor_columns(down) == factor_columns(other) &&
                    down->n_parts == other->n_parts && down->dim[0] == other->dim[0];
        for (int k = 0; k < down->n_parts && same; k++)
            same = down->part[k].first == other->part[k].first && down->part[k].rows == other->part[k].rows;
        if (same) break;
        n++;
    }
    return n;
}

/* Finds the packed tensor of the block's weight. NULL with MISSING: the block lacks the weight. */
static struct packed_tensor *find_tensor(const struct block_adapter *x, int weight, const struct factor *f,
                                         struct error *e) {
    const struct block_kind *kind = x->to->kind;
    struct packed_tensor *t = NULL;
    for (int i = 0; i < x->to->n_tensors && weight >= 0 && weight < kind->n_weights; i++)
        if (x->to->tensors[i].offset == kind->weights[weight].offset) t = &x->to->tensors[i];
    if (t) return t;
    error_set(e, MISSING, "adapter tensor '%s' changes a weight that block '%s' does not have" WHERE "%s",
              f->name, x->to->name, f->source->path);
    return NULL;
}

static enum status add_pair(struct block_adapter *x, int i, struct error *e) {
    const struct adapted_weight *a = &x->all->weights[i];
    struct packed_tensor *t = find_tensor(x, a->weight, &a->down, e);
    if (!t || check_pair(a, t, e) != OK) return e->code;
    int shared = down_of(x, i), own = x->to->n_adapters++;
    struct packed_adapter *adapter = &x->to->adapters[own];
    *adapter = (struct packed_adapter){
        .offset = t->offset, .down = factor_tensor(&a->down), .up = factor_tensor(&a->up), .row = a->row};
    adapter->up.scale = a->scale;
    adapter->down_offset = shared < own ? x->to->adapters[shared].down_offset : add_factor(x->to, &a->down);
    adapter->up_offset = add_factor(x->to, &a->up);
    return OK;
}

static enum status replace_vector(struct block_adapter *x, const struct replaced_vector *v, struct error *e) {
    const struct factor *f = &v->values;
    struct packed_tensor *t = find_tensor(x, v->weight, f, e);
    if (!t || check_factor(f, t, e) != OK) return e->code;
    if (factor_rows(f) * factor_columns(f) != tensor_elements(&t->shape)) {
        char expected[128];
        block_print_shape(t->shape.rank, t->shape.dim, expected, sizeof expected);
        return factor_mismatch(f, t, SHAPE, expected, e);
    }
    t->shape = tensor_make(NULL, f->dtype, t->shape.rank, t->shape.dim);
    t->packed_offset = add_factor(x->to, f);
    t->scales_offset = 0;
    t->replaced = true;
    return OK;
}

/* Appends the segments of the block without adapters, and moves their tensors after the adapter bytes. */
static void add_base(const struct block *from, struct block *to) {
    for (int i = 0; i < to->n_tensors; i++) {
        struct packed_tensor *t = &to->tensors[i];
        if (t->replaced) continue;
        t->packed_offset += to->adapter_bytes;
        if (t->scales_offset) t->scales_offset += to->adapter_bytes;
    }
    for (int i = 0; i < from->n_segments; i++) {
        struct packed_segment *g = &to->segments[to->n_segments++];
        *g = from->segments[i];
        g->packed_offset += to->adapter_bytes;
    }
    to->bytes = from->bytes + to->adapter_bytes;
}

/* Starts block `to` as a copy of `from` without segments, with memory for all segments and adapters. */
static enum status adapt_begin(struct sys *sys, const struct block *from, const struct block_adapter *x,
                               struct error *e) {
    int n = 0, segments = from->n_segments;
    for (int i = 0; i < x->all->n_weights; i++) {
        const struct adapted_weight *a = &x->all->weights[i];
        if (a->block != x->block) continue;
        if (down_of(x, i) == n) segments += factor_segments(&a->down);
        segments += factor_segments(&a->up);
        n++;
    }
    for (int i = 0; i < x->all->n_vectors; i++)
        if (x->all->vectors[i].block == x->block) segments += factor_segments(&x->all->vectors[i].values);
    *x->to = *from;
    x->to->n_segments = x->to->n_adapters = 0;
    x->to->adapters = NULL;
    x->to->segments = sys->alloc(sys, LINE_HOST, ((size_t)segments + 1) * sizeof *x->to->segments);
    if (n) x->to->adapters = sys->alloc(sys, LINE_HOST, (size_t)n * sizeof *x->to->adapters);
    if (x->to->segments && (x->to->adapters || !n)) return OK;
    return error_set(e, MEMORY, "no memory for the layout of block '%s'", from->name);
}

/* Lays out one block with adapter bytes. block: index of the block in the adaptation; -1: no adapter applies.
 */
static enum status block_adapt(struct sys *sys, const struct block *from, const struct adaptation *all,
                               int block, struct block *to, struct error *e) {
    struct block_adapter x = {all, block, to};
    if (adapt_begin(sys, from, &x, e) != OK) return e->code;
    for (int i = 0; i < all->n_vectors && e->code == OK; i++)
        if (all->vectors[i].block == block) replace_vector(&x, &all->vectors[i], e);
    for (int i = 0; i < all->n_weights && e->code == OK; i++)
        if (all->weights[i].block == block) add_pair(&x, i, e);
    add_base(from, to);
    to->base = block_base(from);
    to->adapter_hash = to->adapter_bytes ? 0xcbf29ce484222325 : 0;
    for (int i = 0; i < to->n_segments && to->segments[i].packed_offset < to->adapter_bytes; i++)
        hash_segment(&to->adapter_hash, &to->segments[i]);
    return e->code;
}

enum status component_adapt(const struct component *from, const struct adaptation *all,
                            struct component *adapted, struct error *e) {
    struct sys *sys = from->sys;
    *adapted = *from;
    adapted->index = index_view(&from->index, from->index.prefix, from->index.view);
    adapted->n_blocks = adapted->n_tables = 0;
    adapted->blocks = sys->alloc(sys, LINE_HOST, (size_t)from->n_blocks * sizeof *adapted->blocks);
    if (!adapted->blocks) error_set(e, MEMORY, "no memory for %d blocks", from->n_blocks);
    for (int i = 0; i < from->n_blocks && e->code == OK; i++)
        block_adapt(sys, &from->blocks[i], all, i, &adapted->blocks[adapted->n_blocks++], e);
    for (int i = 0; i < from->n_tables && e->code == OK; i++)
        block_adapt(sys, &from->tables[i], all, -1, &adapted->tables[adapted->n_tables++], e);
    if (e->code != OK) component_destroy(adapted);
    return e->code;
}

/* Segments of the base weights follow those of the adapter bytes, in the same order as in the block without
 * adapters. */
void component_adapt_scales(const struct component *from, struct component *adapted) {
    for (int b = 0; b < from->n_blocks; b++) {
        const struct block *own = &from->blocks[b];
        struct block *to = &adapted->blocks[b];
        for (int i = 0; i < own->n_tensors; i++)
            if (!to->tensors[i].replaced) to->tensors[i].shape.scale = own->tensors[i].shape.scale;
        for (int i = 0; i < own->n_segments; i++)
            to->segments[to->n_segments - own->n_segments + i].conversion = own->segments[i].conversion;
    }
}
