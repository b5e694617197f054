/* The tiny decoder of videos (TAEHV): latents of Wan 2.1 and Qwen-Image (TAEW 2.1) or of Wan 2.2's 5B (TAEW
 * 2.2, whose pixels are 2 x 2) to frames, other ones than the large one's, near to them; with a 25th of the
 * multiplications of Wan 2.1's, of a picture alone with a quarter (calculated from both ones' shapes).
 *
 * A limit on the latent, 3 tanh(x / 3), a convolution, then three levels of three blocks, which see the frame
 * before theirs (tiny_blocks.h), each with a 1x1 convolution behind it that makes one or two frames of one
 * and a nearest-neighbour upsampling convolution; last the convolution to colours of 0 to 1. It reads latents
 * as denoisers see them. Of the first frame of the latent, of which as many frames come as of others, the
 * last is the video's first. Reference: the authors' formulas, as test/golden/taehv.py has them; names are
 * diffusers' (AutoencoderTinyVideo) and the authors'.
 *
 * What makes frames of a frame does so before it is upsampled: pixels become the same as behind it. Nothing
 * is tiled or blended. Frames up to half of the resolution are there as a whole; the last resolution is never
 * but as the picture itself.
 *
 * A level's frames lie in a ring of as many rooms as a chunk has frames and its blocks keep. A block writes
 * what it makes of a frame over the one before that, which nobody reads any more, and leaves its last one to
 * itself in the next chunk: so each block's frames lie one room below those of the block before, and those
 * kept above them, in their order. Where the latent has one frame nothing is kept, and the frames of a chunk,
 * the last first, become what blocks make of them in place. */
#include "models/models.h"
#include "models/tiny_blocks.h"
#include "models/vae_canvas.h"
#include "models/vae_wan_half.h"

#include <ctype.h>
#include <string.h>

/* Levels: of blocks. */
enum { TAEHV_LEVELS = 3, TAEHV_BLOCKS = 3, TAEHV_FACTOR = 4, TAEHV_COLOURS = 3, TAEHV_SIDE_MOST = 2 };
enum { TAEHV_WIDTH_MOST = 8192 };

/* WIDTHS + i: of level i; of the resolution behind them there is one more. */
enum taehv_dim {
    TAEHV_LATENT,
    TAEHV_SIDE,   /* of what is one pixel to the last convolution, and */
    TAEHV_PIXELS, /* its values */
    TAEHV_K1,
    TAEHV_K3,
    TAEHV_IN,    /* of one block: what comes, */
    TAEHV_GROWN, /* becomes several frames side by side, */
    TAEHV_OUT,   /* and goes to the next level */
    TAEHV_WIDTHS,
};

/* What latents are of what is read; n 0: the same. */
struct taehv_settings {
    int n;
    float scale[VAE_WAN_LATENT_MAX], shift[VAE_WAN_LATENT_MAX];
};

struct taehv_state {
    /* [rooms, Y, X, C]: frame by frame. Where the latent has one frame, levels lie over each other. */
    struct tensor level[TAEHV_LEVELS];
    bool alone; /* it has */
};

/* ---- weights ---- */

struct taehv_in_weights {
    struct tensor weight, bias;
};

struct taehv_up_weights {
    struct tensor grow, weight;
};

struct taehv_out_weights {
    struct taehv_up_weights up;
    struct tensor weight, bias;
};

#define TAEHV_BIAS(structure, field, name, original, rows)                                                   \
    BLOCK_WEIGHT_ORIGINALLY(structure, field, 1, "decoder." name ".bias", "decoder." original ".bias", 1,    \
                            rows)
#define TAEHV_CONV(structure, field, name, original, rows, inputs, side)                                     \
    BLOCK_WEIGHT_ORIGINALLY(structure, field, 1, "decoder." name ".weight", "decoder." original ".weight",   \
                            4, rows, inputs, side, side)
#define TAEHV_BLOCK "blocks.%d.mem_blocks.%d."
/* A block's first convolution reads two frames, channels side by side. */
#define TAEHV_OF_TWO(field, part)                                                                            \
    {                                                                                                        \
        .offset = offsetof(struct tiny_block_weights, field),                                                \
        .names = {"decoder." TAEHV_BLOCK "conv1.weight"}, .original = "decoder.%d.conv.0.weight", .rank = 4, \
        .dim = {TAEHV_IN, TAEHV_IN, TAEHV_K3, TAEHV_K3}, .input_parts = 2, .input_part = part, .spread = 1   \
    }
#define TAEHV_OF_ONE(i, name, original)                                                                      \
    TAEHV_CONV(tiny_block_weights, conv[i], TAEHV_BLOCK name, original, TAEHV_IN, TAEHV_IN, TAEHV_K3),       \
        TAEHV_BIAS(tiny_block_weights, bias[i], TAEHV_BLOCK name, original, TAEHV_IN)
#define TAEHV_UP(structure, field, level, original_grow, original)                                           \
    TAEHV_CONV(structure, field grow, "blocks." level ".time_grow", original_grow ".conv", TAEHV_GROWN,      \
               TAEHV_IN, TAEHV_K1),                                                                          \
        TAEHV_CONV(structure, field weight, "blocks." level ".conv_out", original, TAEHV_OUT, TAEHV_IN,      \
                   TAEHV_K3)

static const struct weight_spec taehv_in_table[] = {
    TAEHV_CONV(taehv_in_weights, weight, "conv_in", "1", TAEHV_WIDTHS, TAEHV_LATENT, TAEHV_K3),
    TAEHV_BIAS(taehv_in_weights, bias, "conv_in", "1", TAEHV_WIDTHS)};
static const struct weight_spec taehv_block_table[] = {
    TAEHV_OF_TWO(conv[0], 0), TAEHV_OF_TWO(past, 1),
    TAEHV_BIAS(tiny_block_weights, bias[0], TAEHV_BLOCK "conv1", "%d.conv.0", TAEHV_IN),
    TAEHV_OF_ONE(1, "conv2", "%d.conv.2"), TAEHV_OF_ONE(2, "conv3", "%d.conv.4")};
static const struct weight_spec taehv_up0_table[] = {TAEHV_UP(taehv_up_weights, , "0", "7", "8")};
static const struct weight_spec taehv_up1_table[] = {TAEHV_UP(taehv_up_weights, , "1", "13", "14")};
static const struct weight_spec taehv_out_table[] = {
    TAEHV_UP(taehv_out_weights, up., "2", "19", "20"),
    TAEHV_CONV(taehv_out_weights, weight, "conv_out", "22", TAEHV_PIXELS, TAEHV_OUT, TAEHV_K3),
    TAEHV_BIAS(taehv_out_weights, bias, "conv_out", "22", TAEHV_PIXELS)};

/* The authors count layers all in a row, and what has no weights too. */
static int taehv_original(int level, int block) {
    return 3 + level * 2 * TAEHV_BLOCKS + block;
}

/* ---- frames ---- */

/* Frames of a level for each of the latent: the first that are grown stay one, the others become two. */
static int32_t taehv_rate(int level) {
    return level < 2 ? 1 : 2;
}

/* Frame k of a chunk in a level, as block number `block` of it finds it, or as it leaves it: then as the next
 * would; -1: the one before the chunk. */
static struct tensor taehv_frame(const struct visit_scope *scope, int level, int block, int32_t k) {
    const struct taehv_state *state = scope->lane->state;
    struct tensor rooms = state->level[level];
    int32_t n = taehv_rate(level), room = k;
    if (!state->alone) room = (TAEHV_BLOCKS - block + k + n * (scope->chunk % rooms.dim[0])) % rooms.dim[0];
    return tensor_reshape(tensor_slice(rooms, room, 1), 3, rooms.dim + 1);
}

/* The first frame that anybody reads of what a block makes: the first chunk becomes one picture. */
static int32_t taehv_first_seen(const struct visit_scope *scope, int level, int block) {
    bool last = level == TAEHV_LEVELS - 1 && block == TAEHV_BLOCKS - 1;
    return last && !scope->chunk ? taehv_rate(level) - 1 : 0;
}

static void taehv_forward_block(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taehv_state *state = scope->lane->state;
    int level = scope->number / BLOCK_NUMBER_STEP, block = scope->number % BLOCK_NUMBER_STEP;
    int32_t n = taehv_rate(level), seen = taehv_first_seen(scope, level, block);
    uint64_t used = x->scratch->used;
    for (int32_t i = 0; i < n; i++, x->scratch->used = used) {
        int32_t k = state->alone ? n - 1 - i : i;
        struct tensor past = {0};
        if (k < seen) continue;
        if (scope->chunk || k) past = taehv_frame(scope, level, block, k - 1);
        tiny_block(x, weights, taehv_frame(scope, level, block, k), past,
                   taehv_frame(scope, level, block + 1, k));
    }
}

/* ---- from level to level ---- */

/* A picture of twice the size, of one of the frames that a frame grows into, from the top. */
struct taehv_doubling {
    struct tensor from, grow, weight;
    enum finishing finish;
    struct strip grown;
    int32_t end; /* of its rows */
};

static struct taehv_doubling taehv_double(struct context *x, const struct taehv_up_weights *w,
                                          struct tensor from, int32_t which, enum finishing finish) {
    int32_t C = from.dim[2];
    return (struct taehv_doubling){from,   tensor_slice(w->grow, which * C, C),         w->weight,
                                   finish, strip_begin(x, from.dim[0], from.dim[1], C), 0};
}

/* Where it can go when row `to` of what is upsampled follows: its last row sees that. */
static int32_t taehv_double_reach(const struct taehv_doubling *d, int32_t to) {
    return strip_reach(2 * to, 1, 2 * d->from.dim[0]);
}

/* As far as it can go, to the rows of out; out may be written over rows of from before `to`. */
static void taehv_double_rows(struct context *x, struct taehv_doubling *d, int32_t to, struct tensor out) {
    int32_t first = d->grown.end;
    struct tensor grown = strip_go_on(x, &d->grown, d->end / 2, to);
    op_conv2d(x, grown, tensor_slice(d->from, first, to - first), d->grow, (struct epilogue){0},
              (struct conv_options){.upsample = 1});
    strip_convolve(x, out, d->end, &d->grown, d->weight, (struct epilogue){0},
                   (struct conv_options){.upsample = 2, .finish = d->finish});
    d->end += out.dim[0];
}

static void taehv_forward_up(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taehv_up_weights *w = weights;
    int level = scope->number;
    int32_t n = taehv_rate(level + 1), each = n / taehv_rate(level);
    uint64_t used = x->scratch->used;
    for (int32_t k = 0; k < n; k++, x->scratch->used = used) {
        struct tensor out = taehv_frame(scope, level + 1, 0, k);
        struct taehv_doubling d =
            taehv_double(x, w, taehv_frame(scope, level, TAEHV_BLOCKS, k / each), k % each, FINISH_NONE);
        int32_t Y = d.from.dim[0], band = tiny_band(d.from.dim[1]);
        for (int32_t to = 0; to < Y;) {
            to = tiny_next(to, band, Y);
            taehv_double_rows(x, &d, to, tensor_slice(out, d.end, taehv_double_reach(&d, to) - d.end));
        }
    }
}

/* ---- at the ends ---- */

static struct latent_format taehv_format(const struct taehv_settings *settings) {
    struct latent_format format = {.n = 1, .scale = {1}, .shift = {0}};
    if (!settings->n) return format;
    format.n = settings->n;
    memcpy(format.scale, settings->scale, (size_t)settings->n * sizeof *format.scale);
    memcpy(format.shift, settings->shift, (size_t)settings->n * sizeof *format.shift);
    return format;
}

static void taehv_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taehv_in_weights *w = weights;
    struct tensor latent = scope->lane->latent;
    int32_t C = latent.dim[0], Y = latent.dim[2], X = latent.dim[3];
    struct tensor frame = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, Y, X});
    struct tensor image = context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, C});
    op_copy(x, tensor_reshape(frame, 2, (int32_t[]){C, Y * X}), latent_frame(latent, scope->chunk));
    struct latent_format format = taehv_format(scope->settings);
    format.limit = TINY_LIMIT;
    op_latent_to_image(x, image, frame, format);
    op_conv2d(x, taehv_frame(scope, 0, 0, 0), image, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 1, .finish = FINISH_RELU});
}

/* Rows of a picture from row `first` of `fine` on. */
static void taehv_colours(struct context *x, const struct taehv_out_weights *w, struct tensor picture,
                          int32_t first, int32_t end, const struct strip *fine) {
    static const struct patches pixels = {
        .side = TAEHV_SIDE_MOST, .order = PATCH_CHANNELS_FIRST, .pixels = true};
    const struct conv_options colours = {.upsample = 1, .finish = FINISH_OF_UNIT};
    int32_t X = fine->rows.dim[1], P = w->weight.dim[0], side = P == TAEHV_COLOURS ? 1 : TAEHV_SIDE_MOST;
    struct tensor rows = tensor_slice(picture, side * first, side * (end - first)), to = rows;
    uint64_t used = x->scratch->used;
    if (side > 1) to = context_tensor(x, DTYPE_F32, 3, (int32_t[]){end - first, X, P});
    strip_convolve(x, to, first, fine, w->weight, (struct epilogue){.bias = w->bias}, colours);
    if (side > 1) op_unpatchify(x, rows, tensor_reshape(to, 2, (int32_t[]){(end - first) * X, P}), pixels, 1);
    x->scratch->used = used;
}

/* One picture, from half of its resolution, a band at a time. */
static void taehv_picture(struct context *x, const struct taehv_out_weights *w, struct taehv_doubling d,
                          struct tensor picture) {
    int32_t half = d.from.dim[0], Y = 2 * half, X = 2 * d.from.dim[1], band = tiny_band(X) / 2, done = 0;
    struct strip fine = strip_begin(x, Y, X, w->up.weight.dim[0]);
    for (int32_t to = 0; done < Y;) {
        to = tiny_next(to, band, half);
        struct tensor rows = strip_go_on(x, &fine, strip_above(done), taehv_double_reach(&d, to));
        taehv_double_rows(x, &d, to, rows);
        int32_t last = strip_reach(fine.end, 1, Y);
        taehv_colours(x, w, picture, done, last, &fine);
        done = last;
    }
}

/* A chunk's frames grow into as many as a chunk has, of which the first one has the last. */
static void taehv_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taehv_out_weights *w = weights;
    struct tensor pictures = scope->lane->picture;
    int32_t each = TAEHV_FACTOR / taehv_rate(TAEHV_LEVELS - 1), dropped = scope->chunk ? 0 : TAEHV_FACTOR - 1;
    uint64_t used = x->scratch->used;
    for (int32_t k = dropped; k < TAEHV_FACTOR; k++, x->scratch->used = used) {
        struct tensor from = taehv_frame(scope, TAEHV_LEVELS - 1, TAEHV_BLOCKS, k / each);
        struct tensor picture = tensor_reshape(tensor_slice(pictures, k - dropped, 1), 3, pictures.dim + 1);
        taehv_picture(x, w, taehv_double(x, &w->up, from, k % each, FINISH_RELU), picture);
    }
}

/* ---- the family ---- */

static const struct block_kind taehv_kind_in =
    BLOCK_KIND("conv_in", "conv_in", taehv_in_table, taehv_in_weights, taehv_forward_in, .keeps_types = true);
static const struct block_kind taehv_kind_block = BLOCK_KIND(
    "block", "blocks.%d.%d", taehv_block_table, tiny_block_weights, taehv_forward_block, .keeps_types = true);
static const struct block_kind taehv_kind_up[TAEHV_LEVELS - 1] = {
    BLOCK_KIND("upsample0", "upsample.%d", taehv_up0_table, taehv_up_weights, taehv_forward_up,
               .keeps_types = true),
    BLOCK_KIND("upsample1", "upsample.%d", taehv_up1_table, taehv_up_weights, taehv_forward_up,
               .keeps_types = true)};
static const struct block_kind taehv_kind_out = BLOCK_KIND(
    "conv_out", "conv_out", taehv_out_table, taehv_out_weights, taehv_forward_out, .keeps_types = true);

static bool taehv_probe(const struct tensor_index *index) {
    return index_find(index, "decoder.blocks.0.mem_blocks.0.conv1.weight") ||
           (index_find(index, "decoder.3.conv.0.weight") && index_find(index, "decoder.7.conv.weight") &&
            index_find(index, "decoder.22.weight"));
}

static enum status taehv_refuse(const struct component *c, struct error *e) {
    static const struct relative relatives[] = {
        {"decoder.3.skip.", "a tiny decoder of videos of other widths"},
        {"decoder.23.", "a tiny decoder of videos with more layers"},
        {"decoder.blocks.3.", "a tiny decoder of videos with more layers"},
        {NULL, NULL}};
    return component_refuse_relatives(c, relatives, "TAEW 2.1 or 2.2", e);
}

/* LightTAE is made as this one is, but reads what the autoencoder does, before it is scaled. Nothing in its
 * files says so, but their names do: lighttaew2_1.safetensors. */
static bool taehv_is_light(const struct component *c) {
    static const char word[] = "lighttae";
    const char *path = c->index.sources[0].path, *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t n = 0;
    while (word[n] && tolower((unsigned char)name[n]) == word[n]) n++;
    return !word[n];
}

static void taehv_read_settings(struct component *c) {
    struct taehv_settings *s = (struct taehv_settings *)c->settings;
    const struct setting_list *lists = NULL;
    int32_t n = c->dims[TAEHV_LATENT];
    if (n == VAE_WAN_LATENT) lists = vae_wan_lists;
    if (n == VAE_WAN22_LATENT) lists = vae_wan22_lists;
    s->n = lists && taehv_is_light(c) ? n : 0;
    for (int i = 0; i < s->n; i++) {
        s->shift[i] = lists[0].published[i];
        s->scale[i] = 1 / lists[1].published[i];
    }
}

static int32_t taehv_pixels(int32_t side) {
    return TAEHV_COLOURS * side * side;
}

static enum status taehv_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    (void)config;
    taehv_read_settings(c);
    d[TAEHV_SIDE] = 1;
    for (int i = 0; i <= TAEHV_LEVELS; i++) {
        if (d[TAEHV_WIDTHS + i] <= TAEHV_WIDTH_MOST) continue;
        error_set(e, SHAPE, "the tiny decoder's sizes do not fit together");
        error_where(e, "%s", c->index.sources[0].path);
        error_found(e, "%d channels", d[TAEHV_WIDTHS + i]);
        return error_expected(e, "at most %d", TAEHV_WIDTH_MOST);
    }
    while (d[TAEHV_SIDE] < TAEHV_SIDE_MOST && d[TAEHV_PIXELS] != taehv_pixels(d[TAEHV_SIDE])) d[TAEHV_SIDE]++;
    if (d[TAEHV_PIXELS] == taehv_pixels(d[TAEHV_SIDE])) return OK;
    error_set(e, UNSUPPORTED, "this tiny decoder's pixels are of another size");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d values", d[TAEHV_PIXELS]);
    return error_expected(e, "%d, as TAEW 2.1's have, or %d, as TAEW 2.2's", taehv_pixels(1),
                          taehv_pixels(2));
}

static void taehv_derive(struct component *c) {
    int32_t *d = c->dims;
    d[TAEHV_K1] = 1;
    d[TAEHV_K3] = 3;
    d[TAEHV_PIXELS] = taehv_pixels(d[TAEHV_SIDE]);
    c->latent_channels = d[TAEHV_LATENT];
    c->pixel_factor = d[TAEHV_SIDE] << TAEHV_LEVELS;
    c->latent_format = taehv_format((const struct taehv_settings *)c->settings);
    if (c->films) c->frame_factor = TAEHV_FACTOR;
}

static int taehv_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    (void)c;
    refs[n++] = (struct block_ref){.kind = &taehv_kind_in};
    for (int level = 0; level < TAEHV_LEVELS; level++) {
        for (int i = 0; i < TAEHV_BLOCKS; i++) {
            int number = level * BLOCK_NUMBER_STEP + i;
            refs[n++] = (struct block_ref){
                .kind = &taehv_kind_block, .number = number, .original = taehv_original(level, i) - number};
        }
        if (level + 1 < TAEHV_LEVELS)
            refs[n++] = (struct block_ref){.kind = &taehv_kind_up[level], .number = level};
    }
    refs[n++] = (struct block_ref){.kind = &taehv_kind_out};
    return n;
}

static void taehv_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    int level = ref->number;
    (void)c;
    if (ref->kind == &taehv_kind_in) return;
    if (ref->kind == &taehv_kind_block) level /= BLOCK_NUMBER_STEP;
    if (ref->kind == &taehv_kind_out) level = TAEHV_LEVELS - 1;
    int32_t after = level + 1 < TAEHV_LEVELS ? taehv_rate(level + 1) : TAEHV_FACTOR;
    dims[TAEHV_IN] = dims[TAEHV_WIDTHS + level];
    dims[TAEHV_OUT] = dims[TAEHV_WIDTHS + level + 1];
    dims[TAEHV_GROWN] = dims[TAEHV_IN] * (after / taehv_rate(level));
}

/* Of one frame of a latent. Levels lie over each other so that each is written over what is read already: the
 * first at the front, the second at the back, and the frames of the last from the front on, the second of
 * them into what its rows are grown from. */
static void taehv_declare_alone(struct taehv_state *state, const int32_t dim[TAEHV_LEVELS][4],
                                struct arena *pictures, bool *ok) {
    int64_t size[TAEHV_LEVELS], most = 0;
    for (int i = 0; i < TAEHV_LEVELS; i++)
        size[i] = ((int64_t)dim[i][1] * dim[i][2] * dim[i][3] + CANVAS_ROW - 1) / CANVAS_ROW;
    const int64_t wanted[] = {size[0] + size[1], size[1] + size[2], 2 * size[2] + 1};
    for (int i = 0; i < COUNT_OF(wanted); i++)
        if (wanted[i] > most) most = wanted[i];
    if (most > INT32_MAX) *ok = false;
    struct tensor memory = arena_tensor(pictures, DTYPE_F32, 2,
                                        (int32_t[]){most > INT32_MAX ? 1 : (int32_t)most, CANVAS_ROW}, ok);
    for (int i = 0; i < TAEHV_LEVELS; i++) {
        state->level[i] = tensor_make(memory.data, DTYPE_F32, 4, dim[i]);
        if (i == 1 && memory.data)
            state->level[i].data = (char *)memory.data + (most - size[i]) * memory.row_bytes;
    }
}

static void taehv_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    const int32_t *latent = lanes->latent.dim;
    struct taehv_state first = {.alone = latent[1] == 1};
    int32_t dim[TAEHV_LEVELS][4];
    (void)arena;
    for (int i = 0; i < TAEHV_LEVELS; i++) {
        dim[i][0] = taehv_rate(i) + (first.alone ? 0 : TAEHV_BLOCKS);
        dim[i][1] = latent[2] << i;
        dim[i][2] = latent[3] << i;
        dim[i][3] = c->dims[TAEHV_WIDTHS + i];
        if (!first.alone) first.level[i] = arena_tensor(pictures, DTYPE_F32, 4, dim[i], ok);
    }
    if (first.alone) taehv_declare_alone(&first, dim, pictures, ok);
    for (int i = 0; i < n_lanes; i++) *(struct taehv_state *)lanes[i].state = first;
}

static const char *const taehv_ignorable[] = {"encoder.", NULL};

#define TAEHV_WIDTH_ROW(i, published_, ...)                                                                  \
    {                                                                                                        \
        "taehv_channels" #i, published_, 1, TAEHV_WIDTH_MOST, .place = TAEHV_WIDTHS + (i),                   \
                                                              OF_TENSOR(4, 0, __VA_ARGS__),                  \
                                                              .key = "decoder_block_out_channels." #i        \
    }
static const struct dimension taehv_dimensions[] = {
    {"latent_channels", 16, 1, 1024, .place = TAEHV_LATENT,
     OF_TENSOR(4, 1, "decoder.conv_in.weight", "decoder.1.weight"), .key = "latent_channels"},
    TAEHV_WIDTH_ROW(0, 256, "decoder.conv_in.weight", "decoder.1.weight"),
    TAEHV_WIDTH_ROW(1, 128, "decoder.blocks.0.conv_out.weight", "decoder.8.weight"),
    TAEHV_WIDTH_ROW(2, 64, "decoder.blocks.1.conv_out.weight", "decoder.14.weight"),
    TAEHV_WIDTH_ROW(3, 64, "decoder.blocks.2.conv_out.weight", "decoder.20.weight"),
    {"taehv_patch", 1, 1, TAEHV_SIDE_MOST, .place = TAEHV_SIDE, .key = "patch_size"},
    {.place = TAEHV_PIXELS, OF_TENSOR(4, 0, "decoder.conv_out.weight", "decoder.22.weight")},
};

const struct family family_taehv = {
    .name = "taehv",
    .kind = FAMILY_TINY_DECODER,
    .word = "tiny decoder of videos",
    .config_key = "_class_name",
    .config_value = "AutoencoderTinyVideo", /* diffusers'; the authors' files have no configuration */
    .probe = taehv_probe,
    .refuse = taehv_refuse,
    .dimensions = taehv_dimensions,
    .n_dimensions = COUNT_OF(taehv_dimensions),
    .configure = taehv_configure,
    .derive = taehv_derive,
    .blocks = taehv_blocks,
    .config_rest = "\"in_channels\": 3, \"encoder_block_out_channels\": [64, 64, 64], "
                   "\"encoder_time_downscale\": [true, true, false], "
                   "\"decoder_time_upscale\": [false, true, true]",
    .block_dims = taehv_block_dims,
    .ignorable = taehv_ignorable,
    .lane_state_bytes = sizeof(struct taehv_state),
    .declare = taehv_declare,
};
