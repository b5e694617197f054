/* Test cases of attention, norms, rotary positions, elementwise operators and images, and of random
 * operators. */
#include "test/lib/ops_cases.h"

/* Returns the tolerance of an operator for n values. Few values have a higher tolerance, because one sum that
 * nearly cancels dominates the error (seen: a single value with 99 times the error, SEED=1795881878). */
static double op_gate(enum op_kind kind, int64_t n) {
    return (n < 4 ? 1000 : n < 64 ? 10 : 3) * op_errors[kind].known;
}

double *op_truth(const struct tensor *t) {
    return pool_alloc(sizeof(double) * (size_t)tensor_elements(t));
}

double *op_values(const struct tensor *t, double (*as)(double)) {
    double *values = op_truth(t);
    int64_t columns = tensor_columns(t);
    for (int64_t i = 0; i < tensor_elements(t); i++) values[i] = as(load(t, i / columns, i % columns));
    return values;
}

double op_error_of(const struct tensor *out, const double *truth) {
    double wrong = 0, all = 1e-300;
    int64_t columns = tensor_columns(out);
    for (int64_t i = 0; i < tensor_elements(out); i++) {
        double value = out->dtype == DTYPE_U8
                           ? ((uint8_t *)out->data)[i / columns * out->row_bytes + i % columns]
                           : load(out, i / columns, i % columns);
        wrong += (value - truth[i]) * (value - truth[i]);
        all += truth[i] * truth[i];
    }
    return sqrt(wrong / all);
}

static void expect_within(enum op_kind kind, const struct tensor *out, const double *truth, double most) {
    assert_ok(&problem);
    double error = op_error_of(out, truth);
    if (tensor_elements(out) >= 64 && !(error <= op_errors[kind].measured)) op_errors[kind].measured = error;
    if (!(error <= most)) fail_msg("%s: error %g, gate %g", op_name(kind), error, most);
}

void op_expect(enum op_kind kind, const struct tensor *out, const double *truth) {
    expect_within(kind, out, truth, op_gate(kind, tensor_elements(out)));
}

static double sigmoid(double v) {
    return 1 / (1 + exp(-v));
}

double activated(enum activation activation, double v) {
    switch (activation) {
    case ACTIVATION_SILU:
        return v * sigmoid(v);
    case ACTIVATION_GELU_TANH: /* the factor is sqrt(2 / pi) */
        return v / 2 * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
    case ACTIVATION_GELU_QUICK:
        return v * sigmoid(1.702 * v);
    case ACTIVATION_GELU_ERF: /* the factor is sqrt(1 / 2) */
        return v / 2 * erfc(-0.70710678118654752440 * v);
    case ACTIVATION_RELU:
        return v < 0 ? 0 : v;
    case ACTIVATION_SIGMOID:
        return sigmoid(v);
    case ACTIVATION_SIGMOID_TWICE:
        return 2 * sigmoid(v);
    default:
        return v;
    }
}

static double as_it_is(double value) {
    return value;
}

struct attention_operands {
    struct tensor q, k, v, bias; /* bias is optional */
};

/* Returns the expected output. `as`: function that rounds the operands and the softmax's numerators. */
static double *attention_truth(const struct attention_case *c, const struct attention_operands *o,
                               double (*as)(double)) {
    double *truth = op_truth(&o->q), *q = op_values(&o->q, as), *k = op_values(&o->k, as);
    double *v = op_values(&o->v, as), *p = pool_alloc(sizeof *p * (size_t)c->s);
    for (int32_t row = 0; row < c->t; row++)
        for (int32_t head = 0; head < c->heads; head++) {
            int32_t keys = c->causal ? c->s - c->t + row + 1 : c->s, d = c->d;
            int64_t at = ((int64_t)row * c->heads + head) * d, step = (int64_t)c->key_heads * d;
            int64_t key_at = (int64_t)(head / (c->heads / c->key_heads)) * d;
            double max = -1e300, sum = 0;
            for (int32_t j = 0; j < keys; j++) {
                p[j] = 0;
                for (int32_t i = 0; i < d; i++) p[j] += q[at + i] * k[j * step + key_at + i] * c->scale;
                if (o->bias.rank) p[j] += load(&o->bias, head, j - row + c->t - 1);
                max = fmax(max, p[j]);
            }
            for (int32_t j = 0; j < keys; j++) sum += p[j] = exp(p[j] - max);
            for (int32_t j = 0; j < keys; j++) p[j] = as(p[j]) / sum;
            for (int32_t i = 0; i < d; i++) {
                truth[at + i] = 0;
                for (int32_t j = 0; j < keys; j++) truth[at + i] += p[j] * v[j * step + key_at + i];
            }
        }
    return truth;
}

/* Tolerance of attention. On a device that rounds operands, the order of roundings inside attention is
 * unknown: the tolerance is 1.5 times the error of rounding each operand once. */
static double attention_gate(const struct tensor *out, const double *truth, const double *plain) {
    double wrong = 0, all = 1e-300;
    int64_t n = tensor_elements(out);
    if (!operand_rounding || n < 64) return op_gate(OP_ATTENTION, n);
    for (int64_t i = 0; i < n; i++) {
        wrong += (plain[i] - truth[i]) * (plain[i] - truth[i]);
        all += truth[i] * truth[i];
    }
    return 1.5 * sqrt(wrong / all);
}

void case_attention(struct attention_case c, bool biased) {
    case_begin();
    struct attention_operands o = {.q = tensor_random(DTYPE_F32, SHAPE(c.t, c.heads * c.d), c.gap, 2),
                                   .k = tensor_random(DTYPE_F32, SHAPE(c.s, c.key_heads * c.d), c.gap, 2),
                                   .v =
                                       tensor_random(DTYPE_F32, SHAPE(c.s, c.key_heads * c.d), 2 * c.gap, 1)};
    struct tensor out = o.q;
    if (!c.in_place) out = tensor_random(DTYPE_F32, SHAPE(c.t, c.heads * c.d), 3 * c.gap, 1);
    if (biased) o.bias = tensor_random(DTYPE_F32, SHAPE(c.heads, c.t + c.s - 1), c.gap, 4);
    double *truth = attention_truth(&c, &o, as_it_is), *plain = truth;
    if (operand_rounding) plain = attention_truth(&c, &o, operand_rounding);
    op_attention(&x, out, o.q, o.k, o.v,
                 (struct attention_options){.queries = c.heads,
                                            .keys = c.key_heads,
                                            .scale = c.scale,
                                            .causal = c.causal,
                                            .relative_bias = o.bias});
    expect_within(OP_ATTENTION, &out, truth, attention_gate(&out, truth, plain));
}

void case_relative_bias(int32_t t, int32_t heads, int32_t buckets, int32_t max_distance, enum dtype dtype,
                        int gap) {
    case_begin();
    struct tensor table = tensor_random(dtype, SHAPE(buckets, heads), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(heads, 2 * t - 1), gap, 1);
    double *truth = op_truth(&out);
    for (int32_t h = 0; h < heads; h++)
        for (int32_t d = 1 - t; d < t; d++)
            truth[h * (2 * t - 1) + d + t - 1] = load(&table, distance_bucket(d, buckets, max_distance), h);
    op_relative_bias(&x, out, table, (struct distance_buckets){max_distance});
    op_expect(OP_RELATIVE_BIAS, &out, truth);
}

static void check_rms_norm(struct rms_case r, bool zero_centered, bool shifted) {
    int32_t t = r.t, c = r.c, groups = r.groups;
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, c * groups), r.gap, 5), out = in;
    struct tensor weight = tensor_random(r.dtype, SHAPE(c), 0, 1);
    struct modulation m = {.activation = r.activation, .zero_centered = zero_centered};
    if (r.modulated || !r.in_place) out = tensor_random(DTYPE_F32, SHAPE(t, c * groups), 2 * r.gap, 1);
    if (r.modulated) {
        m.scale = tensor_random(r.dtype, SHAPE(c), 0, 1);
        m.gate = tensor_random(DTYPE_F32, SHAPE(c), 0, 2);
        m.base = out;
    }
    if (shifted) m.scale = tensor_random(r.dtype, SHAPE(c), 0, 1);
    if (shifted) m.shift = tensor_random(DTYPE_F32, SHAPE(c), 0, 1);
    double *truth = op_truth(&out);
    for (int32_t i = 0; i < t; i++)
        for (int32_t g = 0; g < groups; g++) {
            double sum = 0;
            for (int32_t j = 0; j < c; j++) sum += pow(load(&in, i, g * c + j), 2);
            for (int32_t j = 0; j < c; j++) {
                double value = load(&in, i, g * c + j) / sqrt(sum / c + 1e-5f);
                value *= load(&weight, 0, j) + zero_centered;
                if (shifted) value = value * (1 + load(&m.scale, 0, j)) + load(&m.shift, 0, j);
                if (r.modulated) value *= (1 + load(&m.scale, 0, j)) * tanh(load(&m.gate, 0, j));
                truth[((int64_t)i * groups + g) * c + j] =
                    activated(r.activation, value) + (r.modulated ? load(&out, i, g * c + j) : 0);
            }
        }
    op_rms_norm(&x, out, in, weight, 1e-5f, m);
    op_expect(OP_RMS_NORM, &out, truth);
}

void case_rms_norm(struct rms_case r) {
    check_rms_norm(r, false, false);
}

void case_rms_zero_centered(struct rms_case r, bool shifted) {
    check_rms_norm(r, true, shifted);
}

void case_affine(int32_t t, int32_t c, int gap, int with, bool in_place) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, c), gap, 5), out = in;
    struct affine a = {0};
    if (with & WITH_WEIGHT) a.weight = tensor_random(DTYPE_F16, SHAPE(c), 0, 2);
    if (with & WITH_BIAS) a.bias = tensor_random(DTYPE_BF16, SHAPE(c), 0, 1);
    if (with & WITH_SCALE) a.scale = tensor_random(DTYPE_BF16, SHAPE(c), 0, 1);
    if (with & WITH_SHIFT) a.shift = tensor_random(DTYPE_F32, SHAPE(c), 0, 1);
    if (!in_place) out = tensor_random(DTYPE_F32, SHAPE(t, c), 0, 1);
    double *truth = op_truth(&out);
    for (int32_t i = 0; i < t; i++) {
        double mean = 0, variance = 0;
        for (int32_t j = 0; j < c; j++) mean += load(&in, i, j) / c;
        for (int32_t j = 0; j < c; j++) variance += pow(load(&in, i, j) - mean, 2) / c;
        for (int32_t j = 0; j < c; j++) {
            double value = (load(&in, i, j) - mean) / sqrt(variance + 1e-6f);
            if (with & WITH_WEIGHT) value *= load(&a.weight, 0, j);
            if (with & WITH_BIAS) value += load(&a.bias, 0, j);
            if (with & WITH_SCALE) value *= 1 + load(&a.scale, 0, j);
            truth[(int64_t)i * c + j] = value + (with & WITH_SHIFT ? load(&a.shift, 0, j) : 0);
        }
    }
    op_layer_norm(&x, out, in, a, 1e-6f);
    op_expect(OP_LAYER_NORM, &out, truth);
}

void case_group_norm(int32_t rows, int32_t columns, int32_t c, int groups, bool in_place) {
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), 0, 3), out = in;
    struct tensor statistics = tensor_random(DTYPE_F32, SHAPE(groups, 2), 0, 1);
    struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(c), 0, 1),
                  bias = tensor_random(DTYPE_F32, SHAPE(c), 0, 1);
    if (!in_place) out = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), 1, 1);
    double *truth = op_truth(&statistics), *normed = op_truth(&in);
    int each = c / groups;
    for (int g = 0; g < groups; g++) {
        double mean = 0, variance = 0, n = (double)rows * columns * each;
        for (int64_t i = 0; i < (int64_t)rows * columns * each; i++)
            mean += load(&in, i / each, g * each + i % each) / n;
        for (int64_t i = 0; i < (int64_t)rows * columns * each; i++)
            variance += pow(load(&in, i / each, g * each + i % each) - mean, 2) / n;
        truth[2 * g] = mean;
        truth[2 * g + 1] = 1 / sqrt(variance + 1e-6f);
    }
    op_group_statistics(&x, statistics, in, (struct rows_before){0}, groups, 1e-6f);
    op_expect(OP_GROUP_STATISTICS, &statistics, truth);
    for (int64_t i = 0; i < tensor_elements(&in); i++) {
        int64_t j = i % c, g = j / each;
        normed[i] =
            (load(&in, i / c, j) - load(&statistics, g, 0)) * load(&statistics, g, 1) * load(&weight, 0, j) +
            load(&bias, 0, j);
    }
    op_group_norm(&x, out, in, (struct group_norm){statistics, weight, bias});
    op_expect(OP_GROUP_NORM, &out, normed);
}

static void check_rope(struct rope_case r, bool zero_centered) {
    int32_t t = r.t, heads = r.heads, d = r.d;
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, heads * d), r.gap, 1), out = in;
    struct tensor table = tensor_random(DTYPE_F32, SHAPE(t, d / 2, 2), 0, 1);
    struct rotation rotation = {
        .heads = heads, .pairs = r.pairs, .eps = 1e-3f, .zero_centered = zero_centered};
    if (r.normed) rotation.norm = tensor_random(r.norm, SHAPE(d), 0, 1);
    if (!r.in_place) out = tensor_random(DTYPE_F32, SHAPE(t, heads * d), 2 * r.gap, 1);
    double *truth = op_truth(&out), *head = pool_alloc(sizeof *head * (size_t)d);
    for (int32_t i = 0; i < t; i++)
        for (int32_t h = 0; h < heads; h++) {
            double *to = truth + ((int64_t)i * heads + h) * d;
            double squares = 0;
            for (int32_t k = 0; k < d; k++) head[k] = load(&in, i, h * d + k), squares += head[k] * head[k];
            for (int32_t k = 0; r.normed && k < d; k++)
                head[k] *=
                    (load(&rotation.norm, 0, k) + zero_centered) / sqrt(squares / d + (double)rotation.eps);
            for (int32_t p = 0; p < d / 2; p++) {
                int32_t a = r.pairs == ROPE_HALVES ? p : 2 * p, b = a + (r.pairs == ROPE_HALVES ? d / 2 : 1);
                double c = load(&table, i * (d / 2) + p, 0), s = load(&table, i * (d / 2) + p, 1);
                to[a] = head[a] * c - head[b] * s;
                to[b] = head[a] * s + head[b] * c;
            }
        }
    op_rope(&x, out, in, table, rotation);
    op_expect(OP_ROPE, &out, truth);
}

void case_rope(struct rope_case r) {
    check_rope(r, false);
}

void case_rope_zero_centered(struct rope_case r) {
    check_rope(r, true);
}

void case_glu(int32_t t, int32_t f, int gap, int place, enum activation activation) {
    case_begin();
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(t, f), gap, 20),
                  b = tensor_random(DTYPE_F32, SHAPE(t, f), gap, 1);
    struct tensor out = place == 1 ? a : place == 2 ? b : tensor_random(DTYPE_F32, SHAPE(t, f), 0, 1);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < (int64_t)t * f; i++)
        truth[i] = activated(activation, load(&a, i / f, i % f)) * load(&b, i / f, i % f);
    op_glu(&x, out, a, b, activation);
    op_expect(OP_GLU, &out, truth);
}

void case_add(int32_t t, int32_t c, enum dtype dtype, int gap, bool one_row, int place) {
    case_add_scaled(t, c, dtype, gap, one_row, place, 1);
}

void case_add_scaled(int32_t t, int32_t c, enum dtype dtype, int gap, bool one_row, int place, float factor) {
    case_begin();
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(t, c), gap, 3),
                  b = tensor_random(dtype, SHAPE(one_row ? 1 : t, c), 2 * gap, 1);
    struct tensor out = place == 1 ? a : place == 2 ? b : tensor_random(DTYPE_F32, SHAPE(t, c), 3 * gap, 1);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < (int64_t)t * c; i++)
        truth[i] = load(&a, i / c, i % c) + (double)factor * load(&b, one_row ? 0 : i / c, i % c);
    op_add_scaled(&x, out, a, b, factor);
    op_expect(OP_ADD, &out, truth);
}

void case_copy(int32_t t, int32_t c, enum dtype dtype, int gap) {
    case_begin();
    struct tensor in = tensor_random(dtype, SHAPE(t, c), gap, 1),
                  out = tensor_random(DTYPE_F32, SHAPE(t, c), gap, 1);
    struct tensor row = tensor_random(dtype, SHAPE(1, c), 0, 1);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < (int64_t)t * c; i++) truth[i] = load(&in, i / c, i % c);
    op_copy(&x, out, in);
    op_expect(OP_COPY, &out, truth);
    for (int64_t i = 0; i < (int64_t)t * c; i++) truth[i] = load(&row, 0, i % c);
    op_broadcast_row(&x, out, row);
    op_expect(OP_BROADCAST_ROW, &out, truth);
}

void case_picture(int32_t c, int32_t rows, int32_t columns) {
    case_begin();
    struct tensor latent = tensor_random(DTYPE_F32, SHAPE(c, rows, columns), 0, 1);
    struct tensor image = tensor_random(DTYPE_F32, SHAPE(rows, columns, c), 0, 1);
    struct tensor rgb =
        tensor_make(operand_memory((size_t)tensor_elements(&image)), DTYPE_U8, SHAPE(rows, columns, c));
    double *truth = op_truth(&image);
    /* One latent scale per channel, or one for all channels. */
    struct latent_format format = {.n = columns % 2 ? c : 1, .limit = rows % 2 ? 0.4f : 0};
    for (int i = 0; i < format.n; i++)
        format.scale[i] = 0.36f + 0.01f * (float)i, format.shift[i] = 0.12f - 0.03f * (float)i;
    for (int64_t i = 0; i < tensor_elements(&image); i++) {
        int64_t channel = format.n > 1 ? i % c : 0;
        truth[i] = load(&latent, i % c * rows + i / c / columns, i / c % columns) / format.scale[channel] +
                   format.shift[channel];
        if (rows % 2) truth[i] = (double)format.limit * tanh(truth[i] / (double)format.limit);
    }
    op_latent_to_image(&x, image, latent, format);
    op_expect(OP_LATENT_TO_IMAGE, &image, truth);
    for (int64_t i = 0; i < tensor_elements(&image); i++) {
        float half = (float)load(&image, i / c, i % c) / 2 + 0.5f;
        truth[i] = nearbyint((double)(255 * fminf(fmaxf(half, 0), 1)));
    }
    op_image_to_rgb(&x, rgb, image);
    op_expect(OP_IMAGE_TO_RGB, &rgb, truth);
}

int random_bool(void) {
    return random_int(0, 1);
}

enum dtype random_dtype(void) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    return dtypes[random_int(0, 2)];
}

int32_t random_size(int32_t most) {
    return random_int(1, random_bool() ? most : most < 40 ? most : 40);
}

static void random_attention(void) {
    struct attention_case c = {.t = random_size(300), .key_heads = random_int(1, 3), .d = random_size(160)};
    c.causal = random_bool();
    c.s = c.causal ? c.t + random_int(0, 40) : random_size(400);
    c.heads = c.key_heads * random_int(1, 3);
    c.gap = random_int(0, 1) * 4;
    c.in_place = random_bool();
    c.scale = 1 / sqrtf((float)c.d);
    case_attention(c, random_bool());
}

static void random_conv(void) {
    struct conv_case c = {random_size(60),       random_size(60), random_size(80),  random_size(80),
                          1 + 2 * random_bool(), random_dtype(),  random_int(1, 2), 0,
                          random_bool(),         random_bool(),   random_int(0, 2)};
    if (random_bool()) c.groups = c.c % 4 ? 1 : 4;
    if (random_bool()) c.groups = PIXEL_NORM;
    struct conv_options o = {.finish = (enum finishing)random_int(0, FINISH_TO_SIGNED)};
    if (c.up == 2) o.cut_row = random_bool(), o.cut_column = random_bool();
    case_conv(c, o);
}

static void random_strided(void) {
    struct conv_case c = {
        2 * random_size(30), 2 * random_size(40), random_size(80), random_size(80), 3, random_dtype(), 1, 0,
        random_bool(),       random_bool(),       RESIDUAL_NONE};
    struct conv_options o = {
        .stride = 2, .pad_before = random_bool(), .finish = (enum finishing)random_int(0, FINISH_TO_SIGNED)};
    if (o.pad_before) c.rows -= random_bool(), c.columns -= random_bool();
    case_conv(c, o);
}

static struct linear_case random_linear(int32_t t, int32_t n, int32_t k) {
    return (struct linear_case){random_size(t),
                                random_size(n),
                                random_size(k),
                                random_dtype(),
                                random_int(0, 5),
                                random_bool(),
                                random_bool(),
                                (enum activation)random_int(0, ACTIVATION_GELU_ERF),
                                (enum residual)random_int(0, 2)};
}

void random_case(void) {
    int gap = random_int(0, 1) * random_int(1, 9);
    switch (random_int(0, 10)) {
    case 0:
        case_linear(random_linear(300, 700, 1500));
        break;
    case 1:
        case_linear_few(random_linear(30, 300, 500));
        break;
    case 2:
        random_attention();
        break;
    case 3:
        case_rms_norm((struct rms_case){random_size(200), random_size(300), random_int(1, 4), random_dtype(),
                                        gap, random_bool(), random_bool(), ACTIVATION_NONE});
        break;
    case 4:
        case_affine(random_size(200), random_int(2, 900), gap, random_int(0, 15), random_bool());
        break;
    case 5:
        case_rope((struct rope_case){random_size(200), random_int(1, 5), 2 * random_size(128), gap,
                                     random_bool(), random_bool(), random_dtype(), random_bool()});
        break;
    case 6:
        case_glu(random_size(100), random_size(900), gap, random_int(0, 2),
                 random_int(0, ACTIVATION_GELU_ERF));
        break;
    case 7:
        case_group_norm(random_size(50), random_size(50), 4 * random_size(40), 4, random_bool());
        break;
    case 8:
        case_add(random_size(100), random_size(900), random_dtype(), gap, random_bool(), random_int(0, 1));
        break;
    case 9:
        random_strided();
        break;
    default:
        random_conv();
    }
}

void test_print_errors(void **state) {
    for (int i = 0; i < N_OP_KINDS; i++)
        if (op_errors[i].known > 0)
            printf("  %-18s %.3g (known %.3g)\n", op_name(i), op_errors[i].measured, op_errors[i].known);
}
