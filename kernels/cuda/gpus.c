/* GPU detection. Also cuda_count, cuda_usable and cuda_describe of cuda.h. */
#include "kernels/cuda/gpus.h"

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/cublaslt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST_MAJOR = 8 };

#ifndef CUDA_MACHINE_CODE
#define CUDA_MACHINE_CODE "80" /* the emulator's compute capability; cuda.mk sets "80 90 120" */
#endif

/* Returns the major part of a CUDA version, which CUDA encodes as 13010 for 13.1. */
static int major_of(int version) {
    return version / 1000;
}

static int minor_of(int version) {
    return version % 1000 / 10;
}

/* True if none of the build's machine code runs on the GPU. Machine code runs within a generation, from the
 * compiled minor version on. */
static bool compiles(const struct cuda_info *info) {
    for (const char *at = CUDA_MACHINE_CODE; *at; at += strspn(at, " ")) {
        char *end;
        long code = strtol(at, &end, 10);
        if (code / 10 == info->major && code % 10 <= info->minor) return false;
        at = end;
    }
    return true;
}

/* Returns the first driver release that supports this major CUDA version (CUDA's release notes, "CUDA
 * Driver"), the version that users know. */
static const char *driver_release(int major) {
    switch (major) {
    case 12:
        return "525";
    case 13:
        return "580";
    default:
        return "a newer one";
    }
}

/* Explains why no GPU is usable. CUDA reports a missing driver as too old. */
static enum status report_no_gpu(cudaError_t code, struct error *e) {
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (code == cudaErrorInsufficientDriver && driver > 0) {
        return error_set(e, DEVICE,
                         "the NVIDIA driver is too old" FOUND "a driver for CUDA %d.%d" EXPECTED
                         "a driver for CUDA %d.0 or later (release %s), or a build of Sluice with CUDA %d",
                         major_of(driver), minor_of(driver), major_of(runtime),
                         driver_release(major_of(runtime)), major_of(driver));
    }
    if (code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary)
        return error_set(e, DEVICE, "no NVIDIA driver found");
    if (code == cudaErrorNoDevice || code == cudaSuccess)
        return error_set(e, DEVICE, "the NVIDIA driver found no GPU");
    return error_set(e, DEVICE, "the NVIDIA driver cannot be used" FOUND "%s, %s", cudaGetErrorName(code),
                     cudaGetErrorString(code));
}

static int gpus_count(struct error *e) {
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code == cudaSuccess && n > 0) return n;
    report_no_gpu(code, e);
    return 0;
}

static enum status check_ordinal(int ordinal, struct error *e) {
    int n = gpus_count(e);
    if (!n || (ordinal >= 0 && ordinal < n)) return e->code;
    error_set(e, USAGE, "no such GPU: cuda:%d" FOUND "%d GPU%s", ordinal, n, n > 1 ? "s" : "");
    return n > 1 ? error_expected(e, "cuda:0 to cuda:%d", n - 1) : error_expected(e, "cuda:0");
}

/* Properties of a GPU; integrated: the GPU uses host memory. */
struct properties {
    struct cuda_info info;
    bool integrated;
};

static enum status read_properties(int ordinal, struct properties *to, struct error *e) {
    struct cudaDeviceProp properties;
    struct cuda_info *info = &to->info;
    *to = (struct properties){0};
    if (check_ordinal(ordinal, e) != OK) return e->code;
    if (cuda_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties", e) != OK)
        return e->code;
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->major = properties.major;
    info->minor = properties.minor;
    info->bytes = properties.totalGlobalMem;
    info->compiles = compiles(info);
    to->integrated = properties.integrated;
    return OK;
}

/* Makes the GPU current and creates the GPU's context, which CUDA creates at the first call that needs a
 * context. */
static enum status gpus_enter(int ordinal, size_t *free_bytes, struct error *e) {
    size_t all = 0;
    if (cuda_check(cudaSetDevice(ordinal), "creating the CUDA context", e) != OK) return e->code;
    return cuda_check(cudaMemGetInfo(free_bytes, &all), "creating the CUDA context", e);
}

/* Checks that the GPU is supported. Rejects integrated GPUs, which share the host's memory and would hold
 * every block twice. */
static enum status check_supported(int ordinal, struct cuda_info *info, struct error *e) {
    struct properties gpu;
    if (read_properties(ordinal, &gpu, e) != OK) return e->code;
    *info = gpu.info;
    if (info->major < OLDEST_MAJOR) {
        return error_set(e, DEVICE,
                         "the GPU cuda:%d (%s) is too old" FOUND "compute capability %d.%d" EXPECTED
                         "%d.0 or later",
                         ordinal, info->name, info->major, info->minor, OLDEST_MAJOR);
    }
    if (!gpu.integrated) return OK;
    return error_set(e, DEVICE,
                     "GPUs that share the host's memory are not supported: cuda:%d (%s)" EXPECTED
                     "a GPU with its own memory, or --device cpu",
                     ordinal, info->name);
}

enum status gpus_choose(int ordinal, struct cuda_info *info, struct error *e) {
    size_t free_bytes = 0;
    if (check_supported(ordinal, info, e) != OK) return e->code;
    return gpus_enter(ordinal, &free_bytes, e);
}

bool cuda_usable(int ordinal) {
    struct cuda_info info = {0};
    struct error e = {0};
    return check_supported(ordinal, &info, &e) == OK;
}

int cuda_count(char *why, size_t why_bytes) {
    struct error e = {0};
    int n = gpus_count(&e);
    if (!n) error_line(&e, why, (int)why_bytes);
    return n;
}

/* Lists all library versions; a missing library is listed as missing. */
static void name_libraries(char *out, size_t bytes) {
    struct sys sys;
    struct error e = {0};
    char products_name[48] = "no cuBLASLt", convolutions_name[48] = "no cuDNN";
    int driver = 0, runtime = 0;
    sys_init_machine(&sys);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    struct products *products = products_open(&sys, &e);
    struct convolutions *convolutions = convolutions_open(&sys, &e);
    if (products) products_version(products, products_name, sizeof products_name);
    if (convolutions) convolutions_version(convolutions, convolutions_name, sizeof convolutions_name);
    convolutions_close(convolutions);
    products_close(products);
    snprintf(out, bytes, "driver for CUDA %d.%d, CUDA %d.%d, %s, %s", major_of(driver), minor_of(driver),
             major_of(runtime), minor_of(runtime), products_name, convolutions_name);
}

enum status cuda_describe(int ordinal, struct cuda_info *info, struct error *e) {
    size_t free_bytes = 0;
    *info = (struct cuda_info){0};
    if (check_supported(ordinal, info, e) != OK || gpus_enter(ordinal, &free_bytes, e) != OK) return e->code;
    info->free_bytes = free_bytes;
    name_libraries(info->library, sizeof info->library);
    return OK;
}
