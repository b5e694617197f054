/* Areas: see area.h. */
#include "engine/run/area.h"

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

/* ---- areas ---- */

static void place(struct area *area, const struct stage_need *need) {
    uint64_t at = 0;
    area->n_blocks = need->n_blocks;
    for (int i = 0; i < need->n_blocks; i++) {
        area->offset[i] = at;
        if (area_has(area, i)) at += need->block_bytes[i];
    }
    area->offset[need->n_blocks] = at;
}

static bool same_layout(const struct area *area, const struct area *wanted, const struct store_stage *stage,
                        uint64_t bytes) {
    if (!area->memory || area->given_up || area->bytes != bytes || area->first != wanted->first) return false;
    for (int i = 0; i < stage->n_lasting; i++)
        if (area_has(area, i) != area_has(wanted, i) ||
            (area_has(wanted, i) && area->offset[i] != wanted->offset[i]))
            return false;
    return true;
}

void area_lay_out(struct area *area, struct sys *sys, struct device *device, const struct store_stage *stage,
                  const uint64_t *member, const struct stage_need *need, uint64_t bytes, bool keep) {
    struct area wanted = {.first = stage->n_blocks ? stage->blocks[0] : NULL};
    memcpy(wanted.member, member, sizeof wanted.member);
    place(&wanted, need);
    if (keep && same_layout(area, &wanted, stage, bytes)) {
        wanted.memory = area->memory;
        wanted.bytes = area->bytes;
        wanted.pins = area->pins;
        memcpy(wanted.ready, area->ready, (size_t)stage->n_lasting * sizeof *area->ready);
    } else {
        area_end(area, sys, device);
    }
    *area = wanted;
}

enum status area_begin(struct area *area, struct sys *sys, struct device *device, uint64_t bytes,
                       struct error *e) {
    if (!bytes || area->memory) return OK;
    char *memory = weights_reserve(sys, device, bytes);
    if (memory && weights_commit(sys, device, memory, bytes)) {
        weights_unreserve(sys, device, memory, bytes);
        memory = NULL;
    }
    if (!memory)
        return error_set(e, MEMORY, "no memory for %llu bytes of weights that stay",
                         (unsigned long long)bytes);
    area->memory = memory;
    area->bytes = bytes;
    area->given_up = false;
    return OK;
}

/* [first, last): the pages that only this block of the layout occupies. */
static void own_pages(const struct area *area, int block, uint64_t *first, uint64_t *last) {
    *first = align_up(area->offset[block], PLAN_PAGE);
    *last = area->offset[block + 1] / PLAN_PAGE * PLAN_PAGE;
    if (*last < *first) *last = *first;
}

void area_give_up(struct area *area, struct sys *sys, struct device *device, int block) {
    uint64_t first, last;
    if (!area_has(area, block)) return;
    area->member[block / 64] &= ~((uint64_t)1 << (block % 64));
    area->ready[block] = false;
    own_pages(area, block, &first, &last);
    if (!area->memory || first == last) return;
    give_pages_back(sys, device, area->memory + first, last - first);
    area->gone[block / 64] |= (uint64_t)1 << (block % 64);
    area->given_up = true;
}

void area_end(struct area *area, struct sys *sys, struct device *device) {
    uint64_t start = 0, first, last;
    if (!area->memory) return;
    pins_end(&area->pins);
    for (int i = 0; area->given_up && i < area->n_blocks; i++) {
        if (!(area->gone[i / 64] >> (i % 64) & 1)) continue;
        own_pages(area, i, &first, &last);
        if (first > start) give_pages_back(sys, device, area->memory + start, first - start);
        start = last;
    }
    if (area->bytes > start) give_pages_back(sys, device, area->memory + start, area->bytes - start);
    if (on_device(device)) weights_unreserve(sys, device, area->memory, area->bytes);
    area->memory = NULL;
    area->bytes = 0;
    area->given_up = false;
    memset(area->gone, 0, sizeof area->gone);
    memset(area->ready, 0, sizeof area->ready);
}
