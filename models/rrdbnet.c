/* RRDBNet: the upscalers of ESRGAN and Real-ESRGAN (x4plus, x4plus anime 6B, x2plus) and their many
 * fine-tunes.
 *
 * A convolution to nf channels; blocks of three dense blocks (RRDB); a convolution whose output is added to
 * the first one's; per doubling a nearest-neighbour upsampling convolution; two more convolutions. Dense
 * block: convolution k of five reads the input and the outputs of all earlier ones, gc channels each; out = x
 * + 0.2 c5. RRDB: out = x + 0.2 d3(d2(d1(x))). Leaky ReLU with slope 0.2. Files for scale 2 and 1 read the
 * image in squares of 2 x 2 or 4 x 4 pixels (pixel unshuffle) and still double twice. Sides that are
 * no multiple of the square are reflected at the edge, and the result is cropped. Reference: spandrel 0.4.2
 * (ESRGAN), BasicSR 1.4, basicsr/archs/rrdbnet_arch.py. Tensor names: Real-ESRGAN's (`body.0.rdb1.conv1`),
 * ESRGAN's old ones (`model.1.sub.0.RDB1.conv1.0`), BSRGAN's (`RRDB_trunk.0.RDB1.conv1`).
 *
 * One full-frame feature map of nf channels exists. An RRDB works in place on it: its 15 convolutions follow
 * each other down the image, and the last writes rows that the first no longer reads. The outputs of a dense
 * block lie side by side in the columns of one strip, so nothing is concatenated. The first convolution is
 * repeated at the end, which is cheaper than keeping its output. Higher resolutions exist only band by
 * band. */
#include "models/upscaler.h"

enum rrdb_dim {
    RRDB_WIDTH, /* nf */
    RRDB_BLOCKS,
    RRDB_GROWTH, /* gc */
    RRDB_IN,     /* channels of the first convolution: 3 for each pixel of a square */
    RRDB_SQUARE, /* side of a square of the pixel unshuffle; 1: none */
    RRDB_DOUBLINGS,
    RRDB_COLOURS,
    RRDB_K3,
    RRDB_CAT, /* RRDB_CAT + k: channels that convolution k + 2 of a dense block reads */
};

enum { RRDB_DENSE = 3, RRDB_CONVS = 5, RRDB_DOUBLINGS_MAX = 3, RRDB_SQUARE_MAX = 4 };
static const float rrdb_slope = 0.2f, rrdb_scale = 0.2f;

struct rrdb_state {
    struct tensor features; /* [Y, X, nf] */
    struct tensor pixels;   /* [Y, X, RRDB_IN] squares of the image; rank 0: the image itself is read */
    /* Copy of the first convolution's weights, which the last block runs again. */
    struct linear_weights first;
};

CONV_TABLE(rrdb_in_table, RRDB_WIDTH, RRDB_IN, RRDB_K3, "conv_first", "model.0");

/* clang-format off */
#define DENSE_CONV(X, S, j, k, out, in)                                                                      \
    X##CONV(S, conv[(j) - 1][(k) - 1], out, in, RRDB_K3, "body.%d.rdb" #j ".conv" #k,                        \
            "model.1.sub.%d.RDB" #j ".conv" #k ".0", "RRDB_trunk.%d.RDB" #j ".conv" #k)
#define DENSE(X, S, j)                                                                                       \
    DENSE_CONV(X, S, j, 1, RRDB_GROWTH, RRDB_WIDTH)                                                          \
    DENSE_CONV(X, S, j, 2, RRDB_GROWTH, RRDB_CAT)                                                            \
    DENSE_CONV(X, S, j, 3, RRDB_GROWTH, RRDB_CAT + 1)                                                        \
    DENSE_CONV(X, S, j, 4, RRDB_GROWTH, RRDB_CAT + 2)                                                        \
    DENSE_CONV(X, S, j, 5, RRDB_WIDTH, RRDB_CAT + 3)
#define RRDB(X, S) DENSE(X, S, 1) DENSE(X, S, 2) DENSE(X, S, 3)
struct rrdb_weights { struct linear_weights conv[RRDB_DENSE][RRDB_CONVS]; };
WEIGHT_TABLE(rrdb_table, RRDB, rrdb_weights, "", "");

/* The last convolutions, after n doublings. The authors' old checkpoints number the layers with upsamplings
 * and activations: model.3, model.6 ... for the doublings, then model.3n+2 and model.3n+4. */
#define BODY_CONV(X, S)                                                                                      \
    X##CONV(S, body, RRDB_WIDTH, RRDB_WIDTH, RRDB_K3, "conv_body", "model.1.sub.%d", "trunk_conv")
#define UP_CONV(X, S, i, old)                                                                                \
    X##CONV(S, up[(i) - 1], RRDB_WIDTH, RRDB_WIDTH, RRDB_K3, "conv_up" #i, "model." old, "upconv" #i)
#define LAST_CONVS(X, S, old_hr, old_last)                                                                   \
    X##CONV(S, hr, RRDB_WIDTH, RRDB_WIDTH, RRDB_K3, "conv_hr", "model." old_hr, "HRconv")                    \
    X##CONV(S, last, RRDB_COLOURS, RRDB_WIDTH, RRDB_K3, "conv_last", "model." old_last)
#define OUT0(X, S) BODY_CONV(X, S) LAST_CONVS(X, S, "2", "4")
#define OUT1(X, S) BODY_CONV(X, S) UP_CONV(X, S, 1, "3") LAST_CONVS(X, S, "5", "7")
#define OUT2(X, S) BODY_CONV(X, S) UP_CONV(X, S, 1, "3") UP_CONV(X, S, 2, "6") LAST_CONVS(X, S, "8", "10")
#define OUT3(X, S)                                                                                           \
    BODY_CONV(X, S) UP_CONV(X, S, 1, "3") UP_CONV(X, S, 2, "6") UP_CONV(X, S, 3, "9")                        \
    LAST_CONVS(X, S, "11", "13")
struct rrdb_out_weights { struct linear_weights body, up[RRDB_DOUBLINGS_MAX], hr, last; };
WEIGHT_TABLE(rrdb_out0_table, OUT0, rrdb_out_weights, "", "");
WEIGHT_TABLE(rrdb_out1_table, OUT1, rrdb_out_weights, "", "");
WEIGHT_TABLE(rrdb_out2_table, OUT2, rrdb_out_weights, "", "");
WEIGHT_TABLE(rrdb_out3_table, OUT3, rrdb_out_weights, "", "");
/* clang-format on */

static struct conv_options rrdb_leaky(int upsample) {
    return (struct conv_options){.upsample = upsample, .finish = FINISH_LEAKY_RELU, .slope = rrdb_slope};
}

/* Returns channels [first, first + n) of rows of a feature map, a view. */
static struct tensor rrdb_channels(struct tensor rows, int32_t first, int32_t n) {
    if (rows.data) rows.data = (float *)rows.data + first;
    rows.dim[2] = n;
    return rows;
}

/* ---- the image in squares ---- */

/* Copies n columns of pixels between images of equal height, from column `from` of `in` to column `to` of
 * out.
 */
static void rrdb_copy_columns(struct context *x, struct tensor out, int32_t to, struct tensor in,
                              int32_t from, int32_t n) {
    int32_t C = in.dim[2], Y = in.dim[0];
    struct tensor source = tensor_reshape(in, 2, (int32_t[]){Y, in.dim[1] * C}),
                  target = tensor_reshape(out, 2, (int32_t[]){Y, out.dim[1] * C});
    op_copy(x, tensor_slice_columns(target, to * C, n * C), tensor_slice_columns(source, from * C, n * C));
}

/* Index of the row or column that is reflected at the edge of `size` rows to row i >= size. */
static int32_t rrdb_reflected(int32_t i, int32_t size) {
    int32_t at = 2 * (size - 1) - i;
    return at > 0 ? at : 0;
}

/* Writes the image in squares to state->pixels. The image is extended to whole squares by reflection. */
static void rrdb_unshuffle(struct context *x, const struct rrdb_state *state, struct tensor picture) {
    const int32_t *dim = state->pixels.dim;
    int32_t side = 1, Y = picture.dim[0], X = picture.dim[1], C = picture.dim[2];
    while (C * side * side < dim[2]) side++;
    int32_t whole_dim[3] = {dim[0] * side, dim[1] * side, C};
    struct tensor whole = picture;
    if (whole_dim[0] != Y || whole_dim[1] != X) {
        whole = context_tensor(x, DTYPE_F32, 3, whole_dim);
        rrdb_copy_columns(x, tensor_slice(whole, 0, Y), 0, picture, 0, X);
        for (int32_t i = X; i < whole_dim[1]; i++)
            rrdb_copy_columns(x, tensor_slice(whole, 0, Y), i, picture, rrdb_reflected(i, X), 1);
        for (int32_t i = Y; i < whole_dim[0]; i++)
            op_copy(x, tensor_slice(whole, i, 1), tensor_slice(whole, rrdb_reflected(i, Y), 1));
    }
    op_patchify(x, tensor_reshape(state->pixels, 2, (int32_t[]){dim[0] * dim[1], dim[2]}), whole,
                (struct patches){.side = side, .order = PATCH_CHANNELS_FIRST, .pixels = true});
}

static struct tensor rrdb_pixels(const struct lane *lane) {
    const struct rrdb_state *state = lane->state;
    return state->pixels.rank ? state->pixels : lane_picture(lane);
}

static void rrdb_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct rrdb_state *state = scope->lane->state;
    const int32_t *dim = state->first.weight.dim;
    if (state->pixels.rank) rrdb_unshuffle(x, state, lane_picture(scope->lane));
    int32_t matrix[2] = {dim[0], dim[1] * dim[2] * dim[3]};
    op_copy(x, tensor_reshape(state->first.weight, 2, matrix), tensor_reshape(w->weight, 2, matrix));
    op_copy(x, state->first.bias, w->bias);
    op_conv2d(x, state->features, rrdb_pixels(scope->lane), w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 1});
}

/* ---- dense blocks ---- */

/* Progress of a dense block. The columns of `cat` hold the block's input, then the outputs of convolutions 1
 * to 4. */
struct dense {
    const struct linear_weights *conv; /* [RRDB_CONVS] */
    struct strip cat;                  /* `end`: that of the input's rows */
    int32_t done[RRDB_CONVS + 1];      /* rows of the input and of the outputs of convolutions 1 to 5 */
    int32_t width, growth, Y;
};

/* Returns columns of the computed rows [first, end) of the block's strip. */
static struct tensor dense_rows(const struct dense *d, int32_t first, int32_t end, int32_t column,
                                int32_t n) {
    return rrdb_channels(tensor_slice(d->cat.rows, first - d->cat.first, end - first), column, n);
}

/* Drops the rows of the strip that are no longer read. Returns a view of the input's new rows, up to row
 * `end`, which the caller writes. */
static struct tensor dense_push(struct context *x, struct dense *d, int32_t end) {
    struct tensor rows = strip_advance(x, &d->cat, strip_row_above(d->done[RRDB_CONVS]), end);
    d->done[0] = end;
    return rrdb_channels(rows, 0, d->width);
}

/* Runs convolution k (from 1) for the rows that its inputs allow, into `out`, or into the strip if `out` has
 * rank 0. */
static void dense_convolve(struct context *x, struct dense *d, int k, struct tensor out) {
    const struct linear_weights *w = &d->conv[k - 1];
    int32_t first = d->done[k], end = strip_reach(d->done[0], k, d->Y);
    int32_t channels = d->width + (k - 1) * d->growth;
    struct conv_options options =
        k < RRDB_CONVS ? rrdb_leaky(1) : (struct conv_options){.upsample = 1, .scale = rrdb_scale};
    struct epilogue epilogue = {.bias = w->bias};
    options.first_row = first - d->cat.first;
    if (k == RRDB_CONVS) epilogue.residual = dense_rows(d, first, end, 0, d->width);
    if (!out.rank) out = dense_rows(d, first, end, channels, d->growth);
    op_conv2d(x, out, dense_rows(d, d->cat.first, d->done[k - 1], 0, channels), w->weight, epilogue, options);
    d->done[k] = end;
}

/* Three dense blocks that follow each other down the image, in place. */
static void rrdb_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    enum { LAG = RRDB_DENSE * RRDB_CONVS, LEAST = 2 * LAG + 2 };
    const struct rrdb_weights *w = weights;
    const struct rrdb_state *state = scope->lane->state;
    struct tensor features = state->features;
    int32_t Y = features.dim[0], X = features.dim[1], C = features.dim[2];
    int32_t growth = w->conv[0][0].weight.dim[0], band = upscaler_band(X, LEAST), done = 0;
    struct dense dense[RRDB_DENSE];
    for (int j = 0; j < RRDB_DENSE; j++)
        dense[j] = (struct dense){
            .conv = w->conv[j],
            .cat = upscaler_strip(x, band + (j + 1) * RRDB_CONVS + 2, Y, X, C + (RRDB_CONVS - 1) * growth),
            .width = C,
            .growth = growth,
            .Y = Y};
    struct strip last = upscaler_strip(x, band + LAG, Y, X, C);
    for (int32_t to = 0; done < Y;) {
        int32_t first = to;
        to = tiny_next_row(to, band, Y);
        op_copy(x, dense_push(x, &dense[0], to), tensor_slice(features, first, to - first));
        for (int j = 0; j < RRDB_DENSE; j++) {
            int32_t end = strip_reach(dense[j].done[0], RRDB_CONVS, Y);
            for (int k = 1; k < RRDB_CONVS; k++) dense_convolve(x, &dense[j], k, (struct tensor){0});
            dense_convolve(x, &dense[j], RRDB_CONVS,
                           j + 1 < RRDB_DENSE ? dense_push(x, &dense[j + 1], end)
                                              : tensor_slice(last.rows, 0, end - done));
        }
        int32_t end = dense[RRDB_DENSE - 1].done[RRDB_CONVS];
        struct tensor rows = tensor_slice(features, done, end - done);
        op_add_scaled(x, rows, rows, tensor_slice(last.rows, 0, end - done), rrdb_scale);
        done = end;
    }
}

/* ---- the last convolutions ---- */

/* One convolution of the last block: reads the strip of the layer before, writes its own strip. */
struct rrdb_layer {
    const struct linear_weights *w;
    int upsample;
    int32_t Y;
    struct strip out;
};

/* Lists the convolutions after the trunk with empty strips. Returns their number; the last one's strip holds
 * rows of the enlarged image. band: rows of the features in each step. */
static int rrdb_layers(struct context *x, const struct rrdb_out_weights *w, const int32_t dim[3],
                       int32_t band, struct rrdb_layer layers[RRDB_DOUBLINGS_MAX + 3]) {
    int n = 0;
    int32_t Y = dim[0], X = dim[1], lag = 0;
    layers[n++] = (struct rrdb_layer){.w = &w->body, .upsample = 1};
    for (int i = 0; i < RRDB_DOUBLINGS_MAX && w->up[i].weight.rank; i++)
        layers[n++] = (struct rrdb_layer){.w = &w->up[i], .upsample = 2};
    layers[n++] = (struct rrdb_layer){.w = &w->hr, .upsample = 1};
    layers[n++] = (struct rrdb_layer){.w = &w->last, .upsample = 1};
    for (int i = 0; i < n; i++) {
        enum { KEPT = 4 };
        Y *= layers[i].upsample, X *= layers[i].upsample, band *= layers[i].upsample;
        lag = i ? layers[i].upsample * lag + 1 : 0;
        layers[i].Y = Y;
        layers[i].out = upscaler_strip(x, band + lag + KEPT, Y, X, layers[i].w->weight.dim[0]);
    }
    return n;
}

/* Runs one layer for the rows that the layer before allows, into its strip. next: NULL for the last layer. */
static void rrdb_run_layer(struct context *x, struct rrdb_layer *layer, const struct rrdb_layer *next) {
    const struct rrdb_layer *before = layer - 1;
    int up = layer->upsample;
    int32_t first = layer->out.end;
    int32_t end = before->out.end == before->Y ? layer->Y : up * before->out.end - 1;
    int32_t keep_from = next ? strip_row_above(next->out.end) / next->upsample : first;
    struct conv_options options = rrdb_leaky(up);
    if (!next) options = (struct conv_options){.upsample = 1, .finish = FINISH_TO_SIGNED};
    struct tensor rows = strip_advance(x, &layer->out, keep_from, end);
    strip_convolve(x, rows, first, &before->out, layer->w->weight, (struct epilogue){.bias = layer->w->bias},
                   options);
}

static void rrdb_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    enum { LEAST = 8 };
    const struct rrdb_state *state = scope->lane->state;
    struct tensor picture = upscaler_output(scope->lane);
    struct rrdb_layer layers[RRDB_DOUBLINGS_MAX + 3];
    const struct strip features = {state->features, 0, state->features.dim[0]},
                       pixels = {rrdb_pixels(scope->lane), 0, features.end};
    const struct conv_options plain = {.upsample = 1};
    int32_t times = 1, Y = features.end, band;
    for (int i = 0; i < RRDB_DOUBLINGS_MAX; i++)
        if (((const struct rrdb_out_weights *)weights)->up[i].weight.rank) times *= 2;
    band = upscaler_band(times * state->features.dim[1], LEAST * times) / times;
    int n = rrdb_layers(x, weights, state->features.dim, band, layers);
    struct strip *trunk = &layers[0].out, *image = &layers[n - 1].out;
    for (int32_t to = 0, done = 0; to < Y; done = image->end) {
        int32_t first = to;
        to = tiny_next_row(to, band, Y);
        struct tensor rows =
            strip_advance(x, trunk, strip_row_above(layers[1].out.end) / layers[1].upsample, to);
        strip_convolve(x, rows, first, &pixels, state->first.weight,
                       (struct epilogue){.bias = state->first.bias}, plain);
        strip_convolve(x, rows, first, &features, layers[0].w->weight,
                       (struct epilogue){.bias = layers[0].w->bias, .residual = rows}, plain);
        for (int i = 1; i < n; i++) rrdb_run_layer(x, &layers[i], i + 1 < n ? &layers[i + 1] : NULL);
        int32_t end = image->end < picture.dim[0] ? image->end : picture.dim[0];
        if (end > done)
            rrdb_copy_columns(x, tensor_slice(picture, done, end - done), 0,
                              tensor_slice(image->rows, done - image->first, end - done), 0, picture.dim[1]);
    }
}

#define RRDB_OUT(n)                                                                                          \
    BLOCK_KIND("out" #n, "conv_out", rrdb_out##n##_table, rrdb_out_weights, rrdb_forward_out,                \
               .never_quantised = true)
BLOCK(rrdb_kind_in, "conv_in", "conv_in", rrdb_in_table, linear_weights, rrdb_forward_in,
      .never_quantised = true);
BLOCK(rrdb_kind, "block", "body.%d", rrdb_table, rrdb_weights, rrdb_forward, .never_quantised = true);
static const struct block_kind rrdb_kind_out[RRDB_DOUBLINGS_MAX + 1] = {RRDB_OUT(0), RRDB_OUT(1), RRDB_OUT(2),
                                                                        RRDB_OUT(3)};

/* ---- the family ---- */

static bool rrdb_probe(const struct tensor_index *index) {
    return (index_find(index, "conv_first.weight") &&
            (index_find(index, "body.0.rdb1.conv1.weight") ||
             index_find(index, "RRDB_trunk.0.RDB1.conv1.weight"))) ||
           (index_find(index, "model.0.weight") && (index_find(index, "model.1.sub.0.RDB1.conv1.0.weight") ||
                                                    index_find(index, "model.1.sub.0.RDB1.conv1x1.weight")));
}

static enum status rrdb_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"model.1.sub.0.RDB1.conv1x1.", "ESRGAN+ (dense blocks with 1x1 convolutions)"}, {NULL, NULL}};
    return component_refuse_similar(c, relatives, "ESRGAN or Real-ESRGAN (RRDBNet)", e);
}

static bool rrdb_has(const struct component *c, const char *format, int number) {
    char name[2 * BLOCK_NAME_MAX];
    return index_find(&c->index, block_weight_name(format, number, name)) != NULL;
}

static int32_t rrdb_inputs(int32_t square) {
    return UPSCALER_COLOURS * square * square;
}

static enum status rrdb_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims, in = d[RRDB_IN], n = 0;
    (void)config;
    while (n < RRDB_DOUBLINGS_MAX &&
           (rrdb_has(c, "conv_up%d.weight", n + 1) || rrdb_has(c, "upconv%d.weight", n + 1) ||
            rrdb_has(c, "model.%d.weight", 3 * (n + 1))))
        n++;
    d[RRDB_DOUBLINGS] = n;
    d[RRDB_SQUARE] = 1;
    while (d[RRDB_SQUARE] < RRDB_SQUARE_MAX && rrdb_inputs(d[RRDB_SQUARE]) < in) d[RRDB_SQUARE] *= 2;
    if (rrdb_inputs(d[RRDB_SQUARE]) == in && d[RRDB_SQUARE] <= 1 << n) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported upscaler" WHERE "%s" FOUND "%d input channels and %d doublings" EXPECTED
                     "3 input channels, 12 with at least 1 doubling, or 48 with at least 2",
                     c->index.sources[0].path, in, n);
}

static void rrdb_derive(struct component *c) {
    int32_t *d = c->dims;
    d[RRDB_COLOURS] = UPSCALER_COLOURS;
    d[RRDB_K3] = 3;
    d[RRDB_IN] = rrdb_inputs(d[RRDB_SQUARE]);
    for (int k = 1; k < RRDB_CONVS; k++) d[RRDB_CAT + k - 1] = d[RRDB_WIDTH] + k * d[RRDB_GROWTH];
    c->pixel_factor = (1 << d[RRDB_DOUBLINGS]) / d[RRDB_SQUARE];
}

static int rrdb_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, blocks = c->dims[RRDB_BLOCKS];
    refs[n++] = (struct block_ref){.kind = &rrdb_kind_in};
    for (int i = 0; i < blocks; i++) refs[n++] = (struct block_ref){.kind = &rrdb_kind, .number = i};
    refs[n++] = (struct block_ref){.kind = &rrdb_kind_out[c->dims[RRDB_DOUBLINGS]], .number = blocks};
    return n;
}

static void rrdb_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    const int32_t *d = c->dims, *picture = lanes[0].picture.dim;
    int32_t square = d[RRDB_SQUARE], Y = (picture[1] + square - 1) / square,
            X = (picture[2] + square - 1) / square;
    struct rrdb_state first = {
        .features = arena_tensor(pictures, DTYPE_F32, 3, (int32_t[]){Y, X, d[RRDB_WIDTH]}, ok)};
    if (square > 1) first.pixels = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){Y, X, d[RRDB_IN]}, ok);
    first.first.weight = arena_tensor(arena, DTYPE_F32, 4, (int32_t[]){d[RRDB_WIDTH], d[RRDB_IN], 3, 3}, ok);
    first.first.bias = arena_tensor(arena, DTYPE_F32, 1, &d[RRDB_WIDTH], ok);
    for (int i = 0; i < n_lanes; i++) *(struct rrdb_state *)lanes[i].state = first;
}

static const char *const rrdb_blocks_having[] = {"body.%d.rdb1.conv1.weight",
                                                 "RRDB_trunk.%d.RDB1.conv1.weight",
                                                 "model.1.sub.%d.RDB1.conv1.0.weight", NULL};

static const struct dimension rrdb_dimensions[] = {
    {"rrdb_channels", 64, 1, 1024, .place = RRDB_WIDTH,
     OF_TENSOR(4, 0, "conv_first.weight", "model.0.weight"), .key = "num_feat"},
    {"rrdb_blocks", 23, 1, 256, .place = RRDB_BLOCKS, .having = rrdb_blocks_having, .key = "num_block"},
    {"rrdb_growth", 32, 1, 1024, .place = RRDB_GROWTH,
     OF_TENSOR(4, 0, "body.0.rdb1.conv1.weight", "RRDB_trunk.0.RDB1.conv1.weight",
               "model.1.sub.0.RDB1.conv1.0.weight"),
     .key = "num_grow_ch"},
    {"rrdb_square", 1, 1, RRDB_SQUARE_MAX, .place = RRDB_SQUARE},
    {"rrdb_doublings", 2, 0, RRDB_DOUBLINGS_MAX, .place = RRDB_DOUBLINGS},
    {.place = RRDB_IN, OF_TENSOR(4, 1, "conv_first.weight", "model.0.weight")},
};

const struct family family_rrdbnet = {
    .name = "rrdbnet",
    .kind = FAMILY_UPSCALER,
    .display_name = "upscaler",
    .files = {.config_key = "_class_name",
              .config_value = "RRDBNet",
              .probe = rrdb_probe,
              .refuse = rrdb_refuse},
    .config = {.dimensions = rrdb_dimensions,
               .n_dimensions = COUNT_OF(rrdb_dimensions),
               .configure = rrdb_configure,
               .derive = rrdb_derive},
    .blocks = {.list = rrdb_blocks},
    .state = {.bytes = sizeof(struct rrdb_state), .declare = rrdb_declare},
    .f16_operands = true,
    .predicted = {{.kind = "block", .alone = true, .tokens = 1024 * 1024, .picture_side = 1024}},
};
