/* Areas: see area.h. */
#include "engine/run/area.h"

#include <string.h>

void *weights_map(struct sys *sys, struct device *device, uint64_t bytes) {
    if (!device || !device->memory) return sys->map(sys, LINE_STORE, bytes);
    void *memory = device->memory->reserve(device, bytes);
    if (memory && device->memory->commit(device, memory, bytes)) {
        device->memory->unreserve(device, memory, bytes);
        return NULL;
    }
    return memory;
}

void weights_unmap(struct sys *sys, struct device *device, void *memory, uint64_t bytes) {
    if (!memory) return;
    if (!device || !device->memory) {
        sys->unmap(sys, LINE_STORE, memory, bytes);
        return;
    }
    device->memory->decommit(device, memory, bytes);
    device->memory->unreserve(device, memory, bytes);
}

static uint64_t place(const struct area *area, const struct stage_need *need, uint64_t *offset) {
    uint64_t at = 0;
    for (int i = 0; i < need->n_blocks; i++) {
        offset[i] = at;
        if (area_has(area, i)) at += need->block_bytes[i];
    }
    return at;
}

static bool same_layout(const struct area *area, const struct area *wanted, const struct store_stage *stage,
                        uint64_t bytes) {
    if (!area->memory || area->bytes != bytes || area->first != wanted->first) return false;
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
    place(&wanted, need, wanted.offset);
    if (keep && same_layout(area, &wanted, stage, bytes)) {
        wanted.memory = area->memory;
        wanted.bytes = area->bytes;
        memcpy(wanted.ready, area->ready, (size_t)stage->n_lasting * sizeof *area->ready);
    } else {
        weights_unmap(sys, device, area->memory, area->bytes);
    }
    *area = wanted;
}

enum status area_begin(struct area *area, struct sys *sys, struct device *device, uint64_t bytes,
                       struct error *e) {
    if (!bytes || area->memory) return OK;
    area->memory = weights_map(sys, device, bytes);
    if (!area->memory)
        return error_set(e, MEMORY, "no memory for %llu bytes of weights that stay",
                         (unsigned long long)bytes);
    area->bytes = bytes;
    return OK;
}

void area_end(struct area *area, struct sys *sys, struct device *device) {
    weights_unmap(sys, device, area->memory, area->bytes);
    area->memory = NULL;
    area->bytes = 0;
    memset(area->ready, 0, sizeof area->ready);
}
