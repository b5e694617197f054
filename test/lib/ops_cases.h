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

/* Returns the tolerance of an operator for n values. Few values have a higher tolerance, because one sum that
 * nearly cancels dominates the error. */
double op_gate(enum op_kind kind, int64_t n);
double activated(enum activation activation, double v);
/* Allocates as many doubles as the tensor has values; they are valid until the next case. */
double *op_truth(const struct tensor *t);
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

void case_epilogue(struct linear_case c);

void case_linear(int32_t t, int32_t n, int32_t k, enum dtype dtype, int gap, bool bias,
                 enum residual residual);

void case_linear_few(int32_t t, int32_t n, int32_t k, enum dtype dtype, int gap, bool bias,
                     enum activation activation);

struct attention_case {
    int32_t t, s, heads, key_heads, d;
    int gap;
    bool causal, in_place;
    float scale;
};

void attention_case(struct attention_case c, bool biased);
void case_attention(struct attention_case c);
void case_attention_biased(struct attention_case c);

/* Checks the relative position bias, expanded from a table of buckets. */
void case_relative_bias(int32_t t, int32_t heads, int32_t buckets, int32_t max_distance, enum dtype dtype,
                        int gap);

void case_rms_norm(int32_t t, int32_t c, int32_t groups, enum dtype dtype, int gap, bool modulated,
                   bool in_place);

/* Checks an RMS norm followed by an activation. */
void case_normed_activation(int32_t t, int32_t c, int gap, enum activation activation, bool in_place);

enum { WITH_WEIGHT = 1, WITH_BIAS = 2, WITH_SCALE = 4, WITH_SHIFT = 8 };

void case_affine(int32_t t, int32_t c, int gap, int with, bool in_place);
void case_layer_norm(int32_t t, int32_t c, int gap, bool scaled, bool in_place);

/* Checks the statistics of a group norm, then the norm. */
void case_group_norm(int32_t rows, int32_t columns, int32_t c, int groups, bool in_place);
void case_rope_table(const struct rope_options *o);
/* Checks RoPE tables: two grids over three axes, and tables over one axis, as in published models. */
void case_rope_grids(void);
void case_rope_published(void);
void case_rope_kinds(void);

struct rope_case {
    int32_t t, heads, d;
    int gap;
    enum rope_pairs pairs;
    bool normed;
    enum dtype norm; /* element type of the norm's weights */
    bool in_place;
};

void case_rope(struct rope_case c);

/* Checks a gated linear unit. `place`: where the output is written: 0 separate memory, 1 over `a`, 2 over
 * `b`. */
void case_glu(int32_t t, int32_t f, int gap, int place, enum activation activation);

/* Checks a sum. `place`: where the output is written: 0 separate memory, 1 over `a`, 2 over `b` (f32, shaped
 * like `a`). */
void case_add(int32_t t, int32_t c, enum dtype dtype, int gap, bool one_row, int place);
void case_copy(int32_t t, int32_t c, enum dtype dtype, int gap);
void case_patchify(int32_t c, int32_t rows, int32_t columns, int p, int gap);
/* Checks the reordering of pixel patches into a token order. rows, columns: numbers of patches. */
void case_walk(int32_t c, int32_t rows, int32_t columns, struct patches patches, int gap);
void case_walks(void);
void case_timestep(int32_t d, float t, enum timestep_form form);

enum { PIXEL_NORM = -1 };

struct conv_case {
    int32_t rows, columns, c, n, k;
    enum dtype dtype;
    /* up: upsampling factor. groups: of the group norm; 0: no norm; PIXEL_NORM: norm over a pixel's channels.
     */
    int up, groups;
    enum activation activation;
    bool bias;
    enum residual residual;
};

void case_conv(struct conv_case c);

/* Checks a convolution with cropping, stride and leading padding. With a stride, norm, upsampling and
 * residual are not allowed. */
void case_conv_sized(struct conv_case c, struct conv_options size);
void case_picture(int32_t c, int32_t rows, int32_t columns);
/* Checks downsampling by means. rows, columns: size of the smaller image. `place` 0: nothing is added; 1: the
 * output is separate from the addend; 2: the output overwrites the addend. */
void case_mean_down(int32_t rows, int32_t columns, int32_t c, int32_t n, struct shortcut s, int place);
void case_repeat_up(int32_t rows, int32_t columns, int32_t c, int32_t n, struct shortcut s, int place);
void case_shortcuts(void);

/* Checks rule R4 (kernels/README.md): an output row has the same bits alone and among 7 to `most` rows. Small
 * K are tested because the sum over K is split differently for each K. */
void case_rows_alike(int32_t k, enum dtype dtype, bool silu, int32_t most);

int random_bool(void);
enum dtype random_dtype(void);

/* Returns a mostly small, sometimes larger random number, at most `most`. */
int32_t random_size(int32_t most);
void random_case(void);

/* Checks the conversion to 8-bit RGB: values halfway between two bytes, values just outside the range, and
 * NaN. */
void test_rgb_rounding(void **state);
void test_print_errors(void **state);

#endif
