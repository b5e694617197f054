/* Interface to cuBLASLt.
 *
 * The library is column-major, so it computes out^T[N,M] = weight . in^T. weight [N,K] by rows is a K x N
 * matrix by columns, transposed; in [M,K] is K x M unchanged; the bias runs along the columns of out^T, as
 * the epilogue requires. The residual is C with beta 1.
 *
 * The algorithm is the heuristic's first result. It depends on shape, types, GPU and the preferences set
 * here: workspace, alignments, split-K reduction. NVIDIA guarantees equal bits for equal algorithm and GPU.
 * If N is not a multiple of 8, kernels are slower but work. Versions 12 and 13 of the library are equal in
 * everything used here. */
#include "kernels/cuda/hash_table.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/cublaslt.h"

#include <cublasLt.h>
#include <stdio.h>

#define FUNCTIONS(X)                                                                                         \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtGetProperty)                                                                                   \
    X(cublasLtGetStatusString)                                                                               \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmul)

struct api {
    FUNCTIONS(LIBRARY_POINTER)
};

static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                    LIBRARY_CUDA "libcublasLt.so.13", LIBRARY_CUDA "libcublasLt.so.12", NULL};
static const struct library_function functions[] = {FUNCTIONS(LIBRARY_FUNCTION)};

struct product {
    struct product_key key;
    int32_t warm; /* the product has run once, so its kernels are loaded */
    cublasLtMatmulDesc_t desc;
    /* residual's layout is set even without a residual; it may be the same object as out's layout */
    cublasLtMatrixLayout_t weight, in, residual, out;
    cublasLtMatmulAlgo_t algo;
};

struct products {
    struct sys *sys;
    void *library;
    struct api api;
    cublasLtHandle_t handle;
    struct hash_table table;
};

static enum status cublaslt_failed(const struct products *p, const struct product_key *key, const char *what,
                                   cublasStatus_t s, struct error *e) {
    error_set(e, s == CUBLAS_STATUS_ALLOC_FAILED ? MEMORY : DEVICE, "cuBLASLt: %s failed" FOUND "%s (%d)",
              what, p->api.cublasLtGetStatusString(s), (int)s);
    if (key)
        error_expected(e, "a matrix product of %d x %d x %d%s%s%s%s, row strides %d, %lld and %lld", key->m,
                       key->n, key->k, key->f16 ? ", f16" : "", key->bias ? ", bias" : "",
                       key->residual ? ", residual" : "", key->rounded ? ", rounded" : "", key->in_row,
                       (long long)key->out_row, (long long)key->residual_row);
    return e->code;
}

struct products *products_open(struct sys *sys, struct error *e) {
    struct products *p = sys_new(sys, 1, sizeof *p, "cuBLASLt", e);
    if (!p) return NULL;
    p->sys = sys;
    p->table = (struct hash_table){
        .sys = sys, .key_bytes = sizeof(struct product_key), .entry_bytes = sizeof(struct product)};
    int n = (int)(sizeof functions / sizeof *functions);
    p->library = library_open("cuBLASLt", names, functions, n, &p->api, e);
    if (p->library) {
        cublasStatus_t s = p->api.cublasLtCreate(&p->handle);
        if (!s) return p;
        cublaslt_failed(p, NULL, "start", s, e);
        p->handle = NULL;
    }
    products_close(p);
    return NULL;
}

static void product_free(const struct products *p, struct product *product) {
    const struct api *api = &p->api;
    if (product->desc) api->cublasLtMatmulDescDestroy(product->desc);
    if (product->weight) api->cublasLtMatrixLayoutDestroy(product->weight);
    if (product->in) api->cublasLtMatrixLayoutDestroy(product->in);
    if (product->residual && product->residual != product->out)
        api->cublasLtMatrixLayoutDestroy(product->residual);
    if (product->out) api->cublasLtMatrixLayoutDestroy(product->out);
}

void products_close(struct products *p) {
    if (!p) return;
    for (uint64_t i = 0; i < p->table.capacity; i++)
        if (hash_table_at(&p->table, i)) product_free(p, hash_table_at(&p->table, i));
    p->sys->release(p->sys, p->table.entries);
    if (p->handle) p->api.cublasLtDestroy(p->handle);
    library_close(p->library);
    p->sys->release(p->sys, p);
}

void products_version(const struct products *p, char *out, size_t out_bytes) {
    int version[3] = {0};
    p->api.cublasLtGetProperty(MAJOR_VERSION, &version[0]);
    p->api.cublasLtGetProperty(MINOR_VERSION, &version[1]);
    p->api.cublasLtGetProperty(PATCH_LEVEL, &version[2]);
    snprintf(out, out_bytes, "cuBLASLt %d.%d.%d", version[0], version[1], version[2]);
}

int products_release(const struct products *p) {
    int major = 0, minor = 0;
    p->api.cublasLtGetProperty(MAJOR_VERSION, &major);
    p->api.cublasLtGetProperty(MINOR_VERSION, &minor);
    return 100 * major + minor;
}

static cudaDataType_t operand_type(const struct product_key *key) {
    return key->f16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* The bias has out's type: the library accepts no other bias for a 2-byte result. */
static cudaDataType_t out_type(const struct product_key *key) {
    return key->rounded ? operand_type(key) : CUDA_R_32F;
}

/* Creates column-major layouts. Residual and out share one layout if their strides are equal: the library
 * requires one layout for in-place products. */
static cublasStatus_t layouts_create(const struct api *api, struct product *product) {
    const struct product_key *key = &product->key;
    uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
    cublasStatus_t s = api->cublasLtMatrixLayoutCreate(&product->weight, operand_type(key), k, n, key->k);
    if (!s) s = api->cublasLtMatrixLayoutCreate(&product->in, operand_type(key), k, m, key->in_row);
    if (!s) s = api->cublasLtMatrixLayoutCreate(&product->out, out_type(key), n, m, key->out_row);
    product->residual = product->out;
    if (!s && key->residual && key->residual_row != key->out_row)
        s = api->cublasLtMatrixLayoutCreate(&product->residual, CUDA_R_32F, n, m, key->residual_row);
    return s;
}

/* The heuristic uses the bias address only for its alignment: address 16 states an alignment of exactly 16
 * bytes. */
static cublasStatus_t desc_create(const struct api *api, struct product *product) {
    int32_t transposed = CUBLAS_OP_T, bias_type = out_type(&product->key);
    uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const void *bias = (const void *)(uintptr_t)16;
    cublasStatus_t s = api->cublasLtMatmulDescCreate(&product->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = api->cublasLtMatmulDescSetAttribute(product->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                sizeof transposed);
    if (s || !product->key.bias) return s;
    s = api->cublasLtMatmulDescSetAttribute(product->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof epilogue);
    if (!s)
        s = api->cublasLtMatmulDescSetAttribute(product->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                &bias_type, sizeof bias_type);
    if (!s)
        s = api->cublasLtMatmulDescSetAttribute(product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                sizeof bias);
    return s;
}

/* Split-K partial sums may be kept in the workspace and added in one order. "In place" reduction is excluded:
 * blocks would add to out in an unspecified order. No split is always allowed. Alignments are the guarantees
 * of cublaslt.h, never the alignment of an actual address. */
static cublasStatus_t preference_create(const struct api *api, const struct product_key *key,
                                        cublasLtMatmulPreference_t *preference) {
    uint64_t workspace = PRODUCTS_WORKSPACE;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t sixteen = 16, out = key->wide ? 16 : (uint32_t)product_out_bytes(key);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } preferences[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &sixteen, sizeof sixteen},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &sixteen, sizeof sixteen},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out},
    };
    cublasStatus_t s = api->cublasLtMatmulPreferenceCreate(preference);
    for (size_t i = 0; i < sizeof preferences / sizeof *preferences && !s; i++)
        s = api->cublasLtMatmulPreferenceSetAttribute(*preference, preferences[i].attribute,
                                                      preferences[i].value, preferences[i].bytes);
    return s;
}

/* Chooses number `rank` of the heuristic's list. */
static cublasStatus_t cublaslt_choose(const struct products *p, struct product *product, int rank) {
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[PRODUCTS_RANKS] = {0};
    int n = 0;
    cublasStatus_t s = preference_create(&p->api, &product->key, &preference);
    if (!s)
        s = p->api.cublasLtMatmulAlgoGetHeuristic(p->handle, product->desc, product->weight, product->in,
                                                  product->residual, product->out, preference, rank + 1,
                                                  found, &n);
    if (!s) s = n <= rank ? CUBLAS_STATUS_NOT_SUPPORTED : found[rank].state;
    if (!s) product->algo = found[rank].algo;
    if (preference) p->api.cublasLtMatmulPreferenceDestroy(preference);
    return s;
}

enum status products_prepare(struct products *p, const struct product_key *key, struct error *e) {
    if (hash_table_find(&p->table, key)) return OK;
    struct product product = {.key = *key};
    cublasStatus_t s = layouts_create(&p->api, &product);
    if (!s) s = desc_create(&p->api, &product);
    if (!s) s = cublaslt_choose(p, &product, 0);
    if (s)
        cublaslt_failed(p, key, "choosing an algorithm", s, e);
    else if (hash_table_add(&p->table, &product))
        return OK;
    else
        error_set(e, MEMORY, "no memory for the table of matrix products");
    product_free(p, &product);
    return e->code;
}

enum status products_choose_ranked(struct products *p, const struct product_key *key, int rank,
                                   struct error *e) {
    if (products_prepare(p, key, e) != OK) return e->code;
    cublasStatus_t s = cublaslt_choose(p, hash_table_find(&p->table, key), rank);
    return s ? cublaslt_failed(p, key, "choosing an algorithm", s, e) : OK;
}

static enum status cublaslt_run(const struct products *p, struct product *product,
                                const struct product_operands *operands, cudaStream_t stream,
                                struct error *e) {
    const struct product_key *key = &product->key;
    const float one = 1, zero = 0;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    if (key->bias)
        s = p->api.cublasLtMatmulDescSetAttribute(product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &operands->bias, sizeof operands->bias);
    if (!s)
        s = p->api.cublasLtMatmul(p->handle, product->desc, &one, operands->weight, product->weight,
                                  operands->in, product->in, key->residual ? &one : &zero,
                                  key->residual ? operands->residual : operands->out, product->residual,
                                  operands->out, product->out, &product->algo, operands->workspace,
                                  PRODUCTS_WORKSPACE, stream);
    if (s) return cublaslt_failed(p, key, "product", s, e);
    product->warm = 1;
    return OK;
}

enum status products_run(struct products *p, const struct product_key *key,
                         const struct product_operands *operands, cudaStream_t stream, struct error *e) {
    struct product *product = hash_table_find(&p->table, key);
    if (product) return cublaslt_run(p, product, operands, stream, e);
    return error_set(e, INTERNAL,
                     "internal error: no cuBLASLt matrix product was prepared for these sizes" FOUND
                     "m %d, n %d, k %d, f16 %d, bias %d, residual %d, rounded %d, wide %d",
                     key->m, key->n, key->k, key->f16, key->bias, key->residual, key->rounded, key->wide);
}

/* True if the product needs a warm-up call: it has not run yet, and forwards use it (products_warm_up). */
static bool cublaslt_cold(const struct product *product) {
    return product && !product->warm && product->key.wide >= product_rows_wide(&product->key);
}

uint64_t products_warm_up_bytes(const struct products *p) {
    uint64_t most = 0;
    for (uint64_t i = 0; i < p->table.capacity; i++) {
        const struct product *product = hash_table_at(&p->table, i);
        if (cublaslt_cold(product) && product_warm_up_bytes(&product->key) > most)
            most = product_warm_up_bytes(&product->key);
    }
    return most;
}

enum status products_warm_up(struct products *p, void *scratch, uint64_t scratch_bytes, cudaStream_t stream,
                             struct error *e) {
    char *garbage = (char *)scratch + PRODUCTS_WORKSPACE;
    /* For a residual that is not in place, uses a separate layout: for in-place products the library requires
     * equal layouts. */
    struct product_operands operands = {.in = garbage,
                                        .weight = garbage,
                                        .bias = garbage,
                                        .residual = scratch,
                                        .out = garbage,
                                        .workspace = scratch};
    for (uint64_t i = 0; i < p->table.capacity; i++) {
        struct product *product = hash_table_at(&p->table, i);
        if (!cublaslt_cold(product) || product_warm_up_bytes(&product->key) > scratch_bytes) continue;
        if (cublaslt_run(p, product, &operands, stream, e)) return e->code;
    }
    return OK;
}

/* An algorithm is described by the library's numbers for kernel, tile, stages and K splits. */
void products_algorithms(const struct products *p, device_algorithm *report, void *user) {
    static const struct {
        const char *name;
        cublasLtMatmulAlgoConfigAttributes_t attribute;
    } parts[] = {{"id", CUBLASLT_ALGO_CONFIG_ID},
                 {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID},
                 {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID},
                 {"split", CUBLASLT_ALGO_CONFIG_SPLITK_NUM}};
    for (uint64_t i = 0; i < p->table.capacity; i++) {
        const struct product *product = hash_table_at(&p->table, i);
        char shape[64], algorithm[96] = "";
        size_t used = 0;
        if (!product || !product->warm) continue;
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
            uint32_t value = 0;
            size_t written;
            if (!p->api.cublasLtMatmulAlgoConfigGetAttribute(&product->algo, parts[j].attribute, &value,
                                                             sizeof value, &written))
                used += (size_t)snprintf(algorithm + used, sizeof algorithm - used, "%s%s %u",
                                         used ? ", " : "", parts[j].name, value);
        }
        snprintf(shape, sizeof shape, "%d x %d x %d", product->key.m, product->key.n, product->key.k);
        report(user, "linear", shape, algorithm);
    }
}
