/* A fake libcudnn.so.9 for library_fakes.c: cudnnConvolutionForward and its descriptors after NVIDIA's
 * documentation, in plain loops on the host, with an error for every violated requirement. */
#include "engine/base/half.h"
#include "test/emu/f16.h"

#include <cudnn.h>

#include <stdbool.h>
#include <stdlib.h>

/* Shape of an NHWC image or weight tensor. For a convolution descriptor, h and w are the strides. */
struct shape {
    int n, c, h, w;
    cudnnDataType_t type;
};

enum { WORKSPACE = 100 };

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    static int nothing;
    *handle = (cudnnHandle_t)(void *)&nothing;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    (void)handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    (void)handle, (void)stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
    *value = 9 + (int)type;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "not supported" : "refused";
}

static cudnnStatus_t create(void *out) {
    void **to = out;
    *to = calloc(1, sizeof(struct shape));
    return CUDNN_STATUS_SUCCESS;
}

#define DESCRIPTOR(kind)                                                                                     \
    cudnnStatus_t cudnnCreate##kind##Descriptor(cudnn##kind##Descriptor_t *out) {                            \
        return create(out);                                                                                  \
    }                                                                                                        \
    cudnnStatus_t cudnnDestroy##kind##Descriptor(cudnn##kind##Descriptor_t desc) {                           \
        free(desc);                                                                                          \
        return CUDNN_STATUS_SUCCESS;                                                                         \
    }
DESCRIPTOR(Tensor)
DESCRIPTOR(Filter)
DESCRIPTOR(Convolution)

static cudnnStatus_t set(void *desc, cudnnTensorFormat_t format, cudnnDataType_t type, struct shape shape) {
    shape.type = type;
    *(struct shape *)desc = shape;
    bool known = type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_HALF;
    return format == CUDNN_TENSOR_NHWC && known ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
    return set(desc, format, type, (struct shape){.n = n, .c = c, .h = h, .w = w});
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
    return set(desc, format, type, (struct shape){.n = k, .c = c, .h = h, .w = w});
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t desc, int pad_h, int pad_w, int u,
                                              int v, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
    *(struct shape *)(void *)desc = (struct shape){.h = u, .w = v};
    bool plain = !pad_h && !pad_w && u > 0 && v > 0 && dilation_h == 1 && dilation_w == 1;
    return plain && mode == CUDNN_CROSS_CORRELATION && compute == CUDNN_DATA_FLOAT ? CUDNN_STATUS_SUCCESS
                                                                                   : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t desc, cudnnMathType_t math) {
    (void)desc;
    return math == CUDNN_DEFAULT_MATH ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

static const struct shape *shape_at(const void *desc) {
    return desc;
}

static bool fits(const struct shape *x, const struct shape *w, const struct shape *stride,
                 const struct shape *y) {
    return x->type == w->type && x->type == y->type && x->n == 1 && y->n == 1 && x->c == w->c &&
           y->c == w->n && y->h == (x->h - w->h) / stride->h + 1 && y->w == (x->w - w->w) / stride->w + 1;
}

/* Returns whether the preferred algorithm (precomputed implicit GEMM) works. The channel count selects a
 * simulated failure. The preferred algorithm needs too much memory at 16, is not supported at 24, and fails
 * when called at 32. At 40 no algorithm is supported; at 48 every algorithm fails when called. */
static bool precomputed(const struct shape *x) {
    return x->c != 16 && x->c != 24 && x->c != 32;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t conv,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t *bytes) {
    (void)handle;
    bool better = algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    int c = shape_at(x)->c;
    *bytes = better && c == 16 ? (size_t)1 << 40 : WORKSPACE;
    if (c == 40 || (better && c == 24)) return CUDNN_STATUS_NOT_SUPPORTED;
    return fits(shape_at(x), shape_at(w), shape_at(conv), shape_at(y)) ? CUDNN_STATUS_SUCCESS
                                                                       : CUDNN_STATUS_BAD_PARAM;
}

static float operand(const struct shape *of, const void *from, int i) {
    return of->type == CUDNN_DATA_HALF ? half_f16_f32(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

/* Returns one output value. in, weights: indices of the first values in image and kernel. */
static float value_at(const struct shape *x, const void *image, int in, const struct shape *w,
                      const void *kernel, int weights) {
    float sum = 0;
    for (int i = 0; i < w->h; i++)
        for (int j = 0; j < w->w; j++)
            for (int c = 0; c < x->c; c++)
                sum += operand(x, image, in + (i * x->w + j) * x->c + c) *
                       operand(w, kernel, weights + (i * w->w + j) * w->c + c);
    return sum;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t x_at, const void *x,
                                      const cudnnFilterDescriptor_t w_at, const void *w,
                                      const cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algorithm, void *workspace,
                                      size_t workspace_bytes, const void *beta,
                                      const cudnnTensorDescriptor_t y_at, void *y) {
    (void)handle, (void)workspace;
    const struct shape *of_x = shape_at(x_at), *of_w = shape_at(w_at), *of_y = shape_at(y_at);
    const struct shape *stride = shape_at(conv);
    bool better = algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    if ((better && of_x->c == 32) || of_x->c == 48) return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    cudnnConvolutionFwdAlgo_t expected = precomputed(of_x) ? CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
                                                           : CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    float times = *(const float *)alpha;
    bool good = *(const float *)beta == 0 && algorithm == expected && workspace_bytes == WORKSPACE &&
                fits(of_x, of_w, stride, of_y);
    if (!good) return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < of_y->h * of_y->w; i++)
        for (int n = 0; n < of_y->c; n++) {
            int row = i / of_y->w * stride->h, column = i % of_y->w * stride->w;
            float value = times * value_at(of_x, x, (row * of_x->w + column) * of_x->c, of_w, w,
                                           n * of_w->h * of_w->w * of_w->c);
            if (of_y->type == CUDNN_DATA_HALF)
                ((uint16_t *)y)[i * of_y->c + n] = emu_f16(value);
            else
                ((float *)y)[i * of_y->c + n] = value;
        }
    return CUDNN_STATUS_SUCCESS;
}
