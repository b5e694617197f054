/* GPUs before a device is opened: detection, description, copy rates, and the limit of pinned host memory.
 * Implements cuda.h except cuda_open and cuda_plan_device. */
#include "kernels/cuda/gpus.h"

#include "kernels/cuda/operators.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OLDEST_MAJOR = 8 };

#ifndef CUDA_MACHINE_CODE
#define CUDA_MACHINE_CODE "80" /* the emulator's compute capability; cuda.mk sets "80 90 120" */
#endif

/* Returns the major CUDA version; CUDA encodes 13.1 as 13010. */
static int major_of(int version) {
    return version / 1000;
}

static int minor_of(int version) {
    return version % 1000 / 10;
}

/* True if the GPU can run none of the build's machine code. Machine code runs within a generation, from the
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

/* Explains why no GPU is usable. CUDA reports a missing driver as a too old driver. */
static enum status report_no_gpu(cudaError_t code, struct error *e) {
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (code == cudaErrorInsufficientDriver && driver > 0) {
        /* Returns the first driver release that supports a major CUDA version (CUDA's release notes, "CUDA
         * Driver"), for messages: users know driver releases. */
        int major = major_of(runtime);
        const char *release = major == 12 ? "525" : major == 13 ? "580" : "a newer one";
        return error_set(e, DEVICE,
                         "the NVIDIA driver is too old" FOUND "a driver for CUDA %d.%d" EXPECTED
                         "a driver for CUDA %d.0 or later (release %s), or a build of Sluice with CUDA %d",
                         major_of(driver), minor_of(driver), major, release, major_of(driver));
    }
    if (code == cudaErrorInsufficientDriver || code == cudaErrorStubLibrary)
        return error_set(e, DEVICE, "no NVIDIA driver found");
    if (code == cudaErrorNoDevice || code == cudaSuccess)
        return error_set(e, DEVICE, "the NVIDIA driver found no GPU");
    return error_set(e, DEVICE, "the NVIDIA driver cannot be used" FOUND "%s, %s", cudaGetErrorName(code),
                     cudaGetErrorString(code));
}

/* Returns the number of GPUs, or 0 with the reason in e. */
static int gpus_count(struct error *e) {
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code == cudaSuccess && n > 0) return n;
    report_no_gpu(code, e);
    return 0;
}

/* Makes the GPU current and creates its CUDA context, by a call that needs a context. */
static enum status gpus_enter(int ordinal, size_t *free_bytes, struct error *e) {
    size_t all = 0;
    if (cuda_check(cudaSetDevice(ordinal), "creating the CUDA context", e) != OK) return e->code;
    return cuda_check(cudaMemGetInfo(free_bytes, &all), "creating the CUDA context", e);
}

/* Fills name, compute capability, memory and `compiles` of a supported GPU. Rejects integrated GPUs, which
 * share the host's memory and would hold every block twice. */
static enum status check_supported(int ordinal, struct cuda_info *info, struct error *e) {
    struct cudaDeviceProp properties;
    int n = gpus_count(e);
    if (!n) return e->code;
    if (ordinal < 0 || ordinal >= n) {
        error_set(e, USAGE, "no such GPU: cuda:%d" FOUND "%d GPU%s", ordinal, n, n > 1 ? "s" : "");
        return n > 1 ? error_expected(e, "cuda:0 to cuda:%d", n - 1) : error_expected(e, "cuda:0");
    }
    if (cuda_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties", e) != OK)
        return e->code;
    *info = (struct cuda_info){
        .major = properties.major, .minor = properties.minor, .bytes = properties.totalGlobalMem};
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    if (cudaDeviceGetPCIBusId(info->bus, sizeof info->bus, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        info->bus[0] = '\0';
    }
    info->compiles = compiles(info);
    if (info->major < OLDEST_MAJOR)
        return error_set(e, DEVICE,
                         "the GPU cuda:%d (%s) is too old" FOUND "compute capability %d.%d" EXPECTED
                         "%d.0 or later",
                         ordinal, info->name, info->major, info->minor, OLDEST_MAJOR);
    if (!properties.integrated) return OK;
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

void gpus_outdated(const struct cuda_info *info, const struct products *products,
                   const struct convolutions *convolutions, char *out, size_t out_bytes) {
    /* First releases for compute capability 10.0 and later: github.com/pytorch/pytorch/issues/145949 (by
     * NVIDIA) and github.com/microsoft/onnxruntime/pull/24189. */
    enum { FIRST_MAJOR = 10, FIRST_CUBLASLT = 1208, FIRST_CUDNN = 907 };
    const struct {
        int found, first;
    } releases[] = {{products ? products_release(products) : FIRST_CUBLASLT, FIRST_CUBLASLT},
                    {convolutions ? convolutions_release(convolutions) : FIRST_CUDNN, FIRST_CUDNN}};
    size_t used = 0;
    *out = '\0';
    for (int i = 0; i < 2 && info->major >= FIRST_MAJOR; i++) {
        char version[48];
        if (releases[i].found >= releases[i].first) continue;
        if (i == 0)
            products_version(products, version, sizeof version);
        else
            convolutions_version(convolutions, version, sizeof version);
        used += (size_t)snprintf(out + used, out_bytes - used,
                                 "%s%s has no kernels for compute capability %d.%d: update to %d.%d or later",
                                 used ? "; " : "", version, info->major, info->minor, releases[i].first / 100,
                                 releases[i].first % 100);
    }
}

/* Sets info->library, the versions of driver, CUDA runtime, cuBLASLt and cuDNN ("no cuDNN" if missing), and
 * info->outdated. */
static void describe_libraries(struct cuda_info *info) {
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
    gpus_outdated(info, products, convolutions, info->outdated, sizeof info->outdated);
    convolutions_close(convolutions);
    products_close(products);
    snprintf(info->library, sizeof info->library, "driver for CUDA %d.%d, CUDA %d.%d, %s, %s",
             major_of(driver), minor_of(driver), major_of(runtime), minor_of(runtime), products_name,
             convolutions_name);
}

enum status cuda_describe(int ordinal, struct cuda_info *info, struct error *e) {
    size_t free_bytes = 0;
    *info = (struct cuda_info){0};
    if (check_supported(ordinal, info, e) != OK || gpus_enter(ordinal, &free_bytes, e) != OK) return e->code;
    info->free_bytes = free_bytes;
    describe_libraries(info);
    return OK;
}

enum { CHUNK = 16 << 20, LEAST = 64 << 10, CHUNKS_MAX = 4096, PARTS_MAX = 8 };

/* Trial of how much host memory can be pinned: an address range in which every chunk maps the same pages. */
struct trial {
    int file;
    char *memory;
    uint64_t bytes, pinned; /* size of the address range; bytes pinned so far, from the start of the range */
    uint64_t parts[PARTS_MAX]; /* offsets of pinned parts that are smaller than a chunk */
    int n_parts;
    cudaError_t refused; /* error of the last attempt to pin that failed */
};

/* Pins more of the trial's address range. Mapped pages count as resident once per mapping, so a chunk is
 * mapped only while pinned. */
static bool pin_next(struct trial *t, uint64_t bytes) {
    char *at = t->memory + t->pinned;
    if (t->pinned % CHUNK == 0 &&
        mmap(at, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, t->file, 0) == MAP_FAILED)
        return false;
    cudaError_t code = cudaHostRegister(at, bytes, cudaHostRegisterPortable);
    if (code != cudaSuccess) t->refused = code, (void)cudaGetLastError(); /* clears CUDA's error */
    madvise(at, bytes, MADV_DONTNEED);
    if (code == cudaSuccess) t->pinned += bytes;
    return code == cudaSuccess;
}

uint64_t gpus_try_pins(uint64_t bytes, cudaError_t *refused) {
    uint64_t chunks = bytes / CHUNK + (bytes % CHUNK != 0), pinned = bytes;
    if (chunks > CHUNKS_MAX) chunks = CHUNKS_MAX;
    struct trial t = {.file = memfd_create("pinned", MFD_CLOEXEC), .bytes = chunks * CHUNK};
    if (t.file >= 0 && !ftruncate(t.file, CHUNK)) {
        void *at = mmap(NULL, t.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        t.memory = at == MAP_FAILED ? NULL : at;
    }
    if (t.memory) {
        while (t.pinned < t.bytes && pin_next(&t, CHUNK)) {
        }
        for (uint64_t part = CHUNK / 2; part >= LEAST && t.pinned < t.bytes; part /= 2) {
            uint64_t at = t.pinned;
            if (pin_next(&t, part)) t.parts[t.n_parts++] = at;
        }
        pinned = t.pinned < t.bytes ? t.pinned : bytes;
    }
    uint64_t whole = t.n_parts ? t.parts[0] : t.pinned;
    for (uint64_t at = 0; at < whole; at += CHUNK) (void)cudaHostUnregister(t.memory + at);
    for (int i = 0; i < t.n_parts; i++) (void)cudaHostUnregister(t.memory + t.parts[i]);
    if (t.memory) munmap(t.memory, t.bytes);
    if (t.file >= 0) close(t.file);
    *refused = t.refused;
    return pinned < bytes ? pinned : bytes;
}

enum status cuda_pinnable(int ordinal, uint64_t bytes, uint64_t *pinnable, struct error *e) {
    struct cuda_info info;
    cudaError_t refused;
    *pinnable = 0;
    if (gpus_choose(ordinal, &info, e) == OK) *pinnable = gpus_try_pins(bytes, &refused);
    return e->code;
}

const char *cuda_path_name(enum cuda_path path) {
    static const char *const path_names[N_CUDA_PATHS] = {[CUDA_H2D_PINNED] = "h2d_pinned",
                                                         [CUDA_H2D_PAGEABLE] = "h2d_pageable",
                                                         [CUDA_D2H_PINNED] = "d2h_pinned",
                                                         [CUDA_D2H_PAGEABLE] = "d2h_pageable"};
    return path_names[path];
}

/* Memory and stream of one measurement of copy rates. */
struct bus {
    struct sys *sys;
    bool pinned, up; /* pinned: the host memory is pinned; up: copies go from host to GPU */
    uint64_t bytes;
    cudaStream_t stream;
    void *host, *gpu;
};

static enum status bus_take(struct bus *bus, struct error *e) {
    if (cuda_check(cudaStreamCreateWithFlags(&bus->stream, cudaStreamNonBlocking), "cudaStreamCreate", e) !=
            OK ||
        cuda_check(cudaMalloc(&bus->gpu, bus->bytes), "cudaMalloc", e) != OK)
        return e->code;
    if (bus->pinned) {
        cuda_check(cudaHostAlloc(&bus->host, bus->bytes, cudaHostAllocDefault), "cudaHostAlloc", e);
    } else {
        bus->host = bus->sys->map(bus->sys, LINE_STORE, bus->bytes);
        if (!bus->host) error_set(e, MEMORY, "no memory for the copy's host buffer");
    }
    /* Writes every page, because untouched pages all map to one zero page. */
    if (e->code == OK) memset(bus->host, 1, bus->bytes);
    return e->code;
}

/* Measures a copy rate. Other load only slows copies down, so the fastest of TRIES counts. One try moves
 * TRY_BYTES in back-to-back copies, as weights are streamed. */
enum status cuda_bus_rate(struct sys *sys, int ordinal, enum cuda_path path, uint64_t bytes,
                          double *bytes_per_second, struct error *e) {
    enum { TRIES = 5, TRY_BYTES = 256 << 20, COPIES_MAX = 64 };
    struct bus bus = {.sys = sys,
                      .pinned = path == CUDA_H2D_PINNED || path == CUDA_D2H_PINNED,
                      .up = path == CUDA_H2D_PINNED || path == CUDA_H2D_PAGEABLE,
                      .bytes = bytes};
    struct cuda_info info;
    double least = 0;
    *bytes_per_second = 0;
    if (gpus_choose(ordinal, &info, e) != OK) return e->code;
    uint64_t n = TRY_BYTES / bytes;
    n = n < 1 ? 1 : n > COPIES_MAX ? COPIES_MAX : n;
    bus_take(&bus, e);
    for (int i = 0; i < TRIES && e->code == OK; i++) {
        double began = sys->clock(sys);
        for (uint64_t copy = 0; copy < n && e->code == OK; copy++)
            cuda_check(cudaMemcpyAsync(bus.up ? bus.gpu : bus.host, bus.up ? bus.host : bus.gpu, bytes,
                                       bus.up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, bus.stream),
                       "cudaMemcpyAsync", e);
        if (e->code == OK) cuda_check(cudaStreamSynchronize(bus.stream), "cudaStreamSynchronize", e);
        double seconds = sys->clock(sys) - began;
        if (i == 0 || seconds < least) least = seconds;
    }
    if (e->code == OK && least > 0) *bytes_per_second = (double)n * (double)bytes / least;
    if (bus.stream) (void)cudaStreamDestroy(bus.stream);
    if (bus.gpu) (void)cudaFree(bus.gpu);
    if (bus.host && bus.pinned)
        (void)cudaFreeHost(bus.host);
    else if (bus.host)
        sys->unmap(sys, LINE_STORE, bus.host, bytes);
    return e->code;
}
