/* 2D convolution of an image, in bands of rows, through cudnn.h.
 *
 * A kernel gathers a band's input with its halo into the workspace: upsampled, normed and activated, with
 * zero padding. The library therefore computes one kind of convolution, without padding. `out` may overlap
 * `in` as ops.h allows, because a band is gathered before it is written and bands run in order on one stream.
 * Three launches per band; besides the convolution a band moves 12 bytes per input value and 16 per output
 * value. */
#include "kernels/cuda/conv.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/conv_band.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/operators.h"

static_assert((int)CONV_LIBRARY_BYTES == (int)CONVOLUTIONS_WORKSPACE, "conv.h and cudnn.h must agree");

static struct convolution_key cuda_conv_key_of(const struct conv_layout *l, int32_t rows) {
    return {rows, l->columns, l->c_padded, l->n_padded, l->kernel, l->stride};
}

static enum status cuda_conv_prepare(struct cuda *cuda, const struct op *op, struct error *e) {
    if (!cuda->convolutions) {
        return error_set(e, DEVICE, "convolutions need cuDNN 9, which is not installed" FOUND "%s",
                         cuda->cudnn_missing);
    }
    struct conv_layout l = cuda_conv_layout(op);
    struct convolution_key key = cuda_conv_key_of(&l, l.band), last = cuda_conv_key_of(&l, l.rows % l.band);
    if (convolutions_prepare(cuda->convolutions, &key, e)) return e->code;
    return last.rows ? convolutions_prepare(cuda->convolutions, &last, e) : OK;
}

/* Returns the vector as f32, converted to `to` if needed; NULL if absent. */
static const float *cuda_conv_ready(const struct cuda *cuda, const struct tensor *vector, float *to) {
    if (!vector->rank) return NULL;
    if (!conv_widens(vector)) return static_cast<const float *>(vector->data);
    cuda_widen_vector(to, vector, tensor_columns(vector), cuda->compute);
    return to;
}

struct call {
    struct cuda *cuda;
    const struct op *op;
    struct conv_layout l;
    const float *norm, *pixel_norm, *bias;
    char *workspace;
};

static enum status cuda_run_band(const struct call *c, int32_t first, struct error *e) {
    const struct op *op = c->op;
    const struct conv_layout *l = &c->l;
    int32_t rows = l->rows - first < l->band ? l->rows - first : l->band;
    float *in = reinterpret_cast<float *>(c->workspace + l->in);
    float *out = reinterpret_cast<float *>(c->workspace + l->out);
    struct conv_gather gather = {&op->in[0], c->norm, c->pixel_norm, op->conv.pixel_norm.eps};
    gather.activation = op->conv.activation;
    gather.upsample = op->conv.upsample;
    gather.cut_row = op->conv.cut_row;
    gather.cut_column = op->conv.cut_column;
    gather.left = l->halo;
    gather.first = (op->conv.first_row + first) * l->stride - l->halo;
    gather.rows = conv_reach(l, rows);
    gather.columns = conv_reach(l, l->columns);
    cuda_conv_gather(in, &gather, c->cuda->compute);
    struct convolution_key key = cuda_conv_key_of(l, rows);
    struct convolution_operands operands = {in, reinterpret_cast<float *>(c->workspace + l->weights), out,
                                            c->workspace + l->library};
    if (convolutions_run(c->cuda->convolutions, &key, &operands, c->cuda->compute, e)) return e->code;
    struct conv_finish finish = {
        &op->out, &op->in[3],     (int64_t)first * l->columns, (int64_t)rows * l->columns, out,
        c->bias,  op->conv.finish};
    cuda_conv_finish(&finish, c->cuda->compute);
    return OK;
}

static enum status cuda_conv_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct call c = {cuda, op, cuda_conv_layout(op), NULL, NULL, NULL, workspace};
    float *norm = reinterpret_cast<float *>(workspace + c.l.norm);
    c.pixel_norm = cuda_conv_ready(cuda, &op->conv.pixel_norm.weight, norm);
    if (op->conv.norm.statistics.rank) {
        cuda_channel_norm(norm, &op->conv.norm, op->in[0].dim[2], cuda->compute);
        c.norm = norm;
    }
    c.bias = cuda_conv_ready(cuda, &op->in[2], reinterpret_cast<float *>(workspace + c.l.bias));
    cuda_conv_pad_weights(reinterpret_cast<float *>(workspace + c.l.weights), &op->in[1], cuda->compute);
    for (int32_t first = 0; first < c.l.rows; first += c.l.band)
        if (cuda_run_band(&c, first, e)) return e->code;
    return cuda_launched(op, e);
}

/* The operator also launches kernels of cast.cu, whose code cuda_linear lists for loading. */
const struct cuda_operator cuda_conv2d = {cuda_conv_prepare, cuda_conv_run, cuda_conv_band_kernels};
