/* The CUDA device: see cuda.h. Here is what device.h asks for; what is behind it is elsewhere: the streams'
 * order in streams.c, memory in pages.c, operators in a file each, and which GPUs there are in gpus.c.
 *
 * Which GPU CUDA calls go to is a thread's own matter, and readers and whoever pins memory call from theirs:
 * everything that calls CUDA enters first. Of a lost GPU nothing is asked any more. */
#include "engine/base/memory_nodes.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/convolutions.h"
#include "kernels/cuda/gpus.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/streams.h"
#include "kernels/cuda/nvml.h"
#include "kernels/cuda/own.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/pinnable.h"
#include "kernels/cuda/products.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct gpu {
    struct cuda cuda; /* first */
    struct failures failures;
    struct streams *streams;
    struct pages *pages;
    struct nvml *nvml;    /* NULL: it is not there */
    uint64_t free_before; /* there was a context; 0: not known */
    uint64_t context;     /* measured; 0: not known */
    int node;             /* of the host's memory, that the GPU hangs on; -1: there is one */
    bool kernels_loaded;
    atomic_ullong pinned;            /* host memory, shared or pinned */
    uint64_t pins_proven, pins_most; /* so much can be; so much and no more: 0: not known */
};

static struct gpu *gpu_of(struct device *device) {
    return (struct gpu *)device;
}

/* Whether CUDA may be called; if so, this thread's GPU is the device's. */
static bool cuda_enter(struct gpu *g) {
    return !failures_lost(&g->failures) &&
           failures_note(&g->failures, cudaSetDevice(g->cuda.ordinal), "choosing the GPU");
}

/* The same, and nothing has failed that nobody knows of yet. */
static enum status enter_sound(struct gpu *g, struct error *e) {
    cuda_enter(g);
    return failures_take(&g->failures, e);
}

/* ---- operators ---- */

static const struct cuda_operator *const operators[N_OP_KINDS] = {
    [OP_LINEAR] = &cuda_linear,
    [OP_LINEAR_FEW] = &cuda_linear_few,
    [OP_ATTENTION] = &cuda_attention,
    [OP_RELATIVE_BIAS] = &cuda_relative_bias,
    [OP_RMS_NORM] = &cuda_rms_norm,
    [OP_LAYER_NORM] = &cuda_layer_norm,
    [OP_GROUP_STATISTICS] = &cuda_group_statistics,
    [OP_GROUP_NORM] = &cuda_group_norm,
    [OP_ROPE_TABLE] = &cuda_rope_table,
    [OP_ROPE] = &cuda_rope,
    [OP_GLU] = &cuda_glu,
    [OP_ADD] = &cuda_add,
    [OP_COPY] = &cuda_copy,
    [OP_BROADCAST_ROW] = &cuda_broadcast_row,
    [OP_PATCHIFY] = &cuda_patchify,
    [OP_UNPATCHIFY] = &cuda_unpatchify,
    [OP_TIMESTEP] = &cuda_timestep,
    [OP_CONV2D] = &cuda_conv2d,
    [OP_MEAN_DOWN] = &cuda_mean_down,
    [OP_REPEAT_UP] = &cuda_repeat_up,
    [OP_LATENT_TO_IMAGE] = &cuda_latent_to_image,
    [OP_IMAGE_TO_RGB] = &cuda_image_to_rgb,
};

/* An operator has failed, whose error does not say whether the GPU is lost: a lost one fails every call. */
static enum status note_lost(struct gpu *g, enum status status) {
    cudaError_t code = status == OK ? cudaSuccess : cudaStreamQuery(g->cuda.compute);
    struct error known = {0};
    if (code == cudaErrorNotReady) code = cudaSuccess;
    (void)cudaGetLastError(); /* that it is not ready counts as an error otherwise */
    failures_check(&g->failures, code, "an operator", &known);
    return status;
}

static enum status cuda_prepare(struct device *device, const struct op *op, struct error *e) {
    struct gpu *g = gpu_of(device);
    const struct cuda_operator *functions = operators[op->kind];
    if (enter_sound(g, e) != OK || !functions->prepare) return e->code;
    return note_lost(g, functions->prepare(&g->cuda, op, e));
}

static enum status cuda_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct gpu *g = gpu_of(device);
    if (enter_sound(g, e) != OK) return e->code;
    streams_runs(g->streams);
    return note_lost(g, operators[op->kind]->run(&g->cuda, op, workspace, e));
}

/* ---- memory ---- */

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

/* A lost GPU's goes when the device does. */
static void cuda_unreserve(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    (void)bytes;
    if (cuda_enter(g)) pages_unreserve(g->pages, memory);
}

static uint64_t cuda_used(struct device *device) {
    return pages_taken(gpu_of(device)->pages) + device->own_bytes - PAGES_SPARE_BYTES;
}

static uint64_t cuda_context(struct device *device) {
    return gpu_of(device)->context;
}

/* What the process has of the GPU beside pages, more than it had before; expected: what it will take on top
 * of that. Plans count the most that was ever found. */
static void measure_context(struct gpu *g, uint64_t expected) {
    uint64_t free_bytes = g->free_before ? nvml_free_bytes(g->nvml) : 0, pages = pages_taken(g->pages);
    if (!free_bytes || g->free_before < free_bytes + pages) return;
    uint64_t context = align_up(g->free_before - free_bytes - pages, CUDA_CONTEXT_STEP);
    if (context > CUDA_CONTEXT_MOST) return;
    uint64_t own = context + expected + PAGES_SPARE_BYTES;
    g->context = context;
    if (own > g->cuda.device.own_bytes) g->cuda.device.own_bytes = own;
}

static uint64_t cuda_available(struct device *device) {
    struct gpu *g = gpu_of(device);
    size_t free_bytes = 0, all = 0;
    if (cuda_enter(g)) failures_note(&g->failures, cudaMemGetInfo(&free_bytes, &all), "free memory");
    /* A context is counted larger than it may be. */
    uint64_t available = cuda_used(device) + free_bytes;
    return available < device->memory_bytes ? available : device->memory_bytes;
}

/* ---- providing ---- */

static enum status load_kernels(struct gpu *g, struct error *e) {
    for (int i = 0; i < N_OP_KINDS && !g->kernels_loaded; i++) {
        const void *const *kernel = operators[i]->kernels;
        struct cudaFuncAttributes attributes;
        for (; kernel && *kernel; kernel++)
            if (failures_check(&g->failures, cudaFuncGetAttributes(&attributes, *kernel),
                               op_name((enum op_kind)i), e) != OK)
                return e->code;
    }
    g->kernels_loaded = true;
    return OK;
}

/* Where there is too little to try one in, because residents of the run before have the rest, its code comes
 * with its first call. */
static enum status touch_libraries(struct gpu *g, void *scratch, uint64_t bytes, struct error *e) {
    struct cuda *cuda = &g->cuda;
    double stalled = 0;
    enum status status = OK;
    if (cuda->products) status = products_touch(cuda->products, scratch, bytes, cuda->compute, e);
    if (status == OK && cuda->convolutions)
        status = convolutions_touch(cuda->convolutions, scratch, bytes, cuda->compute, e);
    note_lost(g, status);
    return streams_wait(g->streams, &stalled, e);
}

/* Of the pages that are not in use: mapping them takes time. */
static uint64_t touch_bytes(struct gpu *g) {
    const struct cuda *cuda = &g->cuda;
    uint64_t idle = pages_idle(g->pages), needs = cuda->products ? products_touch_needs(cuda->products) : 0;
    uint64_t more = cuda->convolutions ? convolutions_touch_needs(cuda->convolutions) : 0;
    if (more > needs) needs = more;
    return needs < idle ? needs : idle;
}

/* Code comes to the GPU when something first needs it, into memory that is counted as the device's own. So
 * everything runs once, or is asked for, on pages that are not in use yet. */
static enum status load(struct gpu *g, struct error *e) {
    uint64_t bytes = touch_bytes(g);
    if (load_kernels(g, e) != OK || !bytes) return e->code;
    void *scratch = pages_reserve(g->pages, bytes);
    if (!scratch || pages_commit(g->pages, scratch, bytes)) {
        if (failures_take(&g->failures, e) == OK)
            error_set(e, DEVICE, "the GPU cannot map %llu bytes", (unsigned long long)bytes);
    } else {
        touch_libraries(g, scratch, bytes, e);
    }
    if (scratch && cuda_enter(g)) pages_unreserve(g->pages, scratch);
    return e->code;
}

/* The budget that would do now, as plans count. */
static enum status say_what_would_do(struct device *device, struct error *e) {
    uint64_t available = cuda_available(device), whole = PAGES_CHUNK_BYTES;
    return error_expected(e, "--max-vram %lluB or less",
                          (unsigned long long)(available > whole ? available - whole : 0));
}

static enum status cuda_provide(struct device *device, uint64_t bytes, struct error *e) {
    struct gpu *g = gpu_of(device);
    if (enter_sound(g, e) != OK) return e->code;
    if (pages_provide(g->pages, bytes, e) == MEMORY) return say_what_would_do(device, e);
    if (e->code == OK && bytes && load(g, e) == OK) measure_context(g, 0);
    return e->code;
}

/* ---- host memory ---- */

/* Addresses are the same on both sides: every 64-bit Linux has one address space for host and GPUs. */
static void *cuda_take_shared(struct device *device, size_t bytes) {
    struct gpu *g = gpu_of(device);
    void *memory = NULL;
    if (!cuda_enter(g)) return NULL;
    cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation)
        (void)cudaGetLastError(); /* the caller says so */
    else
        failures_note(&g->failures, code, "host memory for the GPU");
    if (code == cudaSuccess) g->pinned += bytes;
    return code == cudaSuccess ? memset(memory, 0, bytes) : NULL;
}

static void cuda_give_shared(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    if (memory) g->pinned -= bytes;
    if (memory && cuda_enter(g)) failures_note(&g->failures, cudaFreeHost(memory), "giving host memory back");
}

static int refused_pin(cudaError_t code) {
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

/* Refused, copies are slower and nothing else is wrong: so only a lost GPU is noted. */
static int cuda_pin(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    struct error known = {0};
    if (!cuda_enter(g)) return -EIO;
    memory_nodes_prefer(g->node, memory, bytes);
    cudaError_t code = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (failures_check(&g->failures, code, "pinning", &known) != OK) return refused_pin(code);
    g->pinned += bytes;
    return 0;
}

static void cuda_unpin(struct device *device, void *memory, size_t bytes) {
    struct gpu *g = gpu_of(device);
    g->pinned -= bytes;
    if (cuda_enter(g)) failures_note(&g->failures, cudaHostUnregister(memory), "unpinning");
}

/* Where all of this can be pinned that is tried, there is no limit to be expected. Trying takes a while, so a
 * device tries no more than once what it knows. What a lost GPU refuses says nothing. */
static uint64_t cuda_try_pins(struct device *device, uint64_t bytes) {
    static const uint64_t trial_bytes = (uint64_t)2 << 30;
    struct gpu *g = gpu_of(device);
    uint64_t wanted = bytes, now = g->pinned;
    if (wanted > trial_bytes && !pinnable_must_be_tried()) wanted = trial_bytes;
    if (!g->pins_most && wanted > g->pins_proven && wanted > now && cuda_enter(g)) {
        struct error known = {0};
        cudaError_t refused;
        uint64_t tried = now + pinnable_try(wanted - now, &refused);
        failures_check(&g->failures, refused, "pinning", &known); /* the next wait tells of a lost GPU */
        if (failures_lost(&g->failures)) return bytes;
        if (tried < wanted) g->pins_most = tried ? tried : 1;
        g->pins_proven = tried;
    }
    return g->pins_most && g->pins_most < bytes ? g->pins_most : bytes;
}

/* ---- the queues ---- */

static uint64_t cuda_record_event(struct device *device) {
    struct gpu *g = gpu_of(device);
    return cuda_enter(g) ? streams_record_event(g->streams) : 0;
}

static uint64_t cuda_copy_in(struct device *device, void *to, const void *from, size_t bytes,
                             uint64_t event) {
    struct gpu *g = gpu_of(device);
    return cuda_enter(g) ? streams_copy(g->streams, to, from, bytes, event) : 0;
}

/* How long operators wait is known when they have: wait() says so. */
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
    return cuda_enter(g) ? streams_wait(g->streams, stalled, e) : failures_take(&g->failures, e);
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
    .provide = cuda_provide,
    .take_shared = cuda_take_shared,
    .give_shared = cuda_give_shared,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .pinnable = cuda_try_pins,
    .wait = cuda_wait,
    .used = cuda_used,
    .available = cuda_available,
    .context = cuda_context,
};

/* ---- opening ---- */

static void cuda_algorithms(struct device *device, device_algorithm *say, void *user) {
    const struct cuda *cuda = &gpu_of(device)->cuda;
    if (cuda->products) products_algorithms(cuda->products, say, user);
    if (cuda->convolutions) convolutions_algorithms(cuda->convolutions, say, user);
}

/* The libraries give their host memory back whatever has become of the GPU. */
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
    failures_destroy(&g->failures);
    cuda->sys->release(cuda->sys, g);
}

/* What needs a library that is not there is refused, and nothing else. */
static void open_libraries(struct cuda *cuda) {
    struct error no_products = {0}, no_convolutions = {0};
    cuda->products = products_open(cuda->sys, &no_products);
    if (!cuda->products) error_line(&no_products, cuda->lacks_products, sizeof cuda->lacks_products);
    cuda->convolutions = convolutions_open(cuda->sys, &no_convolutions);
    if (!cuda->convolutions)
        error_line(&no_convolutions, cuda->lacks_convolutions, sizeof cuda->lacks_convolutions);
}

static enum status choose_tiles(struct gpu *g, struct error *e) {
    int major = 0, shared = 0, ordinal = g->cuda.ordinal;
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
    g->cuda.wide_tiles = attention_is_wide(major, shared);
    return failures_check(&g->failures, code, "its shared memory", e);
}

static enum status open_all(struct gpu *g, struct error *e) {
    struct cuda *cuda = &g->cuda;
    /* Not those that wait for the default stream. */
    cudaError_t code = cudaStreamCreateWithFlags(&cuda->compute, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking);
    if (failures_check(&g->failures, code, "streams", e) != OK) return e->code;
    g->streams = streams_open(cuda->sys, cuda->compute, cuda->copies, &g->failures, e);
    if (g->streams) g->pages = pages_open(cuda->sys, cuda->ordinal, &g->failures, e);
    if (!g->pages) return e->code;
    open_libraries(cuda);
    measure_context(g, CUDA_CODE_BYTES);
    return choose_tiles(g, e);
}

static int node_of(int ordinal) {
    char bus[32];
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) == cudaSuccess)
        return memory_nodes_of_device("", bus);
    (void)cudaGetLastError();
    return -1;
}

/* Drivers keep what they have compiled; whether they have is not known before. */
static void expect_compiling(struct device *device, const struct cuda_info *info) {
    device->host_bytes += CUDA_COMPILING_BYTES;
    snprintf(
        device->note, sizeof device->note,
        "compiling kernels for your GPU (%s, compute capability %d.%d), which this build has none for: once, "
        "unless the driver has kept them",
        info->name, info->major, info->minor);
}

struct device *cuda_open(struct sys *sys, int ordinal, struct error *e) {
    struct cuda_info info;
    struct nvml *nvml = nvml_open(sys, ordinal);
    uint64_t free_before = nvml ? nvml_free_bytes(nvml) : 0;
    struct gpu *g = gpus_choose(ordinal, &info, e) == OK ? sys->alloc(sys, LINE_HOST, sizeof *g) : NULL;
    if (!g) {
        if (e->code == OK) error_set(e, MEMORY, "no memory for the CUDA device");
        nvml_close(nvml);
        return NULL;
    }
    g->cuda = (struct cuda){.device = cuda_identity(), .sys = sys, .ordinal = ordinal};
    g->cuda.device.memory_bytes = info.bytes;
    if (info.compiles) expect_compiling(&g->cuda.device, &info);
    g->cuda.device.memory = &cuda_memory;
    g->cuda.device.prepare = cuda_prepare;
    g->cuda.device.run = cuda_run;
    g->cuda.device.algorithms = cuda_algorithms;
    g->cuda.device.destroy = cuda_destroy;
    g->nvml = nvml;
    g->node = node_of(ordinal);
    g->free_before = free_before;
    failures_init(&g->failures);
    if (open_all(g, e) == OK) return &g->cuda.device;
    cuda_destroy(&g->cuda.device);
    return NULL;
}
