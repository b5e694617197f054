/* Test cases of all operators. A case draws random operands, computes the result in double precision, calls
 * the operator and compares. All devices share the cases; the including program chooses shapes, types and
 * tolerances. */
#ifndef SLUICE_TEST_OPS_CASES_H
#define SLUICE_TEST_OPS_CASES_H

#include "test/lib/ops_operands.h"

/* Relative L2 errors of an operator: the largest measured before on the device (0: the bits must be equal),
 * and the largest of this run. The program that includes the cases defines op_errors. */
struct op_error {
    double known, measured;
};

extern struct op_error op_errors[N_OP_KINDS];

double activated(enum activation activation, double v);
/* Allocates as many doubles as the tensor has values; they are valid until the next case. */
double *op_truth(const struct tensor *t);
/* Returns the tensor's values in row-major order, each passed through `as`. */
double *op_values(const struct tensor *t, double (*as)(double));
/* Returns the relative L2 error of an operator's output against expected values in row-major order. */
double op_error_of(const struct tensor *out, const double *truth);
void op_expect(enum op_kind kind, const struct tensor *out, const double *truth);

enum residual { RESIDUAL_NONE, RESIDUAL_APART, RESIDUAL_OUT };

struct linear_case {
    int32_t t, n, k;
    enum dtype dtype;
    int gap;
    bool bias, gate;
    enum activation activation;
    enum residual residual;
};

void case_linear(struct linear_case c);
/* Returns the relative L2 error of op_linear against f64 sums. */
double linear_error(struct linear_case c);
/* Checks op_linear_few, which applies the activation before the product; gate and residual are ignored. */
void case_linear_few(struct linear_case c);

/* Checks rule R4 (kernels/README.md): an output row of op_linear_few has the same bits alone and among 7 to
 * `most` rows. Small K are tested because the sum over K is split differently for each K. */
void case_rows_alike(int32_t k, enum dtype dtype, enum activation activation, int32_t most);

enum { FACTORS_MOST = 3 };

/* Low-rank factors of one adapter for weight rows [row, row + n). `rank` 0 ends the list. */
struct factors {
    int32_t rank, row, n;
    enum dtype dtype;
    float scale;
};

/* A matrix product whose weight has low-rank adapters. */
struct adapted_case {
    struct linear_case base; /* base.n: number of rows of the whole weight; base.dtype: F32, F16 or BF16 */
    struct factors factors[FACTORS_MOST];
    int32_t first, rows; /* range of weight rows that are multiplied; rows 0: all rows */
};

void case_adapted(const struct adapted_case *c);
void case_adapted_few(const struct adapted_case *c);

/* True if the device rounds the low-rank intermediate (in * down^T) and `up` too, in addition to the operands
 * of the base product. */
extern bool low_rank_rounded;

/* Gives the operator context scratch memory, valid until the next case. */
void adapted_scratch(void);
/* Returns random low-rank factors for the weight in `chain`, valid until the next case; NULL: the case has no
 * adapters. */
const struct low_rank *adapted_chain(struct low_rank *chain, const struct factors *factors,
                                     const struct tensor *weight);

struct attention_case {
    int32_t t, s, heads, key_heads, d;
    int gap;
    bool causal, in_place;
    float scale;
};

/* biased: the attention has a relative position bias. */
void case_attention(struct attention_case c, bool biased);

/* Checks the relative position bias, expanded from a table of buckets. */
void case_relative_bias(int32_t t, int32_t heads, int32_t buckets, int32_t max_distance, enum dtype dtype,
                        int gap);

struct rms_case {
    int32_t t, c, groups;
    enum dtype dtype;
    int gap;
    bool modulated, in_place; /* modulated: the output adds to a base, so in_place is ignored */
    enum activation activation;
};

void case_rms_norm(struct rms_case r);
/* Checks an RMS norm with a weight that is stored minus 1. shifted: with a scale and a shift; needs
 * r.modulated false. */
void case_rms_zero_centered(struct rms_case r, bool shifted);

enum { WITH_WEIGHT = 1, WITH_BIAS = 2, WITH_SCALE = 4, WITH_SHIFT = 8 };

/* Checks a layer norm; `with`: the affine vectors that it has. */
void case_affine(int32_t t, int32_t c, int gap, int with, bool in_place);

/* Checks the statistics of a group norm, then the norm. */
void case_group_norm(int32_t rows, int32_t columns, int32_t c, int groups, bool in_place);
/* Checks the first n of the RoPE tables: grids as in the supported families, at small sizes. */
enum { ROPE_TABLES = 12 };
void case_rope_tables(int n);

struct rope_case {
    int32_t t, heads, d;
    int gap;
    enum rope_pairs pairs;
    bool normed;
    enum dtype norm; /* element type of the norm's weights */
    bool in_place;
};

void case_rope(struct rope_case c);
/* Checks RoPE after an RMS norm with a weight that is stored minus 1. */
void case_rope_zero_centered(struct rope_case c);

/* Checks a gated linear unit. `place`: where the output is written: 0 separate memory, 1 over `a`, 2 over
 * `b`. */
void case_glu(int32_t t, int32_t f, int gap, int place, enum activation activation);

/* Checks a sum. `place`: where the output is written: 0 separate memory, 1 over `a`, 2 over `b` (f32, shaped
 * like `a`). */
void case_add(int32_t t, int32_t c, enum dtype dtype, int gap, bool one_row, int place);
void case_add_scaled(int32_t t, int32_t c, enum dtype dtype, int gap, bool one_row, int place, float factor);
/* Checks the sum of tokens and interpolated positions. dtype: type of the table; gap: floats between rows. */
void case_add_positions(struct position_grid grid, int32_t c, enum dtype dtype, int gap, bool in_place);
void case_copy(int32_t t, int32_t c, enum dtype dtype, int gap);
/* Checks the split of an image into patches, and back. rows, columns: numbers of patches. */
void case_patchify(int32_t c, int32_t rows, int32_t columns, struct patches patches, int gap);
/* Checks the patches of a latent in planes, in every order of their values. rows, columns: of the latent. */
void case_patch_orders(int32_t c, int32_t rows, int32_t columns, int p, int gap);
/* Checks token orders: cropped and whole windows, only blocks, only windows, neither blocks nor windows. */
void case_token_orders(void);
void case_timestep(int32_t d, float t, enum timestep_form form);

enum { PIXEL_NORM = -1, PLAIN_PIXEL_NORM = -2 };

struct conv_case {
    int32_t rows, columns, c, n, k;
    enum dtype dtype;
    /* up: upsampling factor. groups: of the group norm; 0: no norm; PIXEL_NORM: norm over a pixel's channels;
     * PLAIN_PIXEL_NORM: without weight. */
    int up, groups;
    enum activation activation;
    bool bias;
    enum residual residual;
};

/* Checks a convolution with cropping, stride and leading padding. With a stride, norm, upsampling and
 * residual are not allowed. */
void case_conv(struct conv_case c, struct conv_options size);
/* As case_conv, with `in` and `out` as columns of one wider image, as in a dense block. */
void case_conv_columns(struct conv_case c, struct conv_options options);
void case_picture(int32_t c, int32_t rows, int32_t columns);
void case_shortcuts(void);

int random_bool(void);
enum dtype random_dtype(void);

/* Returns a mostly small, sometimes larger random number, at most `most`. */
int32_t random_size(int32_t most);
void random_case(void);

void test_print_errors(void **state);

#endif
