/* Elementwise operators: glu, add, add_positions, copy, broadcast_row. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <string.h>

/* Defines a glu function for one row; `to` may alias `a` or `b`. */
#define GLU(name, of)                                                                                        \
    WIDE static void name(float *to, const float *a, const float *b, int64_t n) {                            \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = of(a[i]) * b[i];                         \
    }
GLU(glu_plain, )
GLU(glu_silu, silu_f32)
GLU(glu_gelu_tanh, gelu_tanh_f32)
GLU(glu_gelu_quick, gelu_quick_f32)
GLU(glu_gelu_erf, gelu_erf_f32)
GLU(glu_relu, relu_f32)
GLU(glu_sigmoid, sigmoid_f32)
GLU(glu_sigmoid_twice, sigmoid_twice_f32)

/* to = factor * b for the columns of one head. */
WIDE static void glu_head(float *to, float factor, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = factor * b[i];
}

static void glu_rows(const void *context, int64_t first, int64_t end, int member) {
    static void (*const rows[])(float *, const float *, const float *, int64_t) = {
        [ACTIVATION_NONE] = glu_plain,          [ACTIVATION_SILU] = glu_silu,
        [ACTIVATION_GELU_TANH] = glu_gelu_tanh, [ACTIVATION_GELU_QUICK] = glu_gelu_quick,
        [ACTIVATION_GELU_ERF] = glu_gelu_erf,   [ACTIVATION_RELU] = glu_relu,
        [ACTIVATION_SIGMOID] = glu_sigmoid,     [ACTIVATION_SIGMOID_TWICE] = glu_sigmoid_twice};
    (void)member;
    const struct op *op = context;
    int64_t columns = tensor_columns(&op->out), gates = tensor_columns(&op->in[0]), head = columns / gates;
    for (int64_t i = first; i < end; i++) {
        float *to = tensor_row(&op->out, i), *a = tensor_row(&op->in[0], i), *b = tensor_row(&op->in[1], i);
        if (head == 1) {
            rows[op->activation](to, a, b, columns);
            continue;
        }
        for (int64_t h = 0; h < gates; h++) {
            float factor;
            simd_activate(op->activation, &factor, a + h, 1);
            glu_head(to + h * head, factor, b + h * head, head);
        }
    }
}

const struct cpu_operator cpu_glu = {.rows = glu_rows};

WIDE static void add_values(float *to, const float *a, const float *b, float factor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = a[i] + factor * b[i];
}

/* Adds a row piece by piece, so that converting b to f32 needs no workspace. */
static void add_rows(const void *context, int64_t first, int64_t end, int member) {
    enum { PIECE = 1024 };
    const struct op *op = context;
    const struct tensor *b = &op->in[1];
    bool one = tensor_rows(b) == 1;
    int64_t columns = tensor_columns(&op->out);
    (void)member;
    for (int64_t row = first; row < end; row++) {
        float piece[PIECE], *to = tensor_row(&op->out, row), *a = tensor_row(&op->in[0], row);
        for (int64_t i = 0, n; i < columns; i += n) {
            n = columns - i < PIECE ? columns - i : PIECE;
            weights_widen_part(piece, b, one ? 0 : row, i, n);
            add_values(to + i, a + i, piece, op->scale, n);
        }
    }
}

const struct cpu_operator cpu_add = {.rows = add_rows};

/* to += factor * from. */
WIDE static void add_scaled(float *to, const float *from, float factor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += factor * from[i];
}

/* Adds the bilinear sum of the four table rows around each token, in pieces as in add_rows. */
static void position_rows(const void *context, int64_t first, int64_t end, int member) {
    enum { PIECE = 1024 };
    const struct op *op = context;
    const struct position_grid *grid = &op->positions;
    int64_t columns = tensor_columns(&op->out);
    (void)member;
    for (int64_t token = first; token < end; token++) {
        float piece[PIECE], sum[PIECE], *to = tensor_row(&op->out, token), *a = tensor_row(&op->in[0], token);
        struct token_coords at = token_coords_at(grid->token_order, grid->rows, grid->columns, token);
        struct table_place y = table_place_at(at.row, grid->rows, grid->side);
        struct table_place x = table_place_at(at.column, grid->columns, grid->side);
        for (int64_t i = 0, n; i < columns; i += n) {
            n = columns - i < PIECE ? columns - i : PIECE;
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int corner = 0; corner < 4; corner++) {
                int64_t row = (int64_t)(corner < 2 ? y.first : y.second) * grid->side;
                float down = corner < 2 ? 1 - y.fraction : y.fraction;
                float across = corner % 2 ? x.fraction : 1 - x.fraction;
                weights_widen_part(piece, &op->in[1], row + (corner % 2 ? x.second : x.first), i, n);
                add_scaled(sum, piece, down * across, n);
            }
            add_values(to + i, a + i, sum, 1, n);
        }
    }
}

const struct cpu_operator cpu_add_positions = {.rows = position_rows};

static void copy_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t i = first; i < end; i++) weights_widen(tensor_row(&op->out, i), &op->in[0], i, 1);
}

const struct cpu_operator cpu_copy = {.rows = copy_rows};

static void broadcast_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    for (int64_t i = first; i < end; i++) weights_widen(tensor_row(&op->out, i), &op->in[0], 0, 1);
}

const struct cpu_operator cpu_broadcast_row = {.rows = broadcast_rows};
