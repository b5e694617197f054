/* Interface to cuDNN 9.
 *
 * Uses cuDNN's legacy API, deprecated but present in all of version 9: the legacy API takes an algorithm by
 * name, whereas cuDNN's graph API chooses an algorithm by heuristic. Images and weights are channels-last, as
 * tensor cores read them. CUDNN_DEFAULT_MATH means TF32 tensor cores from compute capability 8.0 on (unless
 * NVIDIA_TF32_OVERRIDE=0, which is more exact and slower), and HMMA tensor cores for f16 (cuDNN's
 * PSEUDO_HALF_CONFIG: data in f16, sums in f32). CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION would use f16 for f32
 * data, which overflows in VAEs.
 *
 * IMPLICIT_PRECOMP_GEMM runs on tensor cores. If the library refuses it for a shape or it needs more than
 * CONVOLUTIONS_WORKSPACE, IMPLICIT_GEMM is used, which needs no workspace. The choice depends only on shape,
 * GPU and library. The refusal may come from the workspace query or only from the first call, which
 * convolutions_warm_up makes before a run. Both algorithms are deterministic (cuDNN documentation,
 * "Reproducibility") and are the only two for channels-last images and weights. */
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/hash_table.h"
#include "kernels/cuda/library.h"

#include <cudnn.h>
#include <stdbool.h>
#include <stdio.h>

#define FUNCTIONS(X)                                                                                         \
    X(cudnnCreate)                                                                                           \
    X(cudnnDestroy)                                                                                          \
    X(cudnnSetStream)                                                                                        \
    X(cudnnGetProperty)                                                                                      \
    X(cudnnGetErrorString)                                                                                   \
    X(cudnnCreateTensorDescriptor)                                                                           \
    X(cudnnSetTensor4dDescriptor)                                                                            \
    X(cudnnDestroyTensorDescriptor)                                                                          \
    X(cudnnCreateFilterDescriptor)                                                                           \
    X(cudnnSetFilter4dDescriptor)                                                                            \
    X(cudnnDestroyFilterDescriptor)                                                                          \
    X(cudnnCreateConvolutionDescriptor)                                                                      \
    X(cudnnSetConvolution2dDescriptor)                                                                       \
    X(cudnnSetConvolutionMathType)                                                                           \
    X(cudnnDestroyConvolutionDescriptor)                                                                     \
    X(cudnnGetConvolutionForwardWorkspaceSize)                                                               \
    X(cudnnConvolutionForward)

struct api {
    FUNCTIONS(LIBRARY_POINTER)
};

static const char *const names[] = {"libcudnn.so.9", LIBRARY_CUDA "libcudnn.so.9", NULL};
static const struct library_function functions[] = {FUNCTIONS(LIBRARY_FUNCTION)};

struct convolution {
    struct convolution_key key;
    int32_t warm; /* the convolution has run once, so its kernels are loaded */
    cudnnTensorDescriptor_t in, out;
    cudnnFilterDescriptor_t weights;
    cudnnConvolutionDescriptor_t desc;
    int32_t algorithm; /* index into algorithms[] */
    size_t workspace_bytes;
};

static const cudnnConvolutionFwdAlgo_t algorithms[] = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                                       CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

struct convolutions {
    struct sys *sys;
    void *library;
    struct api api;
    cudnnHandle_t handle;
    struct hash_table table;
};

static enum status cudnn_failed(const struct convolutions *c, const struct convolution_key *key,
                                const char *what, cudnnStatus_t s, struct error *e) {
    bool memory = s == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                  s == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    error_set(e, memory ? MEMORY : DEVICE, "cuDNN: %s failed" FOUND "%s (%d)", what,
              c->api.cudnnGetErrorString(s), (int)s);
    char shape[CONVOLUTION_SHAPE];
    if (key) error_expected(e, "a convolution of %s", convolution_shape(key, shape));
    return e->code;
}

struct convolutions *convolutions_open(struct sys *sys, struct error *e) {
    struct convolutions *c = sys_new(sys, 1, sizeof *c, "cuDNN", e);
    if (!c) return NULL;
    c->sys = sys;
    c->table = (struct hash_table){
        .sys = sys, .key_bytes = sizeof(struct convolution_key), .entry_bytes = sizeof(struct convolution)};
    int n = (int)(sizeof functions / sizeof *functions);
    c->library = library_open("cuDNN", names, functions, n, &c->api, e);
    if (c->library) {
        cudnnStatus_t s = c->api.cudnnCreate(&c->handle);
        if (!s) return c;
        cudnn_failed(c, NULL, "start", s, e);
        c->handle = NULL;
    }
    convolutions_close(c);
    return NULL;
}

static void convolution_free(const struct convolutions *c, struct convolution *convolution) {
    if (convolution->in) c->api.cudnnDestroyTensorDescriptor(convolution->in);
    if (convolution->out) c->api.cudnnDestroyTensorDescriptor(convolution->out);
    if (convolution->weights) c->api.cudnnDestroyFilterDescriptor(convolution->weights);
    if (convolution->desc) c->api.cudnnDestroyConvolutionDescriptor(convolution->desc);
}

void convolutions_close(struct convolutions *c) {
    if (!c) return;
    for (uint64_t i = 0; i < c->table.capacity; i++)
        if (hash_table_at(&c->table, i)) convolution_free(c, hash_table_at(&c->table, i));
    c->sys->release(c->sys, c->table.entries);
    if (c->handle) c->api.cudnnDestroy(c->handle);
    library_close(c->library);
    c->sys->release(c->sys, c);
}

void convolutions_version(const struct convolutions *c, char *out, size_t out_bytes) {
    int version[3] = {0};
    c->api.cudnnGetProperty(MAJOR_VERSION, &version[0]);
    c->api.cudnnGetProperty(MINOR_VERSION, &version[1]);
    c->api.cudnnGetProperty(PATCH_LEVEL, &version[2]);
    snprintf(out, out_bytes, "cuDNN %d.%d.%d", version[0], version[1], version[2]);
}

int convolutions_release(const struct convolutions *c) {
    int major = 0, minor = 0;
    c->api.cudnnGetProperty(MAJOR_VERSION, &major);
    c->api.cudnnGetProperty(MINOR_VERSION, &minor);
    return 100 * major + minor;
}

/* Describes a packed image [rows, columns, channels] to cuDNN. */
static cudnnStatus_t picture_create(const struct api *api, cudnnDataType_t type, int rows, int columns,
                                    int channels, cudnnTensorDescriptor_t *picture) {
    cudnnStatus_t s = api->cudnnCreateTensorDescriptor(picture);
    return s ? s
             : api->cudnnSetTensor4dDescriptor(*picture, CUDNN_TENSOR_NHWC, type, 1, channels, rows, columns);
}

/* cuDNN expects sizes in the order N C H W for any format. Cross-correlation: kernels are not flipped. */
static cudnnStatus_t cudnn_describe(const struct api *api, struct convolution *c) {
    const struct convolution_key *key = &c->key;
    int k = key->side;
    cudnnDataType_t type = key->f16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
    cudnnStatus_t s = picture_create(api, type, convolution_reach(key, key->rows),
                                     convolution_reach(key, key->columns), key->in, &c->in);
    if (!s) s = picture_create(api, type, key->rows, key->columns, key->out, &c->out);
    if (!s) s = api->cudnnCreateFilterDescriptor(&c->weights);
    if (!s) s = api->cudnnSetFilter4dDescriptor(c->weights, type, CUDNN_TENSOR_NHWC, key->out, key->in, k, k);
    if (!s) s = api->cudnnCreateConvolutionDescriptor(&c->desc);
    if (!s)
        s = api->cudnnSetConvolution2dDescriptor(c->desc, 0, 0, key->stride, key->stride, 1, 1,
                                                 CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    return s ? s : api->cudnnSetConvolutionMathType(c->desc, CUDNN_DEFAULT_MATH);
}

/* Chooses cuDNN's first usable algorithm from index `first` of the list on. */
static cudnnStatus_t cudnn_choose(const struct convolutions *c, struct convolution *convolution, int first) {
    cudnnStatus_t s = CUDNN_STATUS_NOT_SUPPORTED;
    for (int i = first; i < ALGORITHMS; i++) {
        convolution->algorithm = i;
        s = c->api.cudnnGetConvolutionForwardWorkspaceSize(c->handle, convolution->in, convolution->weights,
                                                           convolution->desc, convolution->out, algorithms[i],
                                                           &convolution->workspace_bytes);
        if (!s && convolution->workspace_bytes <= CONVOLUTIONS_WORKSPACE) return s;
    }
    return s ? s : CUDNN_STATUS_NOT_SUPPORTED;
}

enum status convolutions_prepare(struct convolutions *c, const struct convolution_key *key, struct error *e) {
    if (hash_table_find(&c->table, key)) return OK;
    struct convolution convolution = {.key = *key};
    cudnnStatus_t s = cudnn_describe(&c->api, &convolution);
    if (!s) s = cudnn_choose(c, &convolution, 0);
    if (s)
        cudnn_failed(c, key, "choosing an algorithm", s, e);
    else if (hash_table_add(&c->table, &convolution))
        return OK;
    else
        error_set(e, MEMORY, "no memory for the table of convolutions");
    convolution_free(c, &convolution);
    return e->code;
}

static cudnnStatus_t forward(const struct convolutions *c, const struct convolution *convolution,
                             const struct convolution_operands *operands) {
    const float factor = convolution->key.f16 ? CONVOLUTION_HALF_SCALE : 1, zero = 0;
    return c->api.cudnnConvolutionForward(
        c->handle, &factor, convolution->in, operands->in, convolution->weights, operands->weights,
        convolution->desc, algorithms[convolution->algorithm], operands->workspace,
        convolution->workspace_bytes, &zero, convolution->out, operands->out);
}

static enum status cudnn_run(const struct convolutions *c, struct convolution *convolution,
                             const struct convolution_operands *operands, cudaStream_t stream,
                             struct error *e) {
    cudnnStatus_t s = c->api.cudnnSetStream(c->handle, stream);
    if (!s) s = forward(c, convolution, operands);
    /* A call that cuDNN does not support is repeated with the next algorithm; a failed call is not. */
    while (CUDNN_STATUS_CATEGORY(s) == CUDNN_STATUS_NOT_SUPPORTED &&
           !cudnn_choose(c, convolution, convolution->algorithm + 1))
        s = forward(c, convolution, operands);
    if (s) return cudnn_failed(c, &convolution->key, "convolution", s, e);
    convolution->warm = 1;
    return OK;
}

enum status convolutions_run(struct convolutions *c, const struct convolution_key *key,
                             const struct convolution_operands *operands, cudaStream_t stream,
                             struct error *e) {
    struct convolution *convolution = hash_table_find(&c->table, key);
    if (convolution) return cudnn_run(c, convolution, operands, stream, e);
    char shape[CONVOLUTION_SHAPE];
    return error_set(e, INTERNAL, "a convolution was not prepared" FOUND "%s", convolution_shape(key, shape));
}

/* True if the convolution needs a warm-up call: it has not run yet. */
static bool cudnn_cold(const struct convolution *convolution) {
    return convolution && !convolution->warm;
}

uint64_t convolutions_warm_up_bytes(const struct convolutions *c) {
    uint64_t most = 0;
    for (uint64_t i = 0; i < c->table.capacity; i++) {
        const struct convolution *convolution = hash_table_at(&c->table, i);
        if (cudnn_cold(convolution) && convolution_warm_up_bytes(&convolution->key) > most)
            most = convolution_warm_up_bytes(&convolution->key);
    }
    return most;
}

enum status convolutions_warm_up(struct convolutions *c, void *scratch, uint64_t scratch_bytes,
                                 cudaStream_t stream, struct error *e) {
    char *garbage = (char *)scratch + CONVOLUTIONS_WORKSPACE;
    struct convolution_operands operands = {
        .in = garbage, .weights = garbage, .out = garbage, .workspace = scratch};
    for (uint64_t i = 0; i < c->table.capacity; i++) {
        struct convolution *convolution = hash_table_at(&c->table, i);
        if (!cudnn_cold(convolution) || convolution_warm_up_bytes(&convolution->key) > scratch_bytes)
            continue;
        if (cudnn_run(c, convolution, &operands, stream, e)) return e->code;
    }
    return OK;
}

void convolutions_algorithms(const struct convolutions *c, device_algorithm *report, void *user) {
    static const char *const algorithm_names[ALGORITHMS] = {"IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM"};
    for (uint64_t i = 0; i < c->table.capacity; i++) {
        const struct convolution *convolution = hash_table_at(&c->table, i);
        char shape[CONVOLUTION_SHAPE];
        if (convolution && convolution->warm)
            report(user, "conv2d", convolution_shape(&convolution->key, shape),
                   algorithm_names[convolution->algorithm]);
    }
}
