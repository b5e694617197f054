/* Device memory and pinned host memory, and the table of their address ranges. New device memory is filled
 * with 0xFF (NaN as float). Under ASan it has 256 KB of poisoned bytes on both sides, because ASan's red
 * zones are shorter than a row. */
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { ZONE = 256 << 10 };

struct range {
    const char *start, *end;
    range_kind kind;
};

static quiet_lock ranges_lock;
static range *ranges;
static size_t n_ranges, capacity;

/* Returns the index of the first memory range that ends after the address. */
static size_t find(const char *address) {
    size_t low = 0, high = n_ranges;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void grow() {
    if (n_ranges < capacity) return;
    size_t more = capacity ? 2 * capacity : 1024;
    void *memory =
        mmap(nullptr, more * sizeof(range), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) refuse("no memory for the table of allocations");
    quiet_copy(memory, ranges, n_ranges * sizeof(range));
    if (ranges) munmap(ranges, capacity * sizeof(range));
    ranges = (range *)memory;
    capacity = more;
}

/* Keeps gcc from turning a loop into memmove, which the sanitizers' runtimes intercept. */
static inline void keep_loop() {
    asm volatile("" ::: "memory");
}

bool range_add(range_kind kind, const void *start, size_t bytes) {
    const char *at = (const char *)start;
    lock(&ranges_lock);
    grow();
    size_t i = find(at);
    bool free = i == n_ranges || ranges[i].start >= at + bytes;
    if (free) {
        for (size_t j = n_ranges++; j > i; j--, keep_loop()) ranges[j] = ranges[j - 1];
        ranges[i] = range{at, at + bytes, kind};
    }
    unlock(&ranges_lock);
    return free;
}

size_t range_remove(range_kind kind, const void *start) {
    lock(&ranges_lock);
    size_t i = find((const char *)start), bytes = 0;
    if (i < n_ranges && ranges[i].start == start && ranges[i].kind == kind) {
        bytes = (size_t)(ranges[i].end - ranges[i].start);
        n_ranges--;
        for (; i < n_ranges; i++, keep_loop()) ranges[i] = ranges[i + 1];
    }
    unlock(&ranges_lock);
    return bytes;
}

static bool on_device(const range *r) {
    return r->kind == RANGE_DEVICE || r->kind == RANGE_MAPPED;
}

/* Returns the kind of memory of a byte range. The range may span adjacent mapped chunks, but not two
 * allocations. */
cover range_cover(const void *start, size_t bytes) {
    const char *at = (const char *)start, *end = at + bytes;
    lock(&ranges_lock);
    size_t i = find(at);
    cover result = COVER_NONE;
    if (i < n_ranges && ranges[i].start <= at) {
        const range *r = &ranges[i];
        while (r->end < end && r->kind == RANGE_MAPPED && ++i < n_ranges && ranges[i].start == r->end &&
               ranges[i].kind == RANGE_MAPPED)
            r = &ranges[i];
        result = r->end < end ? COVER_PART : on_device(r) ? COVER_DEVICE : COVER_HOST;
    } else if (i < n_ranges && ranges[i].start < end)
        result = COVER_PART;
    unlock(&ranges_lock);
    return result;
}

/* Set once the process has a CUDA context, which takes device memory until the process ends. */
static uint32_t context_there;

void make_context() {
    __atomic_store_n(&context_there, 1, __ATOMIC_RELEASE);
}

uint64_t device_memory_free() {
    uint64_t used = now.taken + device_live();
    if (__atomic_load_n(&context_there, __ATOMIC_ACQUIRE)) used += now.context;
    if (kernels_there()) used += now.code;
    return used < now.bytes ? now.bytes - used : 0;
}

bool device_memory_left(size_t bytes) {
    make_context();
    return bytes <= device_memory_free();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    cudaError_t bad = need_device();
    if (bad) return report(bad);
    make_context();
    *total_bytes = now.bytes;
    *free_bytes = device_memory_free();
    return cudaSuccess;
}

static size_t whole_pages(size_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    cudaError_t bad = need_device();
    if (bad || (bad = planned_failure(EMU_MALLOC))) return report(bad);
    *memory = nullptr;
    if (!bytes) return cudaSuccess;
    if (!device_memory_left(bytes)) return report(cudaErrorMemoryAllocation);
    size_t pages = whole_pages(bytes);
    char *all = (char *)mmap(nullptr, pages + 2 * ZONE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return report(cudaErrorMemoryAllocation);
    char *at = all + ZONE;
    ask_for_huge_pages(all, pages + 2 * ZONE);
    quiet_fill(at, 0xFF, bytes);
    if (WITH_ASAN) {
        __asan_poison_memory_region(all, ZONE);
        __asan_poison_memory_region(at + bytes, pages - bytes + ZONE);
    } else {
        mprotect(all, ZONE, PROT_NONE);
        mprotect(at + pages, ZONE, PROT_NONE);
    }
    range_add(RANGE_DEVICE, at, bytes);
    count_device((int64_t)bytes);
    *memory = at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    cudaError_t bad = need_device();
    if (bad) return report(bad);
    if (!memory) return cudaSuccess;
    size_t bytes = range_remove(RANGE_DEVICE, memory);
    if (!bytes) refuse("cudaFree: %p did not come from cudaMalloc", memory);
    char *all = (char *)memory - ZONE;
    __asan_unpoison_memory_region(all, whole_pages(bytes) + 2 * ZONE);
    munmap(all, whole_pages(bytes) + 2 * ZONE);
    count_device(-(int64_t)bytes);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    cudaError_t bad = need_device();
    if (bad || (bad = planned_failure(EMU_HOST_ALLOC))) return report(bad);
    if (!count_host((int64_t)bytes, 0)) return report(cudaErrorMemoryAllocation);
    void *at = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        count_host(-(int64_t)bytes, 0);
        return report(cudaErrorMemoryAllocation);
    }
    __asan_poison_memory_region((char *)at + bytes, whole_pages(bytes) - bytes);
    range_add(RANGE_PINNED, at, bytes);
    *memory = at;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory) {
    if (!memory) return cudaSuccess;
    size_t bytes = range_remove(RANGE_PINNED, memory);
    if (!bytes) refuse("cudaFreeHost: %p did not come from cudaHostAlloc", memory);
    __asan_unpoison_memory_region(memory, whole_pages(bytes));
    munmap(memory, whole_pages(bytes));
    count_host(-(int64_t)bytes, 0);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    cudaError_t bad = need_device();
    if (bad || (bad = planned_failure(EMU_HOST_REGISTER))) return report(bad);
    if (!memory || !bytes) return report(cudaErrorInvalidValue);
    if (!range_add(RANGE_REGISTERED, memory, bytes)) return report(cudaErrorHostMemoryAlreadyRegistered);
    if (count_host(0, (int64_t)bytes)) return cudaSuccess;
    range_remove(RANGE_REGISTERED, memory);
    return report(cudaErrorMemoryAllocation);
}

cudaError_t cudaHostUnregister(void *memory) {
    size_t bytes = range_remove(RANGE_REGISTERED, memory);
    if (!bytes) return report(cudaErrorHostMemoryNotRegistered);
    count_host(0, -(int64_t)bytes);
    return cudaSuccess;
}
