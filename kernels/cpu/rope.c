/* RoPE tables, rotation of heads, timestep embedding. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <math.h>
#include <string.h>

/* A RoPE pair of a head: its angle is the frequency times the position on this axis. */
struct rope_pair {
    double frequency;
    int axis;
};

static void table_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    (void)cpu;
    cost->workspace_bytes = sizeof(struct rope_pair) * (uint64_t)op->out.dim[1];
}

/* Returns the number of tokens of a RoPE table's position grid number `grid`. */
static int64_t grid_tokens(const struct rope_options *rope, int grid) {
    const int32_t *extent = rope->grid[grid].extent;
    int64_t n = extent[0];
    for (int a = 1; a < rope->n_axes && !rope->grid[grid].diagonal; a++) n *= extent[a];
    return n;
}

/* Writes the position of one token of a RoPE table, one number per axis. */
static void token_position(const struct rope_options *rope, int64_t token, int32_t *position) {
    int g = 0, n = rope->n_axes;
    for (; token >= grid_tokens(rope, g); g++) token -= grid_tokens(rope, g);
    const struct rope_grid *grid = &rope->grid[g];
    for (int a = 0; a < n && grid->diagonal; a++)
        position[a] = grid->start[a] + (a < grid->fixed_axes ? 0 : (int32_t)token);
    if (grid->diagonal) return;
    if (n >= 2) {
        int32_t rows = grid->extent[n - 2], columns = grid->extent[n - 1];
        int64_t picture = (int64_t)rows * columns;
        struct token_coords place = token_coords_at(grid->token_order, rows, columns, token % picture);
        token = token / picture * picture + (int64_t)place.row * columns + place.column;
    }
    for (int a = n - 1; a >= 0; a--) {
        position[a] = grid->start[a] + (int32_t)(token % grid->extent[a]);
        token /= grid->extent[a];
    }
}

struct table_work {
    const struct op *op;
    const struct rope_pair *pairs; /* of a head */
};

static void table_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct table_work *w = context;
    const struct rope_options *rope = &w->op->rope;
    float *to = (float *)w->op->out.data + first * w->op->out.dim[1] * 2;
    for (int64_t t = first; t < end; t++) {
        int32_t position[ROPE_AXES_MAX] = {0};
        token_position(rope, t, position);
        for (int32_t i = 0; i < w->op->out.dim[1]; i++, to += 2) {
            double angle = position[w->pairs[i].axis] * w->pairs[i].frequency;
            if (!rope->f64_angles) angle = (double)(float)angle;
            to[0] = (float)cos(angle);
            to[1] = (float)sin(angle);
        }
    }
}

static enum status cpu_table_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    struct rope_pair *pairs = (struct rope_pair *)workspace;
    struct table_work work = {op, pairs};
    for (int32_t i = 0; i < op->out.dim[1]; i++)
        pairs[i] = (struct rope_pair){rope_frequency(&op->rope, i), rope_pair_axis(&op->rope, i)};
    thread_pool_run(cpu->thread_pool, op->out.dim[0], table_rows, &work);
    return OK;
}

const struct cpu_operator cpu_rope_table = {.cost = table_cost, .run = cpu_table_run};

static void axis_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    (void)cpu;
    cost->workspace_bytes = sizeof(float) * (uint64_t)op->out.dim[1];
}

struct axis_work {
    const struct op *op;
    const float *frequencies;
};

static void axis_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct axis_work *w = context;
    int32_t n = w->op->out.dim[1];
    float *to = (float *)w->op->out.data + first * n * 2;
    for (int64_t k = first; k < end; k++) {
        float position = rope_axis_position(&w->op->axis, (int32_t)k);
        for (int32_t i = 0; i < n; i++, to += 2) {
            double angle = (double)(position * w->frequencies[i]);
            to[0] = (float)cos(angle);
            to[1] = (float)sin(angle);
        }
    }
}

static enum status cpu_axis_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    float *frequencies = (float *)workspace;
    int32_t n = op->out.dim[1];
    for (int32_t i = 0; i < n; i++) frequencies[i] = rope_axis_frequency(&op->axis, i, n);
    thread_pool_run(cpu->thread_pool, op->out.dim[0], axis_rows, &(struct axis_work){op, frequencies});
    return OK;
}

const struct cpu_operator cpu_rope_axis = {.cost = axis_cost, .run = cpu_axis_run};

WIDE static void cpu_rotate_interleaved(float *restrict x, const float *restrict table, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float c = table[2 * i], s = table[2 * i + 1], a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = a * s + b * c;
    }
}

WIDE static void cpu_rotate_halves(float *restrict x, const float *restrict table, int64_t n) {
    float *restrict y = x + n;
    for (int64_t i = 0; i < n; i++) {
        float c = table[2 * i], s = table[2 * i + 1], a = x[i], b = y[i];
        x[i] = a * c - b * s;
        y[i] = a * s + b * c;
    }
}

static void rope_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    (void)cpu;
    if (op->in[2].rank) cost->workspace_bytes = sizeof(float) * (uint64_t)op->in[2].dim[0];
}

struct rope_work {
    const struct op *op;
    const float *factor; /* weight of the RMS norm of each head, or NULL */
};

/* Iterator over the pairs of one token, for a table with one part per axis. */
struct axis_pairs {
    const float *rows[TOKEN_AXES_MAX]; /* table row of the token's position on each axis */
    int32_t n_unrotated;               /* unrotated pairs that are left */
    int32_t axis;                      /* axis and frequency of the next rotated pair */
    int64_t frequency;
};

static struct axis_pairs axis_pairs_begin(const struct op *op, int64_t token) {
    const struct rope_axes *axes = &op->rotation.axes;
    const struct tensor *table = &op->in[1];
    struct axis_pairs pairs = {.n_unrotated = axes->n_unrotated};
    int64_t row = table->dim[0];
    token += axes->first_token;
    for (int a = TOKEN_AXES_MAX - 1; a >= axes->n_axes; a--) token /= axes->extent[a] ? axes->extent[a] : 1;
    for (int a = axes->n_axes - 1; a >= 0; a--) {
        row -= axes->extent[a];
        pairs.rows[a] = (const float *)table->data + 2 * table->dim[1] * (row + token % axes->extent[a]);
        token /= axes->extent[a];
    }
    return pairs;
}

/* Writes cosines and sines of the next n pairs, those of one head, to `to`. */
static void axis_pairs_read(struct axis_pairs *pairs, int n_axes, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++, to += 2) {
        if (pairs->n_unrotated > 0) {
            pairs->n_unrotated--;
            to[0] = 1;
            to[1] = 0;
            continue;
        }
        memcpy(to, pairs->rows[pairs->axis] + 2 * pairs->frequency, 2 * sizeof *to);
        if (++pairs->axis < n_axes) continue;
        pairs->axis = 0;
        pairs->frequency++;
    }
}

static void rope_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct rope_work *w = context;
    const struct tensor *in = &w->op->in[0], *table = &w->op->in[1];
    int n_axes = w->op->rotation.axes.n_axes;
    int64_t pairs = in->dim[1] / w->op->n / 2;
    for (int64_t t = first; t < end; t++) {
        float of_head[ROPE_HEAD_MAX];
        const float *cos_sin = n_axes ? of_head : (const float *)table->data + 2 * pairs * t;
        struct axis_pairs by_axis = {0};
        if (n_axes) by_axis = axis_pairs_begin(w->op, t);
        for (int64_t i = 0; i < in->dim[1]; i += 2 * pairs) { /* one head */
            float *to = tensor_row(&w->op->out, t) + i;
            const float *from = tensor_row(in, t) + i;
            if (n_axes) axis_pairs_read(&by_axis, n_axes, of_head, pairs);
            if (w->factor)
                rms_norm_run(to, from, w->factor, w->op->eps, 2 * pairs);
            else if (to != from)
                memcpy(to, from, 2 * (size_t)pairs * sizeof *to);
            if (w->op->rotation.pairs == ROPE_HALVES)
                cpu_rotate_halves(to, cos_sin, pairs);
            else
                cpu_rotate_interleaved(to, cos_sin, pairs);
        }
    }
}

static enum status cpu_rope_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    struct rope_work work = {op, op->in[2].rank ? (float *)workspace : NULL};
    if (work.factor) weights_widen((float *)workspace, &op->in[2], 0, 1);
    for (int32_t i = 0; op->zero_centered && i < op->in[2].dim[0]; i++) ((float *)workspace)[i] += 1;
    thread_pool_run(cpu->thread_pool, op->out.dim[0], rope_rows, &work);
    return OK;
}

const struct cpu_operator cpu_rope = {.cost = rope_cost, .run = cpu_rope_run};

static enum status cpu_timestep_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)cpu, (void)workspace, (void)e;
    float *out = op->out.data;
    int32_t half = op->out.dim[1] / 2;
    for (int32_t i = 0; i < 2 * half; i++) out[i] = timestep_value(op->scale, op->form, half, i);
    return OK;
}

const struct cpu_operator cpu_timestep = {.run = cpu_timestep_run};
