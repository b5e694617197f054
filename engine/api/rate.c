#include "engine/api/rate.h"

#include "kernels/ops.h"

double rate_measure(struct sys *sys, struct device *device, enum precision precision) {
    enum { T = 128, K = 512, N = 512, TRIES = 4 };
    struct error e = {0};
    struct arena arena = {.bytes = RATE_BYTES};
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
