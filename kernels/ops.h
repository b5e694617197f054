/* Operators: one formula each, from the reference implementations of the model families; the same on every
 * device.
 *
 * Letters: T tokens or rows, C channels, N outputs, K inputs, H heads, G key/value heads, D head size, Y X
 * pixels.
 *
 * Types. Weights have any type for which dtype_is_weight is true; tensor.h defines their f32 values.
 * Activations are f32. In bf16 mode OP_LINEAR rounds input and weight to bf16 (nearest even); a device may do
 * the same for attention (device->operands). Nothing else is rounded. A tensor that only products and
 * attention read may already have the rounded type (context_operand): its producer computes in f32 and rounds
 * once, so the bits of all other results do not change. Such tensors start at multiples of 16 bytes. A result
 * must not alias an operand of another element type.
 *
 * int8 mode (W8A8 with ConvRot). OP_LINEAR rotates each group of int8_group columns of a row of `in` and of
 * the weight by the matrix H of DTYPE_I8_ROT16 (tensor.h), in f32. H is its own inverse, so the product does
 * not change. A rotated row r becomes codes q = round_half_even(r / s), where s = max |r| / 127 is the row's
 * scale. out = s_in s_weight sum(q_in q_weight), plus the epilogue; the integer sum is exact in any order.
 * Weights of a rotated type are used as stored, with their codes (I4_ROT256: decoded to 8 bits) and row
 * scales. A row of zeros has scale 0. A row with a value that is not finite gives NaN. The adapters'
 * products, and products without a group (int8_group 0), use the device's default precision.
 *
 * Sums are f32, in an order that depends on shapes alone; norm statistics are double.
 *
 * Adapters. A product with a weight that has adapters adds in . down^T . up^T wherever its formula has in .
 * weight^T or conv(in). wrappers.c adds the adapters' part.
 *
 * Errors. The context keeps the first error; afterwards operators do nothing. Wrappers check shapes once for
 * all devices. A mismatch is INTERNAL, because files were checked when blocks were bound. An absent optional
 * tensor has rank 0. */
#ifndef SLUICE_KERNELS_OPS_H
#define SLUICE_KERNELS_OPS_H

#include "kernels/device.h"

enum op_kind {
    OP_LINEAR,     /* out[T,N] = residual + gate * act(in[T,K] . weight[N,K]^T + bias) */
    OP_LINEAR_FEW, /* out = act(in) . weight^T + bias for a few rows (timestep, pooled prompt); each row's sum
                      has a fixed order */
    OP_ATTENTION,  /* out[T,H,D] = softmax(scale q k^T + relative bias) v; optionally grouped or causal; out
                    * may be q */
    OP_RELATIVE_BIAS, /* out[H,2T-1]: out[h][d + T - 1] = table[bucket(d)][h], where d = key - query and
                         bucket is T5's */
    OP_RMS_NORM,   /* out = base + gate * act(in / sqrt(mean(in^2) + eps) * weight * (1 + scale) + shift) */
    OP_LAYER_NORM, /* out = ((in - mean) / sqrt(var + eps) * weight + bias) * (1 + scale) + shift */
    OP_GROUP_STATISTICS, /* out[groups,2] = mean and 1/sqrt(var + eps) over pixels and channels of a group of
                          * in[Y,X,C], including earlier bands */
    OP_GROUP_NORM, /* out = (in - mean) * rstd * weight + bias, with mean and rstd from OP_GROUP_STATISTICS or
                    * OP_GROUP_RANGE */
    OP_GROUP_RANGE, /* out[groups,2] = mean and scale/(max - min + eps) over pixels and channels of a group of
                     * in[Y,X,C] */
    OP_ROPE_TABLE,  /* out[T,D/2,2] = cos, sin of position * theta^(-2i/d); d: axis size (mrope: D) */
    OP_ROPE_AXIS,   /* out[n,F,2] = cos, sin of (2 p(k) - 1) * g(i) for positions k of one axis and
                       frequencies i (LTX): struct rope_axis */
    OP_ROPE,        /* out = rms_norm(in[T,H,D]) with pairs (2i,2i+1) or (i,i+D/2) rotated by the table */
    OP_GLU,         /* gated linear unit: out = act(a) * b */
    OP_ADD,         /* sum of two tensors: out = a + factor b */
    OP_COPY,        /* copy: out = in, where `in` has any weight type */
    OP_ADD_POSITIONS, /* out[T,C] = a[T,C] + table[S*S,C], interpolated bilinearly to the rows and columns of
                       * an image, with aligned corners */
    OP_BROADCAST_ROW, /* every row of out[T,C] = in[1,C] */
    OP_PATCHIFY,      /* tokens[Y/p*X/p, p*p*C], columns in order (py,px,c), (c,py,px) or (c,px,py), from
                       * latent[C,Y,X] or image[Y,X,C] */
    OP_UNPATCHIFY,    /* inverse of OP_PATCHIFY, times a factor */
    OP_TIMESTEP, /* out[1,D] = cos(t f), sin(t f), f_i = 10000^(-i/(D/2)); variants: enum timestep_form */
    OP_CONV2D, /* out[Y,X,N] = finish(residual + scale (conv(act(norm(up(in[Y,X,C])))) + bias)); square kernel
                  of 1 or 3, "same" padding; same size as `in`, or half, rounded up (stride 2) */
    OP_MEAN_DOWN, /* AvgDown3D of the Wan 2.2 VAE. out[Y/s,X/s,N] = base + means of N equal runs of the
                   * values, ordered (c, frame, row, column), of f frames of s x s pixels */
    OP_REPEAT_UP, /* DupUp3D of the Wan 2.2 VAE. out[sY,sX,N] = base + in[Y,X,C]: value number i, counted as
                   * (n, frame, row, column), copies channel i / (N f s s / C) */
    OP_LATENT_TO_IMAGE, /* out[Y,X,C] = limit(in[C,Y,X] / scale[C] + shift[C]) */
    OP_IMAGE_TO_RGB,    /* out u8 = round_half_even(255 clamp(in / 2 + 1/2)) */
    OP_MAP,             /* out = f(in) for each value: enum map_form */
    OP_SNAKE, /* out[T,C] = down(v + sin(e^a v)^2 / (e^b + 1e-9)) with v = up(in[T,C]): 2x resampling in time
               */
    OP_SINC_UP, /* out[rT,C] = base + in[T,C], resampled in time by a Hann-windowed sinc */
    N_OP_KINDS,
};

/* SiLU: v sigmoid(v). GELU_TANH: v/2 (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3))). GELU_QUICK: v sigmoid(1.702
 * v). GELU_ERF: v/2 (1 + erf(v / sqrt 2)). RELU: max(v, 0), NaN stays NaN. SIGMOID: 1 / (1 + e^-v).
 * SIGMOID_TWICE: 2 / (1 + e^-v). */
enum activation {
    ACTIVATION_NONE,
    ACTIVATION_SILU,
    ACTIVATION_GELU_TANH,
    ACTIVATION_GELU_QUICK,
    ACTIVATION_GELU_ERF,
    ACTIVATION_RELU,
    ACTIVATION_SIGMOID,
    ACTIVATION_SIGMOID_TWICE,
};
/* Last step of a convolution. RELU: max(v, 0), NaN stays NaN. LEAKY_RELU: v, or slope * v if v is
 * negative. PRELU: the same with a slope for each output channel. TO_SIGNED: 2 v - 1, from images in 0..1 to
 * images in -1..1.
 */
enum finishing { FINISH_NONE, FINISH_RELU, FINISH_LEAKY_RELU, FINISH_PRELU, FINISH_TO_SIGNED };
/* Which two dimensions of a head RoPE rotates together: (2i, 2i + 1), or (i, i + D/2). */
enum rope_pairs { ROPE_INTERLEAVED, ROPE_HALVES };

/* Vectors and residual of a matrix product or convolution. OP_LINEAR uses all fields; OP_CONV2D bias and
 * residual only. */
struct epilogue {
    struct tensor bias;         /* bias vector [N] */
    enum activation activation; /* activation of product + bias */
    struct tensor gate;         /* gate vector [N]; multiplies the activated product */
    struct tensor residual;     /* residual, of out's shape; may alias out */
};

/* Modulation (adaLN), residual and activation of an RMS norm; all optional. */
struct modulation {
    bool zero_centered;  /* the weight is stored minus 1: the norm is multiplied by 1 + weight */
    struct tensor scale; /* modulation scale [C]; the norm is multiplied by 1 + scale */
    struct tensor shift; /* modulation shift [C], f32, added to the scaled norm; only without gate and base */
    struct tensor gate;  /* gate vector [C]; the norm is multiplied by tanh(gate) */
    struct tensor base;  /* tensor of out's shape to which the gated norm is added; may alias out */
    enum activation activation; /* activation of the norm; only without gate and base */
};

/* Optional vectors [C] of a layer norm. */
struct affine {
    struct tensor weight, bias; /* learned weight and bias of the norm */
    struct tensor scale, shift; /* adaLN modulation vectors; the norm is multiplied by 1 + scale */
};

struct attention_options {
    int queries, keys;           /* numbers of query heads and of key heads; queries is a multiple of keys */
    float scale;                 /* scale factor of the attention scores, usually 1/sqrt(D) */
    bool causal;                 /* causal mask: query t attends to keys up to S - T + t; needs S >= T */
    struct tensor relative_bias; /* optional bias [queries, T+S-1]; element s - t + T - 1 is added to the
                                  * score of query t and key s */
};

/* T5's bidirectional relative position buckets. The first half of the table's rows serves keys up to the
 * query, the second half keys after the query. Distances below a quarter of the rows have one bucket each;
 * longer distances share buckets by logarithm; max_distance and beyond use the last bucket. */
struct distance_buckets {
    int32_t max_distance;
};

/* Layout of a RoPE table with one part per axis, instead of one row per token (LTX). All H heads of a token
 * share one sequence of P = H D/2 pairs: pair p is pair p % (D/2) of head p / (D/2). The first n_unrotated
 * pairs are copied. Pair n_unrotated + i n_axes + a rotates by frequency i at the token's position on axis a.
 *
 * Tokens are a grid of extent[0] x extent[1] x extent[2], the last axis fastest; row r of `in` is token
 * first_token + r. Axes from n_axes on have no angles: with n_axes 1 and extent {F, Y X}, all tokens of a
 * frame rotate alike. The table is [sum of the first n_axes extents, (P - n_unrotated) / n_axes, 2]: the
 * positions of axis 0, then of axis 1, ... (op_rope_axis). */
enum { TOKEN_AXES_MAX = 3 };
struct rope_axes {
    int n_axes;                     /* number of axes with angles; 0: the table is [T, D/2, 2] */
    int32_t extent[TOKEN_AXES_MAX]; /* positions per axis; 0 means 1, on axes without angles */
    int32_t n_unrotated, first_token;
};

/* Options of op_rope. */
struct rotation {
    int heads; /* number of heads in a row */
    enum rope_pairs pairs;
    struct rope_axes axes; /* layout of the table if it has one part per axis */
    struct tensor norm;    /* optional weight [D] of an RMS norm of each head before the rotation */
    bool zero_centered;    /* `norm` is stored minus 1: the norm is multiplied by 1 + weight */
    float eps;             /* epsilon of the heads' RMS norm */
};

/* Order of an image's tokens: windows in raster order (smaller at the right and bottom edge), blocks in
 * raster order within a window, rows within a block. window 0: one window; block 0: no blocks. The window's
 * side and the image's rows and columns are multiples of the block's side. */
struct token_order {
    int32_t window, block; /* sides of a window and of a block, in tokens */
};

/* Image to whose tokens OP_ADD_POSITIONS adds interpolated rows of a learned table of side * side positions.
 * A token in row r of the image is at row r (side - 1) / (rows - 1) of the table; columns alike. */
struct position_grid {
    int32_t side, rows, columns;
    struct token_order token_order;
};

struct token_coords {
    int32_t row, column;
};

/* Order of a patch's values in its token: (py,px,c), (c,py,px) or (c,px,py), the last fastest. */
enum patch_order { PATCH_CHANNELS_LAST, PATCH_CHANNELS_FIRST, PATCH_COLUMNS_FIRST };

struct patches {
    int side; /* side of a patch, in pixels */
    enum patch_order order;
    bool pixels; /* memory layout of the image: true [Y,X,C], false [C,Y,X] */
    /* With PATCH_CHANNELS_FIRST: a token holds `frames` frames in order (c,t,py,px); the image is frame
     * number `frame`. op_patchify writes and op_unpatchify reads the columns of that frame only. 0: one
     * frame. */
    int frames, frame;
    struct token_order token_order; /* order of the patches in the token sequence */
};

struct group_norm {
    struct tensor statistics; /* mean and 1/sqrt(var + eps) per group [groups,2], from op_group_statistics */
    struct tensor weight, bias; /* learned weight and bias [C] */
};

/* RMS norm over each pixel's channels: x / sqrt(mean(x^2) + eps) * weight. */
struct pixel_norm {
    struct tensor weight; /* weight vector [C]; absent with eps above 0: a norm without weight */
    float eps;
};

struct conv_options {
    struct group_norm norm;       /* group norm of the convolution's input; none if statistics is absent */
    struct pixel_norm pixel_norm; /* RMS norm of each input pixel, if conv_norms_pixels; excludes `norm` */
    enum activation activation;   /* activation of the convolution's input, after the norm */
    bool bounded;                 /* the input's values are far below f16's largest number (65,504), as after
                                   * a norm, so devices may round them to f16; norm and pixel_norm imply it */
    float scale;                  /* factor of convolution and bias, before the residual; 0 means 1 */
    enum finishing finish;        /* last step of the convolution, after bias and residual */
    float slope;                  /* with FINISH_LEAKY_RELU: factor of negative values */
    struct tensor slopes;         /* with FINISH_PRELU: factors of negative values [N], of any weight type */
    int upsample;                 /* upsampling (nearest neighbour) before the convolution: 1 or 2 */
    bool cut_row, cut_column;     /* with upsample 2: the upsampled input loses its last row or column (2Y
                                   * - 1, 2X - 1); zero padding takes its place */
    int stride;                   /* 0 or 1: stride 1; 2: stride 2, needs kernel size 3 */
    int pad_before;    /* zero padding with stride 2. 0: one row below, one column to the right (image of even
                        * size); 1: one row or column on all sides */
    int32_t first_row; /* index of the result's row that is row 0 of `out`; 0 with stride 2 */
};

/* Residual shortcut around a level of the Wan 2.2 VAE (AvgDown3D, DupUp3D): one coarse pixel corresponds to
 * `frames` frames of side x side finer pixels. */
struct shortcut {
    int32_t frames, side; /* number of frames and side of the finer image per coarse pixel, 1 or 2 each */
    int32_t frame;        /* for op_repeat_up: index of the finer frame to write to `out` */
};

/* Running sums for the group statistics of an image that is processed in bands from the top. */
struct rows_before {
    struct tensor sums; /* running sums [groups,2] in f64; absent: `in` is the whole image, not a band */
    int32_t rows;       /* number of image rows above this band; 0 resets sums */
};

enum { ROPE_AXES_MAX = 4, ROPE_HEAD_MAX = 512 }; /* axes of op_rope_table; largest head of op_rope */

/* Variants of the sinusoidal timestep embedding. USUAL: cos(t f), sin(t f), f_i = 10000^(-i/(D/2)). TO_END:
 * sin(t f), cos(t f), f_i = 10000^(-i/(D/2-1)), so the last frequency is 1/10000 (guidance embedding of
 * latent consistency models; diffusers' downscale_freq_shift 1). OF_SIGMA: t is a sigma; the rounded angle t
 * f is multiplied by 1000 (Qwen-Image). */
enum timestep_form { TIMESTEP_USUAL, TIMESTEP_TO_END, TIMESTEP_OF_SIGMA };

/* One grid of token positions; a RoPE table may have several. The last axis varies fastest, or token_order
 * applies to the last two axes (rows and columns of an image). */
struct rope_grid {
    int32_t start[ROPE_AXES_MAX], extent[ROPE_AXES_MAX];
    bool diagonal;  /* text tokens: a grid of extent[0] tokens; token i has position start[a] + i on axis a */
    int fixed_axes; /* diagonal grids: on axes below fixed_axes every token has position start[a] */
    struct token_order token_order;
};

enum { ROPE_GRIDS_MAX = 18 }; /* a prompt with 8 images has 17: the images and the text around them */

struct rope_options {
    double theta;
    int n_axes, axis_dim[ROPE_AXES_MAX]; /* number of axes; their sizes, even numbers that sum to D */
    double theta_factor[ROPE_AXES_MAX];  /* factor of theta for an axis; 0 means 1; not with mrope */
    double position_divisor;             /* positions are divided by it (rope scaling "linear"); 0 means 1 */
    bool mrope; /* M-RoPE: pair i of the whole head uses theta^(-2i/D), and axes share these pairs in order;
                 * false: every axis starts at theta^0 and uses its own size */
    bool mrope_interleaved; /* M-RoPE of three axes: pair i belongs to axis a = i % 3 if i < 3 axis_dim[a] /
                               2, else to axis 0; false: pairs of an axis are adjacent */
    bool f32_frequencies; /* true: each step of a frequency is rounded to f32, as in PyTorch; false: computed
                             in double */
    bool f64_angles; /* true: cos and sin of the angle in double (Wan); false: of the angle rounded to f32 */
    int n_grids;
    struct rope_grid grid[ROPE_GRIDS_MAX];
};

/* Positions and frequencies of one rope axis (LTX; diffusers 0.42, models/transformers/transformer_ltx2.py).
 * Latent position k covers the coordinates c(k) to c(k + 1), in pixels or seconds: c(k) = max(0, step k +
 * first) numerator / denominator. Its relative position is p(k) = (c(k) + c(k + 1)) / 2 / size, or c(k) /
 * size with `corner`. The angle is (2 p(k) - 1) g(i), with g(i) = theta^(i / (F - 1)) pi/2. As in diffusers,
 * g is computed in double and rounded once; every other step is rounded to f32. */
struct rope_axis {
    double theta;
    int32_t step, first;          /* samples (frames, pixels) per latent position; offset in samples */
    float numerator, denominator; /* numerator / denominator: coordinate of one sample */
    float size;                   /* coordinate at which p is 1 */
    bool corner;                  /* positions are the starts of their ranges, not the centres */
};

/* LEAKY_RELU: v, or parameter * v if v is negative. MAGNITUDE: in[T,2C], out[T,C] = sqrt(in[t][c]^2 +
 * in[t][C+c]^2). LOG: log(max(v, parameter)). TANH: tanh(v). CLAMP: v clamped to -parameter..parameter.
 * SCALE: parameter * v. FILL: parameter; `in` is not used. */
enum map_form { MAP_LEAKY_RELU, MAP_MAGNITUDE, MAP_LOG, MAP_TANH, MAP_CLAMP, MAP_SCALE, MAP_FILL };

/* Weights of op_snake, as in files: logarithms of alpha and beta, one per channel [C]; low-pass filters of
 * the 2x upsampling and of the downsampling [SNAKE_TAPS]. Of any weight type. */
enum { SNAKE_TAPS = 12 };
struct snake {
    struct tensor alpha, beta, up, down;
};

/* Filter of op_sinc_up: SINC_WIDTH input samples on each side. */
enum { SINC_WIDTH = 7, SINC_RATIO_MAX = 16, SINC_TAPS_MAX = 2 * SINC_WIDTH * SINC_RATIO_MAX + 1 };

enum { OP_INPUTS = 5 };

/* True if a convolution applies an RMS norm to each input pixel. */
static inline bool conv_norms_pixels(const struct conv_options *o) {
    return o->pixel_norm.weight.rank || o->pixel_norm.eps > 0;
}

enum { LATENT_VALUES_MAX = 128 };

/* Scaling between latents and VAE values z: latent = (z - shift) scale, per channel or one pair for all. With
 * a limit the decoder replaces z by limit tanh(z / limit). */
struct latent_format {
    int n; /* number of scale and of shift values: 1, or one per channel */
    float scale[LATENT_VALUES_MAX], shift[LATENT_VALUES_MAX];
    float limit; /* limit of the tanh in latent values; 0: no tanh */
};

/* One operator call, as passed to devices. in[] holds the wrapper's tensors in the order of its arguments.
 * Exceptions: conv2d has in, weight, bias, residual; rope has in, table, norm; layer_norm has in, weight,
 * bias, scale, shift; attention's relative bias is in[3]. Norms, modulation, linear's bias and residual and
 * conv2d's norms are in the union. The number of key heads is k's columns / (q's columns / n). */
struct op {
    enum op_kind kind;
    struct tensor out, in[OP_INPUTS];
    union {
        struct epilogue epilogue;     /* parameters of op_linear */
        struct modulation modulation; /* parameters of op_rms_norm */
        struct group_norm group_norm; /* parameters of op_group_norm */
        struct conv_options conv;
        struct rope_options rope;       /* parameters of op_rope_table */
        struct rotation rotation;       /* parameters of op_rope */
        struct patches patches;         /* parameters of op_patchify and op_unpatchify */
        struct position_grid positions; /* parameters of op_add_positions */
        int32_t rows_before;            /* image rows above this band; in[1] has the running sums */
        int32_t max_distance;           /* largest distance of op_relative_bias, in tokens */
        struct shortcut shortcut;       /* parameters of op_mean_down and op_repeat_up */
        struct latent_format format;    /* parameters of op_latent_to_image */
        enum timestep_form form;        /* parameter of op_timestep */
        struct rope_axis axis;          /* parameters of op_rope_axis */
        enum map_form map;              /* parameter of op_map */
        int32_t ratio;                  /* parameter of op_sinc_up */
    };
    struct tensor down_product; /* op_linear with adapters: f32 [T,R], in . down^T of all adapters of the
                                 * weight in[1], side by side; absent without adapters */
    float scale; /* attention's scale, the factor of add, unpatchify and group_range, or the timestep t */
    float eps;
    bool causal;
    bool zero_centered;         /* op_rms_norm, op_rope: the norm is multiplied by 1 + weight */
    enum activation activation; /* activation of op_linear_few and of op_glu */
    int n; /* number of attention heads, of groups of a group norm, or of columns that op_rms_norm norms
            * together */
    enum precision precision; /* precision of the operands of op_linear; f16 also of op_conv2d */
    bool skinny; /* op_linear with few outputs: a device may split the rows among threads; the split depends
                  * on the shape alone */
};

/* Most inputs of an int8 product: K products of 127 * 127 must fit into a 32-bit sum. */
enum { INT8_INPUTS_MAX = INT32_MAX / (127 * 127) };
/* Returns the number of columns in a rotation group of the weight [N,K] in int8 mode: for rotated types the
 * stored group, else the largest of 256, 64 and 16 that divides K. 0: the product does not use int8. */
int32_t int8_group(const struct tensor *weight);

/* weight has no gaps between rows (in all operators). Rows of `in` and `out` may be strided. `in` and `out`
 * may have the rounded operand type (see context_operand). `out` must not alias `in`. */
void op_linear(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
               struct epilogue e);
/* Like op_linear for a few rows; the activation applies to `in`. A row's bits do not depend on other rows. */
void op_linear_few(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                   struct tensor bias, enum activation activation);
enum { ATTENTION_HEAD_MAX = 1152 };
/* q, out [T,H*D]; k, v [S,G*D]; D at most ATTENTION_HEAD_MAX. Rows may be strided. q, k, v and out may have
 * the rounded operand type (see context_operand); k and v must have the same type. out may alias q, but not k
 * or v. */
void op_attention(struct context *x, struct tensor out, struct tensor q, struct tensor k, struct tensor v,
                  struct attention_options heads);
/* out [H,2T-1], table [buckets,H]; buckets: a multiple of 4, at most 128. Buckets are computed in f32 as in
 * transformers 5, models/t5/modeling_t5.py, _relative_position_bucket. */
void op_relative_bias(struct context *x, struct tensor out, struct tensor table,
                      struct distance_buckets buckets);
/* Returns the bucket of a distance (key - query), on the host, for op_relative_bias. */
int32_t distance_bucket(int32_t distance, int32_t n_buckets, int32_t max_distance);
/* weight [C]; absent: C is the row's length. Rows of out and in have a multiple of C values; each group of C
 * values is normed separately, so [T,H*D] with weight [D] norms heads. `out` may alias `in` or `base`, or
 * have the rounded operand type (see context_operand). */
void op_rms_norm(struct context *x, struct tensor out, struct tensor in, struct tensor weight, float eps,
                 struct modulation m);
/* Layer norm of each row of `in`. `out` may alias `in`, or have the rounded operand type (see
 * context_operand). */
void op_layer_norm(struct context *x, struct tensor out, struct tensor in, struct affine affine, float eps);
/* Group statistics. Rows are added from the top, so an image processed in bands gives the same bits as the
 * whole image. */
void op_group_statistics(struct context *x, struct tensor out, struct tensor in, struct rows_before before,
                         int groups, float eps);
/* Computes mean and scale / (max - min + eps) of each group of channels of in[Y,X,C], for op_group_norm
 * (diffusers 0.42, pipelines/ltx2/connectors.py, per_layer_masked_mean_norm). out [groups,2]. */
void op_group_range(struct context *x, struct tensor out, struct tensor in, int groups, float scale,
                    float eps);
/* Norms `in` with statistics from op_group_statistics or op_group_range. Weight and bias may be absent. `out`
 * may alias `in`. */
void op_group_norm(struct context *x, struct tensor out, struct tensor in, struct group_norm norm);
/* Computes a RoPE table. The angle is position * frequency in double, rounded to f32 as in diffusers, for
 * Z-Image (double frequencies) and Qwen-Image (f32 frequencies, equal product). Wan's angle stays double. */
void op_rope_table(struct context *x, struct tensor out, const struct rope_options *options);
/* Returns the frequency of RoPE pair i of a head, on the host. */
double rope_frequency(const struct rope_options *options, int32_t i);
/* Returns the axis of RoPE pair i of a head: its position multiplies the pair's frequency. On the host. */
int rope_pair_axis(const struct rope_options *options, int32_t i);
/* Returns row and column of token i of an image of rows x columns tokens. */
struct token_coords token_coords_at(struct token_order token_order, int32_t rows, int32_t columns, int64_t i);
/* Computes the part of one axis in a table of struct rope_axes. out [n,F,2]: n positions, F frequencies; it
 * may be a slice of the whole table. */
void op_rope_axis(struct context *x, struct tensor out, struct rope_axis axis);
/* Return 2 p(k) - 1 and, for n frequencies, g(i) of a rope axis, on the host. */
float rope_axis_position(const struct rope_axis *axis, int32_t k);
float rope_axis_frequency(const struct rope_axis *axis, int32_t i, int32_t n);
/* Applies a RoPE table to heads. in, out [T,H*D]; table [T,D/2,2], or one part per axis (struct rope_axes); D
 * at most ROPE_HEAD_MAX. `out` may alias `in`, or have the rounded operand type (see context_operand). */
void op_rope(struct context *x, struct tensor out, struct tensor in, struct tensor table,
             struct rotation rotation);
/* Gated linear unit. Rows may be strided (halves of one product). `out` may alias `a` or `b`, or have the
 * rounded operand type (see context_operand). The activation applies to `a`; for GEGLU `a` is the product's
 * second half. `a` may have one column for each head of `b`: [T,H] with b and out [T,H*D]. */
void op_glu(struct context *x, struct tensor out, struct tensor a, struct tensor b,
            enum activation activation);
/* Sum of tensors. b has a's shape or is one row that is added to every row of `a`; any weight type. Rows may
 * be strided. `out` may alias `a`, or `b` if `b` has the shape of `a`. */
void op_add(struct context *x, struct tensor out, struct tensor a, struct tensor b);
/* Like op_add with factor * b in place of b, for example a control network's residual and strength. A factor
 * of 1 gives the bits of op_add. */
void op_add_scaled(struct context *x, struct tensor out, struct tensor a, struct tensor b, float factor);
/* Adds learned positions to the tokens of an image, in token order. a, out [rows * columns, C]; table
 * [side * side, C] of any weight type, in raster order. Rows may be strided; `out` may alias `a`. */
void op_add_positions(struct context *x, struct tensor out, struct tensor a, struct tensor table,
                      struct position_grid grid);
/* Place of an image row (or column) in a learned table: `fraction` of the way from table row `first` to
 * `second`. */
struct table_place {
    int32_t first, second;
    float fraction;
};
/* Returns the place of row (or column) i of n in a table with `side` rows, rounded as in transformers. */
struct table_place table_place_at(int32_t i, int32_t n, int32_t side);
/* Copies and converts `in` to `out`. Rows may be strided; `out` may have the rounded operand type (see
 * context_operand). */
void op_copy(struct context *x, struct tensor out, struct tensor in);
/* Writes `row` [1,C], of any weight type, to every row of out. */
void op_broadcast_row(struct context *x, struct tensor out, struct tensor row);
/* Converts an image or latent to tokens. Rows of tokens and image may be strided. With patches of one pixel
 * and [Y,X,C], op_unpatchify restores raster order. */
void op_patchify(struct context *x, struct tensor tokens, struct tensor latent, struct patches patches);
void op_unpatchify(struct context *x, struct tensor latent, struct tensor tokens, struct patches patches,
                   float factor);
/* Computes a timestep embedding. Exponent, frequency and angle are each rounded to f32, as in diffusers. With
 * TIMESTEP_OF_SIGMA the angle is also rounded before the multiplication by 1000. */
void op_timestep(struct context *x, struct tensor out, float t, enum timestep_form form);
/* Returns element i of a timestep embedding [1, 2 half], on the host. */
float timestep_value(float t, enum timestep_form form, int32_t half, int32_t i);
/* weight [N,C,k,k], k 1 or 3; in [Y,X,C]; out and residual [conv_size(Y),conv_size(X),N] or some rows of it.
 * Pixels may be strided: `in` and `out` may be different columns of one wider image, so that a dense block
 * concatenates without copies. Padding is zero after norm and activation. With stride 2 there is no norm,
 * upsampling or residual; with adapters of the weight there is no scale or finish.
 *
 * Aliasing. Every device writes out from the top in bands of at most conv_band_rows rows, each band after the
 * bands above it; larger bands are gathered before they are written, and residuals added as in small bands.
 * So `out` may overlap `in`, and a residual other than `out`, if `out` starts conv_lead bytes or more before
 * them: then no band overwrites rows that the same or a later band reads. With stride 2 a band is gathered
 * before it is written: `out` may start where `in` starts, unless a row of `out` is longer than two rows of
 * `in` (one row with padding above). */
void op_conv2d(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
               struct epilogue e, struct conv_options options);
/* Returns how many output rows (or columns) of a convolution `in` input rows (or columns) give. cut: cut_row
 * (or cut_column). */
int32_t conv_size(int32_t in, const struct conv_options *options, bool cut);
/* Returns the rows of `out` that a convolution computes per band, for images of this many columns. */
int32_t conv_band_rows(int32_t columns);
/* Returns the smallest distance by which row 0 of `out` must start before row 0 of `in`, in the unit of
 * in_row and out_row. rows, columns: size of out; halo: input rows read above and below, or the sum over
 * several convolutions in sequence. */
int64_t conv_lead(int32_t rows, int32_t columns, int halo, int upsample, int64_t in_row, int64_t out_row);
/* AvgDown3D. `in`: the later frame; `before`: the earlier frame, absent (zeros) before a video's first frame.
 * base has out's shape and may alias out, or is absent. All images may be the same band of rows. */
void op_mean_down(struct context *x, struct tensor out, struct tensor in, struct tensor before,
                  struct tensor base, struct shortcut shortcut);
/* DupUp3D: computes one frame of the finer image. base has out's shape and may alias out, or is absent. */
void op_repeat_up(struct context *x, struct tensor out, struct tensor in, struct tensor base,
                  struct shortcut shortcut);
/* Converts a latent [C,Y,X] to the VAE decoder's input [Y,X,C]. */
void op_latent_to_image(struct context *x, struct tensor out, struct tensor latent,
                        struct latent_format format);
enum { RGBA = 4 }; /* channels of an image with alpha */
/* Converts an f32 image in -1..1, of any number of channels, to bytes; NaN becomes 0. */
void op_image_to_rgb(struct context *x, struct tensor out, struct tensor in);

/* Applies a function to every value of `in`, in f32. out: the shape of `in`; MAP_MAGNITUDE: in [T,2C], out
 * [T,C]. `out` may alias `in`, except with MAP_MAGNITUDE. Rows may be strided. */
void op_map(struct context *x, struct tensor out, struct tensor in, enum map_form form, float parameter);
/* Anti-aliased snake activation of a wave in[T,C] (BigVGAN; diffusers 0.42, pipelines/ltx2/vocoder.py): 2x
 * upsampling in time, v + sin(alpha v)^2 / (beta + 1e-9), downsampling. Both ends are padded with the edge
 * values. out [T,C] must not alias `in`. */
void op_snake(struct context *x, struct tensor out, struct tensor in, struct snake snake);
/* Upsamples a wave in[T,C] in time by an integer ratio r, 1 to SINC_RATIO_MAX, with a Hann-windowed sinc
 * (torchaudio; diffusers 0.42, pipelines/ltx2/vocoder.py, UpSample1d with window_type "hann"), and adds base
 * [rT,C] (absent: 0). out [rT,C] may alias `base`, not `in`. */
void op_sinc_up(struct context *x, struct tensor out, struct tensor in, struct tensor base, int32_t ratio);
/* Returns tap k of the filter of op_sinc_up, times the ratio, on the host. Input i and output row u meet at
 * tap u + ratio (SINC_WIDTH - i). */
float sinc_tap(int32_t ratio, int32_t k);

/* Returns an operator's name for messages, such as "linear". */
const char *op_name(enum op_kind kind);

/* Cost classes of operators. Products (by precision), attention and convolutions are bound by FLOPs; all
 * other operators by bytes read and written (also op_linear_few, which reads the weights for a few rows). */
enum op_class {
    CLASS_LINEAR,
    CLASS_LINEAR_BF16,
    CLASS_LINEAR_INT8,
    CLASS_ATTENTION,
    CLASS_ATTENTION_INT8,
    CLASS_CONV,
    CLASS_BYTES,
    N_OP_CLASSES
};

/* Speed per cost class: FLOPs per second; CLASS_BYTES: bytes per second. 0: unknown, counted as no time. */
struct op_rates {
    double per_second[N_OP_CLASSES];
};

/* Returns the cost class of an operator call. */
enum op_class op_class_of(const struct op *op);
/* Returns a cost class's name: "linear", "linear_bf16", "linear_int8", "attention",
 * "attention_int8", "conv" or "bytes". */
const char *op_class_name(enum op_class of);
/* Returns the estimated seconds of an operator call at the given rates. */
double op_seconds(const struct op *op, const struct op_rates *rates);
enum { OP_OPERANDS_MAX = OP_INPUTS + 5 };
/* Lists all tensors that the operator reads (absent ones included) and returns their number. This function
 * alone maps each operator to its member of the union. The adapters' `up` factors, which operators with a
 * down_product also read, are not listed. */
int op_operands(const struct op *op, const struct tensor *list[OP_OPERANDS_MAX]);
/* Returns the bytes of the operator's operands that lie in the arena. Each operand counts once, even if bands
 * read some of its rows (the halo) twice. */
uint64_t op_bytes_in(const struct op *op, const struct arena *arena);
/* Returns the FLOPs of one operator call; a multiplication and an addition count as two. */
double op_flops(const struct op *op);

#endif
