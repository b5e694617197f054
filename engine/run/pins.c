/* Shared and pinned memory: see pins.h. */
#include "engine/run/pins.h"

#include "engine/base/checked.h"

#include <string.h>

/* ---- shared ---- */

static bool shares(const struct device *device) {
    return device && device->memory && device->memory->take_shared;
}

void *shared_map(struct sys *sys, struct device *device, enum memory_line line, size_t bytes) {
    return shares(device) ? device->memory->take_shared(device, bytes) : sys->map(sys, line, bytes);
}

void shared_unmap(struct sys *sys, struct device *device, enum memory_line line, void *memory, size_t bytes) {
    if (!memory) return;
    if (shares(device))
        device->memory->give_shared(device, memory, bytes);
    else
        sys->unmap(sys, line, memory, bytes);
}

/* ---- pinned ---- */

/* Larger chunks where there would be too many to keep count of. */
void pins_begin(struct pins *pins, struct device *device, char *memory, uint64_t bytes) {
    if (pins->memory || !device || !device->memory || !device->memory->pin || !bytes) return;
    *pins = (struct pins){.device = device, .memory = memory, .bytes = bytes, .chunk = PINS_CHUNK};
    while (bytes > pins->chunk * PINS_MAX) pins->chunk *= 2;
}

static uint64_t chunk_bytes(const struct pins *pins, uint64_t i) {
    uint64_t left = pins->bytes - i * pins->chunk;
    return left < pins->chunk ? left : pins->chunk;
}

uint64_t pins_cover(struct pins *pins, uint64_t from, bool *pinned) {
    *pinned = true;
    if (!pins->memory) return UINT64_MAX;
    uint64_t i = from / pins->chunk, bit = (uint64_t)1 << (i % 64);
    if (!pins->refused && !(pins->pinned[i / 64] & bit)) {
        int failed =
            pins->device->memory->pin(pins->device, pins->memory + i * pins->chunk, chunk_bytes(pins, i));
        if (failed)
            pins->refused = true;
        else
            pins->pinned[i / 64] |= bit;
    }
    *pinned = pins->pinned[i / 64] & bit;
    return (i + 1) * pins->chunk;
}

void pins_end(struct pins *pins) {
    for (uint64_t i = 0; pins->memory && i * pins->chunk < pins->bytes; i++)
        if (pins->pinned[i / 64] >> (i % 64) & 1)
            pins->device->memory->unpin(pins->device, pins->memory + i * pins->chunk, chunk_bytes(pins, i));
    *pins = (struct pins){0};
}
