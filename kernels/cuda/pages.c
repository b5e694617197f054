/* GPU memory by CUDA's virtual memory management (pages.h). */
#include "kernels/cuda/pages.h"

#include "engine/base/checked.h"
#include "kernels/cuda/gpu_errors.h"
#include "kernels/cuda/operators.h"

#include <cuda.h>
#include <errno.h>
#include <string.h>

/* CUDA driver functions, obtained through the runtime: the program must start without the driver library. */
struct driver {
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
};

struct chunk {
    CUmemGenericAllocationHandle handle;
    uint32_t pages; /* number of committed 4,096-byte pages in the chunk */
    bool mapped;
};

/* A range of reserved address space. */
struct reservation {
    struct reservation *next;
    CUdeviceptr base;
    uint64_t n_chunks;
    struct chunk chunk[];
};

struct pages {
    struct sys *sys;
    struct gpu_errors *errors;
    struct driver driver;
    CUmemAllocationProp kind; /* properties of the memory to allocate: device memory of this GPU */
    uint64_t chunk_bytes;

    pthread_mutex_t lock; /* guards the fields below */
    struct reservation *reservations;
    CUmemGenericAllocationHandle
        *unmapped; /* chunks that are not mapped; the list has space for all allocated chunks */
    uint64_t n_unmapped, n_taken, capacity;
    bool preallocated; /* after pages_preallocate: commit only maps existing chunks and allocates none */
};

/* Chunks [first, last) of a reservation. */
struct range {
    struct reservation *in;
    uint64_t first, last;
};

/* CUDA's driver and runtime error codes have equal numbers. */
static cudaError_t pages_code_of(CUresult result) {
    return (cudaError_t)result;
}

static CUdeviceptr address_of(const struct pages *p, const struct reservation *r, uint64_t chunk) {
    return r->base + chunk * p->chunk_bytes;
}

/* Allocates n chunks of GPU memory and adds them to the list of unmapped chunks, which is enlarged first. */
static cudaError_t take_chunks(struct pages *p, uint64_t n) {
    uint64_t capacity = p->n_taken + n;
    if (capacity > p->capacity) {
        CUmemGenericAllocationHandle *unmapped =
            p->sys->alloc(p->sys, LINE_HOST, capacity * sizeof *unmapped);
        if (!unmapped) return cudaErrorMemoryAllocation;
        if (p->n_unmapped) memcpy(unmapped, p->unmapped, p->n_unmapped * sizeof *unmapped);
        p->sys->release(p->sys, p->unmapped);
        p->unmapped = unmapped;
        p->capacity = capacity;
    }
    for (uint64_t i = 0; i < n; i++) {
        CUmemGenericAllocationHandle handle;
        cudaError_t code = pages_code_of(p->driver.create(&handle, p->chunk_bytes, &p->kind, 0));
        if (code != cudaSuccess) return code;
        p->unmapped[p->n_unmapped++] = handle;
        p->n_taken++;
    }
    return cudaSuccess;
}

/* Frees unmapped chunks until at most `taken` chunks are allocated. */
static void give_chunks_back(struct pages *p, uint64_t taken) {
    cudaError_t code = cudaSuccess;
    for (; p->n_taken > taken && p->n_unmapped && code == cudaSuccess; p->n_taken--)
        code = pages_code_of(p->driver.release(p->unmapped[--p->n_unmapped]));
    gpu_errors_note(p->errors, code, "cuMemRelease");
}

/* Finds the chunks that a byte range covers. False: the memory is not reserved. */
static bool range_of(struct pages *p, const void *memory, uint64_t bytes, struct range *range) {
    CUdeviceptr from = (CUdeviceptr)(uintptr_t)memory;
    for (struct reservation *r = p->reservations; r; r = r->next) {
        if (from < r->base || from + bytes > address_of(p, r, r->n_chunks)) continue;
        uint64_t at = from - r->base;
        *range = (struct range){r, at / p->chunk_bytes, (at + bytes + p->chunk_bytes - 1) / p->chunk_bytes};
        return true;
    }
    return false;
}

/* Returns the next chunks [first, last) without committed pages, from `first` on; empty at the end. */
static struct range unused_run(const struct range *all, uint64_t first) {
    const struct chunk *chunk = all->in->chunk;
    while (first < all->last && chunk[first].pages) first++;
    uint64_t last = first;
    while (last < all->last && !chunk[last].pages) last++;
    return (struct range){all->in, first, last};
}

/* Unmaps chunks without committed pages, after a decommit or a failed commit. */
static void unmap_unused(struct pages *p, const struct range *all) {
    cudaError_t code = cudaSuccess;
    if (gpu_errors_lost(p->errors)) return;
    for (uint64_t i = all->first; i < all->last && code == cudaSuccess; i++) {
        struct chunk *chunk = &all->in->chunk[i];
        if (!chunk->mapped || chunk->pages) continue;
        code = pages_code_of(p->driver.unmap(address_of(p, all->in, i), p->chunk_bytes));
        if (code != cudaSuccess) break;
        p->unmapped[p->n_unmapped++] = chunk->handle;
        chunk->mapped = false;
    }
    gpu_errors_note(p->errors, code, "cuMemUnmap");
    if (!p->preallocated) give_chunks_back(p, p->n_taken - p->n_unmapped);
}

/* Maps unmapped chunks to consecutive addresses. */
static cudaError_t map_run(struct pages *p, const struct range *run) {
    for (uint64_t i = run->first; i < run->last; i++) {
        struct chunk *chunk = &run->in->chunk[i];
        CUmemGenericAllocationHandle handle = p->unmapped[p->n_unmapped - 1];
        CUresult result = p->driver.map(address_of(p, run->in, i), p->chunk_bytes, 0, handle, 0);
        if (result != CUDA_SUCCESS) return pages_code_of(result);
        *chunk = (struct chunk){.handle = handle, .mapped = true};
        p->n_unmapped--;
    }
    CUmemAccessDesc access = {.location = p->kind.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return pages_code_of(p->driver.set_access(address_of(p, run->in, run->first),
                                              (run->last - run->first) * p->chunk_bytes, &access, 1));
}

/* Maps all chunks of a range that have no committed pages and are therefore unmapped. */
static cudaError_t map_unused(struct pages *p, const struct range *all) {
    uint64_t n = 0;
    cudaError_t code = cudaSuccess;
    for (uint64_t i = all->first; i < all->last; i++) n += !all->in->chunk[i].pages;
    if (n > p->n_unmapped)
        code = p->preallocated ? cudaErrorMemoryAllocation : take_chunks(p, n - p->n_unmapped);
    for (struct range run = unused_run(all, all->first); run.first < run.last && code == cudaSuccess;
         run = unused_run(all, run.last))
        code = map_run(p, &run);
    return code;
}

/* Adds the pages of a byte range to (or subtracts them from) the page count of each chunk that the range
 * covers. */
static void count_pages(struct pages *p, const struct range *all, const void *memory, uint64_t bytes,
                        bool add) {
    uint64_t from = (uint64_t)(uintptr_t)memory - all->in->base, to = from + bytes;
    for (uint64_t i = all->first; i < all->last; i++) {
        uint64_t start = i * p->chunk_bytes, end = start + p->chunk_bytes;
        uint32_t pages = (uint32_t)(((to < end ? to : end) - (from > start ? from : start)) / 4096);
        if (add)
            all->in->chunk[i].pages += pages;
        else
            all->in->chunk[i].pages -= pages;
    }
}

int pages_commit(struct pages *p, void *memory, uint64_t bytes) {
    struct range all;
    bytes = align_up(bytes, 4096);
    pthread_mutex_lock(&p->lock);
    bool reserved = range_of(p, memory, bytes, &all);
    cudaError_t code = reserved ? map_unused(p, &all) : cudaErrorInvalidValue;
    if (code != cudaErrorMemoryAllocation) gpu_errors_note(p->errors, code, "cuMemMap");
    if (code == cudaSuccess)
        count_pages(p, &all, memory, bytes, true);
    else if (reserved)
        unmap_unused(p, &all);
    pthread_mutex_unlock(&p->lock);
    return code == cudaSuccess ? 0 : code == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

void pages_decommit(struct pages *p, void *memory, uint64_t bytes) {
    struct range all;
    bytes = align_up(bytes, 4096);
    pthread_mutex_lock(&p->lock);
    if (range_of(p, memory, bytes, &all)) {
        count_pages(p, &all, memory, bytes, false);
        unmap_unused(p, &all);
    }
    pthread_mutex_unlock(&p->lock);
}

void *pages_reserve(struct pages *p, uint64_t bytes) {
    uint64_t n = (bytes + p->chunk_bytes - 1) / p->chunk_bytes;
    struct reservation *r = p->sys->alloc(p->sys, LINE_HOST, sizeof *r + n * sizeof *r->chunk);
    if (!r) return NULL;
    r->n_chunks = n;
    cudaError_t code = pages_code_of(p->driver.reserve(&r->base, n * p->chunk_bytes, 0, 0, 0));
    if (code != cudaSuccess) {
        p->sys->release(p->sys, r);
        if (code != cudaErrorMemoryAllocation) gpu_errors_note(p->errors, code, "cuMemAddressReserve");
        return NULL;
    }
    pthread_mutex_lock(&p->lock);
    r->next = p->reservations;
    p->reservations = r;
    pthread_mutex_unlock(&p->lock);
    return (void *)(uintptr_t)r->base;
}

/* Unmaps all chunks of a reservation and frees its address space. */
static void end_reservation(struct pages *p, struct reservation *r) {
    struct range all = {r, 0, r->n_chunks};
    for (uint64_t i = 0; i < r->n_chunks; i++) r->chunk[i].pages = 0;
    unmap_unused(p, &all);
    gpu_errors_note(p->errors, pages_code_of(p->driver.unreserve(r->base, r->n_chunks * p->chunk_bytes)),
                    "cuMemAddressFree");
    p->sys->release(p->sys, r);
}

void pages_unreserve(struct pages *p, void *memory) {
    pthread_mutex_lock(&p->lock);
    struct reservation **at = &p->reservations;
    while (*at && (*at)->base != (CUdeviceptr)(uintptr_t)memory) at = &(*at)->next;
    struct reservation *r = *at;
    if (r) {
        *at = r->next;
        end_reservation(p, r);
    }
    pthread_mutex_unlock(&p->lock);
}

enum status pages_preallocate(struct pages *p, uint64_t bytes, struct error *e) {
    uint64_t wanted = bytes ? bytes / p->chunk_bytes + PAGES_SPARE : 0;
    cudaError_t code = cudaSuccess;
    pthread_mutex_lock(&p->lock);
    uint64_t before = p->n_taken, needed = wanted;
    if (wanted > before) code = take_chunks(p, wanted - before);
    if (code == cudaSuccess)
        p->preallocated = bytes > 0;
    else
        wanted = before;
    give_chunks_back(p, wanted);
    pthread_mutex_unlock(&p->lock);
    if (code != cudaErrorMemoryAllocation) return gpu_errors_check(p->errors, code, "cuMemCreate", e);
    size_t free_bytes = 0, all = 0;
    cudaError_t asked = cudaMemGetInfo(&free_bytes, &all);
    if (asked != cudaSuccess) return gpu_errors_check(p->errors, asked, "cudaMemGetInfo", e);
    return error_set(e, MEMORY,
                     "not enough free GPU memory for this run" WHERE "--max-vram" FOUND
                     "%llu bytes free, %llu more bytes needed",
                     (unsigned long long)free_bytes,
                     (unsigned long long)((needed - before) * p->chunk_bytes));
}

uint64_t pages_taken(struct pages *p) {
    pthread_mutex_lock(&p->lock);
    uint64_t bytes = p->n_taken * p->chunk_bytes;
    pthread_mutex_unlock(&p->lock);
    return bytes;
}

uint64_t pages_unmapped(struct pages *p) {
    pthread_mutex_lock(&p->lock);
    uint64_t bytes = p->n_unmapped * p->chunk_bytes;
    pthread_mutex_unlock(&p->lock);
    return bytes;
}

/* Looks up the driver functions in their CUDA 12.0 versions, so that older drivers work. */
static enum status find_all(struct pages *p, struct error *e) {
    const struct {
        const char *name;
        void *function;
    } all[] = {{"cuMemAddressReserve", &p->driver.reserve},
               {"cuMemAddressFree", &p->driver.unreserve},
               {"cuMemCreate", &p->driver.create},
               {"cuMemRelease", &p->driver.release},
               {"cuMemMap", &p->driver.map},
               {"cuMemUnmap", &p->driver.unmap},
               {"cuMemSetAccess", &p->driver.set_access},
               {"cuMemGetAllocationGranularity", &p->driver.granularity},
               {"cuDeviceGetAttribute", &p->driver.attribute}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        void *entry = NULL;
        cudaError_t code =
            cudaGetDriverEntryPointByVersion(all[i].name, &entry, 12000, cudaEnableDefault, &found);
        if (gpu_errors_check(p->errors, code, all[i].name, e) != OK) return e->code;
        if (found != cudaDriverEntryPointSuccess || !entry)
            return error_set(e, DEVICE, "the NVIDIA driver lacks %s", all[i].name);
        memcpy(all[i].function, &entry, sizeof entry);
    }
    return OK;
}

/* Checks that the GPU can map memory: in some virtual machines mapping fails although the driver has the
 * functions. Chunks are 2 MiB, or larger if the GPU's granularity is larger. */
static enum status choose_chunk(struct pages *p, struct error *e) {
    int maps = 0;
    size_t granule = 0;
    CUresult result = p->driver.attribute(&maps, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                          p->kind.location.id);
    if (gpu_errors_check(p->errors, pages_code_of(result), "cuDeviceGetAttribute", e) != OK) return e->code;
    if (!maps)
        return error_set(e, DEVICE,
                         "this GPU does not support CUDA virtual memory management" FOUND
                         "a driver without support (some virtual machines)" EXPECTED
                         "another GPU, or --device cpu");
    result = p->driver.granularity(&granule, &p->kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (gpu_errors_check(p->errors, pages_code_of(result), "cuMemGetAllocationGranularity", e) != OK)
        return e->code;
    p->chunk_bytes = align_up(PAGES_CHUNK_BYTES, granule);
    return OK;
}

struct pages *pages_open(struct sys *sys, int ordinal, struct gpu_errors *errors, struct error *e) {
    struct pages *p = sys_new(sys, 1, sizeof *p, "the table of GPU pages", e);
    if (!p) return NULL;
    *p = (struct pages){.sys = sys, .errors = errors};
    p->kind = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};
    pthread_mutex_init(&p->lock, NULL);
    if (find_all(p, e) == OK && choose_chunk(p, e) == OK) return p;
    pages_close(p);
    return NULL;
}

void pages_close(struct pages *p) {
    if (!p) return;
    bool lost = gpu_errors_lost(p->errors);
    p->preallocated = true; /* keeps end_reservation from freeing the chunks one by one */
    while (p->reservations) {
        struct reservation *r = p->reservations;
        p->reservations = r->next;
        if (lost)
            p->sys->release(p->sys, r);
        else
            end_reservation(p, r);
    }
    if (!lost) give_chunks_back(p, 0);
    p->sys->release(p->sys, p->unmapped);
    pthread_mutex_destroy(&p->lock);
    p->sys->release(p->sys, p);
}
