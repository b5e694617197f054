/* Binds weight tables to checkpoints and lays out packed blocks: implements block.h. */
#include "engine/run/block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

char *block_weight_name(const char *format, int number, char *out) {
    size_t bytes = 2 * BLOCK_NAME_MAX, n = 0;
    int step = 1;
    number %= BLOCK_ROW_STEP;
    for (const char *at = format; (at = strstr(at, "%d")) != NULL; at += 2)
        if (at != strstr(format, "%d")) step *= BLOCK_NUMBER_STEP;
    for (const char *at; (at = strstr(format, "%d")) != NULL && n < bytes; format = at + 2) {
        n += (size_t)snprintf(out + n, bytes - n, "%.*s%d", (int)(at - format), format, number / step);
        number %= step;
        step /= BLOCK_NUMBER_STEP;
    }
    if (n < bytes) snprintf(out + n, bytes - n, "%s", format);
    return out;
}

/* Location of a weight in a checkpoint: a whole tensor, or a part: some rows, a time slice of a kernel, or a
 * range of inputs. */
struct place {
    struct index_entry *entry;
    const struct weight_slice *slice; /* set if the weight is part of a fused tensor; NULL: all rows */
    int32_t slices;                   /* number of time slices or input parts; 1: not sliced */
    int32_t at;                       /* index of the time slice or input part */
    int axis;                         /* axis of the weight at which a time slice or input part starts */
};

int block_file_shape(const struct weight_spec *spec, const int32_t *dims, int32_t dim[WEIGHT_FILE_RANK_MAX]) {
    int n = 0;
    for (int i = 0; i < spec->rank; i++) {
        if (spec->slices && i == spec->rank - 2) dim[n++] = dims[spec->slices];
        dim[n++] = dims[spec->dim[i]] * (i == 1 && spec->input_parts ? spec->input_parts : 1);
    }
    return n;
}

struct weight_spec block_published_weight(const struct weight_spec *spec) {
    struct weight_spec published = *spec;
    if (!spec->fused.all) return published;
    published.names[0] = spec->fused.name;
    published.dim[0] = spec->fused.all;
    return published;
}

int block_published_shape(const struct weight_spec *spec, const int32_t *dims,
                          int32_t dim[WEIGHT_FILE_RANK_MAX]) {
    int n = spec->one_first;
    dim[0] = 1;
    n += block_file_shape(spec, dims, dim + n);
    for (int ones = spec->ones ? dims[spec->ones] : 0; ones > 0; ones--) dim[n++] = 1;
    return n;
}

static struct place block_find_place(const struct block_ref *ref, const struct weight_spec *spec,
                                     const struct tensor_index *index) {
    char name[2 * BLOCK_NAME_MAX];
    struct place place = {.slices = 1};
    int checkpoint_number = ref->number + ref->number_offset;
    for (int i = 0; i < WEIGHT_NAMES_MAX && spec->names[i] && !place.entry; i++)
        place.entry = index_find(index, block_weight_name(spec->names[i], ref->number, name));
    if (!place.entry && spec->checkpoint_name)
        place.entry = index_find(index, block_weight_name(spec->checkpoint_name, checkpoint_number, name));
    if (!place.entry && spec->fused.name) {
        place.entry = index_find(index, block_weight_name(spec->fused.name, checkpoint_number, name));
        place.slice = &spec->fused;
    }
    return place;
}

struct index_entry *block_find_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                      const struct tensor_index *index) {
    return block_find_place(ref, spec, index).entry;
}

/* Replaces a quantised type by a type with smaller blocks and no less accuracy: blocks of 32 values instead
 * of 256, or smaller rotation groups. Other types stay. */
static enum dtype in_smaller_blocks(enum dtype dtype) {
    if (dtype == DTYPE_I8_ROT256) return DTYPE_I8_ROT64;
    if (dtype == DTYPE_I8_ROT64) return DTYPE_I8_ROT16;
    if (dtype_block_values(dtype) != 256) return dtype;
    return dtype == DTYPE_Q4_K ? DTYPE_Q5_0 : DTYPE_Q8_0;
}

enum dtype block_stored_type(const struct block_kind *kind, const struct index_entry *entry,
                             enum dtype wanted) {
    enum { SMALL_TENSOR_VALUES = 1024 };
    const int32_t *dim = entry->dim;
    if (!dtype_is_weight(entry->dtype) || entry->rank != 2 || dim[0] == 1) return entry->dtype;
    if (dim[1] % dtype_block_values(entry->dtype)) return entry->dtype;
    if (kind && (kind->never_quantised || kind->embedding_table)) return entry->dtype;
    if ((int64_t)dim[0] * dim[1] <= SMALL_TENSOR_VALUES) return entry->dtype;
    while (dim[1] % dtype_block_values(wanted) && in_smaller_blocks(wanted) != wanted)
        wanted = in_smaller_blocks(wanted);
    return dim[1] % dtype_block_values(wanted) ? entry->dtype : wanted;
}

void block_print_shape(int rank, const int32_t *dim, char *out, size_t bytes) {
    size_t n = (size_t)snprintf(out, bytes, "[");
    for (int i = 0; i < rank && n < bytes; i++)
        n += (size_t)snprintf(out + n, bytes - n, i ? ", %" PRId32 : "%" PRId32, dim[i]);
    if (n < bytes) snprintf(out + n, bytes - n, "]");
}

/* True if shapes are equal without leading and trailing axes of size 1: a 1x1 convolution is a matrix, and
 * GGUF files omit leading axes of size 1. */
static bool same_shape(const struct index_entry *entry, int rank, const int32_t *dim) {
    int from = 0, to = entry->rank;
    for (; rank > entry->rank && dim[0] == 1; rank--) dim++;
    while (to - from > rank && entry->dim[to - 1] == 1) to--;
    while (to - from > rank && entry->dim[from] == 1) from++;
    if (to - from != rank) return false;
    for (int i = 0; i < rank; i++)
        if (entry->dim[from + i] != dim[i]) return false;
    return true;
}

/* Compares shapes like same_shape, for the kernel of a 3D convolution whose two outermost axes the file
 * merges. */
static bool same_merged_shape(const struct index_entry *entry, int rank, const int32_t *dim) {
    int32_t merged[WEIGHT_FILE_RANK_MAX];
    int64_t outer = (int64_t)dim[0] * dim[1];
    if (rank != WEIGHT_FILE_RANK_MAX || outer > INT32_MAX) return false;
    merged[0] = (int32_t)outer;
    memcpy(merged + 1, dim + 2, (size_t)(rank - 2) * sizeof *dim);
    return same_shape(entry, rank - 1, merged);
}

/* True if rows are whole quantisation blocks, or if blocks continue across the rows of a whole matrix or
 * convolution. Rows of such a matrix must be a multiple of 8 values, because operators read 8 values at a
 * time. */
static bool fills_blocks(const struct place *place, const struct block_kind *kind, int rank,
                         const int32_t *dim) {
    enum { EIGHT = 8 };
    const struct index_entry *entry = place->entry;
    int values = dtype_block_values(entry->dtype);
    int64_t all = 1;
    for (int i = 0; i < rank; i++) all *= dim[i];
    if (dim[rank - 1] % values == 0) return true;
    bool grouped = entry->scales.bytes || dtype_is_rotated(entry->dtype);
    bool alone = !place->slice && place->slices == 1 && !kind->embedding_table && !grouped;
    return alone && all % values == 0 && (rank == 4 || (rank == 2 && dim[1] % EIGHT == 0));
}

/* Returns NULL if the tensor's type can be used, else the expected type for the error. Quantisation blocks
 * must not cross parts of a vector or rows of an embedding table; row scales need a matrix. */
static const char *wanted_type(const struct place *place, const struct block_kind *kind, int rank,
                               const int32_t *dim) {
    const struct index_entry *entry = place->entry;
    int values = dtype_block_values(entry->dtype);
    if (!dtype_is_weight(entry->dtype)) return "F32, F16, BF16 or a quantised type";
    if (!fills_blocks(place, kind, rank, dim) || (place->slice && rank == 1 && values > 1))
        return "rows that are a multiple of the type's block size";
    if (entry->scales.bytes && rank != 2) return "one scale for the whole tensor";
    if (dtype_tiled_values(entry->dtype) && kind->embedding_table)
        return "a type whose rows can be read separately";
    return NULL;
}

static enum status check_weight(const struct place *place, const struct block *block, int rank,
                                const int32_t *dim, struct error *e) {
    const struct index_entry *entry = place->entry;
    const char *path = block->index->sources[entry->source].path;
    const char *wanted = NULL;
    char found[128], expected[128];
    if (!same_shape(entry, rank, dim) && !same_merged_shape(entry, rank, dim)) {
        block_print_shape(entry->rank, entry->dim, found, sizeof found);
        block_print_shape(rank, dim, expected, sizeof expected);
        error_set(e, SHAPE, "tensor '%s' has the wrong shape", entry->name);
    } else if ((wanted = wanted_type(place, block->kind, rank, dim))) {
        error_set(e, UNSUPPORTED, "tensor '%s' has an unsupported element type", entry->name);
        snprintf(found, sizeof found, "%s", index_type_name(entry));
        snprintf(expected, sizeof expected, "%s", wanted);
    } else {
        return OK;
    }
    error_where(e, "%s", path);
    error_found(e, "%s", found);
    return error_expected(e, "%s", expected);
}

/* Returns the alternative name of a weight that suits the file: some tensor of the file has the same text
 * before the block number. */
static const char *name_in_style(const struct weight_spec *spec, const struct tensor_index *index) {
    for (int i = 0; i < WEIGHT_NAMES_MAX && spec->names[i]; i++)
        for (int k = 0; k < index->n_entries; k++) {
            const char *name = index_name(index, &index->entries[k]);
            if (!strncmp(name, spec->names[i], strcspn(spec->names[i], "%"))) return spec->names[i];
        }
    return spec->names[0];
}

char *block_missing_name(const struct block_ref *ref, const struct weight_spec *spec,
                         const struct tensor_index *index, char *out) {
    return block_weight_name(name_in_style(spec, index), ref->number, out);
}

static enum status missing_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                  const struct tensor_index *index, struct error *e) {
    const char *other = spec->checkpoint_name ? spec->checkpoint_name : spec->fused.name;
    char name[2 * BLOCK_NAME_MAX];
    error_set(e, MISSING, "tensor '%s%s' is missing" WHERE "%s", index_prefix(index),
              block_missing_name(ref, spec, index, name),
              index->n_sources ? index->sources[0].path : "no file");
    if (!other) return e->code;
    return error_expected(e, "that tensor, or '%s%s'", index_prefix(index),
                          block_weight_name(other, ref->number + ref->number_offset, name));
}

/* Rows of a fused tensor before part number `part`; -1 on overflow, which matches no shape. */
static int32_t rows_above(const struct weight_slice *slice, const int32_t *dims, int part) {
    int64_t rows = 0;
    for (int i = 0; i < part; i++) rows += dims[slice->rows[i]];
    return rows <= INT32_MAX ? (int32_t)rows : -1;
}

static const struct byte_source *source_of(const struct block *block, int source) {
    return &block->index->sources[source];
}

static struct packed_segment *add_segment(struct block *block, const struct byte_source *source,
                                          uint64_t file_offset, uint64_t bytes) {
    struct packed_segment *segment = &block->segments[block->n_segments++];
    *segment = (struct packed_segment){
        .source = source, .file_offset = file_offset, .packed_offset = block->bytes, .bytes = bytes};
    block->bytes += bytes;
    return segment;
}

/* A range of rows of a tensor in a file; one or more ranges make up a weight. */
struct row_part {
    int32_t first, rows;
};

static int row_parts(const struct place *place, const int32_t *dims, int32_t all,
                     struct row_part parts[WEIGHT_SLICES_MAX]) {
    const struct weight_slice *slice = place->slice;
    if (!slice) {
        parts[0] = (struct row_part){0, all};
        return 1;
    }
    for (int i = 0; i < slice->n_taken; i++)
        parts[i] =
            (struct row_part){rows_above(slice, dims, slice->taken[i]), dims[slice->rows[slice->taken[i]]]};
    return slice->n_taken;
}

/* Bytes of the given number of rows of a tensor; each value of a vector is a row. */
static uint64_t rows_bytes(const struct tensor *shape, int32_t rows) {
    if (rows == shape->dim[0]) return (uint64_t)tensor_bytes(shape);
    if (shape->rank == 1) return (uint64_t)dtype_bytes(shape->dtype, rows);
    return (uint64_t)(tensor_bytes(shape) / shape->dim[0] * rows);
}

/* Appends a weight's scales, which lie in another tensor, after its values. A tile of scales covers 128 rows.
 * Only the first part of a weight may start within a tile, and only the last may end within one. */
static enum status lay_out_scales(struct block *block, const struct index_entry *entry,
                                  const struct row_part *parts, int n, struct packed_tensor *t,
                                  struct error *e) {
    enum { TILE_ROWS = 128 };
    bool tiled = dtype_tiled_values(entry->dtype) > 0;
    int32_t step = tiled ? TILE_ROWS : 1, all = (entry->dim[0] + step - 1) / step;
    uint64_t step_bytes = entry->scales.bytes / (uint64_t)all;
    t->scales_offset = block->bytes;
    t->shape.scale_row = parts[0].first % step;
    for (int i = 0; i < n; i++) {
        int32_t from = parts[i].first / step, to = (parts[i].first + parts[i].rows + step - 1) / step;
        if ((i > 0 && parts[i].first % step) || (i + 1 < n && (parts[i].first + parts[i].rows) % step)) {
            return error_set(e, UNSUPPORTED,
                             "fused tensor '%s' is split at a row where its scales cannot be split" WHERE
                             "%s" FOUND "rows %" PRId32 " to %" PRId32 EXPECTED "multiples of %d rows",
                             entry->name, block->index->sources[entry->source].path, parts[i].first,
                             parts[i].first + parts[i].rows, TILE_ROWS);
        }
        add_segment(block, source_of(block, entry->scales.source),
                    entry->scales.offset + (uint64_t)from * step_bytes, (uint64_t)(to - from) * step_bytes);
    }
    block->bytes = align_up(block->bytes, ARENA_ALIGN);
    return OK;
}

/* Appends a weight's rows, contiguous in the file or interleaved with other slices of the kernels. */
static void add_rows(struct block *block, const struct place *place, const struct tensor *shape,
                     struct row_part part) {
    const struct index_entry *entry = place->entry;
    uint64_t slices = (uint64_t)place->slices, first = rows_bytes(shape, part.first) * slices;
    struct packed_segment *segment = add_segment(block, source_of(block, entry->source),
                                                 entry->offset + first, rows_bytes(shape, part.rows));
    if (slices == 1) return;
    int64_t run = 1;
    for (int i = place->axis; i < shape->rank; i++) run *= shape->dim[i];
    segment->run = (uint64_t)dtype_bytes(shape->dtype, run);
    segment->stride = segment->run * slices;
    segment->file_offset += segment->run * (uint64_t)place->at;
}

static enum status lay_out_weight(struct block *block, const struct place *place, const int32_t *dims,
                                  struct packed_tensor *t, struct error *e) {
    const struct index_entry *entry = place->entry;
    struct row_part parts[WEIGHT_SLICES_MAX];
    int n = row_parts(place, dims, t->shape.dim[0], parts);
    t->packed_offset = block->bytes;
    for (int i = 0; i < n; i++) add_rows(block, place, &t->shape, parts[i]);
    block->bytes = align_up(block->bytes, ARENA_ALIGN);
    return entry->scales.bytes ? lay_out_scales(block, entry, parts, n, t, e) : OK;
}

static enum status bind_weight(struct block *block, const struct block_ref *ref,
                               const struct weight_spec *spec, const int32_t *dims, struct error *e) {
    struct place place = block_find_place(ref, spec, block->index);
    if (!place.entry) return spec->optional ? OK : missing_weight(ref, spec, block->index, e);
    int32_t dim[WEIGHT_RANK_MAX], whole[WEIGHT_FILE_RANK_MAX];
    int rank = block_file_shape(spec, dims, whole);
    for (int i = 0; i < spec->rank; i++) dim[i] = dims[spec->dim[i]];
    if (spec->slices) place.slices = dims[spec->slices];
    place.axis = spec->rank - 2;
    place.at = place.slices - 1 - spec->before_last;
    if (spec->input_parts)
        place = (struct place){place.entry, place.slice, spec->input_parts, spec->input_part, 1};
    if (place.slice) whole[0] = rows_above(place.slice, dims, place.slice->n_parts);
    if (check_weight(&place, block, rank, whole, e) != OK) return e->code;
    struct packed_tensor *t = &block->tensors[block->n_tensors++];
    *t = (struct packed_tensor){.offset = spec->offset,
                                .entry = place.entry,
                                .shape = tensor_make(NULL, place.entry->dtype, spec->rank, dim)};
    t->shape.scale = place.entry->scale;
    place.entry->used = true;
    return lay_out_weight(block, &place, dims, t, e);
}

/* Upper bound of the number of segments of a block of this kind. */
static int segments_most(const struct block_kind *kind) {
    int n = 1;
    for (int i = 0; i < kind->n_weights; i++) {
        int parts = kind->weights[i].fused.n_taken;
        n += 2 * (parts > 1 ? parts : 1); /* each part has a segment of values and one of scales */
    }
    return n;
}

static enum status begin_block(struct sys *sys, struct block *block, int n_segments, struct error *e) {
    block->segments = sys->alloc(sys, LINE_HOST, (size_t)n_segments * sizeof *block->segments);
    return block->segments ? OK : error_set(e, MEMORY, "no memory for the layout of block '%s'", block->name);
}

enum status block_bind(struct sys *sys, const struct block_ref *ref, const struct tensor_index *index,
                       const int32_t *dims, struct block *block, struct error *e) {
    const struct block_kind *kind = ref->kind;
    *block = (struct block){.kind = kind, .number = ref->number, .index = index};
    char name[2 * BLOCK_NAME_MAX];
    snprintf(block->name, sizeof block->name, "%.*s", BLOCK_NAME_MAX - 1,
             block_weight_name(kind->format, ref->number, name));
    if (begin_block(sys, block, segments_most(kind), e) != OK) return e->code;
    for (int i = 0; i < kind->n_weights; i++)
        if (block_has_weight(&kind->weights[i], dims) &&
            bind_weight(block, ref, &kind->weights[i], dims, e) != OK)
            return e->code;
    return OK;
}

static enum status check_id(const struct block *table, int32_t id, struct error *e) {
    int32_t rows = table->tensors[0].shape.dim[0];
    if (id >= 0 && id < rows) return OK;
    return error_set(e, SHAPE,
                     "token id outside of embedding table '%s'" WHERE "%s" FOUND "id %" PRId32 EXPECTED
                     "an id below %" PRId32,
                     table->name, table->segments[0].source->path, id, rows);
}

/* Number of leading token ids that are consecutive numbers, so that their embedding rows are read as one
 * range. */
static int run_of(const int32_t *ids, int n) {
    int run = 1;
    while (run < n && ids[run] == ids[0] + run) run++;
    return run;
}

static int count_runs(const int32_t *ids, int n) {
    int runs = 0;
    for (int i = 0; i < n; i += run_of(ids + i, n - i)) runs++;
    return runs;
}

/* Appends selected rows of an embedding table's segment to a block. row_bytes: bytes of one row. */
static void gather_segments(struct block *rows, const struct packed_segment *from, const int32_t *ids, int n,
                            uint64_t row_bytes) {
    for (int i = 0, run; i < n; i += run) {
        run = run_of(ids + i, n - i);
        add_segment(rows, from->source, from->file_offset + (uint64_t)ids[i] * row_bytes,
                    (uint64_t)run * row_bytes);
    }
    rows->bytes = align_up(rows->bytes, ARENA_ALIGN);
}

enum status block_gather_rows(struct sys *sys, const struct block *table, const int32_t *ids, int n_ids,
                              struct block *rows, struct error *e) {
    const struct packed_tensor *whole = &table->tensors[0];
    *rows =
        (struct block){.kind = table->kind, .number = table->number, .index = table->index, .n_tensors = 1};
    snprintf(rows->name, sizeof rows->name, "%s", table->name);
    for (int i = 0; i < n_ids; i++)
        if (check_id(table, ids[i], e) != OK) return e->code;
    int n_segments = count_runs(ids, n_ids) * (whole->scales_offset ? 2 : 1);
    if (begin_block(sys, rows, n_segments, e) != OK) return e->code;
    rows->tensors[0] = *whole;
    rows->tensors[0].shape.dim[0] = n_ids;
    gather_segments(rows, &table->segments[0], ids, n_ids, (uint64_t)whole->shape.row_bytes);
    if (!whole->scales_offset) return OK;
    rows->tensors[0].scales_offset = rows->bytes;
    gather_segments(rows, &table->segments[1], ids, n_ids, sizeof(float));
    return OK;
}

/* Bytes of the weights structure (a struct tensor per weight); the low-rank descriptors follow. */
static size_t structure_bytes(const struct block *block) {
    return (size_t)align_up(block->kind->weights_bytes, _Alignof(struct low_rank));
}

size_t block_weights_bytes(const struct block *block) {
    return structure_bytes(block) + (size_t)block->n_adapters * sizeof(struct low_rank);
}

static struct tensor factor_at(const struct block *block, const struct packed_place *place,
                               const struct tensor *shape, uint64_t offset) {
    struct tensor t = *shape;
    t.data = packed_byte(block, place, offset);
    t.weight_end = offset + (uint64_t)tensor_bytes(&t);
    return t;
}

/* Fills each struct low_rank of a block, last adapter first, so that a weight's chain lists the adapters in
 * the order of the block. */
static void point_adapters(const struct block *block, const struct packed_place *place, char *weights) {
    struct low_rank *nodes = (struct low_rank *)(weights + structure_bytes(block));
    for (int i = block->n_adapters - 1; i >= 0; i--) {
        const struct packed_adapter *a = &block->adapters[i];
        struct tensor *weight = (struct tensor *)(weights + a->offset);
        nodes[i] = (struct low_rank){.down = factor_at(block, place, &a->down, a->down_offset),
                                     .up = factor_at(block, place, &a->up, a->up_offset),
                                     .row = a->row,
                                     .next = weight->adapters};
        weight->adapters = &nodes[i];
    }
}

void block_point(const struct block *block, struct packed_place place, void *weights) {
    memset(weights, 0, block->kind->weights_bytes);
    for (int i = 0; i < block->n_tensors; i++) {
        const struct packed_tensor *t = &block->tensors[i];
        struct tensor *tensor = (struct tensor *)((char *)weights + t->offset);
        *tensor = t->shape;
        tensor->data = packed_byte(block, &place, t->packed_offset);
        tensor->scales = t->scales_offset ? packed_byte(block, &place, t->scales_offset) : NULL;
        tensor->weight_end = t->packed_offset + (uint64_t)tensor_bytes(tensor);
        if (tensor->scales) tensor->weight_end = t->scales_offset + (uint64_t)tensor_scales_bytes(tensor);
    }
    point_adapters(block, &place, weights);
}

void block_destroy(struct sys *sys, struct block *block) {
    sys->release(sys, block->segments);
    sys->release(sys, block->adapters);
    *block = (struct block){0};
}

uint64_t block_layout_bytes(const struct block *block) {
    return (uint64_t)block->n_segments * sizeof *block->segments +
           (uint64_t)block->n_adapters * sizeof *block->adapters;
}
