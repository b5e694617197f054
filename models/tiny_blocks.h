/* Block of tiny decoders (TAESD, TAEHV): three 3x3 convolutions, computed band by band (a band is a few
 * rows).
 *
 * A block: relu(x + conv(relu(conv(relu(conv(x) + past(previous frame)))))). `past` is a convolution that
 * only video decoders have.
 *
 * Nothing is tiled or blended. Between two convolutions lies a strip: the rows of the current band and the
 * few rows above that the next convolution reads again. Each row is computed once, the output may overwrite
 * input rows that are no longer read, and no intermediate feature map exists as a whole. */
#ifndef SLUICE_TINY_BLOCKS_H
#define SLUICE_TINY_BLOCKS_H

#include "engine/run/weights.h"
#include "kernels/ops.h"

/* Limit of the latent in the reference implementations, which apply 3 tanh(x / 3). */
#define TINY_LIMIT 3.0f

/* Strip: rows [first, end) of a feature map [Y, X, C]; earlier rows have been dropped. */
struct strip {
    struct tensor rows; /* [capacity, X, C] */
    int32_t first, end;
};

/* Rows by which the first of several convolutions advances: several bands of op_conv2d, for fewer copies
 * and calls. Depends on shapes alone, so that results do not depend on the plan (R3, kernels/README.md). */
int32_t tiny_band(int32_t columns);
int32_t tiny_next_row(int32_t end, int32_t band, int32_t Y);

/* Returns an empty strip of a feature map [Y, X, C], in scratch memory. */
struct strip strip_begin(struct context *x, int32_t Y, int32_t X, int32_t C);
/* Advances a strip to row `end`, drops the rows before keep_from, and returns the tensor for the new rows. */
struct tensor strip_advance(struct context *x, struct strip *s, int32_t keep_from, int32_t end);
/* Returns the first input row that a 3x3 convolution reads for output row `row`: the row above. */
int32_t strip_row_above(int32_t row);
/* End of the rows that a convolution can compute when the convolution `distance` places earlier in the block
 * has reached row `end`. Y: height of the feature map. */
int32_t strip_reach(int32_t end, int32_t distance, int32_t Y);
/* Applies a convolution to a strip. `out` holds the output rows from row `first` of the feature map. */
void strip_convolve(struct context *x, struct tensor out, int32_t first, const struct strip *in,
                    struct tensor weight, struct epilogue epilogue, struct conv_options options);

struct tiny_block_weights {
    struct linear_weights conv[3];
    struct tensor past; /* weights for the previous frame; rank 0: image decoder */
};

/* Progress of one block: computed rows of its two intermediate feature maps; `end`: the next output row. */
struct tiny_block {
    const struct tiny_block_weights *w;
    struct strip past; /* whole feature map of the previous frame; rank 0: none */
    struct strip h1, h2;
    int32_t Y, end;
};

/* Begins a block over a feature map of size dim, [Y, X, C]. past: the previous frame's feature map, or rank
 * 0. */
struct tiny_block tiny_block_begin(struct context *x, const struct tiny_block_weights *w, struct tensor past,
                                   const int32_t dim[3]);
/* Computes the rows of the intermediate maps h1 and h2 that need only rows of `in` before `to`. */
void tiny_block_hidden(struct context *x, struct tiny_block *b, const struct strip *in, int32_t to);
/* Computes output rows from b->end on. `out` may overlap rows of `in` or `past` that are no longer read. */
void tiny_block_output(struct context *x, struct tiny_block *b, const struct strip *in, struct tensor out);
/* Runs a tiny decoder's block over a whole feature map [Y, X, C]; `out` may be `in` or `past`. */
void tiny_block(struct context *x, const struct tiny_block_weights *w, struct tensor in, struct tensor past,
                struct tensor out);

#endif
