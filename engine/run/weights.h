/* Weight tables: which tensors a block has, their names in files, and their shapes. A list of weights makes
 * both the weights structure and the weight table of a block, so that each weight is written once, in one
 * line:
 *
 *     #define LAYER(X, S)                                          \
 *         X##VECTOR(S, norm, DIM, "norm1", "ln1")                  \
 *         X##LINEAR(S, q, DIM, DIM, "attn.to_q", "attn.qkv[0/3]")  \
 *         X##LINEAR(S, out, DIM, DIM, "attn.proj")
 *     struct layer_weights { LAYER(FIELD_, ) };
 *     WEIGHT_TABLE(layer_table, LAYER, layer_weights, "layers.%d.", "blocks.%d.");
 *
 * A row gives the structure's member, the dims, the tensor name in files of diffusers or transformers, and
 * the name in the authors' checkpoints if the two differ. Both names lack the prefixes, which are arguments
 * of WEIGHT_TABLE, and the ending ".weight" or ".bias". X is FIELD_ (members of the structure) or ROW_ (rows
 * of the table). Rows of IF_DIM(S, dim) exist in blocks in which that dim is not 0. WITH(S, .member = value)
 * sets another member of the row's struct weight_spec. A row has at most one IF_DIM or WITH; a second one
 * does not compile. */
#ifndef SLUICE_RUN_WEIGHTS_H
#define SLUICE_RUN_WEIGHTS_H

#include "kernels/device.h"

#include <stddef.h>
#include <string.h>

enum {
    WEIGHT_NAMES_MAX = 3,
    WEIGHT_RANK_MAX = 4,
    WEIGHT_FILE_RANK_MAX = 5,
    WEIGHT_SLICES_MAX = 4,
};

/* One row of a weight table.
 *
 * Tensor names are patterns: %d stands for the block's number, %d+1 for the next number (block_weight_name).
 * "attn.qkv[1/3].weight" means part 1 (from 0) of the three parts of rows of the fused tensor
 * "attn.qkv.weight"; "[1,0/2]" means part 1, then part 0. A ? after a component of the first name, as in
 * "attn.norm_q?.weight", means that the tensor may be absent; the weight then has rank 0. A weight is
 * searched under its names, then under the authors' checkpoint name. */
struct weight_spec {
    size_t offset; /* byte offset of the weight's struct tensor in the weights structure */
    const char *names[WEIGHT_NAMES_MAX]; /* alternative tensor names; published files have the first */
    const char *checkpoint_name; /* tensor name in the authors' checkpoints; NULL or equal to the first name:
                                    no such name */
    /* Number of rows of each part of a fused tensor, as indices into the family's dims; NULL: equal parts.
     * With several fused names, the list applies to a name if the listed rows of the weight's parts add up to
     * dim[0]; other names have equal parts. */
    const int *part_rows;
    int rank;
    int dim[WEIGHT_RANK_MAX]; /* shape as indices into the family's dims, outermost first */
    int ones; /* index into dims: number of axes of size 1 that the shape may have at its end in files; 0:
                 none */
    bool one_first; /* the tensor may have an additional leading axis of size 1 in files */
    /* Index of the dim with the kernel size in time of a video VAE's convolution; files store that axis
     * before the last two. The weight is the last slice, which a causal convolution applies to a single
     * image; other slices are not loaded. Files may merge the two outermost axes. */
    int slices;
    int before_last; /* with `slices`: number of time slices between the weight's slice and the last slice */
    /* Files concatenate the kernels of input_parts weights along the input axis; this weight is number
     * input_part. 0: the weight has its own tensor. Not combined with slices. */
    int input_parts, input_part;
    /* Index into dims. That dim is the number n of equal parts into which the tensor's rows are divided; the
     * block with number i has part i % n. 0, or a dim of 0 or 1: the whole tensor. Not for names with
     * brackets (fused tensors). */
    int row_parts;
    bool flat;             /* some files store this matrix as a vector of all its values */
    bool embedding_lookup; /* embedding table: rows are copied or added, never multiplied */
    int if_dim; /* index into dims; blocks in which that dim is 0 lack this weight. Index 0: every block has
                   it. */
    double init_scale; /* synthetic weights are random: uniform within init_scale / sqrt(inputs) around 0;
                          init_scale 0: around 1 */
};

/* Weight and bias of a linear layer, a convolution or a norm. */
struct linear_weights {
    struct tensor weight, bias;
};

/* Kinds of rows. Rows whose member is a struct tensor:
 * VECTOR      weight of an RMS norm
 * BIAS        bias alone
 * MATRIX      linear layer without bias
 * KERNEL      2D convolution with a square kernel, without bias
 * TABLE       embedding table
 * WEIGHT      any other shape: initialisers of a weight_spec in parentheses (or SHAPED), then names with
 *             their endings
 * Rows whose member is a struct linear_weights:
 * LINEAR      linear layer
 * PROJECTION  linear layer whose weight has further axes of size 1 in files (a 1x1 convolution)
 * NORM        norm with weight and bias
 * CONV        2D convolution with a square kernel
 * CONV3D      last time slice of a convolution over time and space, which a causal convolution applies to a
 *             single image */
#define FIELD_VECTOR(S, field, ...)     struct tensor field;
#define FIELD_MATRIX(S, field, ...)     struct tensor field;
#define FIELD_TABLE(S, field, ...)      struct tensor field;
#define FIELD_KERNEL(S, field, ...)     struct tensor field;
#define FIELD_WEIGHT(S, field, ...)     struct tensor field;
#define FIELD_BIAS(S, field, ...)       struct tensor field;
#define FIELD_LINEAR(S, field, ...)     struct linear_weights field;
#define FIELD_NORM(S, field, ...)       struct linear_weights field;
#define FIELD_CONV(S, field, ...)       struct linear_weights field;
#define FIELD_CONV3D(S, field, ...)     struct linear_weights field;
#define FIELD_PROJECTION(S, field, ...) struct linear_weights field;

/* Initialisers of a weight_spec with this shape; synthetic values lie around 0. */
#define SHAPED(rank_, ...) (.rank = rank_, .dim = {__VA_ARGS__}, .init_scale = 1)

#define ROW_VECTOR(S, field, columns, ...)                                                                   \
    WEIGHT_ROW(S, field, (.rank = 1, .dim = {columns}), ".weight", __VA_ARGS__)
#define ROW_BIAS(S, field, rows, ...) WEIGHT_ROW(S, field, SHAPED(1, rows), ".bias", __VA_ARGS__)
#define ROW_MATRIX(S, field, rows, columns, ...)                                                             \
    WEIGHT_ROW(S, field, SHAPED(2, rows, columns), ".weight", __VA_ARGS__)
#define ROW_KERNEL(S, field, out, in, side, ...)                                                             \
    WEIGHT_ROW(S, field, SHAPED(4, out, in, side, side), ".weight", __VA_ARGS__)
#define ROW_TABLE(S, field, rows, columns, ...)                                                              \
    WEIGHT_ROW(S, field, (.rank = 2, .dim = {rows, columns}, .embedding_lookup = true, .init_scale = 1),     \
               ".weight", __VA_ARGS__)
#define ROW_WEIGHT(S, field, fields, ...) WEIGHT_ROW(S, field, fields, "", __VA_ARGS__)
#define ROW_LINEAR(S, field, rows, columns, ...)                                                             \
    ROW_MATRIX(S, field.weight, rows, columns, __VA_ARGS__) ROW_BIAS(S, field.bias, rows, __VA_ARGS__)
#define ROW_PROJECTION(S, field, rows, columns, axes, ...)                                                   \
    WEIGHT_ROW(S, field.weight, (.rank = 2, .dim = {rows, columns}, .ones = axes, .init_scale = 1),          \
               ".weight", __VA_ARGS__)                                                                       \
    ROW_BIAS(S, field.bias, rows, __VA_ARGS__)
#define ROW_NORM(S, field, columns, ...)                                                                     \
    ROW_VECTOR(S, field.weight, columns, __VA_ARGS__) ROW_BIAS(S, field.bias, columns, __VA_ARGS__)
#define ROW_CONV(S, field, out, in, side, ...)                                                               \
    ROW_KERNEL(S, field.weight, out, in, side, __VA_ARGS__) ROW_BIAS(S, field.bias, out, __VA_ARGS__)

#define ROW_CONV3D(S, field, out, in, frames, side, ...)                                                     \
    WEIGHT_ROW(S, field.weight,                                                                              \
               (.rank = 4, .dim = {out, in, side, side}, .slices = frames, .init_scale = 1), ".weight",      \
               __VA_ARGS__)                                                                                  \
    ROW_BIAS(S, field.bias, out, __VA_ARGS__)

/* Defines the weight table of a list. P, C: name prefixes in diffusers' files and in authors' checkpoints. */
#define WEIGHT_TABLE(table, LIST, structure, P, C) WEIGHT_TABLE_NAMED(table, LIST, structure, NAMED, P, C)
#define WEIGHT_TABLE_NAMED(table, LIST, structure, NAMING, P, C)                                             \
    static const struct weight_spec table[] = {LIST(ROW_, (structure, NAMING, P, C, ))}

/* Defines the table of a block with the weights structure linear_weights: one linear layer or convolution.
 * The names include prefixes, but not the ending. */
#define LINEAR_TABLE(table, rows, columns, ...)                                                              \
    static const struct weight_spec table[] = {                                                              \
        ROW_MATRIX(WEIGHTS_OF(linear_weights), weight, rows, columns, __VA_ARGS__)                           \
            ROW_BIAS(WEIGHTS_OF(linear_weights), bias, rows, __VA_ARGS__)}
#define CONV_TABLE(table, out, in, side, ...)                                                                \
    static const struct weight_spec table[] = {                                                              \
        ROW_KERNEL(WEIGHTS_OF(linear_weights), weight, out, in, side, __VA_ARGS__)                           \
            ROW_BIAS(WEIGHTS_OF(linear_weights), bias, out, __VA_ARGS__)}

/* How rows become table entries: S is (structure, naming macro, P, C, initialiser of another member). */
#define WEIGHTS_OF(structure)                              (structure, NAMED, "", "", )
#define IF_DIM(S, when)                                    WITH(S, .if_dim = when)
#define WITH(S, member)                                    WEIGHT_CALL(WITH_MEMBER, WEIGHT_UNPACK S, member)
#define WITH_MEMBER(structure, NAMING, P, C, none, member) (structure, NAMING, P, C, none member)

/* fields: initialisers in parentheses. The naming macro makes initialisers of `names` and `checkpoint_name`
 * from both prefixes, the ending, and the row's names. */
#define WEIGHT_ROW(S, field, fields, ...)                                                                    \
    WEIGHT_CALL(WEIGHT_ROW_OF, WEIGHT_UNPACK S, field, fields, __VA_ARGS__)
#define WEIGHT_ROW_OF(structure, NAMING, P, C, more, field, fields, ...)                                     \
    {.offset = offsetof(struct structure, field), NAMING(P, C, __VA_ARGS__), WEIGHT_UNPACK fields, more},
#define WEIGHT_CALL(macro, ...) macro(__VA_ARGS__)
#define WEIGHT_UNPACK(...)      __VA_ARGS__

/* Naming macro of rows with one to three names: in diffusers' files, in the authors' checkpoints, in older
 * diffusers files. */
#define NAMED(P, C, end, ...)                                                                                \
    NAMED_PICK(__VA_ARGS__, NAMED_THREE, NAMED_TWO, NAMED_ONE, )(P, C, end, __VA_ARGS__)
#define NAMED_PICK(a, b, c, pick, ...)         pick
#define NAMED_ONE(P, C, end, name)             NAMED_TWO(P, C, end, name, name)
#define NAMED_TWO(P, C, end, name, checkpoint) .names = {P name end}, .checkpoint_name = C checkpoint end
#define NAMED_THREE(P, C, end, name, checkpoint, older)                                                      \
    .names = {P name end, P older end}, .checkpoint_name = C checkpoint end
/* Naming macro of rows with complete names: in the authors' checkpoints (NULL: none), then in other files. */
#define NAMED_FULLY(P, C, end, checkpoint, ...) .names = {__VA_ARGS__}, .checkpoint_name = checkpoint

static inline bool weight_is_optional(const struct weight_spec *spec) {
    return strchr(spec->names[0], '?') != NULL;
}

/* True if a block with these dims has the weight (see weight_spec.if_dim). */
static inline bool block_has_weight(const struct weight_spec *spec, const int32_t *dims) {
    return !spec->if_dim || dims[spec->if_dim];
}

#define COUNT_OF(table) (int)(sizeof table / sizeof table[0])

#endif
