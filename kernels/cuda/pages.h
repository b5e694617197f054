/* The GPU's memory by CUDA's virtual memory management: address space and chunks of 2 MiB apart, so that what
 * has been taken before a run can serve one stage after another, and parts of it can be evicted.
 *
 * Users count in pages of 4,096 bytes, the GPU maps whole chunks: a chunk is mapped as long as one of its
 * pages is committed. Any thread may call any of these. */
#ifndef SLUICE_CUDA_PAGES_H
#define SLUICE_CUDA_PAGES_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Chunks on top of what is asked for, since a reservation begins a chunk of its own and ends within one:
 * ring, scratch, workspace, the states of two stages and residents of six are eleven; one is what whole
 * chunks lack of the bytes; the rest is for blocks that are evicted, between which a chunk can stay that
 * both had a part of. */
enum { PAGES_SPARE = 16, PAGES_CHUNK_BYTES = 2 << 20, PAGES_SPARE_BYTES = PAGES_SPARE * PAGES_CHUNK_BYTES };

struct failures;
struct pages;

/* Of GPU number ordinal, which is the current one. MEMORY, DEVICE; NULL then. */
struct pages *pages_open(struct sys *sys, int ordinal, struct failures *failures, struct error *e);
/* With everything that is still reserved. */
void pages_close(struct pages *pages);

/* As in device_memory. Until the first pages_provide, and after one of 0 bytes, commit takes chunks from the
 * machine as it needs them and decommit gives them back; else commit only maps what was provided and fails
 * with -ENOMEM when that is used up. -EIO: the GPU refused. */
void *pages_reserve(struct pages *pages, uint64_t bytes);
int pages_commit(struct pages *pages, void *memory, uint64_t bytes);
void pages_decommit(struct pages *pages, void *memory, uint64_t bytes);
void pages_unreserve(struct pages *pages, void *memory);

/* On failure there is what there was before. MEMORY, DEVICE. */
enum status pages_provide(struct pages *pages, uint64_t bytes, struct error *e);

/* Bytes of all chunks, mapped or not; of those that are not. */
uint64_t pages_taken(struct pages *pages);
uint64_t pages_idle(struct pages *pages);

#endif
