/* Blocks: the unit that is streamed. A block kind is a weight table plus a forward function. The table
 * determines binding to a checkpoint, shape checks, layout, listings and synthetic checkpoints. A packed
 * block holds the block's tensors at 256-byte-aligned offsets, which depend only on the table and on each
 * tensor's stored type. */
#ifndef SLUICE_RUN_BLOCK_H
#define SLUICE_RUN_BLOCK_H

#include "engine/base/index.h"
#include "engine/run/weights.h"

enum { BLOCK_WEIGHTS_MAX = 40, BLOCK_NAME_MAX = 64 };

/* Initialises a block kind from a weight table and its weights structure. More initialisers may follow as
 * arguments. */
#define BLOCK_KIND(name_, format_, table, structure, ...)                                                    \
    {                                                                                                        \
        .name = name_, .format = format_, .weights = table, .n_weights = COUNT_OF(table),                    \
        .weights_bytes = sizeof(struct structure), .forward = __VA_ARGS__                                    \
    }

/* Defines a block kind; BLOCK_OF_LIST also defines its weight table kind_table (see weights.h). */
#define BLOCK(kind, ...) static const struct block_kind kind = BLOCK_KIND(__VA_ARGS__)
#define BLOCK_OF_LIST(kind, name, format, LIST, structure, P, C, ...)                                        \
    WEIGHT_TABLE(kind##_table, LIST, structure, P, C);                                                       \
    BLOCK(kind, name, format, kind##_table, structure, __VA_ARGS__)

struct visit_scope;

/* How often a block is computed during a run. */
enum update_rate {
    UPDATE_PER_EVALUATION,
    UPDATE_PER_PROMPT, /* once per prompt, before the first evaluation; all lanes of the prompt share the
                          result */
    /* Blocks whose result rows depend on the timestep alone (shared by all lanes), or on timestep and prompt.
       With hoisting, one visit before the first evaluation computes the rows of all evaluations, so the
       weights are read once. Without hoisting each evaluation computes its own row. A row has the same bits
       either way, because its products use op_linear_few. */
    UPDATE_PER_TIMESTEP,
    UPDATE_PER_TIMESTEP_AND_PROMPT,
};

struct block_kind {
    const char *name;   /* name of the block kind in the singular, such as "layer" */
    const char *format; /* format of block names with %d for the number, such as "layers.%d" */
    const struct weight_spec *weights;
    int n_weights;
    size_t weights_bytes;
    bool embedding_table; /* the block is an embedding table: only requested rows are read, see
                             family_blocks.rows */
    /* Quantisation does not change the weights of this kind: used for VAEs and for small weights that affect
     * the whole result (embedders, final layers). Embedding tables are never quantised either. */
    bool never_quantised;
    bool skippable;   /* skip-layer guidance may skip the block: its input passes unchanged */
    bool perturbable; /* spatio-temporal guidance may perturb its self-attention (lane.stg_blocks) */
    enum update_rate update_rate;
    /* Forward function: computes one visit for one lane. weights: the weights structure, pointing into the
     * packed block. Must not read tensor values: a dry run has none. */
    void (*forward)(struct context *x, const void *weights, const struct visit_scope *scope);
};

/* Returns the precision of a block's products in a stage of precision `asked`. int8 quantises weights, so
 * never_quantised kinds use the device's default precision instead. */
static inline enum precision block_precision(const struct block_kind *kind, enum precision asked,
                                             const struct device *device) {
    return asked == PRECISION_INT8 && kind->never_quantised ? device_default_precision(device) : asked;
}

/* True if results of this block kind can be computed before the evaluations (hoisted). */
static inline bool block_hoists(const struct block_kind *kind) {
    return kind->update_rate == UPDATE_PER_TIMESTEP || kind->update_rate == UPDATE_PER_TIMESTEP_AND_PROMPT;
}

struct block_ref {
    const struct block_kind *kind;
    int number;
    bool unused;       /* the block's tensors are in files but unused: never bound or read */
    int number_offset; /* added to the block's number in the authors' checkpoint names */
};

/* Type conversion between file and packed block: see requantise.h. */
struct packed_conversion {
    enum dtype from, to; /* equal: no conversion */
    float from_scale;    /* scale factor of the values in the file (tensor.scale) */
    float to_scale;      /* scale factor of the converted values */
    /* Rotated types: scale of each row of the segment (borrowed); number of values in a row. */
    const float *row_scales;
    int32_t columns;
};

/* Contiguous bytes of the packed block that come from one source. In the file these bytes are contiguous, or
 * runs of equal length at a constant stride. A tensor has one or more segments. */
struct packed_segment {
    const struct byte_source *source; /* borrowed */
    uint64_t file_offset, packed_offset;
    uint64_t bytes; /* bytes of the segment in the packed block, after conversion */
    /* The segment's file bytes lie in runs. run: bytes per run; stride: bytes from one run's start to the
     * next; both 0: contiguous. */
    uint64_t run, stride;
    struct packed_conversion conversion;
};

/* File offset of a packed segment's byte `at`, counted in stored bytes before conversion. */
static inline uint64_t packed_file_byte(const struct packed_segment *segment, uint64_t at) {
    if (!segment->stride) return segment->file_offset + at;
    return segment->file_offset + at / segment->run * segment->stride + at % segment->run;
}

static inline bool packed_converts(const struct packed_segment *segment) {
    return segment->conversion.from != segment->conversion.to;
}

struct packed_tensor {
    size_t offset; /* offset of the struct tensor in the weights structure */
    uint64_t packed_offset;
    uint64_t scales_offset;          /* offset in the packed block of the bytes of tensor.scales; 0: none */
    struct tensor shape;             /* shape and type of the bound tensor, without data */
    const struct index_entry *entry; /* index entry of the file's tensor, which may have more rows */
    bool replaced; /* the tensor's bytes come from an adapter, not from the file: see adapt.h */
};

/* A low-rank product that an adapter adds to rows of a weight. block_point makes a struct low_rank. */
struct packed_adapter {
    size_t offset; /* offset of the adapted weight's struct tensor in the weights structure */
    uint64_t down_offset, up_offset; /* byte offsets of the two low-rank factors in the packed block */
    struct tensor down, up;          /* shapes and types of the two low-rank factors, without data */
    int32_t row;
};

struct block {
    const struct block_kind *kind;
    int number;
    char name[BLOCK_NAME_MAX];
    const struct tensor_index *index;
    struct packed_segment *segments; /* segments in the order of their bytes in the packed block */
    int n_segments;
    struct packed_tensor tensors[BLOCK_WEIGHTS_MAX];
    int n_tensors;
    uint64_t bytes; /* bytes of the packed block, a multiple of 256 */
    /* Bytes at the start of the packed block that belong to adapters, a multiple of 256; 0 without adapters.
     * The base weights follow, laid out as in block `base`. See adapt.h. */
    uint64_t adapter_bytes;
    uint64_t adapter_hash;    /* hash of the layout and the origin of the adapter bytes */
    const struct block *base; /* the same block without adapters; NULL: no adapter changes this block */
    struct packed_adapter *adapters;
    int n_adapters;
};

static inline const struct block *block_base(const struct block *block) {
    return block->base ? block->base : block;
}

/* The two parts of a packed block, in order: adapter bytes, base weights. Resident memory keeps the parts
 * separate, so that base weights stay if adapters change. */
enum packed_part { PACKED_ADAPTER, PACKED_BASE, PACKED_PARTS };

static inline uint64_t packed_part_bytes(const struct block *block, enum packed_part part) {
    return part == PACKED_ADAPTER ? block->adapter_bytes : block->bytes - block->adapter_bytes;
}

/* The part that contains byte number `at` of the packed block; the last part if `at` is the block's end. */
static inline enum packed_part packed_part_of(const struct block *block, uint64_t at) {
    return at < block->adapter_bytes ? PACKED_ADAPTER : PACKED_BASE;
}

/* Start addresses of the parts of a packed block; NULL on the dry device and for parts without bytes. */
struct packed_place {
    char *part[PACKED_PARTS];
};

/* Addresses of the parts of a packed block that is contiguous in memory. */
static inline struct packed_place packed_contiguous(const struct block *block, void *packed) {
    char *base = (char *)packed;
    return (struct packed_place){{base, base ? base + block->adapter_bytes : NULL}};
}

/* Address of byte number `at` of the packed block; NULL on the dry device. */
static inline char *packed_byte(const struct block *block, const struct packed_place *place, uint64_t at) {
    enum packed_part part = packed_part_of(block, at);
    char *base = place->part[part];
    return base ? base + at - (part == PACKED_BASE ? block->adapter_bytes : 0) : NULL;
}

/* Numbers of nested blocks: "up_blocks.2.resnets.1" is 100 * 2 + 1, three levels likewise. If a model has
 * several sequences of blocks with different names, each sequence starts at a multiple of BLOCK_ROW_STEP. */
enum { BLOCK_NUMBER_STEP = 100, BLOCK_ROW_STEP = 1000000 };

/* Formats a tensor name of a weight table for a block, without the brackets and the ? of a pattern. The last
 * %d is the block's number in its sequence; with several %d, each takes two decimal digits of the number and
 * the first takes the rest. "%d+1" is that number plus 1; other single digits work too. out has
 * BLOCK_NAME_MAX * 2 bytes. Returns out. */
char *block_weight_name(const char *format, int number, char *out);

/* Returns pattern number i under which files may have a weight: its names, then the checkpoint name; NULL
 * after the last. *number: the block's number in that pattern. */
const char *block_weight_pattern(const struct block_ref *ref, const struct weight_spec *spec, int i,
                                 int *number);

/* The row ranges of a tensor that make up a weight, in order: parts of a fused tensor, or one of equal parts
 * (weight_spec.row_parts), which the block's number selects. */
struct weight_parts {
    int n;        /* number of ranges; 0: the weight is the whole tensor */
    int32_t rows; /* number of rows of the tensor in the file; -1: more than INT32_MAX */
    struct {
        int32_t first, rows;
    } at[WEIGHT_SLICES_MAX];
};
struct weight_parts block_weight_parts(const struct weight_spec *spec, const char *pattern, int number,
                                       const int32_t *dims);

/* Writes a weight's shape in published files with this pattern, axes of size 1 included. Returns the rank. */
int block_published_shape(const struct weight_spec *spec, const char *pattern, const int32_t *dims,
                          int32_t dim[WEIGHT_FILE_RANK_MAX]);

/* Finds the index entry with a weight of the block, whole or as rows of a fused tensor; NULL if absent. */
struct index_entry *block_find_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                      const struct tensor_index *index);

/* Formats the name under which a missing weight is reported; out as in block_weight_name. Returns out. */
char *block_missing_name(const struct block_ref *ref, const struct weight_spec *spec,
                         const struct tensor_index *index, char *out);

/* Stored type of a tensor when weights are quantised to `wanted`. Rows that are no multiple of 256 values get
 * a larger type with blocks of 32, or a rotated type with smaller groups. Vectors, convolutions, tensors of
 * at most 1,024 values, kinds marked never_quantised, and tensors that fit no type keep their type. kind:
 * NULL if no family has the tensor. `convert` and --type both use this function, so they give the same
 * image. */
enum dtype block_stored_type(const struct block_kind *kind, const struct index_entry *entry,
                             enum dtype wanted);

/* Formats a shape such as "[3072, 64]"; truncated to `bytes`. */
void block_print_shape(int rank, const int32_t *dim, char *out, size_t bytes);

/* Finds a block's tensors in the index and marks them used; checks shapes and types; lays out the packed
 * block. The errors MISSING, SHAPE and UNSUPPORTED name the tensor and the file. dims: the family's dims. */
enum status block_bind(struct sys *sys, const struct block_ref *ref, const struct tensor_index *index,
                       const int32_t *dims, struct block *block, struct error *e);

/* Makes a block of selected rows of a bound embedding table, in the order of ids. Its only tensor is [n_ids,
 * columns]. SHAPE if an id lies outside the table. */
enum status block_gather_rows(struct sys *sys, const struct block *table, const int32_t *ids, int n_ids,
                              struct block *rows, struct error *e);

/* Bytes that block_point fills: the weights structure, then the low-rank descriptors of its tensors. */
size_t block_weights_bytes(const struct block *block);
/* Makes the tensors of the weights structure point into a packed block. */
void block_point(const struct block *block, struct packed_place place, void *weights);

void block_destroy(struct sys *sys, struct block *block);
/* Host bytes of the block's layout, without struct block itself. */
uint64_t block_layout_bytes(const struct block *block);

#endif
