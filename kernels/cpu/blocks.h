/* Decoders of stored weight types to f32, one per type; weights.c applies scales from other tensors. */
#ifndef SLUICE_CPU_BLOCKS_H
#define SLUICE_CPU_BLOCKS_H

#include "engine/base/tensor.h"

/* Decodes n consecutive blocks to f32. Types without blocks have one value per block. */
typedef void block_decoder(float *to, const unsigned char *from, int64_t n);

/* Returns the decoder of a type; NULL: not a weight type. */
block_decoder *blocks_decoder(enum dtype dtype);

/* Multiplies the values of blocks [first, first + n) of a row by their scales in tiled layout. row: start of
 * the row's scales in the first tile; consecutive tiles of 4 blocks are BLOCKS_TILE_BYTES apart. */
enum { BLOCKS_TILE_BYTES = 512 };
void blocks_scale(enum dtype dtype, float *to, const unsigned char *row, int64_t first, int64_t n);

#endif
