/* no such axis. */
#ifndef SLUICE_RUN_BLOCK_H
#define SLUICE_RUN_BLOCK_H

#include "engine/base/index.h"
#include "kernels/device.h"

enum {
    WEIGHT_NAMES_MAX = 3,
    WEIGHT_RANK_MAX = 4,
    WEIGHT_FILE_RANK_MAX = 5,
    BLOCK_WEIGHTS_MAX = 40,
    BLOCK_NAME_MAX = 64
};
enum { WEIGHT_SLICES_MAX = 4 };

/* A weight as rows of a fused tensor (such as qkv), which holds several parts one below the other. */
struct weight_slice {
    const char *name; /* name of the fused tensor; NULL: not fused */
    int n_parts;
    int rows[WEIGHT_SLICES_MAX]; /* rows of each part, as indices into the family's dims */
    int n_taken, taken[WEIGHT_SLICES_MAX];
    int all; /* index of the dim with the total rows in fused published files; 0: stored separately */
};

/* One row of a weight table. The weight is searched under its names, then under its original checkpoint name,
 * then as a slice of a fused tensor. */
struct weight_spec {
    size_t offset;                       /* of a struct tensor in the weights structure of the kind */
    const char *names[WEIGHT_NAMES_MAX]; /* alternative names; see block_weight_name */
    const char *checkpoint_name;         /* name in checkpoints of the model's authors; NULL: none */
    struct weight_slice fused;           /* where the authors fuse it with other weights in one tensor */
    int rank;
    int dim[WEIGHT_RANK_MAX]; /* shape as indices into the family's dims, outermost first */
    int ones;       /* index of the dim that counts optional trailing axes of size 1 in files; 0: none */
    bool one_first; /* files have a leading axis of size 1; files without it are accepted */
    /* Index of the dim that counts the time slices of a convolution kernel in files, an axis before the last
     * two. The weight is the last slice, which a causal convolution applies to a single image; other slices
     * are not loaded. Files may merge the two outermost axes. */
    int slices;
    int before_last; /* with slices: the weight is this many slices before the last */
    /* Files store the kernels of input_parts weights side by side along the input axis; this weight is number
     * input_part. 0: the weight has a tensor of its own. Not combined with slices. */
    int input_parts, input_part;
    bool optional;         /* may be absent; it is then a tensor of rank 0 */
    bool embedding_lookup; /* the model copies or adds rows of it; no matrix product reads it */
    int if_dim;            /* index of a dim; blocks where it is 0 lack this weight; 0: all blocks have it */
    double init_scale; /* random weights: uniform within this value / sqrt(inputs) around 0; 0: around 1 */
};

/* A row of a weight table: field of the weights structure, scale of random values, tensor name, rank and
 * dims. */
#define BLOCK_WEIGHT(structure, field, init_scale_, name, rank_, ...)                                        \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name}, .rank = rank_, .dim = {__VA_ARGS__},   \
        .init_scale = init_scale_                                                                            \
    }

/* The same, with the name in the authors' checkpoints, in blocks where dim `when_` is not 0. */
#define BLOCK_WEIGHT_IF(when_, structure, field, init_scale_, name, original_, rank_, ...)                   \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name}, .checkpoint_name = original_,          \
        .rank = rank_, .dim = {__VA_ARGS__}, .init_scale = init_scale_, .if_dim = when_                      \
    }
#define BLOCK_WEIGHT_NAMED(...) BLOCK_WEIGHT_IF(0, __VA_ARGS__)

/* A block kind over a table and its weights structure; more initialisers may follow. */
#define BLOCK_KIND(name_, format_, table, structure, forward_, ...)                                          \
    {                                                                                                        \
        .name = name_, .format = format_, .weights = table, .n_weights = COUNT_OF(table),                    \
        .weights_bytes = sizeof(struct structure), .forward = forward_, __VA_ARGS__                          \
    }

#define COUNT_OF(table) (int)(sizeof table / sizeof table[0])

struct visit_scope;

/* How often the result of a block changes. */
enum update_rate {
    UPDATE_PER_EVALUATION,
    UPDATE_PER_PROMPT, /* once per prompt, before the first evaluation; shared by its lanes */
    /* Rows that depend on the timestep alone and are shared by all lanes, or on timestep and prompt. Either
     * one visit computes the rows of all evaluations before the first (hoisted: the weights are read once),
     * or each evaluation computes its own. A row has the same bits either way, because its products use
     * op_linear_few. */
    UPDATE_PER_TIMESTEP,
    UPDATE_PER_TIMESTEP_AND_PROMPT,
};

struct block_kind {
    const char *name;   /* such as "layer" */
    const char *format; /* name of a block, with %d for its number, such as "layers.%d" */
    const struct weight_spec *weights;
    int n_weights;
    size_t weights_bytes; /* size of the structure that the offsets point into */
    bool embedding_table; /* an embedding table: only the rows asked for are read, see family.rows */
    /* The weights keep their stored type when the model is quantised: small weights that everything depends
     * on (embedders, final layers), and the weights of VAEs. Embedding tables keep their type too. */
    bool never_quantised;
    bool skippable; /* skip-layer guidance may skip the block: its input passes unchanged */
    enum update_rate update_rate;
    /* Computes one visit for one lane. weights: the bound structure. Must not read tensor values: a dry run
     * has none. */
    void (*forward)(struct context *x, const void *weights, const struct visit_scope *scope);
};

/* True if the result can be hoisted out of the evaluations. */
static inline bool block_hoists(const struct block_kind *kind) {
    return kind->update_rate == UPDATE_PER_TIMESTEP || kind->update_rate == UPDATE_PER_TIMESTEP_AND_PROMPT;
}

/* A block in a checkpoint of the family. */
struct block_ref {
    const struct block_kind *kind;
    int number;
    bool unused;       /* present in files, but its results are not needed: never bound, never read */
    int number_offset; /* added to the block number in the authors' checkpoint names */
};

/* Conversion of bytes between file and packed block: see requantise.h. */
struct packed_conversion {
    enum dtype from, to; /* equal: no conversion */
    float from_scale;    /* tensor.scale of the source; to_scale: of the result */
    float to_scale;
};

/* Bytes of one source that are contiguous in the packed block. In the file they are contiguous too, or runs
 * of equal length at a constant stride. A tensor has one or several segments. */
struct packed_segment {
    const struct byte_source *source; /* borrowed */
    uint64_t file_offset, packed_offset;
    uint64_t bytes;       /* bytes in the packed block */
    uint64_t run, stride; /* in the file: bytes of a run, and between run starts; stride 0: contiguous */
    struct packed_conversion conversion;
};

/* File offset of byte `at` of the segment. */
static inline uint64_t packed_file_byte(const struct packed_segment *segment, uint64_t at) {
    if (!segment->stride) return segment->file_offset + at;
    return segment->file_offset + at / segment->run * segment->stride + at % segment->run;
}

static inline bool packed_converts(const struct packed_segment *segment) {
    return segment->conversion.from != segment->conversion.to;
}

struct packed_tensor {
    size_t offset; /* as in weight_spec */
    uint64_t packed_offset;
    uint64_t scales_offset;          /* offset of the data of tensor.scales, after the values; 0: none */
    struct tensor shape;             /* without data */
    const struct index_entry *entry; /* holds the bytes; the weight may use only some rows */
    bool replaced;                   /* the bytes come from an adapter instead: see adapt.h */
};

/* A low-rank product added to rows of a weight; block_point makes a struct low_rank of it. */
struct packed_adapter {
    size_t offset;                   /* of the weight, as in weight_spec */
    uint64_t down_offset, up_offset; /* in the packed block */
    struct tensor down, up;          /* without data */
    int32_t row;
};

struct block {
    const struct block_kind *kind;
    int number;
    char name[BLOCK_NAME_MAX];
    const struct tensor_index *index;
    struct packed_segment *segments; /* in the order of the packed block */
    int n_segments;
    struct packed_tensor tensors[BLOCK_WEIGHTS_MAX];
    int n_tensors;
    uint64_t bytes; /* of the packed block, a multiple of 256 */
    /* Of a block with adapters, see adapt.h: the first adapter_bytes bytes, a multiple of 256. The base
     * weights follow, laid out as in block `base`. */
    uint64_t adapter_bytes;
    uint64_t adapter_hash;    /* hash of the layout and the origin of the adapter bytes */
    const struct block *base; /* the block without adapters; NULL: this block */
    struct packed_adapter *adapters;
    int n_adapters;
};

/* The block that the base weights belong to. */
static inline const struct block *block_base(const struct block *block) {
    return block->base ? block->base : block;
}

/* Parts of a packed block, in order: adapter bytes, then base weights. Resident blocks keep the parts in
 * separate memory, so that base weights stay in place when adapters change. */
enum packed_part { PACKED_ADAPTER, PACKED_BASE, PACKED_PARTS };

static inline uint64_t packed_part_bytes(const struct block *block, enum packed_part part) {
    return part == PACKED_ADAPTER ? block->adapter_bytes : block->bytes - block->adapter_bytes;
}

/* The part that contains this byte of the packed block; the last part for the end. */
static inline enum packed_part packed_part_of(const struct block *block, uint64_t at) {
    return at < block->adapter_bytes ? PACKED_ADAPTER : PACKED_BASE;
}

/* Start address of each part; NULL on the dry device and for parts without bytes. */
struct packed_place {
    char *part[PACKED_PARTS];
};

/* A packed block whose parts are contiguous. */
static inline struct packed_place packed_contiguous(const struct block *block, void *packed) {
    char *base = (char *)packed;
    return (struct packed_place){{base, base ? base + block->adapter_bytes : NULL}};
}

/* Address of byte `at` of the packed block; NULL on the dry device. */
static inline char *packed_byte(const struct block *block, const struct packed_place *place, uint64_t at) {
    enum packed_part part = packed_part_of(block, at);
    char *base = place->part[part];
    return base ? base + at - (part == PACKED_BASE ? block->adapter_bytes : 0) : NULL;
}

/* Numbers of nested blocks: "up_blocks.2.resnets.1" is 100 * 2 + 1; three levels continue likewise. If a
 * model has several rows of blocks that differ by name, the numbers of each row start at a multiple of
 * BLOCK_ROW_STEP. */
enum { BLOCK_NUMBER_STEP = 100, BLOCK_ROW_STEP = 1000000 };

/* Formats a table's name for a block. The last %d is the number of the block in its row; with several %d,
 * each takes two decimal digits of the number and the first takes the rest. out has BLOCK_NAME_MAX * 2 bytes.
 * Returns out. */
char *block_weight_name(const char *format, int number, char *out);

/* True if a block of these dims has the weight. */
static inline bool block_has_weight(const struct weight_spec *spec, const int32_t *dims) {
    return !spec->if_dim || dims[spec->if_dim];
}

/* Shape of a weight in files, without axes of size 1. Returns its rank. */
int block_file_shape(const struct weight_spec *spec, const int32_t *dims, int32_t dim[WEIGHT_FILE_RANK_MAX]);
/* A table row as in published files: for weights that these fuse, name and shape are those of the fused
 * tensor. */
struct weight_spec block_published_weight(const struct weight_spec *spec);
/* Shape of such a row in published files, including axes of size 1. Returns its rank. */
int block_published_shape(const struct weight_spec *spec, const int32_t *dims,
                          int32_t dim[WEIGHT_FILE_RANK_MAX]);

/* The entry that holds a weight of the block, whole or as a slice; NULL if absent. */
struct index_entry *block_find_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                      const struct tensor_index *index);

/* Name of a missing weight for messages; out as in block_weight_name. */
char *block_missing_name(const struct block_ref *ref, const struct weight_spec *spec,
                         const struct tensor_index *index, char *out);

/* The stored type of a weight when weights are quantised to `wanted`: that type; a larger type with blocks of
 * 32 (for rotated types, one with smaller groups) if rows are not whole blocks of 256; or its own type. Only
 * matrices of kinds that may be quantised change. Vectors, convolutions and tensors of at most 1,024 values
 * keep their type, as do tensors that fit no type. kind: NULL if no family has the tensor. `convert` and
 * --type use this same function, so both give the same picture. */
enum dtype block_stored_type(const struct block_kind *kind, const struct index_entry *entry,
                             enum dtype wanted);

/* Formats a shape such as "[3072, 64]"; truncated to `bytes`. */
void block_print_shape(int rank, const int32_t *dim, char *out, size_t bytes);

/* Finds the tensors of a block in the index and marks them used, checks shapes and types, lays out the
 * packed block. MISSING, SHAPE and UNSUPPORTED name tensor, file, found and expected. dims: the dims of the
 * family. */
enum status block_bind(struct sys *sys, const struct block_ref *ref, const struct tensor_index *index,
                       const int32_t *dims, struct block *block, struct error *e);

/* Makes a block of the given rows of a bound embedding table, in this order. Its only tensor is [n_ids,
 * columns]. An id outside the table is SHAPE. */
enum status block_gather_rows(struct sys *sys, const struct block *table, const int32_t *ids, int n_ids,
                              struct block *rows, struct error *e);

/* Bytes that block_point fills: the weights structure, followed by the low-rank descriptors of its
 * tensors. */
size_t block_weights_bytes(const struct block *block);
/* Points the tensors of the weights structure into a packed block. */
void block_point(const struct block *block, struct packed_place place, void *weights);

void block_destroy(struct sys *sys, struct block *block);
/* Host memory of the block's layout, besides struct block itself. */
uint64_t block_layout_bytes(const struct block *block);

#endif
