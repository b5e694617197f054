#include "engine/machine/device_open.h"

#include "engine/machine/machine.h"
#include "engine/sluice.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cards.h"
#include "kernels/cuda/cuda.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)SLUICE_THREADS_MAX == (int)CPU_THREADS_MAX, "a session's threads are the device's");

/* N of "cuda:N", 0 for "cuda", -1 for anything else. N has at most two digits; card names are longer. */
static int ordinal_of(const char *name) {
    if (!strcmp(name, "cuda")) return 0;
    if (strncmp(name, "cuda:", 5) || !name[5] || strlen(name) > 7) return -1;
    return strspn(name + 5, "0123456789") == strlen(name + 5) ? atoi(name + 5) : -1;
}

/* The GPU model of a name such as "cuda:4090"; NULL: unknown. */
static const struct cuda_card *card_of(const char *name) {
    return strncmp(name, "cuda:", 5) ? NULL : cuda_card_named(name + 5);
}

bool device_skipped(char *why, size_t why_bytes) {
    struct cuda_info info;
    struct error e = {0};
    if (!cuda_count(why, why_bytes)) return strstr(why, "too old") != NULL;
    cuda_describe(0, &info, &e);
    error_line(&e, why, (int)why_bytes);
    return e.code != OK;
}

struct device *device_open(struct sys *sys, const char *name, int threads, bool plans_only, struct error *e) {
    if (!name) name = cuda_usable(0) ? "cuda" : "cpu";
    if (!strcmp(name, "cpu")) return cpu_open(sys, threads, e);
    if (plans_only && card_of(name)) return cuda_plan_device(sys, card_of(name), e);
    int ordinal = ordinal_of(name);
    if (ordinal >= 0) {
        bool assumed = plans_only && !cuda_usable(ordinal);
        struct device *device = assumed ? cuda_plan_device(sys, NULL, e) : cuda_open(sys, ordinal, e);
        if (!device && !e->where[0]) error_where(e, "--device cuda:%d", ordinal);
        return device;
    }
    bool named = !strncmp(name, "cuda:", 5) && plans_only;
    error_set(e, USAGE, "%s" WHERE "--device" FOUND "%.100s",
              strchr(name, ',') ? "several devices are not supported: a run uses one"
              : card_of(name)   ? "a card by name can be planned for (`sluice plan`), not run on"
              : named ? "unknown card: plan with the nearest known one and set its memory with --max-vram"
                      : "unknown device",
              name);
    char cards[112];
    if (!plans_only) return error_expected(e, "cpu, cuda or cuda:N (`sluice devices` lists them)"), NULL;
    cuda_card_names(cards, sizeof cards);
    error_expected(e, "cpu, cuda, cuda:N or a card as in cuda:4090: %s", cards);
    return NULL;
}

/* Assumed memory of a planning device without a GPU model: a common small GPU's. */
static const uint64_t ASSUMED_BYTES = (uint64_t)8 << 30;

uint64_t device_default_budget(struct device *device) {
    const struct device_memory *own = device->memory;
    if (!own) return 0;
    uint64_t free = own->available ? own->available(device) : device->memory_bytes, reserve = free / 20;
    if (!free) return ASSUMED_BYTES;
    if (reserve < (uint64_t)512 << 20) reserve = (uint64_t)512 << 20;
    if (reserve > free / 2) reserve = free / 2;
    return free - reserve;
}

bool device_fingerprint(const struct device *device, const char *name, char *out, size_t out_bytes) {
    char processor[128], library[32];
    struct cuda_info info;
    struct error e = {0};
    if (device->plan_only) return false;
    if (device->memory) {
        if (cuda_describe(name ? ordinal_of(name) : 0, &info, &e) != OK) return false;
        snprintf(out, out_bytes, "cuda, %s, sm_%d%d, %s", info.name, info.major, info.minor, info.library);
        return true;
    }
    machine_processor(processor, sizeof processor);
    cpu_library(library, sizeof library);
    snprintf(out, out_bytes, "cpu, %s, %s, %s", processor, cpu_instructions(), library);
    return true;
}

double device_measure_rate(struct sys *sys, struct device *device, enum precision precision) {
    enum { T = 128, K = 512, N = 512, TRIES = 4 };
    struct error e = {0};
    struct arena arena = {.bytes = DEVICE_RATE_BYTES};
    double best = 0;
    bool ok = true;
    arena.base = sys->map(sys, LINE_WORKSPACE, arena.bytes);
    if (!arena.base) return 0;
    struct op op = {.kind = OP_LINEAR, .precision = precision};
    op.in[0] = arena_tensor(&arena, DTYPE_F32, 2, (int32_t[]){T, K}, &ok);
    op.in[1] = arena_tensor(&arena, DTYPE_F32, 2, (int32_t[]){N, K}, &ok);
    op.out = arena_tensor(&arena, DTYPE_F32, 2, (int32_t[]){T, N}, &ok);
    struct context x = {.device = device,
                        .precision = precision,
                        .workspace = arena.base + arena.used,
                        .workspace_bytes = arena.bytes - arena.used,
                        .error = &e};
    if (device->prepare(device, &op, &e) != OK) goto out;
    for (int i = 0; i < TRIES; i++) {
        double began = sys->clock(sys);
        op_linear(&x, op.out, op.in[0], op.in[1], (struct epilogue){0});
        double seconds = sys->clock(sys) - began;
        if (e.code == OK && seconds > 0 && op_flops(&op) / seconds > best) best = op_flops(&op) / seconds;
    }
out:
    sys->unmap(sys, LINE_WORKSPACE, arena.base, arena.bytes);
    return best;
}
