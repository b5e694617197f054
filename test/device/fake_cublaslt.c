/* A fake libcublasLt.so.13 for library_fakes.c: cublasLtMatmul and its descriptors after NVIDIA's
 * documentation, in plain loops on the host, with an error for every violated requirement. */
#include "engine/base/half.h"
#include "test/emu/f16.h"

#include <cublasLt.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct layout {
    cudaDataType type;
    int64_t rows, columns, row; /* shape of a column-major matrix and its leading dimension `row` */
};

struct desc {
    int32_t transposed;
    uint32_t epilogue;
    int32_t bias_type;
    const void *bias;
};

enum { ALGORITHM = 77 };

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    static int nothing;
    *handle = (cublasLtHandle_t)(void *)&nothing;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value) {
    *value = 13 + (int)type;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "refused";
}

#define DESTROYS(type)                                                                                       \
    cublasStatus_t cublasLt##type##Destroy(cublasLt##type##_t gone) {                                        \
        free(gone);                                                                                          \
        return CUBLAS_STATUS_SUCCESS;                                                                        \
    }
DESTROYS(MatrixLayout)
DESTROYS(MatmulDesc)
DESTROYS(MatmulPreference)

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t row) {
    if (row < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    struct layout *l = malloc(sizeof *l);
    *l = (struct layout){type, (int64_t)rows, (int64_t)columns, row};
    *out = (cublasLtMatrixLayout_t)(void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    struct desc *desc = calloc(1, sizeof *desc);
    desc->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *out = (cublasLtMatmulDesc_t)(void *)desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t at, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes) {
    struct desc *desc = (struct desc *)(void *)at;
    void *to = what == CUBLASLT_MATMUL_DESC_TRANSA           ? (void *)&desc->transposed
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE       ? (void *)&desc->epilogue
               : what == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE ? (void *)&desc->bias_type
               : what == CUBLASLT_MATMUL_DESC_BIAS_POINTER   ? (void *)&desc->bias
                                                             : NULL;
    size_t size = what == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof desc->bias : sizeof(int32_t);
    if (!to || bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes) {
    (void)preference, (void)value;
    size_t size = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t) : sizeof(uint32_t);
    return bytes == size ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static const struct layout *layout_at(cublasLtMatrixLayout_t l) {
    return (const struct layout *)(const void *)l;
}

/* Accepts only the kind of matrix product that Sluice uses, with consistent sizes. */
static cublasStatus_t check(const struct desc *desc, const struct layout *a, const struct layout *b,
                            const struct layout *c, const struct layout *d) {
    bool types = (a->type == CUDA_R_16BF || a->type == CUDA_R_16F) && b->type == a->type &&
                 c->type == d->type && (d->type == CUDA_R_32F || d->type == a->type);
    bool sizes = desc->transposed == CUBLAS_OP_T && b->rows == a->rows && d->rows == a->columns &&
                 d->columns == b->columns && c->rows == d->rows && c->columns == d->columns;
    bool bias = desc->epilogue == CUBLASLT_EPILOGUE_BIAS && desc->bias && desc->bias_type == (int)d->type;
    return types && sizes && (bias || desc->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_INVALID_VALUE;
}

/* The value of a cuBLASLt attribute is 100 plus its number; CUBLASLT_ALGO_CONFIG_STAGES_ID is missing. */
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t bytes, size_t *written) {
    uint32_t number = 100 + (uint32_t)attribute;
    if (algo->data[0] != ALGORITHM || attribute == CUBLASLT_ALGO_CONFIG_STAGES_ID)
        return CUBLAS_STATUS_INVALID_VALUE;
    *written = sizeof number;
    memcpy(value, &number, bytes < sizeof number ? bytes : sizeof number);
    return CUBLAS_STATUS_SUCCESS;
}

/* Finds no algorithm for a matrix of 13 columns, so that tests cover this failure. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
    (void)handle, (void)preference, (void)wanted;
    memset(results, 0, sizeof *results);
    results->algo.data[0] = ALGORITHM;
    *found = layout_at(d)->rows != 13;
    return check((const struct desc *)(const void *)desc, layout_at(a), layout_at(b), layout_at(c),
                 layout_at(d));
}

static float value_of(const void *from, cudaDataType type, int64_t i) {
    if (type == CUDA_R_32F) return ((const float *)from)[i];
    uint16_t half = ((const uint16_t *)from)[i];
    return type == CUDA_R_16F ? half_f16_f32(half) : half_bf16_f32(half);
}

/* Stores value i in this type, rounded to nearest even. */
static void store(void *to, cudaDataType type, int64_t i, float value) {
    if (type == CUDA_R_32F)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = type == CUDA_R_16F ? emu_f16(value) : half_f32_bf16(value);
}

static float dot(const void *a, const struct layout *of_a, const void *b, const struct layout *of_b,
                 int64_t i, int64_t j) {
    float sum = 0;
    for (int64_t k = 0; k < of_a->rows; k++)
        sum += value_of(a, of_a->type, k + i * of_a->row) * value_of(b, of_b->type, k + j * of_b->row);
    return sum;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t computed, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_at, const void *b,
                              cublasLtMatrixLayout_t b_at, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_at, void *d, cublasLtMatrixLayout_t d_at,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    (void)handle, (void)workspace, (void)workspace_bytes, (void)stream;
    const struct desc *desc = (const struct desc *)(const void *)computed;
    const struct layout *of_c = layout_at(c_at), *of_d = layout_at(d_at);
    float times = *(const float *)alpha, kept = *(const float *)beta;
    bool in_place = c == d && of_c->row != of_d->row;
    if (check(desc, layout_at(a_at), layout_at(b_at), of_c, of_d) || in_place || algo->data[0] != ALGORITHM)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int64_t j = 0; j < of_d->columns; j++)
        for (int64_t i = 0; i < of_d->rows; i++) {
            float value = times * dot(a, layout_at(a_at), b, layout_at(b_at), i, j);
            if (kept != 0) value += kept * value_of(c, of_c->type, i + j * of_c->row);
            if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS) value += value_of(desc->bias, of_d->type, i);
            store(d, of_d->type, i + j * of_d->row, value);
        }
    return CUBLAS_STATUS_SUCCESS;
}
