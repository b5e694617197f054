/* The driver API's virtual memory calls: reserve addresses, map chunks, set access. A newly mapped chunk is
 * filled with 0xFF, because its old contents are undefined. An access before cuMemSetAccess ends the process.
 */
#include "internal.h"

#include <cuda.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MAGIC = 0xC4A2 };

struct chunk {
    uint32_t magic;
    bool mapped, released;
    size_t bytes;
    char *at;
    chunk *next;
};

struct space {
    char *at;
    size_t bytes;
    space *next;
};

static quiet_lock pages_lock;
static chunk *mapped_chunks;
static space *spaces;

static CUresult device_there() {
    if (!now.driver) return CUDA_ERROR_NOT_INITIALIZED;
    if (struck()) return (CUresult)struck();
    return now.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static bool location_valid(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0 && location->id < now.devices;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags) {
    if (device_there()) return device_there();
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || !location_valid(&properties->location))
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = now.granule;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long) {
    if (device_there()) return device_there();
    if (!bytes || bytes % now.granule) return CUDA_ERROR_INVALID_VALUE;
    if (alignment < now.granule) alignment = now.granule;
    char *all = (char *)mmap(nullptr, bytes + alignment, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    char *at = (char *)(((uintptr_t)all + alignment - 1) / alignment * alignment);
    if (at > all) munmap(all, (size_t)(at - all));
    if (all + alignment > at) munmap(at + bytes, (size_t)(all + alignment - at));
    space *s = (space *)malloc(sizeof *s);
    if (!s) refuse("no memory for address spaces");
    lock(&pages_lock);
    *s = space{at, bytes, spaces};
    spaces = s;
    unlock(&pages_lock);
    *address = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    if (device < 0 || device >= now.devices) return CUDA_ERROR_INVALID_DEVICE;
    if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
    *value = now.maps;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    char *at = (char *)(uintptr_t)address;
    lock(&pages_lock);
    space **s = &spaces;
    while (*s && (*s)->at != at) s = &(*s)->next;
    if (!*s || (*s)->bytes != bytes)
        refuse("cuMemAddressFree: no reservation of %zu bytes at %p", bytes, (void *)at);
    for (chunk *c = mapped_chunks; c; c = c->next)
        if (c->at >= at && c->at < at + bytes) refuse("cuMemAddressFree: %p is still mapped", (void *)c->at);
    space *gone = *s;
    *s = gone->next;
    unlock(&pages_lock);
    free(gone);
    munmap(at, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long) {
    if (device_there()) return device_there();
    cudaError_t planned = planned_failure(EMU_MEM_CREATE);
    if (planned) return (CUresult)planned;
    if (!bytes || bytes % now.granule || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        !location_valid(&properties->location))
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_memory_left(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    chunk *c = (chunk *)calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->magic = MAGIC;
    c->bytes = bytes;
    count_device((int64_t)bytes);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)c;
    return CUDA_SUCCESS;
}

static chunk *chunk_check(CUmemGenericAllocationHandle handle, const char *call) {
    chunk *c = (chunk *)(uintptr_t)handle;
    if (!c || c->magic != MAGIC) refuse("%s: %p is not an allocation", call, (void *)c);
    return c;
}

static void chunk_free(chunk *c) {
    count_device(-(int64_t)c->bytes);
    c->magic = 0;
    free(c);
}

/* Releases the handle; the memory is freed when the chunk is also unmapped. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    chunk *c = chunk_check(handle, "cuMemRelease");
    lock(&pages_lock);
    bool mapped = c->mapped;
    c->released = true;
    unlock(&pages_lock);
    if (!mapped) chunk_free(c);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
    chunk *c = chunk_check(handle, "cuMemMap");
    cudaError_t planned = planned_failure(EMU_MEM_MAP);
    if (planned) return (CUresult)planned;
    char *at = (char *)(uintptr_t)address;
    if (offset || bytes != c->bytes || address % now.granule)
        refuse("cuMemMap: %zu of the %zu bytes of a chunk at %p; only whole chunks at multiples of the "
               "granularity",
               bytes, c->bytes, (void *)at);
    lock(&pages_lock);
    space *s = spaces;
    while (s && !(at >= s->at && at + bytes <= s->at + s->bytes)) s = s->next;
    if (!s) refuse("cuMemMap: %p is not reserved", (void *)at);
    for (chunk *other = mapped_chunks; other; other = other->next)
        if (other == c || (other->at < at + bytes && at < other->at + other->bytes))
            refuse("cuMemMap: %s at %p",
                   other == c ? "the chunk is already mapped" : "another chunk is mapped there", (void *)at);
    c->mapped = true;
    c->at = at;
    c->next = mapped_chunks;
    mapped_chunks = c;
    unlock(&pages_lock);
    return CUDA_SUCCESS;
}

/* Returns the chunk mapped at `at`, which must end at or before `end`. */
static chunk *chunk_at(char *at, const char *end, const char *call) {
    chunk *c = mapped_chunks;
    while (c && c->at != at) c = c->next;
    if (!c || at + c->bytes > end) refuse("%s: no chunk at %p ends within the given bytes", call, (void *)at);
    return c;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t n) {
    if (device_there()) return device_there();
    if (n != 1 || !location_valid(&access->location)) return CUDA_ERROR_INVALID_VALUE;
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        refuse("cuMemSetAccess: only read-write access is supported");
    char *at = (char *)(uintptr_t)address, *end = at + bytes;
    while (at < end) {
        lock(&pages_lock);
        chunk *c = chunk_at(at, end, "cuMemSetAccess");
        unlock(&pages_lock);
        void *memory =
            mmap(at, c->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        ask_for_huge_pages(memory, c->bytes);
        quiet_fill(memory, 0xFF, c->bytes);
        if (!range_add(RANGE_MAPPED, at, c->bytes))
            refuse("cuMemSetAccess: access to %p is already set", (void *)at);
        at += c->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    char *at = (char *)(uintptr_t)address, *end = at + bytes;
    while (at < end) {
        lock(&pages_lock);
        chunk *c = chunk_at(at, end, "cuMemUnmap"), **link = &mapped_chunks;
        while (*link != c) link = &(*link)->next;
        *link = c->next;
        c->mapped = false;
        bool released = c->released;
        size_t size = c->bytes;
        unlock(&pages_lock);
        range_remove(RANGE_MAPPED, at);
        if (mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            refuse("cuMemUnmap: mmap");
        if (released) chunk_free(c);
        at += size;
    }
    return CUDA_SUCCESS;
}
