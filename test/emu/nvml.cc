/* Replaces NVML (kernels/cuda/nvml.h). */
#include "kernels/cuda/nvml.h"

#include "enqueue.h"
#include "internal.h"

struct nvml {
    sys *memory;
};

struct nvml *nvml_open(struct sys *sys, int ordinal) {
    if (emu_absent("nvml") || ordinal < 0 || ordinal >= now.devices) return nullptr;
    auto *n = static_cast<struct nvml *>(sys->alloc(sys, LINE_HOST, sizeof(struct nvml)));
    if (n) n->memory = sys;
    return n;
}

void nvml_close(struct nvml *n) {
    if (n) n->memory->release(n->memory, n);
}

uint64_t nvml_free_bytes(const struct nvml *) {
    return device_memory_free();
}
