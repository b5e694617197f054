/* What tiny decoders are made of: blocks of three convolutions, computed band by band.
 *
 * A block: relu(x + conv(relu(conv(relu(conv(x) + past(frame before)))))), whose past is a video's alone. All
 * convolutions have kernels of 3.
 *
 * Nothing is tiled or blended. Between convolutions are strips: the rows of a band, and those few before it
 * that are read again. So each row is computed once, a picture may be written over one that is read no more,
 * and what lies between convolutions is never there as a whole. */
#ifndef SLUICE_TINY_BLOCKS_H
#define SLUICE_TINY_BLOCKS_H

#include "kernels/ops.h"

/* What their authors limit a latent's values to: 3 tanh(x / 3). */
#define TINY_LIMIT 3.0f

/* ---- strips ---- */

/* Rows first to end of a picture, of which only so many are kept at a time. */
struct strip {
    struct tensor rows; /* [room, X, C] */
    int32_t first, end;
};

/* Rows that the first convolution of several goes on by: a function of shapes alone (R3). So many bands of
 * convolutions that few copies and calls come with them. */
int32_t tiny_band(int32_t columns);
/* The row that the band after row `end` ends before. */
int32_t tiny_next(int32_t end, int32_t band, int32_t Y);

/* Of a picture [Y, X, C], in scratch. */
struct strip strip_begin(struct context *x, int32_t Y, int32_t X, int32_t C);
/* Goes on to row end, and returns the place of the rows that are new. Of those before, rows from `kept` on
 * stay. */
struct tensor strip_go_on(struct context *x, struct strip *s, int32_t kept, int32_t end);
/* A row's neighbours above and below are read: the one above is there still. */
int32_t strip_above(int32_t row);
/* Where convolution number `behind` after one can go that went to row end. */
int32_t strip_reach(int32_t end, int32_t behind, int32_t Y);
/* Rows from `first` on of what a strip is convolved to. */
void strip_convolve(struct context *x, struct tensor out, int32_t first, const struct strip *in,
                    struct tensor weight, struct epilogue epilogue, struct conv_options options);

/* ---- blocks ---- */

struct tiny_block_weights {
    struct tensor conv[3], past, bias[3]; /* past: of the frame before, added to conv[0]'s; or rank 0 */
};

/* What lies between a block's convolutions, and how far it got. */
struct tiny_block {
    const struct tiny_block_weights *w;
    struct strip past; /* all of it; rank 0: there is none, and nothing is added */
    struct strip h1, h2;
    int32_t Y, end;
};

/* past: [Y, X, C], or rank 0. */
struct tiny_block tiny_block_begin(struct context *x, const struct tiny_block_weights *w, struct tensor past,
                                   const int32_t dim[3]);
/* Its hidden rows, as far as they follow from in up to row `to`. */
void tiny_block_hidden(struct context *x, struct tiny_block *b, const struct strip *in, int32_t to);
/* Then its rows from b->end on to out, which may lie where in or past has them. */
void tiny_block_end(struct context *x, struct tiny_block *b, const struct strip *in, struct tensor out);
/* All of a picture [Y, X, C]; out may be in, or past. */
void tiny_block(struct context *x, const struct tiny_block_weights *w, struct tensor in, struct tensor past,
                struct tensor out);

#endif
