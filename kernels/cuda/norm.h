/* rms_norm and layer_norm on the CUDA device: who works on what, and rms_norm's workspace. Pure functions. */
#ifndef SLUICE_CUDA_NORM_H
#define SLUICE_CUDA_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/costs.h"
#include "kernels/cuda/weights.h"
#include "kernels/ops.h"

/* A run of C values is normed by a team of threads, each of which has held quads of them in registers. */
struct norm_team {
    int32_t threads; /* up to 32: a power of two, several teams in a warp; above: whole warps, a block */
    int32_t held;    /* quads a thread; 0: the run is read again instead */
    int32_t block;   /* threads */
};

/* Threads of a block whose teams are a warp or less. */
enum { NORM_SMALL_BLOCK = 128 };

/* Heads (C of 16 to 128) take one load a thread and as many threads as they need. Rows take four loads a
 * thread, which is what is on its way at once: 2 KiB a warp. Above 8,192 values a block would have too few
 * registers to hold them: it reads the run again, from the cache. */
static inline struct norm_team norm_team_of(int32_t c) {
    enum { QUAD = 4, WARP_THREADS = 32, BLOCK_MOST = 512, HELD = 4 };
    struct norm_team team = {1, HELD, NORM_SMALL_BLOCK};
    if (c > QUAD * HELD * BLOCK_MOST) {
        team.threads = team.block = BLOCK_MOST;
        team.held = 0;
    } else if (c > QUAD * HELD * WARP_THREADS) {
        int32_t warps = (c - 1) / (QUAD * HELD * WARP_THREADS) + 1;
        team.threads = team.block = warps * WARP_THREADS;
    } else {
        while (team.threads < WARP_THREADS && team.threads * QUAD < c) team.threads *= 2;
        team.held = team.threads * QUAD < c ? HELD : 1;
    }
    return team;
}

/* Offsets of weight * (1 + scale) and tanh(gate), made once a call. direct: the weight is that factor as it
 * lies, and there is no gate. */
struct rms_layout {
    bool direct;
    uint64_t factor, gate, end;
};

static inline struct rms_layout cuda_rms_layout(const struct op *op) {
    const struct modulation *m = &op->modulation;
    struct rms_layout l = {!m->scale.rank && !m->gate.rank && weight_is_plain(&op->in[1]), 0, 0, 0};
    uint64_t bytes = sizeof(float) * (uint64_t)op->in[1].dim[0];
    l.factor = workspace_part(&l.end, l.direct ? 0 : bytes);
    l.gate = workspace_part(&l.end, m->gate.rank ? bytes : 0);
    return l;
}

/* weight, bias, scale and shift of a layer_norm: those that are not plain, as f32. */
enum { LAYER_VECTORS = 4 };

struct layer_layout {
    uint64_t vectors[LAYER_VECTORS], end;
};

static inline struct layer_layout cuda_layer_layout(const struct op *op) {
    struct layer_layout l = {{0}, 0};
    for (int i = 0; i < LAYER_VECTORS; i++) {
        const struct tensor *vector = &op->in[1 + i];
        uint64_t bytes = sizeof(float) * (uint64_t)tensor_columns(vector);
        l.vectors[i] = workspace_part(&l.end, weight_is_plain(vector) ? 0 : bytes);
    }
    return l;
}

#ifdef __cplusplus
}
#endif

#endif
