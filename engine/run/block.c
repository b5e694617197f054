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
    for (; *format && n + 1 < bytes; format++) {
        if (*format == '[') {
            format = strchr(format, ']');
        } else if (format[0] == '%' && format[1] == 'd') {
            int more = format[2] == '+' ? format[3] - '0' : 0;
            n += (size_t)snprintf(out + n, bytes - n, "%d", number / step + more);
            number %= step;
            step /= BLOCK_NUMBER_STEP;
            format += more ? 3 : 1;
        } else if (*format != '?') {
            out[n++] = *format;
        }
    }
    out[n < bytes ? n : bytes - 1] = 0;
    return out;
}

/* Returns the weight's tensor name in the authors' checkpoints; NULL if there is none or the first name is
 * equal. */
static const char *other_checkpoint_name(const struct block_ref *ref, const struct weight_spec *spec) {
    bool same = spec->checkpoint_name && !ref->number_offset && spec->names[0] &&
                !strcmp(spec->checkpoint_name, spec->names[0]);
    return same ? NULL : spec->checkpoint_name;
}

const char *block_weight_pattern(const struct block_ref *ref, const struct weight_spec *spec, int i,
                                 int *number) {
    int n_names = 0;
    while (n_names < WEIGHT_NAMES_MAX && spec->names[n_names]) n_names++;
    *number = ref->number + (i < n_names ? 0 : ref->number_offset);
    if (i < n_names) return spec->names[i];
    return i == n_names ? other_checkpoint_name(ref, spec) : NULL;
}

struct weight_parts block_weight_parts(const struct weight_spec *spec, const char *pattern, int number,
                                       const int32_t *dims) {
    struct weight_parts parts = {.rows = dims[spec->dim[0]]};
    int taken[WEIGHT_SLICES_MAX], n_all;
    const char *at = strchr(pattern, '[');
    if (!at && spec->row_parts && dims[spec->row_parts] > 1) {
        int64_t rows = (int64_t)parts.rows * dims[spec->row_parts];
        parts.n = 1;
        parts.at[0].rows = parts.rows;
        parts.at[0].first = parts.rows * (number % dims[spec->row_parts]);
        parts.rows = rows > INT32_MAX ? -1 : (int32_t)rows;
    }
    if (!at) return parts;
    for (; *at != '/'; at += 2) taken[parts.n++] = at[1] - '0';
    n_all = at[1] - '0';
    int64_t above = 0;
    /* part_rows describes a name only if the listed rows of the weight's parts add up to its own rows. */
    int64_t listed_rows = 0;
    for (int i = 0; i < parts.n && spec->part_rows; i++) listed_rows += dims[spec->part_rows[taken[i]]];
    bool listed = spec->part_rows && listed_rows == dims[spec->dim[0]];
    for (int part = 0; part < n_all; part++) {
        int32_t rows = listed ? dims[spec->part_rows[part]] : dims[spec->dim[0]] / parts.n;
        for (int i = 0; i < parts.n; i++)
            if (taken[i] == part) parts.at[i].first = (int32_t)above, parts.at[i].rows = rows;
        above += rows;
        if (above > INT32_MAX) return (struct weight_parts){.n = parts.n, .rows = -1};
    }
    parts.rows = (int32_t)above;
    return parts;
}

/* Writes a weight's shape as stored in files, leaving out axes of size 1. Returns the rank. */
static int file_shape(const struct weight_spec *spec, const char *pattern, const int32_t *dims,
                      int32_t dim[WEIGHT_FILE_RANK_MAX]) {
    int n = 0;
    for (int i = 0; i < spec->rank; i++) {
        if (spec->slices && i == spec->rank - 2) dim[n++] = dims[spec->slices];
        dim[n++] = dims[spec->dim[i]] * (i == 1 && spec->input_parts ? spec->input_parts : 1);
    }
    dim[0] = block_weight_parts(spec, pattern, 0, dims).rows;
    return n;
}

int block_published_shape(const struct weight_spec *spec, const char *pattern, const int32_t *dims,
                          int32_t dim[WEIGHT_FILE_RANK_MAX]) {
    int n = spec->one_first;
    dim[0] = 1;
    n += file_shape(spec, pattern, dims, dim + n);
    for (int ones = spec->ones ? dims[spec->ones] : 0; ones > 0; ones--) dim[n++] = 1;
    return n;
}

/* Finds a weight's entry in the tensor index; sets *pattern to the name pattern that matched. */
static struct index_entry *find_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                       const struct tensor_index *index, const char **pattern) {
    char name[2 * BLOCK_NAME_MAX];
    struct index_entry *entry = NULL;
    for (int i = 0, number; !entry && (*pattern = block_weight_pattern(ref, spec, i, &number)); i++)
        entry = index_find(index, block_weight_name(*pattern, number, name));
    return entry;
}

struct index_entry *block_find_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                      const struct tensor_index *index) {
    const char *pattern;
    return find_weight(ref, spec, index, &pattern);
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
    /* A matrix of up to VECTORS_MOST rows is a table of vectors, such as a modulation. Tables that are no
     * layer's weight have up to PARAMETERS_MOST (scale_shift_table of LTX-2.3). */
    enum { SMALL_TENSOR_VALUES = 1024, VECTORS_MOST = 6, PARAMETERS_MOST = 9 };
    const int32_t *dim = entry->dim;
    size_t name_bytes = entry->name ? strlen(entry->name) : 0, end_bytes = strlen(".weight");
    bool of_layer =
        !entry->name || (name_bytes > end_bytes && !strcmp(entry->name + name_bytes - end_bytes, ".weight"));
    if (!dtype_is_weight(entry->dtype) || entry->rank != 2 ||
        dim[0] <= (of_layer ? VECTORS_MOST : PARAMETERS_MOST))
        return entry->dtype;
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

/* True if shapes are equal without axes of size 1. Reasons: a 1x1 convolution is a matrix; GGUF files omit
 * leading axes of size 1; kernels for single images may have a time axis of size 1. */
static bool same_shape(const struct index_entry *entry, int rank, const int32_t *dim) {
    int i = 0, k = 0;
    for (;; i++, k++) {
        while (i < entry->rank && entry->dim[i] == 1) i++;
        while (k < rank && dim[k] == 1) k++;
        if (i == entry->rank || k == rank) return i == entry->rank && k == rank;
        if (entry->dim[i] != dim[k]) return false;
    }
}

/* True if a convolution kernel's shape equals the file's, where the file merges the kernel's two outermost
 * axes. Axes of size 1 at either end are ignored. */
static bool same_merged_shape(const struct index_entry *entry, int rank, const int32_t *dim) {
    int32_t merged[WEIGHT_FILE_RANK_MAX];
    int64_t outer = (int64_t)dim[0] * dim[1];
    if (rank != WEIGHT_FILE_RANK_MAX || outer > INT32_MAX) return false;
    merged[0] = (int32_t)outer;
    memcpy(merged + 1, dim + 2, (size_t)(rank - 2) * sizeof *dim);
    return same_shape(entry, rank - 1, merged);
}

/* True if a weight's rows are whole quantisation blocks, or if blocks continue across the rows of a whole
 * matrix or convolution. Rows of such a matrix must be a multiple of 8 values, because operators read 8
 * values at a time. whole: the weight is a whole tensor, not some rows or slices. */
static bool fills_blocks(const struct index_entry *entry, bool whole, const struct block_kind *kind, int rank,
                         const int32_t *dim) {
    enum { EIGHT = 8 };
    int values = dtype_block_values(entry->dtype);
    int64_t all = 1;
    for (int i = 0; i < rank; i++) all *= dim[i];
    if (dim[rank - 1] % values == 0) return true;
    bool grouped = entry->scales.bytes || dtype_is_rotated(entry->dtype);
    bool alone = whole && !kind->embedding_table && !grouped;
    return alone && all % values == 0 && (rank == 4 || (rank == 2 && dim[1] % EIGHT == 0));
}

/* Checks shape and type of a tensor. Quantisation blocks must not cross parts of a vector or rows of an
 * embedding table; row scales need a matrix. fused, whole: the weight is some rows of the tensor, or all of
 * it. */
static enum status check_weight(const struct index_entry *entry, bool fused, bool whole,
                                const struct block *block, int rank, const int32_t *dim, struct error *e) {
    const char *path = block->index->sources[entry->source].path, *wanted = NULL;
    if (!same_shape(entry, rank, dim) && !same_merged_shape(entry, rank, dim)) {
        char found[128], expected[128];
        block_print_shape(entry->rank, entry->dim, found, sizeof found);
        block_print_shape(rank, dim, expected, sizeof expected);
        return error_set(e, SHAPE, "tensor '%s' has the wrong shape" WHERE "%s" FOUND "%s" EXPECTED "%s",
                         entry->name, path, found, expected);
    }
    if (!dtype_is_weight(entry->dtype))
        wanted = "F32, F16, BF16 or a quantised type";
    else if (!fills_blocks(entry, whole, block->kind, rank, dim) ||
             (fused && rank == 1 && dtype_block_values(entry->dtype) > 1))
        wanted = "rows that are a multiple of the type's block size";
    else if (entry->scales.bytes && rank != 2)
        wanted = "one scale for the whole tensor";
    else if ((dtype_tiled_values(entry->dtype) || entry->scales.n > 1) && block->kind->embedding_table)
        wanted = "a type whose rows can be read separately";
    if (!wanted) return OK;
    return error_set(e, UNSUPPORTED,
                     "tensor '%s' has an unsupported element type" WHERE "%s" FOUND "%s" EXPECTED "%s",
                     entry->name, path, index_type_name(entry), wanted);
}

static bool is_fused(const char *pattern) {
    return strchr(pattern, '[') != NULL;
}

/* Returns the tensor name to report for a missing weight, among its names that are no part of a fused tensor:
 * the first name whose text before the block number occurs in the file, else the first name. */
static const char *missing_pattern(const struct weight_spec *spec, const struct tensor_index *index) {
    const char *first = NULL;
    for (int i = 0; i < WEIGHT_NAMES_MAX && spec->names[i]; i++) {
        if (is_fused(spec->names[i])) continue;
        if (!first) first = spec->names[i];
        for (int k = 0; k < index->n_entries; k++)
            if (!strncmp(index_name(index, &index->entries[k]), spec->names[i], strcspn(spec->names[i], "%")))
                return spec->names[i];
    }
    return first ? first : spec->checkpoint_name;
}

char *block_missing_name(const struct block_ref *ref, const struct weight_spec *spec,
                         const struct tensor_index *index, char *out) {
    return block_weight_name(missing_pattern(spec, index), ref->number, out);
}

static enum status missing_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                  const struct tensor_index *index, struct error *e) {
    const char *reported = missing_pattern(spec, index), *other = other_checkpoint_name(ref, spec);
    char name[2 * BLOCK_NAME_MAX];
    error_set(e, MISSING, "tensor '%s%s' is missing" WHERE "%s", index_prefix(index),
              block_weight_name(reported, ref->number, name),
              index->n_sources ? index->sources[0].path : "no file");
    if (!other || other == reported) other = is_fused(spec->names[0]) ? spec->names[0] : NULL;
    if (!other) return e->code;
    return error_expected(e, "that tensor, or '%s%s'", index_prefix(index),
                          block_weight_name(other, ref->number + ref->number_offset, name));
}

static struct packed_segment *add_segment(struct block *block, const struct byte_source *source,
                                          uint64_t file_offset, uint64_t bytes) {
    struct packed_segment *segment = &block->segments[block->n_segments++];
    *segment = (struct packed_segment){
        .source = source, .file_offset = file_offset, .packed_offset = block->bytes, .bytes = bytes};
    block->bytes += bytes;
    return segment;
}

/* Bytes of the given number of rows of a tensor; each value of a vector is a row. */
static uint64_t rows_bytes(const struct tensor *shape, int32_t rows) {
    if (rows == shape->dim[0]) return (uint64_t)tensor_bytes(shape);
    if (shape->rank == 1) return (uint64_t)dtype_bytes(shape->dtype, rows);
    return (uint64_t)(tensor_bytes(shape) / shape->dim[0] * rows);
}

/* Appends one section of a weight's scales: all of it, or the scales of the parts' rows. section->rows is 128
 * for tiles. Only the first part of a weight may start within a tile, and only the last may end in one. */
static enum status lay_out_section(struct block *block, const struct index_entry *entry,
                                   const struct scale_section *section, const struct weight_parts *parts,
                                   struct error *e) {
    const struct byte_source *source = &block->index->sources[section->source];
    int32_t step = section->rows;
    if (!step) {
        add_segment(block, source, section->offset, section->bytes);
        return OK;
    }
    int32_t all = (entry->dim[0] + step - 1) / step;
    uint64_t step_bytes = section->bytes / (uint64_t)all;
    for (int i = 0; i < parts->n; i++) {
        int32_t first = parts->at[i].first, end = first + parts->at[i].rows;
        int32_t from = first / step, to = (end + step - 1) / step;
        if ((i > 0 && first % step) || (i + 1 < parts->n && end % step))
            return error_set(e, UNSUPPORTED,
                             "fused tensor '%s' is split at a row where its scales cannot be split" WHERE
                             "%s" FOUND "rows %" PRId32 " to %" PRId32 EXPECTED "multiples of %d rows",
                             entry->name, block->index->sources[entry->source].path, first, end, (int)step);
        add_segment(block, source, section->offset + (uint64_t)from * step_bytes,
                    (uint64_t)(to - from) * step_bytes);
    }
    return OK;
}

/* Appends a weight's scales, which lie in other tensors, after its values. */
static enum status lay_out_scales(struct block *block, const struct index_entry *entry,
                                  const struct weight_parts *parts, struct packed_tensor *t,
                                  struct error *e) {
    t->scales_offset = block->bytes;
    for (int i = 0; i < entry->scales.n; i++) {
        const struct scale_section *section = &entry->scales.section[i];
        if (section->rows) t->shape.scale_row = parts->at[0].first % section->rows;
        if (lay_out_section(block, entry, section, parts, e) != OK) return e->code;
    }
    block->bytes = align_up(block->bytes, ARENA_ALIGN);
    return OK;
}

/* Largest number of row ranges of a fused tensor that a weight consists of, under any of the weight's names.
 * Each range has a segment of values and one for each section of scales. */
static int most_parts(const struct block_ref *ref, const struct weight_spec *spec) {
    const char *pattern;
    int most = 1;
    for (int i = 0, number; (pattern = block_weight_pattern(ref, spec, i, &number)); i++) {
        const char *at = strchr(pattern, '[');
        for (int n = 0; at && *at != '/'; at += 2)
            if (++n > most) most = n;
    }
    return most;
}

static enum status begin_block(struct sys *sys, struct block *block, int n_segments, struct error *e) {
    block->segments = sys->alloc(sys, LINE_HOST, (size_t)n_segments * sizeof *block->segments);
    return block->segments ? OK : error_set(e, MEMORY, "no memory for the layout of block '%s'", block->name);
}

enum status block_bind(struct sys *sys, const struct block_ref *ref, const struct tensor_index *index,
                       const int32_t *dims, struct block *block, struct error *e) {
    const struct block_kind *kind = ref->kind;
    char name[2 * BLOCK_NAME_MAX];
    *block = (struct block){.kind = kind, .number = ref->number, .index = index};
    snprintf(block->name, sizeof block->name, "%.*s", BLOCK_NAME_MAX - 1,
             block_weight_name(kind->format, ref->number, name));
    int n_segments = 1;
    for (int i = 0; i < kind->n_weights; i++)
        if (block_has_weight(&kind->weights[i], dims))
            n_segments += (1 + SCALE_SECTIONS_MAX) * most_parts(ref, &kind->weights[i]);
    if (begin_block(sys, block, n_segments, e) != OK) return e->code;
    for (const struct weight_spec *spec = kind->weights; spec < kind->weights + kind->n_weights; spec++) {
        const char *pattern;
        if (!block_has_weight(spec, dims)) continue;
        struct index_entry *entry = find_weight(ref, spec, index, &pattern);
        if (!entry && weight_is_optional(spec)) continue;
        if (!entry) return missing_weight(ref, spec, index, e);

        /* The weight is a whole tensor, some rows of a fused tensor, or part of a convolution kernel: one
         * time slice, or some input channels. */
        struct weight_parts parts = block_weight_parts(spec, pattern, ref->number, dims);
        bool fused = parts.n > 0;
        int32_t n_slices = spec->slices ? dims[spec->slices] : spec->input_parts ? spec->input_parts : 1;
        int32_t slice = spec->input_parts ? spec->input_part : n_slices - 1 - spec->before_last;
        int axis = spec->input_parts ? 1 : spec->rank - 2;
        int32_t dim[WEIGHT_RANK_MAX], whole[WEIGHT_FILE_RANK_MAX];
        int rank = file_shape(spec, pattern, dims, whole);
        if (spec->flat && entry->rank == 1 && (int64_t)whole[0] * whole[1] == entry->dim[0])
            rank = 1, whole[0] = entry->dim[0];
        if (check_weight(entry, fused, !fused && n_slices == 1, block, rank, whole, e) != OK) return e->code;
        for (int i = 0; i < spec->rank; i++) dim[i] = dims[spec->dim[i]];
        if (!fused) parts.n = 1, parts.at[0].first = 0, parts.at[0].rows = dim[0];

        struct packed_tensor *t = &block->tensors[block->n_tensors++];
        *t = (struct packed_tensor){.offset = spec->offset,
                                    .packed_offset = block->bytes,
                                    .entry = entry,
                                    .shape = tensor_make(NULL, entry->dtype, spec->rank, dim)};
        t->shape.scale = entry->scale;
        entry->used = true;
        int64_t run = 1; /* values of a slice that are contiguous in the file */
        for (int i = axis; i >= 0 && i < spec->rank; i++) run *= dim[i];
        uint64_t run_bytes = (uint64_t)dtype_bytes(entry->dtype, run);
        for (int i = 0; i < parts.n; i++) {
            uint64_t first = rows_bytes(&t->shape, parts.at[i].first) * (uint64_t)n_slices;
            struct packed_segment *segment =
                add_segment(block, &index->sources[entry->source], entry->offset + first,
                            rows_bytes(&t->shape, parts.at[i].rows));
            if (n_slices == 1) continue;
            segment->run = run_bytes;
            segment->stride = run_bytes * (uint64_t)n_slices;
            segment->file_offset += run_bytes * (uint64_t)slice;
        }
        block->bytes = align_up(block->bytes, ARENA_ALIGN);
        if (entry->scales.bytes && lay_out_scales(block, entry, &parts, t, e) != OK) return e->code;
    }
    return OK;
}

/* Number of leading token ids that are consecutive numbers, so that their embedding rows are read as one
 * range. */
static int run_of(const int32_t *ids, int n) {
    int run = 1;
    while (run < n && ids[run] == ids[0] + run) run++;
    return run;
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
    int n_segments = 0;
    for (int i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= whole->shape.dim[0])
            return error_set(e, SHAPE,
                             "token id outside of embedding table '%s'" WHERE "%s" FOUND
                             "id %" PRId32 EXPECTED "an id below %" PRId32,
                             table->name, table->segments[0].source->path, ids[i], whole->shape.dim[0]);
        bool continues = i && ids[i] == ids[i - 1] + 1;
        if (!continues) n_segments += whole->scales_offset ? 2 : 1;
    }
    if (begin_block(sys, rows, n_segments, e) != OK) return e->code;
    rows->tensors[0] = *whole;
    rows->tensors[0].shape.dim[0] = n_ids;
    gather_segments(rows, &table->segments[0], ids, n_ids, (uint64_t)whole->shape.row_bytes);
    if (!whole->scales_offset) return OK;
    rows->tensors[0].scales_offset = rows->bytes;
    gather_segments(rows, &table->segments[1], ids, n_ids, sizeof(float));
    return OK;
}

/* Bytes of a block's weights structure (one struct tensor per weight), before its low-rank descriptors. */
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
