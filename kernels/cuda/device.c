/* The CUDA device: implements device.h. Stream ordering is in streams.c, memory in pages.c, GPU detection in
 * gpus.c; operators are in linear.cu, conv.cu and so on.
 *
 * CUDA's current GPU is per thread, and reader threads call the device too. So every function that calls CUDA
 * first calls cuda_enter. A lost GPU gets no further calls. */
#include "engine/base/machine_limits.h"
#include "kernels/cuda/costs.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/gpus.h"
#include "kernels/cuda/nvml.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/streams.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct gpu {
    struct cuda cuda; /* first member, so that struct device casts to struct gpu */
    struct gpu_errors errors;
    struct streams *streams;
    struct pages *pages;
    struct nvml *nvml;    /* NVML handle; NULL: the NVML library is missing */
    uint64_t free_before; /* free device memory before the context was created; 0: unknown */
    uint64_t context;     /* measured bytes of the CUDA context; 0: unknown */
    int node;             /* NUMA node of the GPU; -1: the machine has only one node */
    bool kernels_loaded;
    char outdated[200];              /* as in struct cuda_info */
    atomic_ullong pinned;            /* bytes of mapped and pinned host memory */
    uint64_t pins_proven, pins_most; /* most bytes whose pinning a trial has proven possible; limit of pinned
                                        bytes, 0: unknown */
};

static struct gpu *gpu_of(struct device *device) {
    return (struct gpu *)device;
}

/* Makes the device's GPU current for this thread. Returns false if the GPU is lost; then no CUDA function may
 * be called. */
static bool cuda_enter(struct gpu *g) {
    return !gpu_errors_lost(&g->errors) &&
           gpu_errors_note(&g->errors, cudaSetDevice(g->cuda.ordinal), "cudaSetDevice");
}

/* Makes the GPU current and returns any error that was recorded but not yet reported. */
static enum status enter_checked(struct gpu *g, struct error *e) {
    cuda_enter(g);
    return gpu_errors_take(&g->errors, e);
}

static const struct cuda_operator *const operators[N_OP_KINDS] = {
    [OP_LINEAR] = &cuda_linear,
    [OP_LINEAR_FEW] = &cuda_linear_few,
    [OP_ATTENTION] = &cuda_attention,
    [OP_RELATIVE_BIAS] = &cuda_relative_bias,
    [OP_RMS_NORM] = &cuda_rms_norm,
    [OP_LAYER_NORM] = &cuda_layer_norm,
    [OP_GROUP_STATISTICS] = &cuda_group_statistics,
    [OP_GROUP_NORM] = &cuda_group_norm,
    [OP_GROUP_RANGE] = &cuda_group_range,
    [OP_ROPE_TABLE] = &cuda_rope_table,
    [OP_ROPE_AXIS] = &cuda_rope_axis,
    [OP_ROPE] = &cuda_rope,
    [OP_GLU] = &cuda_glu,
    [OP_ADD] = &cuda_add,
    [OP_COPY] = &cuda_copy,
    [OP_ADD_POSITIONS] = &cuda_add_positions,
    [OP_BROADCAST_ROW] = &cuda_broadcast_row,
    [OP_PATCHIFY] = &cuda_patchify,
    [OP_UNPATCHIFY] = &cuda_unpatchify,
    [OP_TIMESTEP] = &cuda_timestep,
    [OP_CONV2D] = &cuda_conv2d,
    [OP_MEAN_DOWN] = &cuda_mean_down,
    [OP_REPEAT_UP] = &cuda_repeat_up,
    [OP_LATENT_TO_IMAGE] = &cuda_latent_to_image,
    [OP_IMAGE_TO_RGB] = &cuda_image_to_rgb,
    [OP_MAP] = &cuda_map,
    [OP_SNAKE] = &cuda_snake,
    [OP_SINC_UP] = &cuda_sinc_up,
};

/* After a failed operator, checks if the GPU is lost: a lost GPU fails every call. */
static enum status check_lost(struct gpu *g, enum status status) {
    cudaError_t code = status == OK ? cudaSuccess : cudaStreamQuery(g->cuda.compute);
    struct error known = {0};
    if (code == cudaErrorNotReady) code = cudaSuccess;
    (void)cudaGetLastError(); /* clears cudaErrorNotReady */
    gpu_errors_check(&g->errors, code, "an operator", &known);
    return status;
}

/* Adds outdated libraries to the error of a library call, because the library's own error code gives no
 * reason. */
static enum status add_outdated(const struct gpu *g, enum status status, struct error *e) {
    if (status == DEVICE && g->outdated[0]) error_where(e, "%s", g->outdated);
    return status;
}

static enum status cuda_prepare(struct device *device, const struct op *op, struct error *e) {
    struct gpu *g = gpu_of(device);
    const struct cuda_operator *functions = operators[op->kind];
    if (enter_checked(g, e) != OK || !functions->prepare) return e->code;
    return check_lost(g, add_outdated(g, functions->prepare(&g->cuda, op, e), e));
}

static enum status cuda_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct gpu *g = gpu_of(device);
    if (enter_checked(g, e) != OK) return e->code;
    streams_runs(g->streams);
    return check_lost(g, operators[op->kind]->run(&g->cuda, op, workspace, e));
}

static void *cuda_reserve(struct device *device, size_t bytes) {
    struct gpu *g = gpu_of(device);
    return cuda_enter(g) ? pages_reserve(g->pages, bytes) : NULL;
}

static int cuda_commit(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    return cuda_enter(g) ? pages_commit(g->pages, memory, bytes) : -EIO;
}

static void cuda_decommit(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    if (cuda_enter(g)) pages_decommit(g->pages, memory, bytes);
}

/* Freeing memory of a lost GPU does nothing; its memory is released when the device is destroyed. */
static void cuda_unreserve(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    (void)bytes;
    if (cuda_enter(g)) pages_unreserve(g->pages, memory);
}

static uint64_t cuda_used(struct device *device) {
    return pages_taken(gpu_of(device)->pages) + device->overhead_bytes - PAGES_SPARE_BYTES;
}

static uint64_t cuda_context(struct device *device) {
    return gpu_of(device)->context;
}

/* Measures the device memory that this process uses besides pages (pages.h): the decrease of free memory
 * since before the context was created. `expected` bytes are added for later allocations. Plans use the
 * largest value found. */
static void measure_context(struct gpu *g, uint64_t expected) {
    uint64_t free_bytes = g->free_before ? nvml_free_bytes(g->nvml) : 0, pages = pages_taken(g->pages);
    if (!free_bytes || g->free_before < free_bytes + pages) return;
    uint64_t context = align_up(g->free_before - free_bytes - pages, CUDA_CONTEXT_STEP);
    if (context > CUDA_CONTEXT_MOST) return;
    uint64_t own = context + expected + PAGES_SPARE_BYTES;
    g->context = context;
    if (own > g->cuda.device.overhead_bytes) g->cuda.device.overhead_bytes = own;
}

static uint64_t cuda_available(struct device *device) {
    struct gpu *g = gpu_of(device);
    size_t free_bytes = 0, all = 0;
    if (cuda_enter(g)) gpu_errors_note(&g->errors, cudaMemGetInfo(&free_bytes, &all), "cudaMemGetInfo");
    /* Limited to the GPU's memory: the used bytes may include an assumed context size that exceeds the real
     * one. */
    uint64_t available = cuda_used(device) + free_bytes;
    return available < device->memory_bytes ? available : device->memory_bytes;
}

/* Loads all kernels and runs all library calls once on unused pages, before the overhead is measured: CUDA
 * loads code at first use, into memory that counts as the device's overhead. */
static enum status load(struct gpu *g, struct error *e) {
    const struct cuda *cuda = &g->cuda;
    for (int i = 0; i < N_OP_KINDS && !g->kernels_loaded; i++) {
        struct cudaFuncAttributes attributes;
        for (int list = 0; list < 2; list++)
            for (const void *const *kernel = operators[i]->kernels[list]; kernel && *kernel; kernel++)
                if (gpu_errors_check(&g->errors, cudaFuncGetAttributes(&attributes, *kernel),
                                     op_name((enum op_kind)i), e) != OK)
                    return e->code;
    }
    g->kernels_loaded = true;
    /* Scratch for the warm-up of library calls, limited to unmapped chunks because mapping takes time. */
    uint64_t bytes = cuda->products ? products_warm_up_bytes(cuda->products) : 0;
    uint64_t more = cuda->convolutions ? convolutions_warm_up_bytes(cuda->convolutions) : 0;
    uint64_t unmapped = pages_unmapped(g->pages);
    bytes = more > bytes ? more : bytes;
    bytes = bytes < unmapped ? bytes : unmapped;
    if (!bytes) return OK;
    void *scratch = pages_reserve(g->pages, bytes);
    if (!scratch || pages_commit(g->pages, scratch, bytes)) {
        if (gpu_errors_take(&g->errors, e) == OK)
            error_set(e, DEVICE, "the GPU cannot map %llu bytes of its memory", (unsigned long long)bytes);
    } else {
        /* Libraries whose calls need more scratch than is unmapped load their code at the first real call. */
        enum status status = OK;
        double stalled = 0;
        if (cuda->products) status = products_warm_up(cuda->products, scratch, bytes, cuda->compute, e);
        if (status == OK && cuda->convolutions)
            status = convolutions_warm_up(cuda->convolutions, scratch, bytes, cuda->compute, e);
        check_lost(g, add_outdated(g, status, e));
        streams_wait(g->streams, &stalled, e);
    }
    if (scratch && cuda_enter(g)) pages_unreserve(g->pages, scratch);
    return e->code;
}

/* If memory is short, adds the largest --max-vram that fits now to the error. */
static enum status cuda_preallocate(struct device *device, uint64_t bytes, struct error *e) {
    struct gpu *g = gpu_of(device);
    if (enter_checked(g, e) != OK) return e->code;
    if (pages_preallocate(g->pages, bytes, e) == MEMORY) {
        uint64_t available = cuda_available(device), whole = PAGES_CHUNK_BYTES;
        return error_expected(e, "--max-vram %lluB or less",
                              (unsigned long long)(available > whole ? available - whole : 0));
    }
    if (e->code == OK && bytes && load(g, e) == OK) measure_context(g, 0);
    return e->code;
}

/* Host and device addresses are equal: 64-bit Linux has one address space for host and GPUs. */
static void *cuda_alloc_mapped(struct device *device, size_t bytes) {
    struct gpu *g = gpu_of(device);
    void *memory = NULL;
    if (!cuda_enter(g)) return NULL;
    cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation)
        (void)cudaGetLastError(); /* clears CUDA's last error, which the caller reports */
    else
        gpu_errors_note(&g->errors, code, "cudaHostAlloc");
    if (code == cudaSuccess) g->pinned += bytes;
    return code == cudaSuccess ? memset(memory, 0, bytes) : NULL;
}

static void cuda_free_mapped(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    if (memory) g->pinned -= bytes;
    if (memory && cuda_enter(g)) gpu_errors_note(&g->errors, cudaFreeHost(memory), "cudaFreeHost");
}

static int pin_errno(cudaError_t code) {
    switch (code) {
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorHostMemoryAlreadyRegistered:
        return -EEXIST;
    case cudaErrorNotSupported:
        return -ENOTSUP;
    default:
        return -EIO;
    }
}

/* A refused pin only makes copies slower, so only a lost GPU is recorded as an error. */
static int cuda_pin(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    struct error known = {0};
    if (!cuda_enter(g)) return -EIO;
    memory_nodes_prefer(g->node, memory, bytes);
    cudaError_t code = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (gpu_errors_check(&g->errors, code, "cudaHostRegister", &known) != OK) return pin_errno(code);
    g->pinned += bytes;
    return 0;
}

static void cuda_unpin(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    g->pinned -= bytes;
    if (cuda_enter(g)) gpu_errors_note(&g->errors, cudaHostUnregister(memory), "cudaHostUnregister");
}

/* Tries to pin 2 GiB at most, or everything on WSL2: success shows that there is no limit. A trial with a
 * known result is not repeated. A lost GPU's refusal proves nothing. */
static uint64_t cuda_try_pins(struct device *device, uint64_t bytes) {
    static const uint64_t trial_bytes = (uint64_t)2 << 30;
    struct gpu *g = gpu_of(device);
    uint64_t wanted = bytes, now = g->pinned;
    bool wsl = access("/dev/dxg", F_OK) == 0; /* Linux within Windows */
    if (wanted > trial_bytes && !wsl) wanted = trial_bytes;
    if (!g->pins_most && wanted > g->pins_proven && wanted > now && cuda_enter(g)) {
        struct error known = {0};
        cudaError_t refused;
        uint64_t tried = now + gpus_try_pins(wanted - now, &refused);
        /* Records an error only if the GPU is lost; the next wait() reports it. */
        gpu_errors_check(&g->errors, refused, "cudaHostRegister", &known);
        if (gpu_errors_lost(&g->errors)) return bytes;
        if (tried < wanted) g->pins_most = tried ? tried : 1;
        g->pins_proven = tried;
    }
    return g->pins_most && g->pins_most < bytes ? g->pins_most : bytes;
}

static uint64_t cuda_record_event(struct device *device) {
    struct gpu *g = gpu_of(device);
    return cuda_enter(g) ? streams_record_event(g->streams) : 0;
}

static uint64_t cuda_copy_in(struct device *device, void *to, const void *from, size_t bytes,
                             uint64_t event) {
    struct gpu *g = gpu_of(device);
    return cuda_enter(g) ? streams_copy(g->streams, to, from, bytes, event) : 0;
}

/* Returns 0 seconds, because the waiting time is known only after the GPU has waited; wait() reports the
 * time. */
static double cuda_await_copy(struct device *device, uint64_t fence) {
    struct gpu *g = gpu_of(device);
    if (cuda_enter(g)) streams_await(g->streams, fence);
    return 0;
}

static void cuda_wait_copy(struct device *device, uint64_t fence) {
    struct gpu *g = gpu_of(device);
    if (cuda_enter(g)) streams_wait_copy(g->streams, fence);
}

static void cuda_finish(struct device *device) {
    struct gpu *g = gpu_of(device);
    if (cuda_enter(g)) streams_finish(g->streams);
}

static void cuda_move(struct device *device, void *to, const void *from, size_t bytes) {
    struct gpu *g = gpu_of(device);
    if (cuda_enter(g)) streams_move(g->streams, to, from, bytes);
}

static enum status cuda_wait(struct device *device, double *stalled, struct error *e) {
    struct gpu *g = gpu_of(device);
    return cuda_enter(g) ? streams_wait(g->streams, stalled, e) : gpu_errors_take(&g->errors, e);
}

static const struct device_memory cuda_memory = {
    .reserve = cuda_reserve,
    .commit = cuda_commit,
    .decommit = cuda_decommit,
    .unreserve = cuda_unreserve,
    .record_event = cuda_record_event,
    .copy = cuda_copy_in,
    .await_copy = cuda_await_copy,
    .wait_copy = cuda_wait_copy,
    .finish = cuda_finish,
    .move = cuda_move,
    .preallocate = cuda_preallocate,
    .alloc_mapped = cuda_alloc_mapped,
    .free_mapped = cuda_free_mapped,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .pinnable = cuda_try_pins,
    .wait = cuda_wait,
    .used = cuda_used,
    .available = cuda_available,
    .context = cuda_context,
};

static void cuda_algorithms(struct device *device, device_algorithm *say, void *user) {
    const struct cuda *cuda = &gpu_of(device)->cuda;
    if (cuda->products) products_algorithms(cuda->products, say, user);
    if (cuda->convolutions) convolutions_algorithms(cuda->convolutions, say, user);
}

/* cuBLASLt and cuDNN free their host memory even if the GPU is lost. */
static void cuda_destroy(struct device *device) {
    struct gpu *g = gpu_of(device);
    struct cuda *cuda = &g->cuda;
    if (g->streams && cuda_enter(g)) streams_finish(g->streams);
    convolutions_close(cuda->convolutions);
    products_close(cuda->products);
    pages_close(g->pages);
    nvml_close(g->nvml);
    streams_close(g->streams);
    if (cuda_enter(g) && cuda->copies) (void)cudaStreamDestroy(cuda->copies);
    if (cuda_enter(g) && cuda->compute) (void)cudaStreamDestroy(cuda->compute);
    gpu_errors_destroy(&g->errors);
    cuda->sys->release(cuda->sys, g);
}

static enum status open_all(struct gpu *g, const struct cuda_info *info, struct error *e) {
    struct cuda *cuda = &g->cuda;
    /* Non-blocking streams do not synchronise with the default stream. */
    cudaError_t code = cudaStreamCreateWithFlags(&cuda->compute, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking);
    if (gpu_errors_check(&g->errors, code, "cudaStreamCreate", e) != OK) return e->code;
    g->streams = streams_open(cuda->sys, cuda->compute, cuda->copies, &g->errors, e);
    if (g->streams) g->pages = pages_open(cuda->sys, cuda->ordinal, &g->errors, e);
    if (!g->pages) return e->code;
    /* If cuBLASLt or cuDNN is missing, only the operators that need the library are disabled. */
    struct error no_products = {0}, no_convolutions = {0};
    cuda->products = products_open(cuda->sys, &no_products);
    if (!cuda->products) error_line(&no_products, cuda->cublaslt_missing, sizeof cuda->cublaslt_missing);
    cuda->convolutions = convolutions_open(cuda->sys, &no_convolutions);
    if (!cuda->convolutions) error_line(&no_convolutions, cuda->cudnn_missing, sizeof cuda->cudnn_missing);
    gpus_outdated(info, cuda->products, cuda->convolutions, g->outdated, sizeof g->outdated);
    measure_context(g, CUDA_CODE_BYTES);
    code = cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, cuda->ordinal);
    return gpu_errors_check(&g->errors, code, "cudaDeviceGetAttribute", e);
}

struct device *cuda_open(struct sys *sys, int ordinal, struct error *e) {
    struct cuda_info info;
    struct nvml *nvml = nvml_open(sys, ordinal);
    uint64_t free_before = nvml ? nvml_free_bytes(nvml) : 0;
    struct gpu *g =
        gpus_choose(ordinal, &info, e) == OK ? sys_new(sys, 1, sizeof *g, "the CUDA device", e) : NULL;
    if (!g) {
        nvml_close(nvml);
        return NULL;
    }
    g->cuda = (struct cuda){.device = cuda_device_defaults(), .sys = sys, .ordinal = ordinal};
    struct device *device = &g->cuda.device;
    device->memory_bytes = info.bytes;
    device->memory = &cuda_memory;
    device->prepare = cuda_prepare;
    device->run = cuda_run;
    device->algorithms = cuda_algorithms;
    device->destroy = cuda_destroy;
    gpu_errors_init(&g->errors);
    g->nvml = nvml;
    g->free_before = free_before;
    g->node = info.bus[0] ? memory_nodes_of_device("", info.bus) : -1;
    if (open_all(g, &info, e) != OK) {
        cuda_destroy(device);
        return NULL;
    }
    size_t used = 0;
    if (info.compiles) { /* the driver compiles PTX, unless its cache already has the kernels */
        device->host_bytes += CUDA_COMPILING_BYTES;
        used = (size_t)snprintf(device->note, sizeof device->note,
                                "this build has no machine code for your GPU (%s, compute capability %d.%d): "
                                "the driver compiles the kernels now and caches them",
                                info.name, info.major, info.minor);
    }
    if (g->outdated[0])
        snprintf(device->note + used, sizeof device->note - used, "%s%s", used ? "; " : "", g->outdated);
    return device;
}
