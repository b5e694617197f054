/* Resident memory: see resident_memory.h. */
#include "engine/run/resident_memory.h"

#include <string.h>

/* ---- pages ---- */

static bool on_device(const struct device *device) {
    return device && device->memory;
}

void *weights_reserve(struct sys *sys, struct device *device, uint64_t bytes) {
    return on_device(device) ? device->memory->reserve(device, bytes) : sys->reserve(sys, bytes);
}

int weights_commit(struct sys *sys, struct device *device, void *memory, uint64_t bytes) {
    if (on_device(device)) return device->memory->commit(device, memory, bytes);
    return sys->commit(sys, LINE_STORE, memory, bytes);
}

void weights_decommit(struct sys *sys, struct device *device, void *memory, uint64_t bytes) {
    if (on_device(device))
        device->memory->decommit(device, memory, bytes);
    else
        sys->decommit(sys, LINE_STORE, memory, bytes);
}

void weights_unreserve(struct sys *sys, struct device *device, void *memory, uint64_t bytes) {
    if (on_device(device))
        device->memory->unreserve(device, memory, bytes);
    else
        sys->unreserve(sys, memory, bytes);
}

/* Address space too, for it may be what is limited; a device's goes back as it was taken, in one. */
static void give_pages_back(struct sys *sys, struct device *device, char *memory, uint64_t bytes) {
    weights_decommit(sys, device, memory, bytes);
    if (!on_device(device)) sys->unreserve(sys, memory, bytes);
}

/* ---- what is resident ---- */

static void place(struct resident_memory *memory, const struct stage_need *need) {
    uint64_t at = 0;
    memory->n_blocks = need->n_blocks;
    for (int i = 0; i < need->n_blocks; i++) {
        memory->offset[i] = at;
        if (resident_memory_has(memory, i)) at += need->block_bytes[i];
    }
    memory->offset[need->n_blocks] = at;
}

static bool same_layout(const struct resident_memory *memory, const struct resident_memory *wanted,
                        const struct store_stage *stage, uint64_t bytes) {
    if (!memory->base || memory->evicted || memory->bytes != bytes || memory->blocks != wanted->blocks)
        return false;
    for (int i = 0; i < stage->n_lasting; i++)
        if (resident_memory_has(memory, i) != resident_memory_has(wanted, i) ||
            (resident_memory_has(wanted, i) && memory->offset[i] != wanted->offset[i]))
            return false;
    return true;
}

/* Of the addresses of the blocks that last, in their order (FNV-1a, by words). */
static uint64_t fingerprint(const struct store_stage *stage) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 0; i < stage->n_lasting; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)stage->blocks[i]) * 0x100000001b3;
    return hash;
}

/* The place of memory for these blocks that no stage of its own wants; -1: there is none. */
static int unclaimed(const struct resident_memory *memory, const struct store_stage *stages, int n_stages,
                     uint64_t blocks) {
    for (int i = 0; i < PLAN_STAGES_MAX; i++)
        if (memory[i].base && memory[i].blocks == blocks &&
            (i >= n_stages || fingerprint(&stages[i]) != blocks))
            return i;
    return -1;
}

void resident_memory_match(struct resident_memory memory[PLAN_STAGES_MAX], const struct store_stage *stages,
                           int n_stages) {
    for (int i = 0; i < n_stages; i++) {
        uint64_t blocks = fingerprint(&stages[i]);
        if (memory[i].base && memory[i].blocks == blocks) continue;
        int from = unclaimed(memory, stages, n_stages, blocks);
        if (from < 0) continue;
        struct resident_memory found = memory[from];
        memory[from] = memory[i];
        memory[i] = found;
    }
}

void resident_memory_lay_out(struct resident_memory *memory, struct sys *sys, struct device *device,
                             const struct store_stage *stage, const uint64_t *member,
                             const struct stage_need *need, uint64_t bytes, bool keep) {
    struct resident_memory wanted = {.blocks = fingerprint(stage)};
    memcpy(wanted.member, member, sizeof wanted.member);
    place(&wanted, need);
    if (keep && same_layout(memory, &wanted, stage, bytes)) {
        wanted.base = memory->base;
        wanted.bytes = memory->bytes;
        wanted.pins = memory->pins;
        memcpy(wanted.ready, memory->ready, (size_t)stage->n_lasting * sizeof *memory->ready);
    } else {
        resident_memory_end(memory, sys, device);
    }
    *memory = wanted;
}

enum status resident_memory_begin(struct resident_memory *memory, struct sys *sys, struct device *device,
                                  uint64_t bytes, struct error *e) {
    if (!bytes || memory->base) return OK;
    char *base = weights_reserve(sys, device, bytes);
    if (base && weights_commit(sys, device, base, bytes)) {
        weights_unreserve(sys, device, base, bytes);
        base = NULL;
    }
    if (!base)
        return error_set(e, MEMORY, "no memory for %llu bytes of weights that stay",
                         (unsigned long long)bytes);
    memory->base = base;
    memory->bytes = bytes;
    memory->evicted = false;
    return OK;
}

/* [first, last): the pages that only this block of the layout occupies. */
static void own_pages(const struct resident_memory *memory, int block, uint64_t *first, uint64_t *last) {
    *first = align_up(memory->offset[block], PLAN_PAGE);
    *last = memory->offset[block + 1] / PLAN_PAGE * PLAN_PAGE;
    if (*last < *first) *last = *first;
}

void resident_memory_evict(struct resident_memory *memory, struct sys *sys, struct device *device,
                           int block) {
    uint64_t first, last;
    if (!resident_memory_has(memory, block)) return;
    memory->member[block / 64] &= ~((uint64_t)1 << (block % 64));
    memory->ready[block] = false;
    own_pages(memory, block, &first, &last);
    if (!memory->base || first == last) return;
    give_pages_back(sys, device, memory->base + first, last - first);
    memory->gone[block / 64] |= (uint64_t)1 << (block % 64);
    memory->evicted = true;
}

void resident_memory_end(struct resident_memory *memory, struct sys *sys, struct device *device) {
    uint64_t start = 0, first, last;
    if (!memory->base) return;
    pins_end(&memory->pins);
    for (int i = 0; memory->evicted && i < memory->n_blocks; i++) {
        if (!(memory->gone[i / 64] >> (i % 64) & 1)) continue;
        own_pages(memory, i, &first, &last);
        if (first > start) give_pages_back(sys, device, memory->base + start, first - start);
        start = last;
    }
    if (memory->bytes > start) give_pages_back(sys, device, memory->base + start, memory->bytes - start);
    if (on_device(device)) weights_unreserve(sys, device, memory->base, memory->bytes);
    memory->base = NULL;
    memory->bytes = 0;
    memory->evicted = false;
    memset(memory->gone, 0, sizeof memory->gone);
    memset(memory->ready, 0, sizeof memory->ready);
}
