/* Full-frame activation buffer of an image VAE's encoder or decoder: one memory block that holds every whole
 * feature map, and the place of each feature map in the block.
 *
 * A block's feature map lies towards the front; temporary ones lie at the back. Convolutions go from top to
 * bottom, so a block may write its output over input rows that are no longer read: the output begins some
 * rows before the input (the lead, conv_lead) and extends over it. Before upsampling the feature map moves to
 * the back; the output, four times as large, begins at the front and never overtakes it. A downsampled
 * feature map is written to the front, over rows already read. It then moves to the next level's start row if
 * that level's resnets need free rows before their input.
 *
 *     up              |  out ............................[in ......]|      the right edge is the buffer's end
 *     down            |[out ][in ..................................]|
 *     wider resnet    |[out ...][in ...................]   [h .....]|
 *     other resnets   |[in = out]                          [h .....]|
 *
 * h is a resnet's feature map between its two convolutions. A large buffer (lane.tiled false) has space for
 * every h. A small one (lane.tiled) is as short as these rules allow: where h does not fit, the resnet
 * computes it twice, in bands, and writes its output a lead before its input as if it were wider. The bits do
 * not depend on the buffer's size. Only shapes and lane.tiled decide where feature maps lie. */
#ifndef SLUICE_VAE_FULL_FRAME_H
#define SLUICE_VAE_FULL_FRAME_H

#include "kernels/ops.h"

enum { VAE_LEVELS_MAX = 8, FULL_FRAME_ROW = 64 };

/* One resolution of the VAE. Its first resnet reads in_channels; every resnet outputs `channels`. */
struct full_frame_level {
    int32_t Y, X, in_channels, channels;
    int n_resnets;
};

struct full_frame {
    struct tensor memory;  /* [rows, FULL_FRAME_ROW] f32 */
    struct tensor picture; /* current feature map, the output of the last computed block: [Y, X, C] */
    int64_t at;            /* buffer row at which the current feature map begins */
};

/* Rows of buffer memory that n levels need; sets front[i] to the start row of level i's first feature map.
 * spare: extra feature maps at the back of the deepest level (attention). measure_up: a decoder, deepest
 * level first; measure_down: an encoder, deepest level last. */
int64_t full_frame_measure_up(const struct full_frame_level *levels, int n, int spare, bool tiled,
                              int64_t *front);
int64_t full_frame_measure_down(const struct full_frame_level *levels, int n, int spare, bool tiled,
                                int64_t *front);

/* Returns the feature map [Y, X, C] that begins at buffer row `at`, and makes it the current feature map. */
struct tensor full_frame_put(struct full_frame *full_frame, int64_t at, int32_t Y, int32_t X, int32_t C);
/* Temporary feature map i of size [Y, X, C] at the buffer's back; rank 0 if there is no space beside the
 * current feature map. */
struct tensor full_frame_back(const struct full_frame *full_frame, int i, int32_t Y, int32_t X, int32_t C);
/* Buffer row where a resnet's output, of C channels, begins if the resnet cannot work in place. */
int64_t full_frame_before(const struct full_frame *full_frame, int32_t C);

#endif
