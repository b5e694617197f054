/* Work partition and workspaces of CUDA group_statistics and group_norm. Pure functions. */
#ifndef SLUICE_CUDA_GROUP_NORM_H
#define SLUICE_CUDA_GROUP_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/channels.h"
#include "kernels/cuda/costs.h"
#include "kernels/ops.h"

/* Partition of group statistics. A row of the image is summed in pieces of pixels and tiles of whole groups,
 * one thread block each. A block uses lanes x phases threads: one lane per column of the tile (1 or 4
 * channels); the phases take pixels in turn. The partition depends only on X, C and groups, so a row has the
 * same sums in every band. */
enum { STATISTICS_THREADS = 256 };

struct statistics_layout {
    int32_t width; /* channels per column: 4 if the group size is a multiple of 4, else 1 */
    int32_t group; /* tile columns per group of the norm */
    int32_t tile;  /* groups per block; the last block of a row may have fewer */
    int32_t tiles;
    int32_t lanes, phases;
    int32_t piece; /* pixels per piece; the last piece of a row may be narrower */
    int32_t pieces;
    uint64_t sums, end; /* offset of double [Y, pieces, groups, 2]: sums and squares; end: total bytes */
};

/* Chooses the partition. A piece of 16,384 values gives each thread 64, of which 16 at a time are summed in
 * f32 before double. The piece's 64 KiB stay in the cache for the second read. */
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

static inline uint64_t cuda_group_norm_bytes(const struct op *op) {
    uint64_t end = 0;
    workspace_part(&end, cuda_channel_norm_bytes(op->in[0].dim[op->in[0].rank - 1]));
    return end;
}

#ifdef __cplusplus
}
#endif

#endif
