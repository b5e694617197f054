#include "bench/gpu/rig.h"

#include <stdlib.h>

enum { NOISE_BYTES = 64 << 20, REPEATS_LEAST = 3, REPEATS_MOST = 50, WARM = 2, GRANULE = 4096 };

/* Fills a buffer with small numbers: every 16-bit half has a random sign, exponent 2^-7 and a random
 * mantissa, so every f32 is small too. */
static void make_noise(char *to) {
    uint64_t *words = (uint64_t *)to, state = 88172645463325252u;
    for (int i = 0; i < NOISE_BYTES / 8; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        words[i] = (state & 0x807f807f807f807fu) | 0x3c003c003c003c00u;
    }
}

enum status rig_open(struct rig *rig, double seconds_a_case, struct error *e) {
    *rig = (struct rig){.seconds_a_case = seconds_a_case};
    sys_init_machine(&rig->sys);
    rig->device = cuda_open(&rig->sys, 0, e);
    if (!rig->device) return e->code;
    rig->cuda = (struct cuda *)rig->device;
    rig->noise = rig->device->memory->alloc_mapped(rig->device, NOISE_BYTES);
    if (!rig->noise) return error_set(e, MEMORY, "cannot allocate %d bytes of pinned memory", NOISE_BYTES);
    make_noise(rig->noise);
    return OK;
}

void rig_close(struct rig *rig) {
    if (!rig->device) return;
    rig_give(rig);
    rig->device->memory->free_mapped(rig->device, rig->noise, NOISE_BYTES);
    rig->device->destroy(rig->device);
}

static void fill(struct rig *rig) {
    const struct device_memory *memory = rig->device->memory;
    uint64_t fence = 0;
    for (uint64_t at = 0; at < rig->bytes; at += NOISE_BYTES) {
        uint64_t n = rig->bytes - at < NOISE_BYTES ? rig->bytes - at : NOISE_BYTES;
        fence = memory->copy(rig->device, rig->memory + at, rig->noise, n, 0);
    }
    memory->wait_copy(rig->device, fence);
}

enum status rig_take(struct rig *rig, uint64_t bytes, struct error *e) {
    const struct device_memory *memory = rig->device->memory;
    uint64_t whole = align_up(bytes, GRANULE);
    rig_give(rig);
    char *taken = memory->reserve(rig->device, whole);
    if (!taken)
        return error_set(e, MEMORY, "cannot reserve %llu bytes of address space", (unsigned long long)whole);
    if (memory->commit(rig->device, taken, whole)) {
        memory->unreserve(rig->device, taken, whole);
        return error_set(e, MEMORY, "cannot allocate %llu bytes of GPU memory", (unsigned long long)whole);
    }
    rig->memory = taken;
    rig->bytes = whole;
    fill(rig);
    return OK;
}

void rig_give(struct rig *rig) {
    const struct device_memory *memory = rig->device->memory;
    if (!rig->memory) return;
    memory->finish(rig->device);
    memory->decommit(rig->device, rig->memory, rig->bytes);
    memory->unreserve(rig->device, rig->memory, rig->bytes);
    rig->memory = NULL;
}

static enum status wait(struct rig *rig, struct error *e) {
    double stalled = 0;
    return rig->device->memory->wait(rig->device, &stalled, e);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures the times of n calls with n + 1 CUDA events around the calls. */
static enum status time_calls(struct rig *rig, enum status (*queue)(void *user, struct error *e), void *user,
                              int n, cudaEvent_t *events, double *seconds, struct error *e) {
    double each[REPEATS_MOST];
    cuda_check(cudaEventRecord(events[0], rig->cuda->compute), "a CUDA event", e);
    for (int i = 0; i < n && e->code == OK; i++)
        if (queue(user, e) == OK)
            cuda_check(cudaEventRecord(events[i + 1], rig->cuda->compute), "a CUDA event", e);
    if (e->code != OK || wait(rig, e) != OK) return e->code;
    for (int i = 0; i < n; i++) {
        float milliseconds = 0;
        if (cuda_check(cudaEventElapsedTime(&milliseconds, events[i], events[i + 1]), "a CUDA event", e) !=
            OK)
            return e->code;
        each[i] = milliseconds * 1e-3;
    }
    qsort(each, (size_t)n, sizeof *each, by_value);
    *seconds = each[n / 2];
    return OK;
}

static enum status warm_up(struct rig *rig, enum status (*queue)(void *user, struct error *e), void *user,
                           double *seconds, struct error *e) {
    for (int i = 0; i < WARM && e->code == OK; i++) {
        double began = rig->sys.clock(&rig->sys);
        if (queue(user, e) == OK) wait(rig, e);
        *seconds = rig->sys.clock(&rig->sys) - began;
    }
    return e->code;
}

enum status rig_time(struct rig *rig, enum status (*queue)(void *user, struct error *e), void *user,
                     double *seconds, struct error *e) {
    cudaEvent_t events[REPEATS_MOST + 1] = {0};
    double once = 0;
    if (warm_up(rig, queue, user, &once, e) != OK) return e->code;
    double fit = rig->seconds_a_case / (once + 1e-6);
    int n = fit < REPEATS_LEAST ? REPEATS_LEAST : fit > REPEATS_MOST ? REPEATS_MOST : (int)fit;
    for (int i = 0; i <= n; i++)
        if (cuda_check(cudaEventCreateWithFlags(&events[i], cudaEventDefault), "a CUDA event", e) != OK)
            break;
    if (e->code == OK) time_calls(rig, queue, user, n, events, seconds, e);
    for (int i = 0; i <= n; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
    return e->code;
}
