#include "models/tiny_blocks.h"

/* Rows of a strip in addition to one band: the rows above the band, and a remainder that the last band
 * includes. */
enum { STRIP_EXTRA_ROWS = 8 };

int32_t tiny_band(int32_t columns) {
    return 2 * conv_band_rows(columns);
}

int32_t tiny_next_row(int32_t end, int32_t band, int32_t Y) {
    return Y - end > band ? end + band : Y;
}

struct strip strip_begin(struct context *x, int32_t Y, int32_t X, int32_t C) {
    int32_t capacity = tiny_band(X) + STRIP_EXTRA_ROWS;
    return (struct strip){context_tensor(x, DTYPE_F32, 3, (int32_t[]){capacity < Y ? capacity : Y, X, C}), 0,
                          0};
}

struct tensor strip_advance(struct context *x, struct strip *s, int32_t keep_from, int32_t end) {
    int32_t n_overlap = keep_from < s->end ? s->end - keep_from : 0;
    if (n_overlap && keep_from > s->first)
        op_copy(x, tensor_slice(s->rows, 0, n_overlap),
                tensor_slice(s->rows, keep_from - s->first, n_overlap));
    struct tensor fresh = tensor_slice(s->rows, n_overlap, end - s->end);
    s->first = s->end - n_overlap;
    s->end = end;
    return fresh;
}

int32_t strip_row_above(int32_t row) {
    return row ? row - 1 : 0;
}

int32_t strip_reach(int32_t end, int32_t distance, int32_t Y) {
    return end < Y ? end - distance : Y;
}

void strip_convolve(struct context *x, struct tensor out, int32_t first, const struct strip *in,
                    struct tensor weight, struct epilogue epilogue, struct conv_options options) {
    options.first_row = first - in->first * options.upsample;
    op_conv2d(x, out, tensor_slice(in->rows, 0, in->end - in->first), weight, epilogue, options);
}

static const struct conv_options tiny_plain = {.upsample = 1},
                                 tiny_relu = {.upsample = 1, .finish = FINISH_RELU};

struct tiny_block tiny_block_begin(struct context *x, const struct tiny_block_weights *w, struct tensor past,
                                   const int32_t dim[3]) {
    return (struct tiny_block){w,
                               {past, 0, past.rank ? dim[0] : 0},
                               strip_begin(x, dim[0], dim[1], dim[2]),
                               strip_begin(x, dim[0], dim[1], dim[2]),
                               dim[0],
                               0};
}

void tiny_block_hidden(struct context *x, struct tiny_block *b, const struct strip *in, int32_t to) {
    struct epilogue first = {.bias = b->w->conv[0].bias};
    int32_t from1 = b->h1.end, from2 = b->h2.end;
    struct tensor h1 = strip_advance(x, &b->h1, strip_row_above(from2), strip_reach(to, 1, b->Y));
    if (b->past.rows.rank) {
        strip_convolve(x, h1, from1, &b->past, b->w->past, first, tiny_plain);
        first = (struct epilogue){.residual = h1};
    }
    strip_convolve(x, h1, from1, in, b->w->conv[0].weight, first, tiny_relu);
    struct tensor h2 = strip_advance(x, &b->h2, strip_row_above(b->end), strip_reach(to, 2, b->Y));
    strip_convolve(x, h2, from2, &b->h1, b->w->conv[1].weight, (struct epilogue){.bias = b->w->conv[1].bias},
                   tiny_relu);
}

void tiny_block_output(struct context *x, struct tiny_block *b, const struct strip *in, struct tensor out) {
    struct epilogue epilogue = {.bias = b->w->conv[2].bias,
                                .residual = tensor_slice(in->rows, b->end - in->first, out.dim[0])};
    strip_convolve(x, out, b->end, &b->h2, b->w->conv[2].weight, epilogue, tiny_relu);
    b->end += out.dim[0];
}

/* Runs a whole block. `out` may be `in`, because output rows end three rows before the input rows still to be
 * read. */
void tiny_block(struct context *x, const struct tiny_block_weights *w, struct tensor in, struct tensor past,
                struct tensor out) {
    int32_t Y = in.dim[0], band = tiny_band(in.dim[1]);
    struct strip all = {in, 0, Y};
    struct tiny_block b = tiny_block_begin(x, w, past, in.dim);
    for (int32_t to = 0; to < Y;) {
        to = tiny_next_row(to, band, Y);
        tiny_block_hidden(x, &b, &all, to);
        tiny_block_output(x, &b, &all, tensor_slice(out, b.end, strip_reach(to, 3, Y) - b.end));
    }
}
