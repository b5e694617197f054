/* SRVGGNetCompact: small upscalers (realesr-general-x4v3, realesr-animevideov3). Convolutions with PReLU at
 * the input's resolution; the last one gives r x r pixels for each pixel (pixel shuffle), to which the
 * nearest-neighbour enlargement of the input is added.
 *
 * One full-frame feature map exists. A block of two convolutions works in place on it, band by band: the
 * second convolution writes rows that the first no longer reads. The residual of the last convolution is the
 * input pixel, repeated for each pixel that the shuffle makes of it. Reference: Real-ESRGAN 0.3,
 * realesrgan/archs/srvgg_arch.py (spandrel 0.4.2, Compact); tensor names are the same everywhere. */
#include "models/upscaler.h"

enum srvgg_dim {
    SRVGG_WIDTH,
    SRVGG_CONVS, /* convolutions between the first and the last */
    SRVGG_SCALE,
    SRVGG_OUT, /* channels of the last convolution: 3 scale^2 */
    SRVGG_COLOURS,
    SRVGG_K3,
    SRVGG_PAIR, /* 1: the block has two convolutions; 0: one; set by srvgg_block_dims */
};

enum { SRVGG_SCALE_MAX = 8, SRVGG_CONVS_MAX = 256 };

struct srvgg_state {
    struct tensor features; /* [Y, X, C] */
};

/* Layers are numbered with their activations: body.0 convolution, body.1 PReLU, body.2 convolution ... */
/* clang-format off */
#define PRELU(X, S, field, name) X##WEIGHT(S, field, SHAPED(1, SRVGG_WIDTH), name ".weight")
#define FIRST(X, S)                                                                                          \
    X##CONV(S, conv, SRVGG_WIDTH, SRVGG_COLOURS, SRVGG_K3, "0")                                              \
    PRELU(X, S, slopes, "1")
struct srvgg_in_weights { FIRST(FIELD_, ) };
WEIGHT_TABLE(srvgg_in_table, FIRST, srvgg_in_weights, "body.", "body.");

#define PAIR(X, S)                                                                                           \
    X##CONV(S, conv[0], SRVGG_WIDTH, SRVGG_WIDTH, SRVGG_K3, "%d")                                            \
    PRELU(X, S, slopes[0], "%d+1")                                                                           \
    X##CONV(IF_DIM(S, SRVGG_PAIR), conv[1], SRVGG_WIDTH, SRVGG_WIDTH, SRVGG_K3, "%d+2")                      \
    PRELU(X, IF_DIM(S, SRVGG_PAIR), slopes[1], "%d+3")
struct srvgg_pair_weights {
    struct linear_weights conv[2];
    struct tensor slopes[2];
};
WEIGHT_TABLE(srvgg_pair_table, PAIR, srvgg_pair_weights, "body.", "body.");

CONV_TABLE(srvgg_out_table, SRVGG_OUT, SRVGG_WIDTH, SRVGG_K3, "body.%d");
/* clang-format on */

static struct conv_options srvgg_prelu(struct tensor slopes) {
    return (struct conv_options){.upsample = 1, .finish = FINISH_PRELU, .slopes = slopes};
}

static void srvgg_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct srvgg_in_weights *w = weights;
    const struct srvgg_state *state = scope->lane->state;
    op_conv2d(x, state->features, lane_picture(scope->lane), w->conv.weight,
              (struct epilogue){.bias = w->conv.bias}, srvgg_prelu(w->slopes));
}

/* Two convolutions in place. A single convolution's rows are copied back once no later row reads the input.
 */
static void srvgg_forward_pair(struct context *x, const void *weights, const struct visit_scope *scope) {
    enum { LAG = 2, LEAST = 8 };
    const struct srvgg_pair_weights *w = weights;
    const struct srvgg_state *state = scope->lane->state;
    struct tensor features = state->features;
    int32_t Y = features.dim[0], X = features.dim[1], C = features.dim[2];
    int32_t band = upscaler_band(X, LEAST), done = 0;
    const struct strip in = {features, 0, Y};
    struct strip h = upscaler_strip(x, band + 2 * LAG, Y, X, C);
    for (int32_t to = 0; done < Y;) {
        int32_t first = h.end;
        to = tiny_next_row(to, band, Y);
        struct tensor rows = strip_advance(x, &h, strip_row_above(done), strip_reach(to, 1, Y));
        strip_convolve(x, rows, first, &in, w->conv[0].weight, (struct epilogue){.bias = w->conv[0].bias},
                       srvgg_prelu(w->slopes[0]));
        int32_t end = strip_reach(to, LAG, Y);
        rows = tensor_slice(features, done, end - done);
        if (w->conv[1].weight.rank)
            strip_convolve(x, rows, done, &h, w->conv[1].weight, (struct epilogue){.bias = w->conv[1].bias},
                           srvgg_prelu(w->slopes[1]));
        else
            op_copy(x, rows, tensor_slice(h.rows, done - h.first, end - done));
        done = end;
    }
}

static void srvgg_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    enum { LEAST = 8 };
    const struct linear_weights *w = weights;
    const struct srvgg_state *state = scope->lane->state;
    struct tensor picture = lane_picture(scope->lane), enlarged = upscaler_output(scope->lane);
    int32_t Y = picture.dim[0], X = picture.dim[1], P = w->weight.dim[0], side = enlarged.dim[0] / Y;
    const struct patches shuffle = {.side = side, .order = PATCH_CHANNELS_FIRST, .pixels = true};
    const struct strip in = {state->features, 0, Y};
    uint64_t used = x->scratch->used;
    for (int32_t first = 0, to; first < Y; first = to, x->scratch->used = used) {
        to = tiny_next_row(first, upscaler_band(X, LEAST), Y);
        int32_t dim[3] = {to - first, X, P};
        struct tensor rows = context_tensor(x, DTYPE_F32, 3, dim);
        op_repeat_up(x, rows, tensor_slice(picture, first, to - first), (struct tensor){0},
                     (struct shortcut){.frames = 1, .side = 1});
        strip_convolve(x, rows, first, &in, w->weight, (struct epilogue){.bias = w->bias, .residual = rows},
                       (struct conv_options){.upsample = 1, .finish = FINISH_TO_SIGNED});
        op_unpatchify(x, tensor_slice(enlarged, side * first, side * (to - first)),
                      tensor_reshape(rows, 2, (int32_t[]){(to - first) * X, P}), shuffle, 1);
    }
}

BLOCK(srvgg_kind_in, "conv_in", "conv_in", srvgg_in_table, srvgg_in_weights, srvgg_forward_in,
      .never_quantised = true);
BLOCK(srvgg_kind_pair, "block", "body.%d", srvgg_pair_table, srvgg_pair_weights, srvgg_forward_pair,
      .never_quantised = true);
BLOCK(srvgg_kind_out, "conv_out", "conv_out", srvgg_out_table, linear_weights, srvgg_forward_out,
      .never_quantised = true);

static const struct index_entry *srvgg_layer(const struct tensor_index *index, int number) {
    char name[2 * BLOCK_NAME_MAX];
    return index_find(index, block_weight_name("body.%d.weight", number, name));
}

static bool srvgg_probe(const struct tensor_index *index) {
    const struct index_entry *first = srvgg_layer(index, 0), *slopes = srvgg_layer(index, 1),
                             *next = srvgg_layer(index, 2);
    return first && slopes && next && first->rank == 4 && slopes->rank == 1 && next->rank == 4;
}

static int32_t srvgg_outputs(int32_t scale) {
    return UPSCALER_COLOURS * scale * scale;
}

static enum status srvgg_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims, last = 2;
    (void)config;
    while (last + 2 <= 2 * (SRVGG_CONVS_MAX + 1) && srvgg_layer(&c->index, last + 2)) last += 2;
    d[SRVGG_CONVS] = last / 2 - 1;
    int32_t out =
        component_dim(c, block_weight_name("body.%d.weight", last, (char[2 * BLOCK_NAME_MAX]){0}), 4, 0, e);
    d[SRVGG_SCALE] = 1;
    while (d[SRVGG_SCALE] < SRVGG_SCALE_MAX && srvgg_outputs(d[SRVGG_SCALE]) < out) d[SRVGG_SCALE]++;
    if (e->code != OK || srvgg_outputs(d[SRVGG_SCALE]) == out) return e->code;
    return error_set(e, UNSUPPORTED,
                     "unsupported compact upscaler" WHERE "%s" FOUND "%d output channels" EXPECTED
                     "3 r^2 channels, for a colour image enlarged r times, r up to %d",
                     c->index.sources[0].path, out, SRVGG_SCALE_MAX);
}

static void srvgg_derive(struct component *c) {
    c->dims[SRVGG_OUT] = srvgg_outputs(c->dims[SRVGG_SCALE]);
    c->dims[SRVGG_COLOURS] = UPSCALER_COLOURS;
    c->dims[SRVGG_K3] = 3;
    c->dims[SRVGG_PAIR] = 1;
    c->pixel_factor = c->dims[SRVGG_SCALE];
}

static int srvgg_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, convs = c->dims[SRVGG_CONVS];
    refs[n++] = (struct block_ref){.kind = &srvgg_kind_in};
    for (int i = 1; i <= convs; i += 2) refs[n++] = (struct block_ref){&srvgg_kind_pair, .number = 2 * i};
    refs[n++] = (struct block_ref){&srvgg_kind_out, .number = 2 * (convs + 1)};
    return n;
}

static void srvgg_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    if (ref->kind == &srvgg_kind_pair) dims[SRVGG_PAIR] = ref->number < 2 * c->dims[SRVGG_CONVS];
}

static void srvgg_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    const int32_t *picture = lanes[0].picture.dim;
    int32_t dim[3] = {picture[1], picture[2], c->dims[SRVGG_WIDTH]};
    struct srvgg_state first = {arena_tensor(pictures, DTYPE_F32, 3, dim, ok)};
    (void)arena;
    for (int i = 0; i < n_lanes; i++) *(struct srvgg_state *)lanes[i].state = first;
}

static const struct dimension srvgg_dimensions[] = {
    {"srvgg_channels", 64, 1, 1024, .place = SRVGG_WIDTH, OF_TENSOR(4, 0, "body.0.weight"),
     .key = "num_feat"},
    {"srvgg_convs", 32, 1, SRVGG_CONVS_MAX, .place = SRVGG_CONVS, .key = "num_conv"},
    {"srvgg_scale", 4, 1, SRVGG_SCALE_MAX, .place = SRVGG_SCALE, .key = "upscale"},
};

const struct family family_srvgg = {
    .name = "srvgg",
    .kind = FAMILY_UPSCALER,
    .display_name = "compact upscaler",
    .files = {.config_key = "_class_name", .config_value = "SRVGGNetCompact", .probe = srvgg_probe},
    .config = {.dimensions = srvgg_dimensions,
               .n_dimensions = COUNT_OF(srvgg_dimensions),
               .configure = srvgg_configure,
               .derive = srvgg_derive},
    .blocks = {.list = srvgg_blocks, .dims = srvgg_block_dims},
    .state = {.bytes = sizeof(struct srvgg_state), .declare = srvgg_declare},
    .f16_operands = true,
    .predicted = {{.kind = "block", .number = 2, .alone = true, .tokens = 1024 * 1024, .picture_side = 1024}},
};
