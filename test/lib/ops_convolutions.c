/* Test cases of convolutions: norms and activations of the input, cropping, strides. */
#include "test/lib/ops_cases.h"

static double conv_normed(const struct conv_case *c, const struct tensor *in, const struct conv_options *o,
                          int64_t i) {
    int64_t row = i / c->c, j = i % c->c;
    double v = load(in, row, j), squares = 0;
    if (c->groups > 0) {
        const struct tensor *statistics = &o->norm.statistics;
        int64_t g = j / (c->c / c->groups);
        v = (v - load(statistics, g, 0)) * load(statistics, g, 1);
        return v * load(&o->norm.weight, 0, j) + load(&o->norm.bias, 0, j);
    }
    if (c->groups == 0) return v;
    for (int32_t k = 0; k < c->c; k++) squares += pow(load(in, row, k), 2);
    v /= sqrt(squares / c->c + (double)o->pixel_norm.eps);
    return c->groups == PLAIN_PIXEL_NORM ? v : v * load(&o->pixel_norm.weight, 0, j);
}

/* The input of a convolution, with rows and columns after upsampling. */
struct conv_source {
    const double *in, *weight;
    int32_t rows, columns;
};

/* Returns one output value (channel n) of a convolution. y, xx: input position of the kernel's first row and
 * column. */
static double conv_value(const struct conv_case *c, const struct conv_source *s, int32_t y, int32_t xx,
                         int32_t n) {
    double sum = 0;
    for (int32_t ky = 0; ky < c->k; ky++)
        for (int32_t kx = 0; kx < c->k; kx++) {
            int32_t sy = y + ky, sx = xx + kx;
            if (sy < 0 || sx < 0 || sy >= s->rows || sx >= s->columns) continue;
            const double *pixel = s->in + ((int64_t)(sy / c->up) * c->columns + sx / c->up) * c->c;
            const double *weight = s->weight + (n * c->c * c->k + ky) * c->k + kx;
            for (int32_t i = 0; i < c->c; i++) sum += pixel[i] * weight[i * c->k * c->k];
        }
    return sum;
}

/* Epsilon of the pixel norm: (1e-12)^2 / 100 channels, because PyTorch bounds |x| below by 1e-12. */
static const float PIXEL_EPS = 1e-26f;

/* Returns channels [first, first + n) of an image, a view. */
static struct tensor channels_of(struct tensor image, int32_t first, int32_t n) {
    image.data = (float *)image.data + first;
    image.dim[2] = n;
    return image;
}

/* Applies the last step of a convolution to value v of output channel n. */
static double conv_finished(const struct conv_options *o, int32_t n, double v) {
    double slope = o->finish == FINISH_PRELU        ? load(&o->slopes, 0, n)
                   : o->finish == FINISH_LEAKY_RELU ? (double)o->slope
                   : o->finish == FINISH_RELU       ? 0
                                                    : 1;
    return o->finish == FINISH_TO_SIGNED ? 2 * v - 1 : v < 0 ? slope * v : v;
}

/* side_by_side: `in` and `out` are columns of one wider image. */
static void run_case(struct conv_case c, struct conv_options o, bool side_by_side) {
    case_begin();
    int32_t stride = o.stride == 2 ? 2 : 1, before = o.stride == 2 ? o.pad_before : c.k / 2;
    struct conv_source s = {.rows = c.rows * c.up - o.cut_row, .columns = c.columns * c.up - o.cut_column};
    int32_t dim[] = {(s.rows + o.pad_before) / stride, (s.columns + o.pad_before) / stride, c.n};
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(c.rows, c.columns, c.c), 0, 1);
    if (c.groups < 0) /* Sets one pixel to zero: the pixel norm then divides by epsilon. */
        memset(in.data, 0, sizeof(float) * (size_t)c.c);
    struct tensor weight = tensor_random(c.dtype, SHAPE(c.n, c.c, c.k, c.k), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, 3, dim, 0, 1);
    if (side_by_side) {
        struct tensor wide = tensor_random(DTYPE_F32, SHAPE(dim[0], dim[1], c.n + c.c + 3), 0, 1);
        in = channels_of(wide, 1, c.c);
        out = channels_of(wide, c.c + 2, c.n);
    }
    if (o.finish == FINISH_PRELU) o.slopes = tensor_random(c.dtype, SHAPE(c.n), 0, 1);
    struct epilogue e = {0};
    o.upsample = c.up;
    o.activation = c.activation;
    if (c.bias) e.bias = tensor_random(c.dtype, SHAPE(c.n), 0, 1);
    if (c.residual)
        e.residual = c.residual == RESIDUAL_OUT ? out : tensor_random(DTYPE_F32, 3, out.dim, 0, 1);
    if (c.groups == PIXEL_NORM)
        o.pixel_norm = (struct pixel_norm){tensor_random(c.dtype, SHAPE(c.c), 0, 2), PIXEL_EPS};
    else if (c.groups == PLAIN_PIXEL_NORM)
        o.pixel_norm.eps = PIXEL_EPS;
    else if (c.groups)
        o.norm = (struct group_norm){tensor_random(DTYPE_F32, SHAPE(c.groups, 2), 0, 1),
                                     tensor_random(c.dtype, SHAPE(c.c), 0, 2),
                                     tensor_random(DTYPE_F32, SHAPE(c.c), 0, 1)};
    double *values = op_truth(&in), *w = op_truth(&weight), *truth = op_truth(&out);
    for (int64_t i = 0; i < tensor_elements(&in); i++)
        values[i] = activated(c.activation, conv_normed(&c, &in, &o, i));
    s.in = values, s.weight = w;
    for (int64_t i = 0; i < tensor_elements(&weight); i++) w[i] = load(&weight, i / c.k, i % c.k);
    for (int64_t i = 0; i < tensor_elements(&out); i++) {
        int32_t n = (int32_t)(i % c.n), xx = (int32_t)(i / c.n % out.dim[1]),
                y = (int32_t)(i / c.n / out.dim[1]);
        double sum = conv_value(&c, &s, y * stride - before, xx * stride - before, n);
        sum += c.bias ? load(&e.bias, 0, n) : 0;
        if (o.scale != 0) sum *= (double)o.scale;
        truth[i] = conv_finished(&o, n, sum + (c.residual ? load(&e.residual, i / c.n, n) : 0));
    }
    op_conv2d(&x, out, in, weight, e, o);
    op_expect(OP_CONV2D, &out, truth);
}

void case_conv(struct conv_case c, struct conv_options options) {
    run_case(c, options, false);
}

void case_conv_columns(struct conv_case c, struct conv_options options) {
    run_case(c, options, true);
}
