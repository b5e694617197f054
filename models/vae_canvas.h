/* The canvas: one buffer in which all whole pictures of an autoencoder's half lie, and where in it.
 *
 * A block's picture lies towards the front, what is needed beside it at the back. Convolutions go from top to
 * bottom, so a block may write its output over rows of its input that nobody reads again: the output begins a
 * lead before the input (conv_lead) and runs into it. Before a picture is upsampled it moves to the back:
 * what is four times as large then begins at the front and never overtakes it. What is downsampled goes to
 * the front, over rows that are read already, and from there to where the next level begins, if its resnets
 * need room before it.
 *
 *     up              |  out ............................[in ......]|      the back's end is the canvas's
 *     down            |[out ][in ..................................]|
 *     wider resnet    |[out ...][in ...................]   [h .....]|
 *     other resnets   |[in = out]                          [h .....]|
 *
 * A resnet's middle picture h is kept where there is room for it. A large canvas has room for each. A small
 * one is as short as these rules allow; where h finds no room, it is computed twice, in bands, and the resnet
 * writes a lead before its input as if it were wider. So the bits do not depend on the size, and nothing but
 * the shapes and that choice (lane.tiled) decides where anything lies. */
#ifndef SLUICE_VAE_CANVAS_H
#define SLUICE_VAE_CANVAS_H

#include "kernels/ops.h"

enum { CANVAS_LEVELS_MAX = 8, CANVAS_ROW = 64 };

/* Of one resolution: the first resnet takes `before` channels, all give `channels`. */
struct canvas_level {
    int32_t Y, X, before, channels;
    int n_resnets;
};

struct canvas {
    struct tensor memory;  /* [rows, CANVAS_ROW] f32 */
    struct tensor picture; /* [Y, X, C]: what the last block left */
    int64_t at;            /* the row of memory where it begins */
};

/* Rows of the canvas for these levels, and in front[] where each level's first picture begins. spare: so many
 * more pictures lie at the back in the deepest level. Upwards the deepest comes first, downwards last. */
int64_t canvas_measure_up(const struct canvas_level *levels, int n, int spare, bool tiled, int64_t *front);
int64_t canvas_measure_down(const struct canvas_level *levels, int n, int spare, bool tiled, int64_t *front);

/* A picture that begins in this row; it becomes the canvas's. */
struct tensor canvas_put(struct canvas *canvas, int64_t at, int32_t Y, int32_t X, int32_t C);
/* Number i, from 0, of pictures of one size side by side at the back; rank 0 if it would touch the front. */
struct tensor canvas_back(const struct canvas *canvas, int i, int32_t Y, int32_t X, int32_t C);
/* Where the output of a resnet begins that cannot work in place. */
int64_t canvas_before(const struct canvas *canvas, int32_t C);

#endif
