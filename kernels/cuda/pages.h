/* GPU memory by CUDA's virtual memory management: address space is reserved separately from 2 MiB physical
 * chunks. Memory allocated before a run therefore serves one stage after another, and parts of it can be
 * evicted.
 *
 * Callers count pages of 4,096 bytes; the GPU maps whole chunks. A chunk stays mapped while one of its pages
 * is committed. All functions are thread-safe. */
#ifndef SLUICE_CUDA_PAGES_H
#define SLUICE_CUDA_PAGES_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Spare chunks, because each reservation starts its own chunk and ends inside one. Eleven spare chunks serve
 * ring, scratch, workspace, the states of two stages and the residents of six stages; one covers rounding.
 * The rest covers chunks that evicted blocks share with remaining blocks. */
enum { PAGES_SPARE = 16, PAGES_CHUNK_BYTES = 2 << 20, PAGES_SPARE_BYTES = PAGES_SPARE * PAGES_CHUNK_BYTES };

struct gpu_errors;
struct pages;

/* Opens the memory of GPU number ordinal, which must be current. NULL with MEMORY or DEVICE. */
struct pages *pages_open(struct sys *sys, int ordinal, struct gpu_errors *errors, struct error *e);
/* Frees all GPU memory and address space, including remaining reservations. */
void pages_close(struct pages *pages);

/* Reserve, commit, decommit and release as in struct device_memory. Before the first pages_preallocate, and
 * after one with 0 bytes, commit allocates chunks on demand and decommit frees chunks. Otherwise commit only
 * maps preallocated chunks and fails with -ENOMEM when no chunk is left. -EIO: the GPU refused. */
void *pages_reserve(struct pages *pages, uint64_t bytes);
int pages_commit(struct pages *pages, void *memory, uint64_t bytes);
void pages_decommit(struct pages *pages, void *memory, uint64_t bytes);
void pages_unreserve(struct pages *pages, void *memory);

/* Allocates `bytes` bytes of chunks for the whole run. On failure the previous allocation remains. Fails with
 * MEMORY or DEVICE. */
enum status pages_preallocate(struct pages *pages, uint64_t bytes, struct error *e);

/* Returns the bytes of all allocated chunks (taken), or of the chunks that are not mapped (unmapped). */
uint64_t pages_taken(struct pages *pages);
uint64_t pages_unmapped(struct pages *pages);

#endif
