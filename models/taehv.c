/* TAEHV: tiny video decoder for latents of Wan 2.1 and Qwen-Image (TAEW 2.1) or Wan 2.2's 5B (TAEW 2.2, with
 * 2x2 patches). Frames are close to the full VAE decoder's, not equal. TAEHV needs 1/25 of the
 * multiplications of Wan 2.1's decoder, 1/4 for a single image (calculated from the layer shapes).
 *
 * The latent is clamped with 3 tanh(x / 3). Then: a convolution, three levels of three blocks that also read
 * the previous frame (tiny_blocks.h), each level followed by a 1x1 convolution that turns a frame into one or
 * two frames, and a nearest-neighbour upsampling convolution; last a convolution to RGB in 0 to 1. Input:
 * latents scaled as denoisers use them. Every latent frame yields four frames; of the first latent frame only
 * the last is used. Reference: the authors' formulas, as in test/golden/taehv.py; tensor names: diffusers
 * (AutoencoderTinyVideo) and the authors'.
 *
 * The 1x1 convolution that multiplies frames runs before the upsampling: pixels are the same as after it.
 * Nothing is tiled or blended. Feature maps up to half resolution exist whole; full resolution exists only
 * band by band and as the output frame.
 *
 * A level's frames lie in a circular buffer with an entry for each frame of a chunk and each block's cached
 * frame. A block writes its output for frame k over frame k - 1, which is no longer read, and keeps its last
 * input for the next chunk. Each block's frames therefore lie one entry below the previous block's. A
 * single-frame latent needs no cache: blocks work in place, from the chunk's last frame to its first. */
#include "models/models.h"
#include "models/tiny_blocks.h"
#include "models/vae_full_frame.h"
#include "models/vae_wan_half.h"

#include <ctype.h>
#include <string.h>

/* TAEHV_LEVELS: number of resolution levels with blocks. TAEHV_FACTOR: video frames per latent frame. */
enum { TAEHV_LEVELS = 3, TAEHV_BLOCKS = 3, TAEHV_FACTOR = 4, TAEHV_COLOURS = 3, TAEHV_PATCH_MAX = 2 };
enum { TAEHV_WIDTH_MAX = 8192 };

/* Indices into component.dims. TAEHV_WIDTHS + i: channels of level i; one more entry for full resolution. */
enum taehv_dim {
    TAEHV_LATENT,
    TAEHV_PATCH,  /* patch size: width and height in pixels that one output position holds */
    TAEHV_PIXELS, /* output channels, the values of a patch: 3 * patch size^2 */
    TAEHV_K1,
    TAEHV_K3,
    TAEHV_IN,   /* input channels of one block, set by taehv_block_dims */
    TAEHV_GROW, /* output channels of a level's 1x1 convolution: the channels of one or two frames */
    TAEHV_OUT,  /* channels of the next resolution level, set by taehv_block_dims */
    TAEHV_WIDTHS,
};

struct taehv_state {
    /* Circular frame buffers, [entries, Y, X, C]. With a single-frame latent the levels overlap in memory. */
    struct tensor level[TAEHV_LEVELS];
    bool single_frame;
};

CONV_TABLE(taehv_in_table, TAEHV_WIDTHS, TAEHV_LATENT, TAEHV_K3, "decoder.conv_in", "decoder.1");

/* clang-format off */
/* A block's first convolution reads the current and the previous frame, concatenated by channel. */
#define PART(i)                                                                                              \
    (.rank = 4, .dim = {TAEHV_IN, TAEHV_IN, TAEHV_K3, TAEHV_K3}, .input_parts = 2, .input_part = i,          \
     .init_scale = 1)
#define TINY_BLOCK(X, S)                                                                                     \
    X##WEIGHT(S, conv[0].weight, PART(0), "conv1.weight", "%d.conv.0.weight")                                \
    X##WEIGHT(S, past, PART(1), "conv1.weight", "%d.conv.0.weight")                                          \
    X##BIAS(S, conv[0].bias, TAEHV_IN, "conv1", "%d.conv.0")                                                 \
    X##CONV(S, conv[1], TAEHV_IN, TAEHV_IN, TAEHV_K3, "conv2", "%d.conv.2")                                  \
    X##CONV(S, conv[2], TAEHV_IN, TAEHV_IN, TAEHV_K3, "conv3", "%d.conv.4")
WEIGHT_TABLE(taehv_block_table, TINY_BLOCK, tiny_block_weights,
             "decoder.blocks.%d.mem_blocks.%d.", "decoder.");

/* F: the enclosing member and a dot, such as `up.`; empty if there is none. */
#define UPSAMPLER(X, S, F, level, checkpoint_grow, checkpoint)                                               \
    X##KERNEL(S, F grow, TAEHV_GROW, TAEHV_IN, TAEHV_K1,                                                     \
              "blocks." level ".time_grow", checkpoint_grow ".conv")                                         \
    X##KERNEL(S, F weight, TAEHV_OUT, TAEHV_IN, TAEHV_K3, "blocks." level ".conv_out", checkpoint)
#define UPSAMPLER0(X, S) UPSAMPLER(X, S, , "0", "7", "8")
#define UPSAMPLER1(X, S) UPSAMPLER(X, S, , "1", "13", "14")
struct taehv_up_weights { UPSAMPLER0(FIELD_, ) };
WEIGHT_TABLE(taehv_up0_table, UPSAMPLER0, taehv_up_weights, "decoder.", "decoder.");
WEIGHT_TABLE(taehv_up1_table, UPSAMPLER1, taehv_up_weights, "decoder.", "decoder.");

#define LAST_LEVEL(X, S)                                                                                     \
    UPSAMPLER(X, S, up., "2", "19", "20")                                                                    \
    X##CONV(S, conv, TAEHV_PIXELS, TAEHV_OUT, TAEHV_K3, "conv_out", "22")
struct taehv_out_weights {
    struct taehv_up_weights up;
    struct linear_weights conv;
};
WEIGHT_TABLE(taehv_out_table, LAST_LEVEL, taehv_out_weights, "decoder.", "decoder.");
/* clang-format on */

/* Number of a layer in the TAEHV authors' checkpoints, which count all layers, including those without
 * weights. */
static int taehv_checkpoint_number(int level, int block) {
    return 3 + level * 2 * TAEHV_BLOCKS + block;
}

/* Number of frames at a level per latent frame: 1 at levels 0 and 1, 2 at level 2. */
static int32_t taehv_rate(int level) {
    return level < 2 ? 1 : 2;
}

/* Input frame k of a block is the previous block's output frame k; k -1 is the last frame of the previous
 * chunk. */
static struct tensor taehv_frame(const struct visit_scope *scope, int level, int block, int32_t k) {
    const struct taehv_state *state = scope->lane->state;
    struct tensor ring = state->level[level];
    int32_t n = taehv_rate(level), slot = k;
    if (!state->single_frame)
        slot = (TAEHV_BLOCKS - block + k + n * (scope->chunk % ring.dim[0])) % ring.dim[0];
    return tensor_reshape(tensor_slice(ring, slot, 1), 3, ring.dim + 1);
}

/* First output frame that a block computes. In the first chunk, the last block computes one frame. */
static int32_t taehv_first_needed(const struct visit_scope *scope, int level, int block) {
    bool last = level == TAEHV_LEVELS - 1 && block == TAEHV_BLOCKS - 1;
    return last && !scope->chunk ? taehv_rate(level) - 1 : 0;
}

static void taehv_forward_block(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taehv_state *state = scope->lane->state;
    int level = scope->number / BLOCK_NUMBER_STEP, block = scope->number % BLOCK_NUMBER_STEP;
    int32_t n = taehv_rate(level), first_needed = taehv_first_needed(scope, level, block);
    uint64_t used = x->scratch->used;
    for (int32_t i = 0; i < n; i++, x->scratch->used = used) {
        int32_t k = state->single_frame ? n - 1 - i : i;
        struct tensor past = {0};
        if (k < first_needed) continue;
        if (scope->chunk || k) past = taehv_frame(scope, level, block, k - 1);
        tiny_block(x, weights, taehv_frame(scope, level, block, k), past,
                   taehv_frame(scope, level, block + 1, k));
    }
}

/* Upsamples one of the frames that the 1x1 convolution `grow` makes of `from`, band by band from the top. */
struct taehv_upsampler {
    struct tensor from, grow, weight;
    enum finishing finish;
    struct strip grown;
    int32_t end; /* next output row */
};

static struct taehv_upsampler taehv_upsample_begin(struct context *x, const struct taehv_up_weights *w,
                                                   struct tensor from, int32_t which, enum finishing finish) {
    int32_t C = from.dim[2];
    return (struct taehv_upsampler){from,   tensor_slice(w->grow, which * C, C),         w->weight,
                                    finish, strip_begin(x, from.dim[0], from.dim[1], C), 0};
}

/* End of the output rows computable from input rows before `to`: 2 * to - 1, because the convolution also
 * reads the row below; at the bottom edge 2 * to. */
static int32_t taehv_upsample_reach(const struct taehv_upsampler *d, int32_t to) {
    return strip_reach(2 * to, 1, 2 * d->from.dim[0]);
}

/* Computes output rows up to taehv_upsample_reach(to). `out` may overlap rows of `from` before `to`. */
static void taehv_upsample_rows(struct context *x, struct taehv_upsampler *d, int32_t to, struct tensor out) {
    int32_t first = d->grown.end;
    struct tensor grown = strip_advance(x, &d->grown, d->end / 2, to);
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
        struct taehv_upsampler d = taehv_upsample_begin(
            x, w, taehv_frame(scope, level, TAEHV_BLOCKS, k / each), k % each, FINISH_NONE);
        int32_t Y = d.from.dim[0], band = tiny_band(d.from.dim[1]);
        for (int32_t to = 0; to < Y;) {
            to = tiny_next_row(to, band, Y);
            taehv_upsample_rows(x, &d, to, tensor_slice(out, d.end, taehv_upsample_reach(&d, to) - d.end));
        }
    }
}

static void taehv_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    struct tensor latent = scope->lane->latent;
    int32_t C = latent.dim[0], Y = latent.dim[2], X = latent.dim[3];
    struct tensor frame = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, Y, X});
    struct tensor image = context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, C});
    op_copy(x, tensor_reshape(frame, 2, (int32_t[]){C, Y * X}), latent_frame(latent, scope->chunk));
    op_latent_to_image(x, image, frame, *scope->latent_format);
    op_conv2d(x, taehv_frame(scope, 0, 0, 0), image, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 1, .finish = FINISH_RELU});
}

/* Applies the last convolution to strip rows [first, end), which gives the image rows. */
static void taehv_conv_out(struct context *x, const struct taehv_out_weights *w, struct tensor picture,
                           int32_t first, int32_t end, const struct strip *fine) {
    static const struct patches pixels = {
        .side = TAEHV_PATCH_MAX, .order = PATCH_CHANNELS_FIRST, .pixels = true};
    const struct conv_options colours = {.upsample = 1, .finish = FINISH_TO_SIGNED};
    int32_t X = fine->rows.dim[1], P = w->conv.weight.dim[0], side = P == TAEHV_COLOURS ? 1 : TAEHV_PATCH_MAX;
    struct tensor rows = tensor_slice(picture, side * first, side * (end - first)), to = rows;
    uint64_t used = x->scratch->used;
    if (side > 1) to = context_tensor(x, DTYPE_F32, 3, (int32_t[]){end - first, X, P});
    strip_convolve(x, to, first, fine, w->conv.weight, (struct epilogue){.bias = w->conv.bias}, colours);
    if (side > 1) op_unpatchify(x, rows, tensor_reshape(to, 2, (int32_t[]){(end - first) * X, P}), pixels, 1);
    x->scratch->used = used;
}

/* Decodes one frame from half resolution, one band at a time. */
static void taehv_decode_picture(struct context *x, const struct taehv_out_weights *w,
                                 struct taehv_upsampler d, struct tensor picture) {
    int32_t half = d.from.dim[0], Y = 2 * half, X = 2 * d.from.dim[1], band = tiny_band(X) / 2, done = 0;
    struct strip fine = strip_begin(x, Y, X, w->up.weight.dim[0]);
    for (int32_t to = 0; done < Y;) {
        to = tiny_next_row(to, band, half);
        struct tensor rows = strip_advance(x, &fine, strip_row_above(done), taehv_upsample_reach(&d, to));
        taehv_upsample_rows(x, &d, to, rows);
        int32_t last = strip_reach(fine.end, 1, Y);
        taehv_conv_out(x, w, picture, done, last, &fine);
        done = last;
    }
}

/* Decodes a chunk to four video frames. Of the video's first chunk only the last frame is kept. */
static void taehv_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taehv_out_weights *w = weights;
    struct tensor pictures = scope->lane->picture;
    int32_t each = TAEHV_FACTOR / taehv_rate(TAEHV_LEVELS - 1), dropped = scope->chunk ? 0 : TAEHV_FACTOR - 1;
    uint64_t used = x->scratch->used;
    for (int32_t k = dropped; k < TAEHV_FACTOR; k++, x->scratch->used = used) {
        struct tensor from = taehv_frame(scope, TAEHV_LEVELS - 1, TAEHV_BLOCKS, k / each);
        struct tensor picture = tensor_reshape(tensor_slice(pictures, k - dropped, 1), 3, pictures.dim + 1);
        taehv_decode_picture(x, w, taehv_upsample_begin(x, &w->up, from, k % each, FINISH_RELU), picture);
    }
}

BLOCK(taehv_kind_in, "conv_in", "conv_in", taehv_in_table, linear_weights, taehv_forward_in,
      .never_quantised = true);
BLOCK(taehv_kind_block, "block", "blocks.%d.%d", taehv_block_table, tiny_block_weights, taehv_forward_block,
      .never_quantised = true);
static const struct block_kind taehv_kind_up[TAEHV_LEVELS - 1] = {
    BLOCK_KIND("upsample0", "upsample.%d", taehv_up0_table, taehv_up_weights, taehv_forward_up,
               .never_quantised = true),
    BLOCK_KIND("upsample1", "upsample.%d", taehv_up1_table, taehv_up_weights, taehv_forward_up,
               .never_quantised = true)};
BLOCK(taehv_kind_out, "conv_out", "conv_out", taehv_out_table, taehv_out_weights, taehv_forward_out,
      .never_quantised = true);

static bool taehv_probe(const struct tensor_index *index) {
    return index_find(index, "decoder.blocks.0.mem_blocks.0.conv1.weight") ||
           (index_find(index, "decoder.3.conv.0.weight") && index_find(index, "decoder.7.conv.weight") &&
            index_find(index, "decoder.22.weight"));
}

static enum status taehv_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"decoder.3.skip.", "a tiny video decoder with other channel widths"},
        {"decoder.23.", "a tiny video decoder with more layers"},
        {"decoder.blocks.3.", "a tiny video decoder with more layers"},
        {NULL, NULL}};
    return component_refuse_similar(c, relatives, "TAEW 2.1 or 2.2", e);
}

/* True for LightTAE, which differs from TAEHV only in file name and latent scale (the VAE's). */
static bool taehv_is_lighttae(const struct component *c) {
    static const char word[] = "lighttae";
    const char *path = c->index.sources[0].path, *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t n = 0;
    while (word[n] && tolower((unsigned char)name[n]) == word[n]) n++;
    return !word[n];
}

/* LightTAE reads latents without normalisation, like the full VAE: uses the full VAE's published mean and
 * standard deviation. Other TAEHV weights read normalised latents. */
static void taehv_set_latent_format(struct component *c) {
    const struct setting_list *lists = NULL;
    int32_t n = c->dims[TAEHV_LATENT];
    if (n == VAE_WAN_LATENT) lists = vae_wan_lists;
    if (n == VAE_WAN22_LATENT) lists = vae_wan22_lists;
    if (!lists || !taehv_is_lighttae(c)) return;
    c->latent_format.n = n;
    for (int i = 0; i < n; i++) {
        c->latent_format.shift[i] = lists[0].published[i];
        c->latent_format.scale[i] = 1 / lists[1].published[i];
    }
}

static int32_t taehv_pixels(int32_t side) {
    return TAEHV_COLOURS * side * side;
}

static enum status taehv_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    (void)config;
    taehv_set_latent_format(c);
    d[TAEHV_PATCH] = 1;
    for (int i = 0; i <= TAEHV_LEVELS; i++) {
        if (d[TAEHV_WIDTHS + i] <= TAEHV_WIDTH_MAX) continue;
        return error_set(e, SHAPE,
                         "unsupported tiny video decoder: too many channels" WHERE "%s" FOUND
                         "%d channels" EXPECTED "at most %d channels",
                         c->index.sources[0].path, d[TAEHV_WIDTHS + i], TAEHV_WIDTH_MAX);
    }
    while (d[TAEHV_PATCH] < TAEHV_PATCH_MAX && d[TAEHV_PIXELS] != taehv_pixels(d[TAEHV_PATCH]))
        d[TAEHV_PATCH]++;
    if (d[TAEHV_PIXELS] == taehv_pixels(d[TAEHV_PATCH])) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported tiny video decoder: patch size" WHERE "%s" FOUND
                     "%d output channels" EXPECTED "%d output channels as in TAEW 2.1, or %d as in TAEW 2.2",
                     c->index.sources[0].path, d[TAEHV_PIXELS], taehv_pixels(1), taehv_pixels(2));
}

static void taehv_derive(struct component *c) {
    int32_t *d = c->dims;
    d[TAEHV_K1] = 1;
    d[TAEHV_K3] = 3;
    d[TAEHV_PIXELS] = taehv_pixels(d[TAEHV_PATCH]);
    c->latent_channels = d[TAEHV_LATENT];
    c->pixel_factor = d[TAEHV_PATCH] << TAEHV_LEVELS;
    c->latent_format.limit = TINY_LIMIT;
    if (c->video) c->frame_factor = TAEHV_FACTOR;
}

static int taehv_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    (void)c;
    refs[n++] = (struct block_ref){.kind = &taehv_kind_in};
    for (int level = 0; level < TAEHV_LEVELS; level++) {
        for (int i = 0; i < TAEHV_BLOCKS; i++) {
            int number = level * BLOCK_NUMBER_STEP + i;
            refs[n++] = (struct block_ref){.kind = &taehv_kind_block,
                                           .number = number,
                                           .number_offset = taehv_checkpoint_number(level, i) - number};
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
    dims[TAEHV_GROW] = dims[TAEHV_IN] * (after / taehv_rate(level));
}

/* Places the levels of a single-frame latent, which overlap in memory: level 0 at the front, level 1 at the
 * back, level 2 at the front. Level 2's second frame overwrites input rows already read. */
static void taehv_declare_single_frame(struct taehv_state *state, const int32_t dim[TAEHV_LEVELS][4],
                                       struct arena *pictures, bool *ok) {
    int64_t size[TAEHV_LEVELS], most = 0;
    for (int i = 0; i < TAEHV_LEVELS; i++)
        size[i] = ((int64_t)dim[i][1] * dim[i][2] * dim[i][3] + FULL_FRAME_ROW - 1) / FULL_FRAME_ROW;
    const int64_t wanted[] = {size[0] + size[1], size[1] + size[2], 2 * size[2] + 1};
    for (int i = 0; i < COUNT_OF(wanted); i++)
        if (wanted[i] > most) most = wanted[i];
    if (most > INT32_MAX) *ok = false;
    struct tensor memory = arena_tensor(
        pictures, DTYPE_F32, 2, (int32_t[]){most > INT32_MAX ? 1 : (int32_t)most, FULL_FRAME_ROW}, ok);
    for (int i = 0; i < TAEHV_LEVELS; i++) {
        state->level[i] = tensor_make(memory.data, DTYPE_F32, 4, dim[i]);
        if (i == 1 && memory.data)
            state->level[i].data = (char *)memory.data + (most - size[i]) * memory.row_bytes;
    }
}

static void taehv_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    const int32_t *latent = lanes->latent.dim;
    struct taehv_state first = {.single_frame = latent[1] == 1};
    int32_t dim[TAEHV_LEVELS][4];
    (void)arena;
    for (int i = 0; i < TAEHV_LEVELS; i++) {
        dim[i][0] = taehv_rate(i) + (first.single_frame ? 0 : TAEHV_BLOCKS);
        dim[i][1] = latent[2] << i;
        dim[i][2] = latent[3] << i;
        dim[i][3] = c->dims[TAEHV_WIDTHS + i];
        if (!first.single_frame) first.level[i] = arena_tensor(pictures, DTYPE_F32, 4, dim[i], ok);
    }
    if (first.single_frame) taehv_declare_single_frame(&first, dim, pictures, ok);
    for (int i = 0; i < n_lanes; i++) *(struct taehv_state *)lanes[i].state = first;
}

static const char *const taehv_ignorable[] = {"encoder.", NULL};

#define TAEHV_WIDTH_ROW(i, published_, ...)                                                                  \
    {                                                                                                        \
        "taehv_channels" #i, published_, 1, TAEHV_WIDTH_MAX, .place = TAEHV_WIDTHS + (i),                    \
                                                             OF_TENSOR(4, 0, __VA_ARGS__),                   \
                                                             .key = "decoder_block_out_channels." #i         \
    }
static const struct dimension taehv_dimensions[] = {
    {"latent_channels", 16, 1, 1024, .place = TAEHV_LATENT,
     OF_TENSOR(4, 1, "decoder.conv_in.weight", "decoder.1.weight"), .key = "latent_channels"},
    TAEHV_WIDTH_ROW(0, 256, "decoder.conv_in.weight", "decoder.1.weight"),
    TAEHV_WIDTH_ROW(1, 128, "decoder.blocks.0.conv_out.weight", "decoder.8.weight"),
    TAEHV_WIDTH_ROW(2, 64, "decoder.blocks.1.conv_out.weight", "decoder.14.weight"),
    TAEHV_WIDTH_ROW(3, 64, "decoder.blocks.2.conv_out.weight", "decoder.20.weight"),
    {"taehv_patch", 1, 1, TAEHV_PATCH_MAX, .place = TAEHV_PATCH, .key = "patch_size"},
    {.place = TAEHV_PIXELS, OF_TENSOR(4, 0, "decoder.conv_out.weight", "decoder.22.weight")},
};

const struct family family_taehv = {
    .name = "taehv",
    .kind = FAMILY_TINY_DECODER,
    .display_name = "tiny video decoder",
    /* The class is diffusers'; files of other origin have no config.json. */
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderTinyVideo",
              .probe = taehv_probe,
              .refuse = taehv_refuse,
              .ignorable = taehv_ignorable},
    .config = {.dimensions = taehv_dimensions,
               .n_dimensions = COUNT_OF(taehv_dimensions),
               .configure = taehv_configure,
               .derive = taehv_derive,
               .rest = "\"in_channels\": 3, \"encoder_block_out_channels\": [64, 64, 64], "
                       "\"encoder_time_downscale\": [true, true, false], "
                       "\"decoder_time_upscale\": [false, true, true]"},
    .blocks = {.list = taehv_blocks, .dims = taehv_block_dims},
    .state = {.bytes = sizeof(struct taehv_state), .declare = taehv_declare},
    /* The last level below full resolution. */
    .predicted = {{.kind = "block", .number = 202, .tokens = 512 * 512, PREDICTED_IMAGE}},
};
