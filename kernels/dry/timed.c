/* The timed dry device. Event and fence numbers are times in picoseconds. */
#include "kernels/dry/timed.h"

#include <stddef.h>

static struct timed *timed_of(struct device *device) {
    return (struct timed *)device;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Reports an event to the trace callback; events without duration are skipped. */
static void trace_event(struct timed *t, enum timed_event event, uint64_t start, uint64_t end,
                        uint64_t bytes) {
    if (t->trace && end > start) t->trace(t->trace_user, event, start, end, bytes);
}

static void timed_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}

static enum status timed_prepare(struct device *device, const struct op *op, struct error *e) {
    (void)device, (void)op, (void)e;
    return OK;
}

static enum status timed_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct timed *t = timed_of(device);
    (void)workspace, (void)e;
    uint64_t start = t->compute;
    t->compute += timed_picoseconds(op_seconds(op, &t->rates));
    trace_event(t, TIMED_OPERATOR, start, t->compute, 0);
    return OK;
}

static void *timed_reserve(struct device *device, size_t bytes) {
    struct sys *sys = &timed_of(device)->sys;
    return sys->reserve(sys, bytes);
}

static int timed_commit(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
    return 0;
}

static void timed_decommit(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
}

static void timed_unreserve(struct device *device, void *memory, size_t bytes) {
    struct sys *sys = &timed_of(device)->sys;
    sys->unreserve(sys, memory, bytes);
}

static uint64_t timed_record_event(struct device *device) {
    return timed_of(device)->compute;
}

static uint64_t timed_copy(struct device *device, void *to, const void *from, size_t bytes, uint64_t event) {
    struct timed *t = timed_of(device);
    (void)to, (void)from;
    uint64_t start = later(later(t->copies, t->reader), event);
    t->copies = start + timed_picoseconds((double)bytes / t->bus);
    trace_event(t, TIMED_COPY, start, t->copies, bytes);
    return t->copies;
}

static double timed_await_copy(struct device *device, uint64_t fence) {
    struct timed *t = timed_of(device);
    uint64_t before = t->compute;
    t->compute = later(before, fence);
    trace_event(t, TIMED_STALL, before, t->compute, 0);
    return (double)(t->compute - before) * 1e-12;
}

static void timed_wait_copy(struct device *device, uint64_t fence) {
    struct timed *t = timed_of(device);
    t->reader = later(t->reader, fence);
}

static void timed_finish(struct device *device) {
    struct timed *t = timed_of(device);
    t->compute = later(t->compute, t->copies);
}

static const struct device_memory timed_memory = {
    .reserve = timed_reserve,
    .commit = timed_commit,
    .decommit = timed_decommit,
    .unreserve = timed_unreserve,
    .record_event = timed_record_event,
    .copy = timed_copy,
    .await_copy = timed_await_copy,
    .wait_copy = timed_wait_copy,
    .finish = timed_finish,
};

static void timed_destroy(struct device *device) {
    (void)device;
}

static struct timed *timed_of_sys(struct sys *sys) {
    return (struct timed *)((char *)sys - offsetof(struct timed, sys));
}

static double timed_clock(struct sys *sys) {
    return (double)timed_of_sys(sys)->compute * 1e-12;
}

static int64_t timed_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct timed *t = timed_of_sys(sys);
    (void)file, (void)to, (void)offset;
    uint64_t start = t->reader;
    t->reader += timed_picoseconds((double)bytes / t->disk);
    trace_event(t, TIMED_READ, start, t->reader, bytes);
    return (int64_t)bytes;
}

static int timed_open(struct sys *sys, const char *path) {
    (void)sys, (void)path;
    return 0;
}

static int timed_identify(struct sys *sys, int file, struct file_identity *identity) {
    (void)sys, (void)file;
    *identity = (struct file_identity){.regular = true};
    return 0;
}

static void timed_close(struct sys *sys, int file) {
    (void)sys, (void)file;
}

/* Reserves address space only: no page is written, so a model of any size fits. */
static void *timed_map(struct sys *sys, enum memory_line line, size_t bytes) {
    (void)line;
    return sys->reserve(sys, bytes);
}

static void timed_unmap(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    (void)line;
    if (memory) sys->unreserve(sys, memory, bytes);
}

static void timed_discard(struct sys *sys, void *memory, size_t bytes) {
    (void)sys, (void)memory, (void)bytes;
}

void timed_init(struct timed *timed, const struct op_rates *rates, double bus, double disk) {
    *timed = (struct timed){.device = {.name = "timed",
                                       .memory = &timed_memory,
                                       .cost = timed_cost,
                                       .prepare = timed_prepare,
                                       .run = timed_run,
                                       .destroy = timed_destroy},
                            .rates = *rates,
                            .bus = bus,
                            .disk = disk};
    struct sys *sys = &timed->sys;
    sys_init_machine(sys);
    sys->clock = timed_clock;
    sys->open = timed_open;
    sys->identify = timed_identify;
    sys->read_at = timed_read_at;
    sys->close = timed_close;
    sys->map = timed_map;
    sys->unmap = timed_unmap;
    sys->discard = timed_discard;
    sys->use_large_pages = timed_discard;
}
