/* Shared host memory, and pinning in chunks: implements pinned_memory.h. */
#include "engine/run/pinned_memory.h"

#include "engine/base/checked.h"

#include <string.h>

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
