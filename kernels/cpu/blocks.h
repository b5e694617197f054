/* What each stored type's bytes stand for, before the scales that other tensors hold: one function a type.
 * weights.c alone calls them. */
#ifndef SLUICE_CPU_BLOCKS_H
#define SLUICE_CPU_BLOCKS_H

#include "engine/base/tensor.h"

/* The values of n blocks that follow each other, as f32. Types without blocks have one value in each. */
typedef void block_decoder(float *to, const unsigned char *from, int64_t n);

/* NULL: no weights are of this type. */
block_decoder *blocks_decoder(enum dtype dtype);

/* Multiplies the values of blocks [first, first + n) of a row by their scales. row: where the row's scales
 * begin in the first tile; from one tile of 4 blocks to the next it is BLOCKS_TILE_BYTES. */
enum { BLOCKS_TILE_BYTES = 512 };
void blocks_scale(enum dtype dtype, float *to, const unsigned char *row, int64_t first, int64_t n);

#endif
