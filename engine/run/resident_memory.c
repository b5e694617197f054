/* Shared and pinned host memory; layout, eviction and moves of resident blocks: implements resident_memory.h.
 */
#include "engine/run/resident_memory.h"

#include "engine/base/checked.h"

#include <string.h>

/* ---- host memory for a device ---- */

static bool shares(const struct device *device) {
    return device && device->memory && device->memory->alloc_mapped;
}

void *shared_map(struct sys *sys, struct device *device, enum memory_line line, size_t bytes) {
    return shares(device) ? device->memory->alloc_mapped(device, bytes) : sys->map(sys, line, bytes);
}

void shared_unmap(struct sys *sys, struct device *device, enum memory_line line, void *memory, size_t bytes) {
    if (!memory) return;
    if (shares(device))
        device->memory->free_mapped(device, memory, bytes);
    else
        sys->unmap(sys, line, memory, bytes);
}

/* Chunks are larger than PINS_CHUNK bytes if the range would need more than PINS_MAX chunks. */
void pins_begin(struct pins *pins, struct device *device, char *memory, uint64_t bytes) {
    if (pins->memory || !device || !device->memory || !device->memory->pin || !memory) return;
    *pins = (struct pins){.device = device, .memory = memory, .bytes = bytes, .chunk = PINS_CHUNK};
    while (bytes > pins->chunk * PINS_MAX) pins->chunk *= 2;
}

static uint64_t chunk_bytes(const struct pins *pins, uint64_t i) {
    uint64_t left = pins->bytes - i * pins->chunk;
    return left < pins->chunk ? left : pins->chunk;
}

enum pin_state pins_state(const struct pins *pins, uint64_t from, uint64_t *end) {
    *end = UINT64_MAX;
    if (!pins->memory) return PIN_DONE;
    if (from >= pins->bytes) return PIN_REFUSED;
    uint64_t i = from / pins->chunk;
    *end = i * pins->chunk + chunk_bytes(pins, i);
    return (enum pin_state)__atomic_load_n(&pins->state[i], __ATOMIC_ACQUIRE);
}

static void set_state(struct pins *pins, uint64_t i, enum pin_state state) {
    __atomic_store_n(&pins->state[i], (uint8_t)state, __ATOMIC_RELEASE);
}

bool pins_refuse(const struct pins *pins) {
    return __atomic_load_n(&pins->refused, __ATOMIC_ACQUIRE);
}

bool pins_claim(struct pins *pins, uint64_t from) {
    uint64_t end;
    if (pins_state(pins, from, &end) != PIN_NOT_YET) return false;
    set_state(pins, from / pins->chunk, PIN_UNDER_WAY);
    return true;
}

void pins_pin(struct pins *pins, uint64_t from) {
    uint64_t i = from / pins->chunk, bytes = chunk_bytes(pins, i);
    int failed = pins->device->memory->pin(pins->device, pins->memory + i * pins->chunk, bytes);
    if (failed) __atomic_store_n(&pins->refused, true, __ATOMIC_RELEASE);
    set_state(pins, i, failed ? PIN_REFUSED : PIN_DONE);
}

void pins_end(struct pins *pins) {
    for (uint64_t i = 0; pins->memory && i * pins->chunk < pins->bytes; i++)
        if (pins->state[i] == PIN_DONE)
            pins->device->memory->unpin(pins->device, pins->memory + i * pins->chunk, chunk_bytes(pins, i));
    *pins = (struct pins){0};
}

/* ---- resident blocks ---- */

static bool on_device(const struct device *device) {
    return device && device->memory;
}

/* Large pages: readers then fill host memory from the page cache in two thirds of the time (bench/LOG.md). */
void *weights_reserve(struct sys *sys, struct device *device, uint64_t bytes) {
    if (on_device(device)) return device->memory->reserve(device, bytes);
    void *memory = sys->reserve(sys, bytes);
    if (memory && !sys->host_takes_free_pages) sys->use_large_pages(sys, memory, bytes);
    return memory;
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

/* Returns pages to the system; on the host also their address space, which may be limited. A device returns
 * its address space as a whole. */
static void give_pages_back(struct sys *sys, struct device *device, char *memory, uint64_t bytes) {
    weights_decommit(sys, device, memory, bytes);
    if (!on_device(device)) sys->unreserve(sys, memory, bytes);
}

/* Identifies a stage's list of model blocks across runs: an FNV-1a hash over the addresses of the base blocks
 * (base weights) or over the adapter hashes of the blocks (adapter bytes). */
static uint64_t blocks_fingerprint(const struct store_stage *stage, enum packed_part part) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 0; i < stage->n_model_blocks; i++) {
        const struct block *block = stage->blocks[i];
        uint64_t known = part == PACKED_BASE ? (uint64_t)(uintptr_t)block_base(block) : block->adapter_hash;
        hash = (hash ^ known) * 0x100000001b3;
    }
    return hash;
}

/* Assigns offsets to one part of the blocks of the bit set `member`; without memory. */
static struct resident_part laid_out(const struct store_stage *stage, enum packed_part part,
                                     const uint64_t *member) {
    struct resident_part p = {.blocks = blocks_fingerprint(stage, part), .n_blocks = stage->n_blocks};
    uint64_t at = 0;
    memcpy(p.member, member, sizeof p.member);
    for (int i = 0; i < stage->n_blocks; i++) {
        p.offset[i] = (uint32_t)(at / ARENA_ALIGN);
        if (resident_memory_has(&p, i)) at += packed_part_bytes(stage->blocks[i], part);
    }
    p.offset[stage->n_blocks] = (uint32_t)(at / ARENA_ALIGN);
    p.bytes = plan_pages(at);
    return p;
}

/* True if the resident memory of this part can stay: the wanted layout has the same model blocks at the same
 * offsets. */
static bool same_layout(const struct resident_part *part, const struct resident_part *wanted,
                        int n_model_blocks) {
    if (!part->base || part->evicted || part->bytes != wanted->bytes || part->blocks != wanted->blocks)
        return false;
    for (int i = 0; i < n_model_blocks; i++)
        if (resident_memory_has(part, i) != resident_memory_has(wanted, i) ||
            (resident_memory_has(wanted, i) && part->offset[i] != wanted->offset[i]))
            return false;
    return true;
}

void resident_memory_match(struct resident_memory memory[PLAN_STAGES_MAX], const struct store_stage *stages,
                           int n_stages) {
    for (int p = 0; p < PACKED_PARTS; p++)
        for (int i = 0; i < n_stages; i++) {
            uint64_t blocks = blocks_fingerprint(&stages[i], p);
            struct resident_part *to = &memory[i].part[p];
            if (to->base && to->blocks == blocks) continue;
            /* Finds memory with the same blocks that no stage of this run with these blocks owns. */
            int k = 0;
            while (k < PLAN_STAGES_MAX && (!memory[k].part[p].base || memory[k].part[p].blocks != blocks ||
                                           (k < n_stages && blocks_fingerprint(&stages[k], p) == blocks)))
                k++;
            if (k == PLAN_STAGES_MAX) continue;
            struct resident_part found = memory[k].part[p];
            memory[k].part[p] = *to;
            *to = found;
        }
}

/* Byte range [first, last) of the pages that no other block of the layout shares with this block. */
static void exclusive_pages(const struct resident_part *part, int block, uint64_t *first, uint64_t *last) {
    *first = align_up(resident_memory_offset(part, block), PLAN_PAGE);
    *last = resident_memory_offset(part, block + 1) / PLAN_PAGE * PLAN_PAGE;
    if (*last < *first) *last = *first;
}

static void part_end(struct resident_part *part, struct sys *sys, struct device *device) {
    uint64_t start = 0, first, last;
    if (!part->base) return;
    pins_end(&part->pins);
    for (int i = 0; part->evicted && i < part->n_blocks; i++) {
        if (!blocks_has(part->gone, i)) continue;
        exclusive_pages(part, i, &first, &last);
        if (first > start) give_pages_back(sys, device, part->base + start, first - start);
        start = last;
    }
    if (part->bytes > start) give_pages_back(sys, device, part->base + start, part->bytes - start);
    if (on_device(device)) weights_unreserve(sys, device, part->base, part->bytes);
    part->base = NULL;
    part->evicted = false;
    memset(part->gone, 0, sizeof part->gone);
    memset(part->ready, 0, sizeof part->ready);
}

/* A move of blocks between layouts in separate address ranges, in steps: pages are allocated as bytes arrive
 * and returned as they leave. */
struct moving {
    struct sys *sys;
    struct device *device;
    struct resident_part *from, *to;
    int n_model_blocks;
    /* Leading bytes that are allocated in the new range; leading bytes that the old range has returned. */
    uint64_t taken, returned;
    bool failed;
};

static bool moves(const struct moving *m, int block) {
    return block < m->n_model_blocks && resident_memory_has(m->to, block) &&
           blocks_has(m->from->ready, block);
}

/* True if there is a block to move, and moving needs at most the memory of the larger layout plus one step.
 * The limit holds if no block's offset rises by more than the layout grows. */
static bool may_move(const struct moving *m) {
    uint64_t growth = m->to->bytes > m->from->bytes ? m->to->bytes - m->from->bytes : 0;
    int n = 0;
    if (!m->from->base || m->from->evicted || m->from->blocks != m->to->blocks) return false;
    for (int i = 0; i < m->n_model_blocks; i++) {
        if (!moves(m, i)) continue;
        n++;
        if (resident_memory_offset(m->to, i) > resident_memory_offset(m->from, i) + growth) return false;
    }
    return n > 0;
}

static void take_pages(struct moving *m, uint64_t to) {
    if (to <= m->taken || m->failed) return;
    m->failed = weights_commit(m->sys, m->device, m->to->base + m->taken, to - m->taken);
    if (!m->failed) m->taken = to;
}

static void give_pages(struct moving *m, uint64_t to) {
    if (to <= m->returned) return;
    give_pages_back(m->sys, m->device, m->from->base + m->returned, to - m->returned);
    m->returned = to;
}

/* Moves a block in steps of at most 1/64 of the layout. */
static void move_block(struct moving *m, int block) {
    enum { STEPS = 64, STEP_MOST = 2 << 20 };
    uint64_t to = resident_memory_offset(m->to, block), from = resident_memory_offset(m->from, block);
    uint64_t end = resident_memory_offset(m->to, block + 1), step = plan_pages(m->to->bytes / STEPS);
    if (step > STEP_MOST) step = STEP_MOST;
    while (to < end) {
        uint64_t n = end - to < step ? end - to : step;
        take_pages(m, align_up(to + n, PLAN_PAGE));
        if (m->failed) return;
        if (on_device(m->device))
            m->device->memory->move(m->device, m->to->base + to, m->from->base + from, n);
        else
            memcpy(m->to->base + to, m->from->base + from, n);
        to += n;
        from += n;
        give_pages(m, from / PLAN_PAGE * PLAN_PAGE);
    }
    blocks_set(m->to->ready, block, true);
}

/* Moves adapter bytes or base weights to the new layout; drops the bytes if pages cannot be allocated. */
static void move_part(struct moving *m) {
    m->to->base = weights_reserve(m->sys, m->device, m->to->bytes);
    if (!m->to->base) {
        part_end(m->from, m->sys, m->device);
        return;
    }
    pins_end(&m->from->pins);
    for (int i = 0; i < m->n_model_blocks && !m->failed; i++)
        if (moves(m, i)) move_block(m, i);
    give_pages(m, m->from->bytes);
    if (on_device(m->device)) weights_unreserve(m->sys, m->device, m->from->base, m->from->bytes);
    take_pages(m, m->to->bytes);
    if (!m->failed) return;
    weights_decommit(m->sys, m->device, m->to->base, m->taken);
    weights_unreserve(m->sys, m->device, m->to->base, m->to->bytes);
    m->to->base = NULL;
    memset(m->to->ready, 0, sizeof m->to->ready);
}

void resident_memory_lay_out(struct resident_memory *memory, struct sys *sys, struct device *device,
                             const struct store_stage *stage, const uint64_t *member, bool grows) {
    int n = stage->n_model_blocks;
    for (int p = 0; p < PACKED_PARTS; p++) {
        struct resident_part *part = &memory->part[p], wanted = laid_out(stage, p, member);
        struct moving m = {.sys = sys, .device = device, .from = part, .to = &wanted, .n_model_blocks = n};
        if ((wanted.bytes > (part->base ? part->bytes : 0)) != grows) continue;
        if (same_layout(part, &wanted, n)) {
            wanted.base = part->base;
            wanted.pins = part->pins;
            for (int i = 0; i < n; i++)
                if (blocks_has(part->ready, i)) blocks_set(wanted.ready, i, true);
        } else if (may_move(&m)) {
            move_part(&m);
        } else {
            part_end(part, sys, device);
        }
        *part = wanted;
    }
}

bool resident_memory_held(const struct resident_memory *memory) {
    bool held = false;
    for (int p = 0; p < PACKED_PARTS; p++) held = held || memory->part[p].base;
    return held;
}

struct packed_place resident_memory_place(const struct resident_memory *memory, int block) {
    struct packed_place place;
    for (int p = 0; p < PACKED_PARTS; p++) {
        const struct resident_part *part = &memory->part[p];
        place.part[p] = part->base ? part->base + resident_memory_offset(part, block) : NULL;
    }
    return place;
}

void resident_memory_set_ready(struct resident_memory *memory, int block) {
    for (int p = 0; p < PACKED_PARTS; p++) blocks_set(memory->part[p].ready, block, true);
}

void resident_memory_reduce(struct resident_memory *memory, struct sys *sys, struct device *device,
                            const struct store_stage *stage, const uint64_t *member) {
    for (int p = 0; p < PACKED_PARTS; p++) {
        struct resident_part *part = &memory->part[p];
        if (!part->base) *part = laid_out(stage, p, member);
        for (int i = 0; i < stage->n_blocks; i++)
            if (resident_memory_has(part, i) && !blocks_has(member, i)) {
                uint64_t first, last;
                blocks_set(part->member, i, false);
                blocks_set(part->ready, i, false);
                exclusive_pages(part, i, &first, &last);
                if (!part->base || first == last) continue;
                give_pages_back(sys, device, part->base + first, last - first);
                blocks_set(part->gone, i, true);
                part->evicted = true;
            }
    }
}

enum status resident_memory_begin(struct resident_memory *memory, struct sys *sys, struct device *device,
                                  struct error *e) {
    for (int p = 0; p < PACKED_PARTS; p++) {
        struct resident_part *part = &memory->part[p];
        if (!part->bytes || part->base) continue;
        char *base = weights_reserve(sys, device, part->bytes);
        if (base && weights_commit(sys, device, base, part->bytes)) {
            weights_unreserve(sys, device, base, part->bytes);
            base = NULL;
        }
        if (base)
            part->evicted = false;
        else
            error_set(e, MEMORY, "no memory for %llu bytes of resident weights",
                      (unsigned long long)part->bytes);
        part->base = base;
    }
    return e->code;
}

void resident_memory_end(struct resident_memory *memory, struct sys *sys, struct device *device) {
    for (int p = 0; p < PACKED_PARTS; p++) part_end(&memory->part[p], sys, device);
}
