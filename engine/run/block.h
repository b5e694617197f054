/* Blocks: what streams as one.
 *
 * A block kind is a weight table plus a forward function. Everything else about a block's weights is derived
 * from the table: binding to a checkpoint, shape checks, the layout of the packed block, what `inspect`
 * prints, and the checkpoints that `bench checkpoint` writes.
 *
 * A packed block is a block's tensors at 256-byte-aligned offsets, a pure function of the table and of the
 * stored type of each tensor. Its layout is the same wherever it lies, and its bytes keep the file's element
 * type. */
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

/* Rows of a tensor that holds several parts one below the other: which of them make up the weight, and in
 * which order. */
struct weight_slice {
    const char *name; /* NULL: none */
    int n_parts;
    int rows[WEIGHT_SLICES_MAX]; /* of each part, as places in the family's dimensions */
    int n_taken, taken[WEIGHT_SLICES_MAX];
    int all; /* place of how many rows all parts have, where what is published has them so; 0: it has the
                weight apart */
};

/* One row of a weight table. It is looked for under its names, then under the original one, then as a slice.
 */
struct weight_spec {
    size_t offset;                       /* of a struct tensor in the kind's weights structure */
    const char *names[WEIGHT_NAMES_MAX]; /* alternatives; see block_weight_name */
    const char *original;                /* the name that the family's authors gave it; NULL: none */
    struct weight_slice fused;           /* where the authors keep it with others in one tensor */
    int rank;
    int dim[WEIGHT_RANK_MAX]; /* shape as places in the family's dimensions, outermost first */
    int ones;       /* place of how many axes of 1 files have behind these; read in any case. 0: none */
    bool one_first; /* files have an axis of 1 before these; read in any case */
    /* Place of how many slices in time a kernel has in files, an axis before its last two of which the last
     * slice is the weight: what a causal convolution sees of a picture alone. The others take no memory and
     * are not moved. Files may have the two outermost axes as one. 0: no such axis. */
    int slices;
    int before_last; /* with slices: the weight is not the last one, but so many before it */
    /* Kernels of so many weights stand side by side in files, each with inputs of its own, and this is that
     * of number input_part. 0: it has its tensor alone. Not with slices. */
    int input_parts, input_part;
    bool optional;  /* absent: a tensor of rank 0 */
    bool looked_up; /* rows of it are copied or added: it is in no product */
    int when; /* place of what is 0 in blocks that have no such weight: there it is of rank 0; 0: all have it
               */
    double spread; /* made-up weights: uniform in +- this times 1/sqrt(inputs); 0: around 1 */
};

/* A row of a weight table: the field of a weights structure, how made-up values spread, the tensor's name,
 * and rank and places of its dimensions. */
#define BLOCK_WEIGHT(structure, field, spread_, name, rank_, ...)                                            \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name}, .rank = rank_, .dim = {__VA_ARGS__},   \
        .spread = spread_                                                                                    \
    }

/* The same with the authors' name, in blocks that have it. */
#define BLOCK_WEIGHT_WHEN(when_, structure, field, spread_, name, original_, rank_, ...)                     \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name}, .original = original_, .rank = rank_,  \
        .dim = {__VA_ARGS__}, .spread = spread_, .when = when_                                               \
    }
/* In all. */
#define BLOCK_WEIGHT_ORIGINALLY(...) BLOCK_WEIGHT_WHEN(0, __VA_ARGS__)

/* A block kind over a table and its weights structure; more initialisers may follow. */
#define BLOCK_KIND(name_, format_, table, structure, forward_, ...)                                          \
    {                                                                                                        \
        .name = name_, .format = format_, .weights = table, .n_weights = COUNT_OF(table),                    \
        .weights_bytes = sizeof(struct structure), .forward = forward_, __VA_ARGS__                          \
    }

#define COUNT_OF(table) (int)(sizeof table / sizeof table[0])

struct visit_scope;

/* How often what a block computes changes. */
enum cadence {
    CADENCE_EVALUATION,
    CADENCE_PROMPT, /* with the prompt, whose lanes share it: computed before the first evaluation */
    /* Rows that depend on the timestep alone, which all lanes share; or on timestep and prompt. One visit
     * computes them for as many evaluations as it is told: all before the first (then they are hoisted: the
     * weights are read once), or each its own. One row has the same bits either way, so its products go
     * through op_linear_few (R4). */
    CADENCE_TIMESTEP,
    CADENCE_TIMESTEP_AND_PROMPT,
};

struct block_kind {
    const char *name;   /* "layer" */
    const char *format; /* a block's name, with %d for its number: "layers.%d" */
    const struct weight_spec *weights;
    int n_weights;
    size_t weights_bytes; /* size of the structure that the offsets point into */
    bool gathers_rows;    /* a table: only the rows asked for are read, see family.rows */
    /* Its weights stay as they are stored when others are quantised: small ones that everything passes
     * through, embedders and final layers, and those of autoencoders. Embedding tables stay too. */
    bool keeps_types;
    bool left_out; /* lanes may leave it out, by its number: what goes through it then stays as it is */
    enum cadence cadence;
    /* Computes one visit for one lane. weights: the structure, bound. Never looks at tensor values (R0). */
    void (*forward)(struct context *x, const void *weights, const struct visit_scope *scope);
};

/* What it computes can be hoisted out of the evaluations. */
static inline bool block_hoists(const struct block_kind *kind) {
    return kind->cadence == CADENCE_TIMESTEP || kind->cadence == CADENCE_TIMESTEP_AND_PROMPT;
}

/* A block that a checkpoint of a family has. */
struct block_ref {
    const struct block_kind *kind;
    int number;
    bool unused;  /* in the file, but nothing that is wanted depends on it: never bound, never read */
    int original; /* what the original names' number is above this one's, for families that count otherwise */
};

/* What becomes of bytes between file and packed block: see requantise.h. */
struct packed_conversion {
    enum dtype from, to; /* alike: nothing */
    float from_scale;    /* as tensor.scale, of either */
    float to_scale;
};

/* Bytes of one source that lie together in the packed block, and in the file or as runs of one length
 * that are equally far apart; a tensor is one or several. */
struct packed_segment {
    const struct byte_source *source; /* borrowed */
    uint64_t file_offset, packed_offset;
    uint64_t bytes;       /* in the packed block */
    uint64_t run, stride; /* in the file: bytes of a run, and from one to the next; 0: all is one */
    struct packed_conversion conversion;
};

/* Where the file has byte `at` of what the segment is made of. */
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
    uint64_t scales_offset;          /* of what tensor.scales points to, behind the values; 0: none */
    struct tensor shape;             /* without data */
    const struct index_entry *entry; /* whose bytes these are, or some rows of it */
    bool replaced;                   /* they are not, but of an adapter's side: see adapt.h */
};

/* What is added to rows of a weight: see struct low_rank, which is made of it. */
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
    /* Of a block with adapters, see adapt.h. Its side is the first so many bytes, a multiple of 256; those
     * behind are another block's, of which it tells everything else. */
    uint64_t side_bytes;
    uint64_t side_hash;      /* of what the side is read from, and of its layout */
    const struct block *own; /* that block; NULL: itself */
    struct packed_adapter *adapters;
    int n_adapters;
};

/* Whose the own bytes are. */
static inline const struct block *block_own(const struct block *block) {
    return block->own ? block->own : block;
}

/* What a packed block is made of, in its order: what adapters bring, and the weights' own bytes. Where blocks
 * stay, the parts lie in memories of their own: so the own part stays where it is when adapters change. */
enum packed_part { PACKED_SIDE, PACKED_OWN, PACKED_PARTS };

static inline uint64_t packed_part_bytes(const struct block *block, enum packed_part part) {
    return part == PACKED_SIDE ? block->side_bytes : block->bytes - block->side_bytes;
}

/* The part that this byte of the packed block is in; of the end the last. */
static inline enum packed_part packed_part_of(const struct block *block, uint64_t at) {
    return at < block->side_bytes ? PACKED_SIDE : PACKED_OWN;
}

/* Where the parts begin; NULL under the dry device, and where they have no bytes. */
struct packed_place {
    char *part[PACKED_PARTS];
};

/* A packed block in one piece. */
static inline struct packed_place packed_together(const struct block *block, void *packed) {
    char *base = (char *)packed;
    return (struct packed_place){{base, base ? base + block->side_bytes : NULL}};
}

/* Byte `at` of the packed block; NULL under the dry device. */
static inline char *packed_byte(const struct block *block, const struct packed_place *place, uint64_t at) {
    enum packed_part part = packed_part_of(block, at);
    char *base = place->part[part];
    return base ? base + at - (part == PACKED_OWN ? block->side_bytes : 0) : NULL;
}

/* Blocks that are counted twice ("up_blocks.2.resnets.1") have the number 100 * 2 + 1, those that are counted
 * three times go on likewise. Where blocks stand in several rows which their names tell apart, a row's
 * numbers begin at a multiple of BLOCK_ROW_STEP. */
enum { BLOCK_NUMBER_STEP = 100, BLOCK_ROW_STEP = 1000000 };

/* Prints a table's name for a block: the last %d is the block's number in its row; where there are more, its
 * last two digits, and the one before is the number without them. out has BLOCK_NAME_MAX * 2 bytes. Returns
 * out. */
char *block_weight_name(const char *format, int number, char *out);

/* Does a block of these dimensions have the weight? */
static inline bool block_has_weight(const struct weight_spec *spec, const int32_t *dims) {
    return !spec->when || dims[spec->when];
}

/* The shape that files give a weight of these dimensions, without axes of 1: returns its rank. */
int block_file_shape(const struct weight_spec *spec, const int32_t *dims, int32_t dim[WEIGHT_FILE_RANK_MAX]);
/* A row of a table as the published files have it, which keep some weights with others in one tensor: its
 * first name and its shape are those of that. */
struct weight_spec block_published_weight(const struct weight_spec *spec);
/* That one's shape there, its axes of 1 included; returns its rank. */
int block_published_shape(const struct weight_spec *spec, const int32_t *dims,
                          int32_t dim[WEIGHT_FILE_RANK_MAX]);

/* The entry that holds a weight of the block, whole or as a slice, or NULL. */
struct index_entry *block_find_weight(const struct block_ref *ref, const struct weight_spec *spec,
                                      const struct tensor_index *index);

/* What a weight that no entry holds is called in messages; out as in block_weight_name. */
char *block_missing_name(const struct block_ref *ref, const struct weight_spec *spec,
                         const struct tensor_index *index, char *out);

/* The type that a weight has when weights are to be of the type `wanted`: that, a larger type with blocks of
 * 32 (of rotated types one with smaller groups) where rows are no whole blocks of 256, or its own. Matrices
 * of kinds that do not keep their types change; vectors, convolutions, tensors of at most 1,024 values and
 * whatever no type suits stay. kind: NULL where no family knows the tensor. One answer for all who ask, so
 * that quantising beforehand and while loading give the same picture. */
enum dtype block_stored_type(const struct block_kind *kind, const struct index_entry *entry,
                             enum dtype wanted);

/* "[3072, 64]". Out is cut off where it does not fit. */
void block_print_shape(int rank, const int32_t *dim, char *out, size_t bytes);

/* Finds a block's tensors in the index (marking them used), checks shapes and types, lays out the packed
 * block. MISSING, SHAPE, UNSUPPORTED name tensor, file, found and expected. dims: the family's dimensions. */
enum status block_bind(struct sys *sys, const struct block_ref *ref, const struct tensor_index *index,
                       const int32_t *dims, struct block *block, struct error *e);

/* From a bound table (kind->gathers_rows) the block of just these rows, in this order: its only
 * tensor is [n_ids, columns]. An id outside the table is SHAPE. */
enum status block_gather_rows(struct sys *sys, const struct block *table, const int32_t *ids, int n_ids,
                              struct block *rows, struct error *e);

/* Bytes of what block_point fills: the weights structure, and behind it what its tensors' adapters are told
 * by. */
size_t block_weights_bytes(const struct block *block);
/* Points the structure's tensors into a packed block. */
void block_point(const struct block *block, struct packed_place place, void *weights);

void block_destroy(struct sys *sys, struct block *block);
/* Of our allocator, besides itself. */
uint64_t block_layout_bytes(const struct block *block);

#endif
