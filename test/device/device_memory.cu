#include "test/device/device_memory.h"

#include "kernels/cuda/operators.h"

static cudaStream_t stream_of(struct device *device) {
    return reinterpret_cast<struct cuda *>(device)->compute;
}

static bool done(struct device *device, cudaError_t code) {
    return code == cudaSuccess && cudaStreamSynchronize(stream_of(device)) == cudaSuccess;
}

extern "C" void *device_memory_take(size_t bytes) {
    void *memory = NULL;
    return cudaMalloc(&memory, bytes ? bytes : 1) == cudaSuccess ? memory : NULL;
}

extern "C" void device_memory_give(void *memory) {
    (void)cudaFree(memory);
}

extern "C" bool device_memory_put(struct device *device, void *to, const void *from, size_t bytes) {
    return done(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(device)));
}

extern "C" bool device_memory_get(struct device *device, void *to, const void *from, size_t bytes) {
    return done(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(device)));
}

extern "C" bool device_memory_fill(struct device *device, void *to, int value, size_t bytes) {
    return done(device, cudaMemsetAsync(to, value, bytes, stream_of(device)));
}
