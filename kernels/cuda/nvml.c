/* Interface to NVML. NVML's header is not part of the CUDA runtime, so this file repeats the few declarations
 * that it needs, unchanged since NVML 2. */
#include "kernels/cuda/nvml.h"

#include "kernels/cuda/library.h"

#include <cuda_runtime_api.h>

typedef int nvml_init(void);
typedef int nvml_shutdown(void);
typedef int nvml_handle_by_bus(const char *bus, void **gpu);
struct nvml_memory {
    unsigned long long total, free, used;
};
typedef int nvml_memory_info(void *gpu, struct nvml_memory *memory);

struct api {
    nvml_init *init;
    nvml_shutdown *shutdown;
    nvml_handle_by_bus *handle_by_bus;
    nvml_memory_info *memory_info;
};

static const char *const names[] = {"libnvidia-ml.so.1", NULL};
static const struct library_function functions[] = {
    {"nvmlInit_v2", offsetof(struct api, init)},
    {"nvmlShutdown", offsetof(struct api, shutdown)},
    {"nvmlDeviceGetHandleByPciBusId_v2", offsetof(struct api, handle_by_bus)},
    {"nvmlDeviceGetMemoryInfo", offsetof(struct api, memory_info)},
};

struct nvml {
    struct sys *sys;
    void *library;
    struct api api;
    bool started;
    void *gpu;
};

struct nvml *nvml_open(struct sys *sys, int ordinal) {
    struct error ignored = {0};
    char bus[32];
    struct nvml *n = sys->alloc(sys, LINE_HOST, sizeof *n);
    if (!n) return NULL;
    *n = (struct nvml){.sys = sys};
    n->library = library_open("NVML", names, functions, (int)(sizeof functions / sizeof *functions), &n->api,
                              &ignored);
    n->started = n->library && !n->api.init();
    if (n->started && cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) == cudaSuccess &&
        !n->api.handle_by_bus(bus, &n->gpu))
        return n;
    (void)cudaGetLastError();
    nvml_close(n);
    return NULL;
}

void nvml_close(struct nvml *n) {
    if (!n) return;
    if (n->started) n->api.shutdown();
    library_close(n->library);
    n->sys->release(n->sys, n);
}

uint64_t nvml_free_bytes(const struct nvml *n) {
    struct nvml_memory memory = {0};
    return n->api.memory_info(n->gpu, &memory) ? 0 : memory.free;
}
