#include "bench/gpu/memory_calls.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, MIB = 1 << 20 };

enum call { PIN_COLD, PIN_WARM, UNPIN, PROVIDE, COMMIT, DECOMMIT, N_CALLS };

static const char *const names[N_CALLS] = {"pin cold", "pin warm", "unpin", "provide", "commit", "decommit"};

struct timing {
    struct sys *sys;
    struct device *device;
    double seconds[N_CALLS][ROUNDS];
    double began;
};

static void start(struct timing *t) {
    t->began = t->sys->clock(t->sys);
}

static void stop(struct timing *t, enum call call, int round) {
    t->seconds[call][round] = t->sys->clock(t->sys) - t->began;
}

static enum status no_memory(const char *what, uint64_t bytes, struct error *e) {
    return error_set(e, MEMORY, "cannot get %s: %llu bytes", what, (unsigned long long)bytes);
}

/* Pins the same memory twice: fresh from the system, then with all pages present. */
static enum status time_pinning(struct timing *t, uint64_t bytes, int round, struct error *e) {
    const struct device_memory *own = t->device->memory;
    char *memory = t->sys->map(t->sys, LINE_HOST, bytes);
    if (!memory) return no_memory("host memory", bytes, e);
    start(t);
    int refused = own->pin(t->device, memory, bytes);
    stop(t, PIN_COLD, round);
    if (!refused) own->unpin(t->device, memory, bytes);
    memset(memory, 1, bytes);
    start(t);
    if (!refused) refused = own->pin(t->device, memory, bytes);
    stop(t, PIN_WARM, round);
    start(t);
    if (!refused) own->unpin(t->device, memory, bytes);
    stop(t, UNPIN, round);
    t->sys->unmap(t->sys, LINE_HOST, memory, bytes);
    return refused ? no_memory("pinned memory", bytes, e) : OK;
}

static enum status time_mapping(struct timing *t, uint64_t bytes, int round, struct error *e) {
    const struct device_memory *own = t->device->memory;
    void *memory = own->reserve(t->device, bytes);
    if (!memory) return no_memory("address space", bytes, e);
    start(t);
    own->preallocate(t->device, bytes, e);
    stop(t, PROVIDE, round);
    start(t);
    if (e->code == OK && own->commit(t->device, memory, bytes)) no_memory("device memory", bytes, e);
    stop(t, COMMIT, round);
    start(t);
    if (e->code == OK) own->decommit(t->device, memory, bytes);
    stop(t, DECOMMIT, round);
    own->unreserve(t->device, memory, bytes);
    struct error ignored = {0};
    own->preallocate(t->device, 0, e->code == OK ? e : &ignored);
    return e->code;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add_rows(struct timing *t, uint64_t bytes, json_t *rows, void (*on_row)(const json_t *row)) {
    for (int call = 0; call < N_CALLS; call++) {
        qsort(t->seconds[call], ROUNDS, sizeof **t->seconds, by_value);
        json_t *row = json_pack("{s:s, s:I, s:f}", "call", names[call], "bytes", (json_int_t)bytes, "seconds",
                                t->seconds[call][ROUNDS / 2]);
        json_array_append_new(rows, row);
        on_row(row);
    }
}

json_t *memory_calls_measure(struct sys *sys, struct device *device, bool small,
                             void (*on_row)(const json_t *row), struct error *e) {
    struct timing t = {.sys = sys, .device = device};
    json_t *rows = json_array();
    uint64_t most = small ? 8 * MIB : (uint64_t)1024 * MIB;
    for (uint64_t bytes = 2 * MIB; bytes <= most && e->code == OK; bytes *= 4) {
        for (int round = 0; round < ROUNDS && e->code == OK; round++)
            if (time_pinning(&t, bytes, round, e) == OK) time_mapping(&t, bytes, round, e);
        if (e->code == OK) add_rows(&t, bytes, rows, on_row);
    }
    return rows;
}
