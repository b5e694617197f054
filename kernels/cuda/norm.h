/* Work partition and workspaces of CUDA norms: rms_norm, layer_norm, group_statistics, group_range and
 * group_norm. Pure functions. */
#ifndef SLUICE_CUDA_NORM_H
#define SLUICE_CUDA_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

/* A team of threads norms one run of C values (a row or a head). Each thread holds `held` groups of four
 * values in registers. */
struct norm_team {
    int32_t threads; /* threads per run: up to 32 a power of two, several teams per warp; above 32 one team
                        per block */
    int32_t
        held; /* groups of four values that a thread holds in registers; 0: the run is read twice instead */
    int32_t block; /* threads per block */
};

/* Threads per block for teams of at most one warp. */
enum { NORM_SMALL_BLOCK = 128 };

/* Returns the team of threads for runs of c values. Heads (C of 16 to 128) take one load per thread and as
 * many threads as needed. Rows take four loads per thread in flight: 2 KiB per warp. Above 8,192 values a
 * block has too few registers and reads the run again, from the cache. */
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

/* Workspace offsets of weight * (1 + scale) and tanh(gate), computed once per call. direct: the weight is
 * used as the factor in place, and there is no gate. */
struct rms_layout {
    bool direct;
    uint64_t factor, gate, end;
};

static inline struct rms_layout cuda_rms_layout(const struct op *op) {
    const struct modulation *m = &op->modulation;
    struct rms_layout l = {
        !op->zero_centered && !m->scale.rank && !m->gate.rank && weight_is_plain(&op->in[1]), 0, 0, 0};
    uint64_t bytes = sizeof(float) * (uint64_t)op->n;
    l.factor = workspace_part(&l.end, l.direct ? 0 : bytes);
    l.gate = workspace_part(&l.end, m->gate.rank ? bytes : 0);
    return l;
}

/* Number of layer_norm's vectors: weight, bias, scale and shift. Quantised or scaled vectors are converted to
 * f32. */
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

/* Partition of group statistics. A row of the image is summed in pieces of pixels and tiles of whole groups,
 * one thread block each. A block uses lanes x phases threads: one lane per column of the tile (1 or 4
 * channels); the phases take pixels in turn. The partition depends only on X, C and groups, so a row has the
 * same sums in every band. */
enum { STATISTICS_THREADS = 256 };

struct statistics_layout {
    int32_t width;         /* channels per column: 4 if the group size is a multiple of 4, else 1 */
    int32_t group;         /* tile columns per group of the norm */
    int32_t tile;          /* groups per block; the last block of a row may have fewer */
    int32_t tiles;         /* tiles per row */
    int32_t lanes, phases; /* threads per phase; phases per block */
    int32_t piece;         /* pixels per piece; the last piece of a row may be narrower */
    int32_t pieces;        /* pieces per row */
    uint64_t sums,
        end; /* workspace offset of the sums and squares, double [Y, pieces, groups, 2]; end: total bytes */
};

/* Chooses the partition of group statistics. A piece of 16,384 values gives each thread 64 values; 16 at a
 * time are summed in f32 before double. The piece's 64 KiB stay in the cache for the second read. */
static inline struct statistics_layout cuda_statistics_layout(const struct op *op) {
    enum { QUAD = 4, PIECE = 16384 };
    int32_t channels = op->in[0].dim[2], columns = op->in[0].dim[1], each = channels / op->n;
    struct statistics_layout l = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    l.width = each % QUAD == 0 ? QUAD : 1;
    l.group = each / l.width;
    l.tile = l.group < STATISTICS_THREADS ? STATISTICS_THREADS / l.group : 1;
    l.tile = l.tile < op->n ? l.tile : op->n;
    l.tiles = (op->n - 1) / l.tile + 1;
    int32_t tile_columns = l.tile * l.group;
    l.lanes = tile_columns < STATISTICS_THREADS ? tile_columns : STATISTICS_THREADS;
    l.phases = STATISTICS_THREADS / l.lanes;
    l.piece = PIECE / l.width / tile_columns > 1 ? PIECE / l.width / tile_columns : 1;
    l.pieces = (columns - 1) / l.piece + 1;
    uint64_t sums = (uint64_t)op->in[0].dim[0] * (uint64_t)l.pieces * (uint64_t)op->n;
    l.sums = workspace_part(&l.end, 2 * sizeof(double) * sums);
    return l;
}

/* Partition of group_range: pieces of pixels of one group, one thread block each. */
enum { RANGE_THREADS = 256, RANGE_PART_BYTES = 16 };

struct range_layout {
    int64_t piece, pieces; /* pixels per piece, the last piece may have fewer; pieces per group */
    uint64_t parts, end;   /* workspace offset of struct range_part [pieces, groups]; total bytes */
};

/* A piece has about 16,384 values, 16 groups of four per thread. */
static inline struct range_layout cuda_range_layout(const struct op *op) {
    enum { PIECE = 16384 };
    int32_t each = op->in[0].dim[2] / op->n;
    struct range_layout l = {each < PIECE ? PIECE / each : 1, 0, 0, 0};
    l.pieces = (tensor_rows(&op->in[0]) - 1) / l.piece + 1;
    l.parts = workspace_part(&l.end, RANGE_PART_BYTES * (uint64_t)l.pieces * (uint64_t)op->n);
    return l;
}

#ifdef __cplusplus
}
#endif

#endif
