/* Norms on the CPU. Statistics are double. Each row (or image row) is summed in one order and rows are added
 * in sequence, so the thread count changes no bit. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <math.h>
#include <string.h>

WIDE static double sum_squares(const float *x, int64_t n, double mean) {
    double part[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) part[j] += (x[i + j] - mean) * (x[i + j] - mean);
    for (int j = 0; i < n; i++, j++) part[j] += (x[i] - mean) * (x[i] - mean);
    return sum_8(part);
}

WIDE static double sum_values(const float *x, int64_t n) {
    double part[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) part[j] += x[i + j];
    for (int j = 0; i < n; i++, j++) part[j] += x[i];
    return sum_8(part);
}

/* Vectors of an RMS norm. */
struct vectors {
    /* weight * (1 + scale), or (1 + weight) * (1 + scale) if zero_centered; NULL: neither, nor shift, gate or
     * base */
    const float *factor;
    const float *gate, *shift; /* tanh(gate); shift; each NULL if absent */
};

static void rms_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    (void)cpu;
    for (int i = 0; i < 2; i++) workspace_take(&cost->workspace_bytes, sizeof(float) * (uint64_t)op->n);
}

/* Computes factor and gate vectors. The gate's buffer holds the scale until the gate is computed. */
static struct vectors cpu_rms_vectors(const struct op *op, char *workspace) {
    int64_t c = op->n;
    float *factor = (float *)workspace,
          *gate = (float *)(workspace + align_up((uint64_t)c * sizeof(float), ARENA_ALIGN));
    bool weighted = op->in[1].rank > 0;
    if (weighted) weights_widen(factor, &op->in[1], 0, 1);
    for (int64_t i = 0; !weighted && i < c; i++) factor[i] = 1;
    for (int64_t i = 0; op->zero_centered && i < c; i++) factor[i] += 1;
    const float *scale = weights_vector(&op->modulation.scale, gate);
    for (int64_t i = 0; scale && i < c; i++) factor[i] *= 1.0f + scale[i];
    const float *plain = weights_vector(&op->modulation.gate, gate);
    for (int64_t i = 0; plain && i < c; i++) gate[i] = tanhf(plain[i]);
    const float *shift = op->modulation.shift.data;
    bool bare = !weighted && !scale && !shift && !plain && !op->modulation.base.rank;
    return (struct vectors){bare ? NULL : factor, plain ? gate : NULL, shift};
}

/* Applies an RMS norm to one row of c values and adds the residual row `base`, unless NULL. `base` and `from`
 * may alias `to`. */
WIDE static void rms_apply(float *to, const float *from, float rstd, const struct vectors *v,
                           const float *base, int64_t c) {
    const float *factor = v->factor, *gate = v->gate, *shift = v->shift;
    if (!factor)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = from[i] * rstd;
    else if (shift)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = from[i] * rstd * factor[i] + shift[i];
    else if (base && gate)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = base[i] + gate[i] * (from[i] * rstd * factor[i]);
    else if (base)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = base[i] + from[i] * rstd * factor[i];
    else if (gate)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = gate[i] * (from[i] * rstd * factor[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = from[i] * rstd * factor[i];
}

static float rms_rstd(const float *x, float eps, int64_t c) {
    return (float)(1 / sqrt(sum_squares(x, c, 0) / (double)c + (double)eps));
}

void rms_norm_run(float *to, const float *from, const float *factor, float eps, int64_t c) {
    rms_apply(to, from, rms_rstd(from, eps, c), &(struct vectors){.factor = factor}, NULL, c);
}

struct rms_work {
    const struct op *op;
    struct vectors vectors;
};

static void rms_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct rms_work *w = context;
    const struct op *op = w->op;
    int64_t c = op->n, columns = tensor_columns(&op->in[0]);
    for (int64_t row = first; row < end; row++) {
        const float *from = tensor_row(&op->in[0], row);
        const float *base = op->modulation.base.rank ? tensor_row(&op->modulation.base, row) : NULL;
        float *to = tensor_row(&op->out, row);
        for (int64_t i = 0; i < columns; i += c)
            rms_apply(to + i, from + i, rms_rstd(from + i, op->eps, c), &w->vectors, base ? base + i : NULL,
                      c);
        simd_activate(op->modulation.activation, to, to, columns);
    }
}

static enum status cpu_rms_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    struct rms_work work = {op, cpu_rms_vectors(op, workspace)};
    thread_pool_run(cpu->thread_pool, tensor_rows(&op->in[0]), rms_rows, &work);
    return OK;
}

const struct cpu_operator cpu_rms_norm = {.cost = rms_cost, .run = cpu_rms_run};

static void layer_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    (void)cpu;
    uint64_t bytes = sizeof(float) * (uint64_t)tensor_columns(&op->in[0]);
    for (int i = 0; i < 3; i++) workspace_take(&cost->workspace_bytes, bytes);
}

/* Vectors of a layer norm: (x weight + bias) (1 + scale) + shift, computed as x factor + offset. Factor and
 * offset are NULL if absent. */
struct affine_vectors {
    const float *factor, *offset;
};

static struct affine_vectors affine_vectors(const struct op *op, char *workspace) {
    int64_t c = tensor_columns(&op->in[0]);
    uint64_t step = align_up((uint64_t)c * sizeof(float), ARENA_ALIGN);
    float *factor = (float *)workspace, *offset = (float *)(workspace + step),
          *plain = (float *)(workspace + 2 * step);
    const struct tensor *weight = &op->in[1], *bias = &op->in[2], *shift = &op->in[4];
    bool scaled = op->in[3].rank > 0, moved = bias->rank || shift->rank;
    for (int64_t i = 0; i < c; i++) factor[i] = 1, offset[i] = 0;
    if (weight->rank) weights_widen(factor, weight, 0, 1);
    if (bias->rank) weights_widen(offset, bias, 0, 1);
    const float *scale = weights_vector(&op->in[3], plain);
    for (int64_t i = 0; scale && i < c; i++) factor[i] *= 1.0f + scale[i], offset[i] *= 1.0f + scale[i];
    const float *more = weights_vector(shift, plain);
    for (int64_t i = 0; more && i < c; i++) offset[i] += more[i];
    return (struct affine_vectors){weight->rank || scaled ? factor : NULL, moved ? offset : NULL};
}

/* Applies a layer norm to one row; `from` may alias `to`. */
WIDE static void layer_apply(float *to, const float *from, double mean, double rstd,
                             const struct affine_vectors *v, int64_t c) {
    const float *factor = v->factor, *offset = v->offset;
    if (factor && offset)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = (float)((from[i] - mean) * rstd) * factor[i] + offset[i];
    else if (factor)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = (float)((from[i] - mean) * rstd) * factor[i];
    else if (offset)
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = (float)((from[i] - mean) * rstd) + offset[i];
    else
#pragma omp simd
        for (int64_t i = 0; i < c; i++) to[i] = (float)((from[i] - mean) * rstd);
}

struct layer_work {
    const struct op *op;
    struct affine_vectors vectors;
};

static void layer_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct layer_work *w = context;
    int64_t c = tensor_columns(&w->op->in[0]);
    for (int64_t i = first; i < end; i++) {
        const float *from = tensor_row(&w->op->in[0], i);
        double mean = sum_values(from, c) / (double)c;
        double rstd = 1 / sqrt(sum_squares(from, c, mean) / (double)c + (double)w->op->eps);
        layer_apply(tensor_row(&w->op->out, i), from, mean, rstd, &w->vectors, c);
    }
}

static enum status cpu_layer_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    struct layer_work work = {op, affine_vectors(op, workspace)};
    thread_pool_run(cpu->thread_pool, tensor_rows(&op->in[0]), layer_rows, &work);
    return OK;
}

const struct cpu_operator cpu_layer_norm = {.cost = layer_cost, .run = cpu_layer_run};

struct statistics_layout {
    uint64_t channels; /* workspace offset: per thread, sums and squares of each channel of one image row */
    uint64_t rows;     /* workspace offset: per image row, sums and squares of each group */
    uint64_t end;
};

static struct statistics_layout statistics_layout_of(const struct cpu *cpu, const struct op *op) {
    struct statistics_layout l = {0};
    uint64_t two = 2 * sizeof(double);
    l.channels = workspace_take(&l.end, two * (uint64_t)op->in[0].dim[2] * (uint64_t)cpu->threads);
    l.rows = workspace_take(&l.end, two * (uint64_t)op->n * (uint64_t)op->in[0].dim[0]);
    return l;
}

static void statistics_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    cost->workspace_bytes = statistics_layout_of(cpu, op).end;
}

WIDE static void add_pixel(double *restrict sums, double *restrict squares, const float *restrict pixel,
                           int64_t c) {
    for (int64_t i = 0; i < c; i++) {
        double value = pixel[i];
        sums[i] += value;
        squares[i] += value * value;
    }
}

static double sum_in_order(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* Adds the rows' sums of one group and computes its mean and 1/sqrt(var + eps). */
static void statistics_group(const struct op *op, const double *rows, int group) {
    double *before = op->in[1].rank ? (double *)op->in[1].data + 2 * group : NULL;
    double sum = 0, squares = 0;
    if (op->rows_before) {
        sum = before[0];
        squares = before[1];
    }
    for (int64_t y = 0; y < op->in[0].dim[0]; y++) {
        sum += rows[2 * (y * op->n + group)];
        squares += rows[2 * (y * op->n + group) + 1];
    }
    if (before) {
        before[0] = sum;
        before[1] = squares;
    }
    double row = (double)op->in[0].dim[1] * op->in[0].dim[2] / op->n;
    double count = row * (op->rows_before + op->in[0].dim[0]), mean = sum / count;
    double variance = squares / count - mean * mean;
    float *out = (float *)op->out.data + 2 * group;
    out[0] = (float)mean;
    out[1] = (float)(1 / sqrt((variance > 0 ? variance : 0) + (double)op->eps));
}

struct statistics_work {
    const struct op *op;
    double *channels, *rows; /* double sums per channel and per image row, as in statistics_layout */
};

/* Sums values and squares of image rows. Squares are not relative to the mean: in double that costs at most
 * 1e-16 (mean / deviation)^2. */
static void statistics_rows(const void *context, int64_t first, int64_t end, int member) {
    const struct statistics_work *w = context;
    const struct op *op = w->op;
    int64_t c = op->in[0].dim[2], width = op->in[0].dim[1], each = c / op->n;
    double *sums = w->channels + 2 * c * member, *squares = sums + c;
    for (int64_t y = first; y < end; y++) {
        double *row = w->rows + (int64_t)2 * op->n * y;
        memset(sums, 0, (size_t)(2 * c) * sizeof *sums);
        for (int64_t x = 0; x < width; x++)
            add_pixel(sums, squares, tensor_row(&op->in[0], y * width + x), c);
        for (int g = 0; g < op->n; g++) {
            row[2 * g] = sum_in_order(sums + g * each, each);
            row[2 * g + 1] = sum_in_order(squares + g * each, each);
        }
    }
}

static enum status cpu_statistics_run(struct cpu *cpu, const struct op *op, char *workspace,
                                      struct error *e) {
    (void)e;
    struct statistics_layout l = statistics_layout_of(cpu, op);
    struct statistics_work work = {op, (double *)(workspace + l.channels), (double *)(workspace + l.rows)};
    thread_pool_run(cpu->thread_pool, op->in[0].dim[0], statistics_rows, &work);
    for (int g = 0; g < op->n; g++) statistics_group(op, work.rows, g);
    return OK;
}

const struct cpu_operator cpu_group_statistics = {.cost = statistics_cost, .run = cpu_statistics_run};

/* Sum, minimum and maximum of values. */
struct range {
    double sum;
    float min, max;
};

/* Adds n values to a range. Minimum and maximum are kept in eight parts, which the compiler vectorises. NaN
 * changes only the sum. */
WIDE static void range_add(struct range *range, const float *x, int64_t n) {
    float min[8], max[8];
    for (int j = 0; j < 8; j++) min[j] = range->min, max[j] = range->max;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            min[j] = x[i + j] < min[j] ? x[i + j] : min[j];
            max[j] = x[i + j] > max[j] ? x[i + j] : max[j];
        }
    for (int j = 0; i < n; i++, j++) {
        min[j] = x[i] < min[j] ? x[i] : min[j];
        max[j] = x[i] > max[j] ? x[i] : max[j];
    }
    for (int j = 0; j < 8; j++) {
        range->min = min[j] < range->min ? min[j] : range->min;
        range->max = max[j] > range->max ? max[j] : range->max;
    }
    range->sum += sum_values(x, n);
}

/* Computes mean and scale / (max - min + eps) of groups of channels; a group's pixels are added in order. */
static void range_groups(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    int64_t each = op->in[0].dim[2] / op->n, pixels = tensor_rows(&op->in[0]);
    for (int64_t g = first; g < end; g++) {
        struct range range = {0, INFINITY, -INFINITY};
        for (int64_t i = 0; i < pixels; i++) range_add(&range, tensor_row(&op->in[0], i) + g * each, each);
        float *out = (float *)op->out.data + 2 * g;
        out[0] = (float)(range.sum / ((double)pixels * (double)each));
        out[1] = op->scale / (range.max - range.min + op->eps);
    }
}

const struct cpu_operator cpu_group_range = {.rows = range_groups};

static void group_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    (void)cpu;
    cost->workspace_bytes = channel_norm_bytes(tensor_columns(&op->in[0]));
}

struct group_work {
    const struct op *op;
    struct channel_norm norm;
};

static void group_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct group_work *w = context;
    int64_t c = tensor_columns(&w->op->in[0]);
    for (int64_t i = first; i < end; i++)
        channel_norm_apply(&w->norm, tensor_row(&w->op->out, i), tensor_row(&w->op->in[0], i), c);
}

static enum status cpu_group_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    struct group_work work = {op, channel_norm(&op->group_norm, tensor_columns(&op->in[0]), workspace)};
    thread_pool_run(cpu->thread_pool, tensor_rows(&op->in[0]), group_rows, &work);
    return OK;
}

const struct cpu_operator cpu_group_norm = {.cost = group_cost, .run = cpu_group_run};

uint64_t channel_norm_bytes(int64_t channels) {
    return 3 * align_up((uint64_t)channels * sizeof(float), ARENA_ALIGN);
}

struct channel_norm channel_norm(const struct group_norm *norm, int64_t channels, char *workspace) {
    uint64_t step = align_up((uint64_t)channels * sizeof(float), ARENA_ALIGN);
    float *mean = (float *)workspace, *factor = (float *)(workspace + step),
          *bias = (float *)(workspace + 2 * step);
    const float *statistics = norm->statistics.data;
    int64_t each = channels / norm->statistics.dim[0];
    for (int64_t i = 0; i < channels; i++) factor[i] = 1, bias[i] = 0;
    if (norm->weight.rank) weights_widen(factor, &norm->weight, 0, 1);
    if (norm->bias.rank) weights_widen(bias, &norm->bias, 0, 1);
    for (int64_t i = 0; i < channels; i++) {
        mean[i] = statistics[2 * (i / each)];
        factor[i] *= statistics[2 * (i / each) + 1];
    }
    return (struct channel_norm){mean, factor, bias};
}

/* Applies a group norm to one pixel; `to` may alias `from`. */
WIDE static void channel_apply(float *to, const float *from, const float *mean, const float *factor,
                               const float *bias, int64_t channels) {
#pragma omp simd
    for (int64_t i = 0; i < channels; i++) to[i] = (from[i] - mean[i]) * factor[i] + bias[i];
}

void channel_norm_apply(const struct channel_norm *norm, float *to, const float *from, int64_t channels) {
    channel_apply(to, from, norm->mean, norm->factor, norm->bias, channels);
}
