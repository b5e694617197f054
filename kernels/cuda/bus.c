/* Measures copy rates between host and GPU (cuda_bus_rate of cuda.h). */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpus.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/pinnable.h"

#include <string.h>

/* Disturbances only slow a copy down, so the fastest of TRIES counts. One try moves TRY_BYTES in back-to-back
 * copies, as weights are streamed. */
enum { TRIES = 5, TRY_BYTES = 256 << 20, COPIES_MAX = 64 };

struct bus {
    struct sys *sys;
    enum cuda_path path;
    uint64_t bytes;
    cudaStream_t stream;
    void *host, *gpu;
};

static bool pinned(enum cuda_path path) {
    return path == CUDA_H2D_PINNED || path == CUDA_D2H_PINNED;
}

static bool to_gpu(enum cuda_path path) {
    return path == CUDA_H2D_PINNED || path == CUDA_H2D_PAGEABLE;
}

const char *cuda_path_name(enum cuda_path path) {
    static const char *const names[N_CUDA_PATHS] = {[CUDA_H2D_PINNED] = "h2d_pinned",
                                                    [CUDA_H2D_PAGEABLE] = "h2d_pageable",
                                                    [CUDA_D2H_PINNED] = "d2h_pinned",
                                                    [CUDA_D2H_PAGEABLE] = "d2h_pageable"};
    return names[path];
}

static enum status bus_take(struct bus *bus, struct error *e) {
    if (cuda_check(cudaStreamCreateWithFlags(&bus->stream, cudaStreamNonBlocking), "cudaStreamCreate", e) !=
            OK ||
        cuda_check(cudaMalloc(&bus->gpu, bus->bytes), "cudaMalloc", e) != OK)
        return e->code;
    if (pinned(bus->path)) {
        cuda_check(cudaHostAlloc(&bus->host, bus->bytes, cudaHostAllocDefault), "cudaHostAlloc", e);
    } else {
        bus->host = bus->sys->map(bus->sys, LINE_STORE, bus->bytes);
        if (!bus->host) error_set(e, MEMORY, "no memory for the copy's host buffer");
    }
    /* Writes every page, because untouched pages all map to one zero page. */
    if (e->code == OK) memset(bus->host, 1, bus->bytes);
    return e->code;
}

static void bus_give(struct bus *bus) {
    if (bus->stream) (void)cudaStreamDestroy(bus->stream);
    if (bus->gpu) (void)cudaFree(bus->gpu);
    if (bus->host && pinned(bus->path))
        (void)cudaFreeHost(bus->host);
    else if (bus->host)
        bus->sys->unmap(bus->sys, LINE_STORE, bus->host, bus->bytes);
}

static double try(struct bus *bus, int n, struct error *e) {
    bool up = to_gpu(bus->path);
    double began = bus->sys->clock(bus->sys);
    for (int i = 0; i < n && e->code == OK; i++)
        cuda_check(cudaMemcpyAsync(up ? bus->gpu : bus->host, up ? bus->host : bus->gpu, bus->bytes,
                                   up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, bus->stream),
                   "cudaMemcpyAsync", e);
    if (e->code == OK) cuda_check(cudaStreamSynchronize(bus->stream), "cudaStreamSynchronize", e);
    return bus->sys->clock(bus->sys) - began;
}

static double best(struct bus *bus, struct error *e) {
    uint64_t n = TRY_BYTES / bus->bytes;
    double least = 0;
    n = n < 1 ? 1 : n > COPIES_MAX ? COPIES_MAX : n;
    for (int i = 0; i < TRIES && e->code == OK; i++) {
        double seconds = try(bus, (int)n, e);
        if (i == 0 || seconds < least) least = seconds;
    }
    return e->code == OK && least > 0 ? (double)n * (double)bus->bytes / least : 0;
}

enum status cuda_pinnable(int ordinal, uint64_t bytes, uint64_t *pinnable, struct error *e) {
    struct cuda_info info;
    cudaError_t refused;
    *pinnable = 0;
    if (gpus_choose(ordinal, &info, e) == OK) *pinnable = pinnable_try(bytes, &refused);
    return e->code;
}

enum status cuda_bus_rate(struct sys *sys, int ordinal, enum cuda_path path, uint64_t bytes,
                          double *bytes_per_second, struct error *e) {
    struct bus bus = {.sys = sys, .path = path, .bytes = bytes};
    struct cuda_info info;
    *bytes_per_second = 0;
    if (gpus_choose(ordinal, &info, e) != OK) return e->code;
    if (bus_take(&bus, e) == OK) *bytes_per_second = best(&bus, e);
    bus_give(&bus);
    return e->code;
}
