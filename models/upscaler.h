/* Shared by the upscaler families, which read lane.picture [1, Y, X, 3], with values 0 to 1, and write
 * lane.enlarged [1, s Y, s X, 3], about -1 to 1, for scale s.
 *
 * Convolutions are 3x3 with zero padding over the whole image. Nothing is tiled or blended: a block advances
 * down the image in bands of rows, and strips (tiny_blocks.h) keep the rows that the next band reads again.
 * Each row is computed once, so band heights change no bit. */
#ifndef SLUICE_MODELS_UPSCALER_H
#define SLUICE_MODELS_UPSCALER_H

#include "models/models.h"
#include "models/tiny_blocks.h"

enum { UPSCALER_COLOURS = 3 };

/* Rows by which the first convolution of a block advances: four bands of op_conv2d, so that copying
 * rows and repacking weights take little of the time. least: lower bound of the result, above the rows by
 * which the block's last convolution lags behind the first. */
static inline int32_t upscaler_band(int32_t columns, int32_t least) {
    int32_t band = 4 * conv_band_rows(columns);
    return band > least ? band : least;
}

/* Returns an empty strip of `capacity` rows of a feature map [Y, X, C], in scratch memory. */
static inline struct strip upscaler_strip(struct context *x, int32_t capacity, int32_t Y, int32_t X,
                                          int32_t C) {
    int32_t dim[3] = {capacity < Y ? capacity : Y, X, C};
    return (struct strip){context_tensor(x, DTYPE_F32, 3, dim), 0, 0};
}

/* Returns the enlarged image [s Y, s X, 3], a view of lane.enlarged. */
static inline struct tensor upscaler_output(const struct lane *lane) {
    return tensor_reshape(lane->enlarged, 3, lane->enlarged.dim + 1);
}

#endif
