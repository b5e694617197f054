/* The operators. One line of mathematics each; every device computes the same.
 *
 * Letters: T tokens or rows, C channels, N outputs, K inputs, H heads, G key heads, D head size, Y X pixels.
 * Weights are of any type that dtype_is_weight knows, and stand for what tensor.h says, in f32. Where the
 * context computes in bf16, OP_LINEAR rounds in and weight to bf16, to nearest even; a device may have
 * attention do so too (device->operands). Activations are f32; those that only such operators read may be of
 * the type that they round to, as context_operand makes them: whoever writes them rounds what it would have
 * written in f32, once, to nearest even, so that every other result has the bits that it would have anyway.
 * Which operators read and write them is said below; such tensors begin at multiples of 16 bytes, and a
 * result does not lie in an operand of another type. Nothing else is rounded. Accumulation is f32 in an order
 * that depends on shapes alone, norm statistics are double. Errors stick in the context: after one, operators
 * do nothing. A product with a weight that has adapters has theirs in it, in . down^T . up^T, wherever `in .
 * weight^T` is said below (conv(in) likewise): the wrappers see to it (adapted.h), without adapters nothing
 * changes. Wrappers check shapes once for every device; a mismatch is INTERNAL, because files were checked
 * when they were bound. Tensors that are absent (optional) have rank 0. Source of the formulas: each family's
 * reference implementation. */
#ifndef SLUICE_KERNELS_OPS_H
#define SLUICE_KERNELS_OPS_H

#include "kernels/device.h"

enum op_kind {
    OP_LINEAR,     /* out[T,N] = residual + gate * act(in[T,K] . weight[N,K]^T + bias) */
    OP_LINEAR_FEW, /* out = act(in) . weight^T + bias for conditioning rows, one fixed order a row (R4) */
    OP_ATTENTION, /* out[T,H,D] = softmax(scale q k^T + bias of distance) v, grouped heads, optionally causal;
                     out may be q */
    OP_RELATIVE_BIAS,    /* out[H,2T-1]: row h, place d + T - 1 is table[bucket of d = key - query][h] (T5) */
    OP_RMS_NORM,         /* out = base + gate * act(in / sqrt(mean(in^2) + eps) * weight * (1 + scale)) */
    OP_LAYER_NORM,       /* out = ((in - mean) / sqrt(var + eps) * weight + bias) * (1 + scale) + shift */
    OP_GROUP_STATISTICS, /* out[groups,2] = mean and 1/sqrt(var + eps) of in[Y,X,C], and of the rows before
                            it, over pixels and group channels */
    OP_GROUP_NORM,       /* out = (in - mean) * rstd * weight + bias, statistics given */
    OP_ROPE_TABLE,       /* out[T,D/2,2] = cos, sin of position * theta^(-2i/d), axis by axis; or over D */
    OP_ROPE,             /* out = pairs (2i,2i+1) or (i,i+D/2) of rms_norm(in[T,H,D]), turned by the table */
    OP_GLU,              /* out = act(a) * b */
    OP_ADD,              /* out = a + b */
    OP_COPY,             /* out = in, of any weight's type */
    OP_BROADCAST_ROW,    /* every row of out[T,C] = in[1,C] */
    OP_PATCHIFY,         /* tokens[Y/p*X/p, p*p*C], order (py,px,c), (c,py,px) or (c,px,py), from
                            latent[C,Y,X] or picture[Y,X,C] */
    OP_UNPATCHIFY,       /* the way back, times factor */
    OP_TIMESTEP,         /* out[1,D] = cos(t f), sin(t f), f_i = 10000^(-i/(D/2)); or as timestep_form says */
    OP_CONV2D,    /* out[Y,X,N] = finish(residual + conv(act(norm(up(in[Y,X,C])))) + bias), odd square kernel,
                     same    size, or half of it, rounded up */
    OP_MEAN_DOWN, /* out[Y/s,X/s,N] = base + means of N runs of equal length of the values (c, frame, row,
                     column) that f frames in[Y,X,C] have in s x s pixels */
    OP_REPEAT_UP, /* out[sY,sX,N] = base + in[Y,X,C]: value (n, frame, row, column) of f frames of s x s
                     pixels is channel (its number) / (N f s s / C) */
    OP_LATENT_TO_IMAGE, /* out[Y,X,C] = limit(in[C,Y,X] / scale[C] + shift[C]) */
    OP_IMAGE_TO_RGB,    /* out u8 = round_half_even(255 clamp(in / 2 + 1/2)) */
    N_OP_KINDS,
};

/* SiLU: v sigmoid(v). GELU with tanh: v/2 (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3))). Quick GELU: v
 * sigmoid(1.702 v). GELU by the error function: v/2 (1 + erf(v / sqrt 2)). */
enum activation {
    ACTIVATION_NONE,
    ACTIVATION_SILU,
    ACTIVATION_GELU_TANH,
    ACTIVATION_GELU_QUICK,
    ACTIVATION_GELU_ERF,
};
/* What a convolution does to its result last. ReLU: max(v, 0), and NaN stays NaN. Of a unit: 2 v - 1, from
 * pictures of 0 to 1 to those of -1 to 1. */
enum finishing { FINISH_NONE, FINISH_RELU, FINISH_OF_UNIT };
enum rope_pairs { ROPE_INTERLEAVED, ROPE_HALVES };

/* Of linear; a convolution has bias and residual alone. */
struct epilogue {
    struct tensor bias;         /* [N] */
    enum activation activation; /* of product and bias */
    struct tensor gate;         /* [N]: what the residual is added to is multiplied by it */
    struct tensor residual;     /* as out; may be out itself */
};

struct modulation {
    struct tensor scale;        /* [C], added to 1 */
    struct tensor gate;         /* [C], goes through tanh */
    struct tensor base;         /* as out: what the gated norm is added to; may be out */
    enum activation activation; /* of the norm; without gate and base */
};

/* Of a layer norm; each may be absent. All [C]. */
struct affine {
    struct tensor weight, bias; /* the norm's own */
    struct tensor scale, shift; /* modulation: scale is added to 1 */
};

/* Of attention. */
struct heads {
    int queries, keys; /* heads of each; queries a multiple of keys */
    float scale;
    bool causal;                 /* needs S >= T: row t sees keys up to S - T + t */
    struct tensor relative_bias; /* [queries, T+S-1] or absent: added to the score of query t and key s is
                                    place s - t + T - 1 */
};

/* T5's buckets of distances, both directions: half of the table's rows for keys behind the query and at it,
 * half for those after it. Distances up to a quarter of the rows have their own, longer ones share them by
 * their logarithm, from max_distance on the last. */
struct distance_buckets {
    int32_t max_distance;
};

/* Of rope. */
struct rotation {
    int heads;
    enum rope_pairs pairs;
    struct tensor norm; /* [D], or absent: heads are turned as they are */
    float eps;          /* the norm's */
};

/* The order of a picture's tokens: window by window in raster order, windows being cut at the right and
 * bottom edges; in a window block by block, in a block row by row. 0: the picture is one window; no blocks. A
 * window's side, unless 0, and the picture's rows and columns are multiples of the block's. */
struct token_walk {
    int32_t window, block; /* tokens on a side */
};

/* Where a token lies. */
struct token_place {
    int32_t row, column;
};

enum patch_order { PATCH_CHANNELS_LAST, PATCH_CHANNELS_FIRST, PATCH_COLUMNS_FIRST /* (c,px,py) */ };

struct patches {
    int side;
    enum patch_order order;
    bool pixels;            /* they are taken from [Y,X,C], else from [C,Y,X] */
    struct token_walk walk; /* of the patches, as tokens */
};

struct group_norm {
    struct tensor statistics; /* [groups,2] */
    struct tensor weight, bias;
};

/* A pixel over the root mean square of its channels: x / sqrt(mean(x^2) + eps) * weight. */
struct pixel_norm {
    struct tensor weight; /* [C] */
    float eps;
};

struct conv_options {
    struct group_norm norm;       /* applied to the input on the way in, if statistics are present */
    struct pixel_norm pixel_norm; /* the same, if its weight is; one of both at most */
    enum activation activation;   /* on the way in, after the norm */
    enum finishing finish;        /* of the result, bias and residual in it */
    int upsample;                 /* 1, or 2: nearest neighbour before the convolution */
    bool cut_row, cut_column; /* where it upsamples: to 2Y - 1 rows, 2X - 1 columns: the last one is cut off,
                                 and zeros are in its place */
    int stride;               /* 0 or 1, or 2: every other row and column of out, kernel 3 */
    int before;               /* where it strides, rows and columns of zeros above and to the left: 0, of an
                                 even picture with one below and to the right; 1, of any picture, with one on
                                 all sides */
    int32_t first_row;        /* out is the rows from this one on, as many as it has; 0 where it strides */
};

/* Of what goes around a level of a video's autoencoder: so many frames of side x side pixels of the finer
 * resolution become one pixel of the coarser, or the other way. */
struct shortcut {
    int32_t frames, side; /* 1 or 2 each */
    int32_t frame;        /* of repeat_up: which of them out is */
};

/* Statistics of a picture that comes in pieces, from the top. */
struct rows_before {
    struct tensor sums; /* [groups,2] F64: of the rows so far, kept from call to call; absent: in is all */
    int32_t rows;       /* so many came before in; 0: sums begins here */
};

enum { ROPE_AXES_MAX = 3 };

/* How a number becomes sinusoids. TO_END: sin(t f), cos(t f), f_i = 10000^(-i/(D/2-1)), so that the last one
 * is 1/10000 (guidance of latent consistency models). OF_SIGMA: as usual of 1000 t, but 1000 is multiplied to
 * the angle t f, which has been rounded (Qwen-Image). */
enum timestep_form { TIMESTEP_USUAL, TIMESTEP_TO_END, TIMESTEP_OF_SIGMA };

/* Positions as a list of grids: tokens of a grid run through its last axis fastest, or walk through its last
 * two axes, whose extents are then the picture's rows and columns. */
struct rope_grid {
    int32_t start[ROPE_AXES_MAX], extent[ROPE_AXES_MAX];
    bool diagonal; /* no grid: extent[0] tokens, number i of which is at start[0] + i on every axis (text) */
    struct token_walk walk;
};

enum { ROPE_GRIDS_MAX = 8 };

struct rope_options {
    double theta;
    int n_axes, axis_dim[ROPE_AXES_MAX]; /* even, summing to D */
    bool joint; /* pair i of the whole head turns by theta^(-2i/D), and axes have runs of these pairs
                   (M-RoPE); else every axis begins at theta^0 and ends at its own dimensions */
    bool f32_frequencies; /* step by step as PyTorch in f32 makes them, and not in double */
    bool f64_angles;      /* cosine and sine of the angle itself (Wan), and not of what it is in f32 */
    int n_grids;
    struct rope_grid grid[ROPE_GRIDS_MAX];
};

enum { OP_INPUTS = 5 };

enum { LATENT_VALUES_MAX = 128 };

/* What latents are of an autoencoder's values z: (z - shift) scale, a channel each, or one pair for all. A
 * decoder may limit what it makes of them again: z is then limit tanh(z / limit). */
struct latent_format {
    int n; /* 1, or the channels */
    float scale[LATENT_VALUES_MAX], shift[LATENT_VALUES_MAX];
    float limit; /* 0: none */
};

/* One call, as devices see it. in[] holds the wrapper's tensors in the order of its arguments, with these
 * exceptions: conv2d's in[] is in, weight, bias, residual; rope's in, table, norm;
 * norms, modulation, linear's bias and residual and conv2d's norms are in the union. Key heads are k's
 * columns / (q's columns / n); attention's distance bias is in[3]; layer_norm's in[] is in, weight, bias,
 * scale, shift. */
struct op {
    enum op_kind kind;
    struct tensor out, in[OP_INPUTS];
    union {
        struct epilogue epilogue;     /* linear */
        struct modulation modulation; /* rms_norm */
        struct group_norm group_norm; /* group_norm */
        struct conv_options conv;
        struct rope_options rope;    /* rope_table */
        enum rope_pairs pairs;       /* rope */
        struct patches patches;      /* patchify, unpatchify */
        int32_t rows_before;         /* group_statistics, whose sums are in[1] */
        int32_t max_distance;        /* relative_bias */
        struct shortcut shortcut;    /* mean_down, repeat_up */
        struct latent_format format; /* latent_to_image */
        enum timestep_form form;     /* timestep */
    };
    struct tensor side; /* linear: [T,R] f32, in . down^T of all adapters that concern the weight in[1], in
                           their order, side by side; absent without */
    float scale;        /* attention's; unpatchify's factor; timestep's t */
    float eps;
    bool causal;
    enum activation activation; /* linear_few, glu */
    int n;                      /* heads or groups */
    enum precision precision;   /* linear */
    bool thin; /* linear: so few outputs that a device may compute runs of rows apart to be busy; the runs
                  follow from the shape, as all bits do */
};

/* weight packed, as everywhere. Rows of in and out may be strided. in and out may be operands (see above).
 * out is not in. */
void op_linear(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
               struct epilogue e);
/* activation: applied to in. Any T: a row's bits do not depend on how many others there are. */
void op_linear_few(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                   struct tensor bias, enum activation activation);
/* q, out [T,H*D], k and v [S,G*D]; rows may be strided. All may be operands, k and v both or neither. out may
 * be q, but not k or v. D at most 1024. */
void op_attention(struct context *x, struct tensor out, struct tensor q, struct tensor k, struct tensor v,
                  struct heads heads);
/* out [H,2T-1], table [buckets,H] with a multiple of 4 buckets, at most 128. Distances fall into buckets as
 * in transformers 5, models/t5/modeling_t5.py, _relative_position_bucket, in f32. */
void op_relative_bias(struct context *x, struct tensor out, struct tensor table,
                      struct distance_buckets buckets);
/* Which bucket a distance of key minus query falls into: the host's part of the above, a pure function. */
int32_t distance_bucket(int32_t distance, int32_t n_buckets, int32_t max_distance);
/* weight [C]; rows of out and in have a multiple of C values: each run of C is normed by itself, so that
 * [T,H*D] with weight [D] norms heads. out may be in or base, or an operand. */
void op_rms_norm(struct context *x, struct tensor out, struct tensor in, struct tensor weight, float eps,
                 struct modulation m);
/* out may be in, or an operand. */
void op_layer_norm(struct context *x, struct tensor out, struct tensor in, struct affine affine, float eps);
/* Rows are added one after another, from the top: a picture in pieces has the bits of the whole. */
void op_group_statistics(struct context *x, struct tensor out, struct tensor in, struct rows_before before,
                         int groups, float eps);
void op_group_norm(struct context *x, struct tensor out, struct tensor in, struct group_norm norm);
/* The angle is position * frequency in double, rounded to f32, as the references (diffusers) round it:
 * Z-Image's, whose frequencies are double, and Qwen-Image's, whose are f32, so that the product in f32 is the
 * same. Wan's stays double. */
void op_rope_table(struct context *x, struct tensor out, const struct rope_options *options);
/* The frequency of pair i of a head: the host's part of the above, a pure function. */
double rope_frequency(const struct rope_options *options, int32_t i);
/* Where token number i of a picture of so many rows and columns of tokens lies. A pure function. */
struct token_place place_of_token(struct token_walk walk, int32_t rows, int32_t columns, int64_t i);
/* in, out [T,H*D], rows may be strided; table [T,D/2,2]. D at most 512. out may be in, or an operand. */
void op_rope(struct context *x, struct tensor out, struct tensor in, struct tensor table,
             struct rotation rotation);
/* Rows may be strided (halves of one product); out may be a or b, or an operand. The activation is a's:
 * GEGLU, whose gate is the second half of a product, names that half a. */
void op_glu(struct context *x, struct tensor out, struct tensor a, struct tensor b,
            enum activation activation);
/* b as a, or one row for all of a's; of any weight's type. Rows may be strided; out may be a, or b if that is
 * as a. */
void op_add(struct context *x, struct tensor out, struct tensor a, struct tensor b);
/* Rows may be strided; out may be an operand. */
void op_copy(struct context *x, struct tensor out, struct tensor in);
void op_broadcast_row(struct context *x, struct tensor out, struct tensor row);
/* Rows of tokens may be strided, and those of a latent or a picture. Of patches of one pixel [Y,X,C]
 * unpatchify brings rows back from a walk's order into raster order. */
void op_patchify(struct context *x, struct tensor tokens, struct tensor latent, struct patches patches);
void op_unpatchify(struct context *x, struct tensor latent, struct tensor tokens, struct patches patches,
                   float factor);
/* Exponent, frequency and angle are rounded to f32 each, as the reference (diffusers) rounds them; of a sigma
 * also what is multiplied by 1000. */
void op_timestep(struct context *x, struct tensor out, float t, enum timestep_form form);
/* Value i of out[1,2 half]: the host's part of the above, a pure function. */
float timestep_value(float t, enum timestep_form form, int32_t half, int32_t i);
/* weight [N,C,k,k], k 1 or 3, in [Y,X,C], out and residual [conv_size(Y),conv_size(X),N] or rows of that, out
 * packed. The zeros around the picture stay zero: norm and activation come before padding. A convolution that
 * strides has neither norm, upsampling nor residual.
 *
 * Every device goes through out from the top in bands of at most conv_band_rows and writes a band after those
 * above it. So out may run into in, and into a residual that is not out itself, if it begins so far before
 * them (conv_lead) that no band is written over rows which it or a later one reads. A band of a convolution
 * that strides is gathered before it is written: its out may begin where in does, unless a row of it is
 * longer than two of in, or with zeros before, than one. */
void op_conv2d(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
               struct epilogue e, struct conv_options options);
/* Rows of the result of so many of in, or columns: cut is then the options' cut_row or cut_column. */
int32_t conv_size(int32_t in, const struct conv_options *options, bool cut);
int32_t conv_band_rows(int32_t columns);
/* How far before row 0 of in row 0 of out must lie, in the unit of the two rows' sizes: rows and columns of
 * out, halo rows that are read above and below. Also for several convolutions in turn, with the halo that
 * they have together. */
int64_t conv_lead(int32_t rows, int32_t columns, int halo, int upsample, int64_t in_row, int64_t out_row);
/* Of two frames `before` is the earlier one: absent, it is zeros, as before a video's first frame. base is as
 * out and may be out, or be absent. Rows of pixels may be taken from all of them alike. */
void op_mean_down(struct context *x, struct tensor out, struct tensor in, struct tensor before,
                  struct tensor base, struct shortcut shortcut);
void op_repeat_up(struct context *x, struct tensor out, struct tensor in, struct tensor base,
                  struct shortcut shortcut);
void op_latent_to_image(struct context *x, struct tensor out, struct tensor latent,
                        struct latent_format format);
void op_image_to_rgb(struct context *x, struct tensor out, struct tensor in);

const char *op_name(enum op_kind kind);

/* What an operator's time follows from: multiplications in products (by their precision), attention and
 * convolutions, bytes read and written in everything else (linear_few included: its weights are read for a
 * few rows). */
enum op_class { CLASS_LINEAR, CLASS_LINEAR_BF16, CLASS_ATTENTION, CLASS_CONV, CLASS_BYTES, N_OP_CLASSES };

/* FLOPs a second, of CLASS_BYTES bytes a second; 0: unknown, counts as no time. */
struct op_rates {
    double per_second[N_OP_CLASSES];
};

enum op_class op_class_of(const struct op *op);
/* "linear", "linear_bf16", "attention", "conv", "bytes". */
const char *op_class_name(enum op_class of);
/* Seconds that a call takes at these rates. */
double op_seconds(const struct op *op, const struct op_rates *rates);
enum { OP_OPERANDS_MAX = OP_INPUTS + 4 };
/* What an operator reads, absent tensors too, into list; returns how many: the one place that knows which of
 * the union's are its own. Where there is a side, the weight's adapters' `up` are read as well. */
int op_operands(const struct op *op, const struct tensor *list[OP_OPERANDS_MAX]);
/* Bytes of the operands that lie in the arena, each operand once for being read or written: what a kernel
 * reads again (rows that bands share) is not in it. */
uint64_t op_bytes_in(const struct op *op, const struct arena *arena);
/* Multiplications and additions of one call. */
double op_flops(const struct op *op);

#endif
