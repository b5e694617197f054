/* Text projection of LTX-2 and 2.3, a text encoder without tokens of its own. It norms Gemma 3's hidden
 * states (lane.source: token embeddings and outputs of all layers) and projects them to the width of the two
 * connectors. diffusers stores it in the connectors' file.
 *
 * LTX-2 norms each hidden state to 8 (x - mean) / (max - min + eps) over all tokens and channels of the
 * prompt; one projection without bias is the input of both connectors. LTX-2.3 applies an RMS norm without
 * weight to each token's hidden states; video and sound have separate projections with bias, side by side in
 * lane.text, and the product, not the bias, is multiplied by sqrt(columns / HIDDEN).
 *
 * lane.source has its columns in order (state, channel), the weights have their inputs in order (channel,
 * state). A matrix of 188,160 columns has 0.8 to 1.5 GB, so each block holds a part of its rows. Source:
 * diffusers 0.42, pipelines/ltx2/connectors.py. */
#include "engine/run/family.h"
#include "kernels/ops.h"
#include "models/models.h"

#include <math.h>

/* Indices into component.dims. */
enum {
    IN,       /* inputs: HIDDEN * STATES */
    HIDDEN,   /* channels of a hidden state */
    STATES,   /* hidden states: token embeddings and layers */
    VIDEO,    /* outputs for the video's connector */
    AUDIO,    /* outputs for the sound's connector */
    SEPARATE, /* 1: two projections (LTX-2.3) */
    ROWS,     /* rows of a block's weight: one of PARTS equal parts of the matrix */
    PARTS,
};

static const float projection_eps = 1e-6F, projection_range = 8;

struct projection_settings {
    int32_t hidden, states, video; /* dims HIDDEN, STATES, VIDEO */
};

struct projection_state {
    struct tensor statistics; /* mean and factor of each hidden state: [STATES, 2]; rank 0: LTX-2.3 */
};

/* clang-format off */
#define PROJECTION(X, S, name, author)                                                                       \
    X##MATRIX(WITH(S, .row_parts = PARTS), weight, ROWS, IN, name, author)
#define SHARED_PROJECTION(X, S) PROJECTION(X, S, "text_proj_in", "aggregate_embed")
WEIGHT_TABLE(projection_shared_table, SHARED_PROJECTION, linear_weights, "", "");

#define BIASED_PROJECTION(X, S, name, author)                                                                \
    PROJECTION(X, S, name, author)                                                                           \
    X##WEIGHT(WITH(S, .row_parts = PARTS), bias, SHAPED(1, ROWS), name ".bias", author ".bias")
#define VIDEO_PROJECTION(X, S) BIASED_PROJECTION(X, S, "video_text_proj_in", "video_aggregate_embed")
WEIGHT_TABLE(projection_video_table, VIDEO_PROJECTION, linear_weights, "", "");

#define AUDIO_PROJECTION(X, S) BIASED_PROJECTION(X, S, "audio_text_proj_in", "audio_aggregate_embed")
WEIGHT_TABLE(projection_audio_table, AUDIO_PROJECTION, linear_weights, "", "");
/* clang-format on */

/* Reorders the columns of `normed` [rows, IN] from (state, channel) to (channel, state), with op_patchify: a
 * hidden state is a pixel, a token is a patch. If the number of states is a square (49 for Gemma 3), one call
 * handles all rows; else each row is an image of one column. */
static void projection_reorder(struct context *x, struct tensor out, struct tensor normed,
                               const struct projection_settings *s) {
    int32_t rows = out.dim[0], side = (int32_t)lround(sqrt(s->states));
    if (side * side == s->states) {
        struct patches square = {.side = side, .order = PATCH_CHANNELS_FIRST, .pixels = true};
        op_patchify(x, out, tensor_reshape(normed, 3, (int32_t[]){rows * side, side, s->hidden}), square);
        return;
    }
    for (int32_t i = 0; i < rows; i++) {
        struct patches pixel = {.side = 1, .order = PATCH_CHANNELS_FIRST};
        struct tensor from =
            tensor_reshape(tensor_slice(normed, i, 1), 3, (int32_t[]){s->states, 1, s->hidden});
        op_patchify(x, tensor_reshape(tensor_slice(out, i, 1), 2, (int32_t[]){s->hidden, s->states}), from,
                    pixel);
    }
}

/* Computes this block's columns of the projection that starts at column `first` of lane.text. factor: of the
 * product, if there is a bias. Every block norms the rows again, chunk by chunk: a copy of all normed rows
 * would take as much memory as Gemma's output. */
static void projection_forward(struct context *x, const struct linear_weights *w,
                               const struct visit_scope *scope, int32_t first, float factor) {
    enum { CHUNK_ROWS = 64 };
    const struct projection_settings *s = scope->settings;
    const struct projection_state *state = scope->lane->state;
    struct tensor source = scope->lane->source;
    int32_t T = source.dim[0], columns = w->weight.dim[0], chunk = T < CHUNK_ROWS ? T : CHUNK_ROWS;
    int32_t in[] = {chunk, source.dim[1]};
    struct tensor text = tensor_slice_columns(scope->lane->text, first + scope->number * columns, columns);
    struct tensor operands = context_operand(x, 2, in), ordered = context_unrounded(x, operands);
    struct tensor normed = context_tensor(x, DTYPE_F32, 2, in), product = {0};
    if (w->bias.rank) product = context_tensor(x, DTYPE_F32, 2, (int32_t[]){chunk, columns});
    for (int32_t at = 0; at < T; at += chunk) {
        int32_t rows = T - at < chunk ? T - at : chunk;
        struct tensor from = tensor_slice(source, at, rows), n = tensor_slice(normed, 0, rows);
        struct tensor to = tensor_slice(text, at, rows), operand = tensor_slice(operands, 0, rows);
        struct tensor unrounded = tensor_slice(ordered, 0, rows);
        if (state->statistics.rank)
            op_group_norm(x, n, from, (struct group_norm){.statistics = state->statistics});
        else
            op_rms_norm(x, tensor_reshape(n, 2, (int32_t[]){rows * s->states, s->hidden}),
                        tensor_reshape(from, 2, (int32_t[]){rows * s->states, s->hidden}), (struct tensor){0},
                        projection_eps, (struct modulation){0});
        projection_reorder(x, unrounded, n, s);
        if (operand.dtype != unrounded.dtype) op_copy(x, operand, unrounded);
        if (!w->bias.rank) {
            op_linear(x, to, operand, w->weight, (struct epilogue){0});
            continue;
        }
        struct tensor p = tensor_slice(product, 0, rows);
        op_linear(x, p, operand, w->weight, (struct epilogue){0});
        op_broadcast_row(x, to, tensor_reshape(w->bias, 2, (int32_t[]){1, columns}));
        op_add_scaled(x, to, to, p, factor);
    }
}

static void projection_forward_shared(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct projection_settings *s = scope->settings;
    const struct projection_state *state = scope->lane->state;
    struct tensor source = scope->lane->source;
    int32_t image[] = {1, source.dim[0], source.dim[1]};
    if (!scope->number)
        op_group_range(x, state->statistics, tensor_reshape(source, 3, image), s->states, projection_range,
                       projection_eps);
    projection_forward(x, weights, scope, 0, 1);
}

/* Returns the factor of LTX-2.3's products. */
static float projection_factor(int32_t columns, int32_t hidden) {
    return (float)sqrt((double)columns / hidden);
}

static void projection_forward_video(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct projection_settings *s = scope->settings;
    projection_forward(x, weights, scope, 0, projection_factor(s->video, s->hidden));
}

static void projection_forward_audio(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct projection_settings *s = scope->settings;
    int32_t columns = scope->lane->text.dim[1] - s->video;
    projection_forward(x, weights, scope, s->video, projection_factor(columns, s->hidden));
}

BLOCK(projection_kind_shared, "projection", "text_proj_in.%d", projection_shared_table, linear_weights,
      projection_forward_shared);
BLOCK(projection_kind_video, "video projection", "video_text_proj_in.%d", projection_video_table,
      linear_weights, projection_forward_video);
BLOCK(projection_kind_audio, "audio projection", "audio_text_proj_in.%d", projection_audio_table,
      linear_weights, projection_forward_audio);

static bool projection_probe(const struct tensor_index *index) {
    return index_find(index, "text_proj_in.weight") || index_find(index, "aggregate_embed.weight") ||
           index_find(index, "video_text_proj_in.weight") ||
           index_find(index, "video_aggregate_embed.weight");
}

/* Returns the number of parts of a matrix of this many rows: each part has at most about 200 MB in bf16. */
static int32_t projection_parts(const struct component *c, int32_t rows) {
    enum { PARTS_MOST = 8, VALUES_MOST = 100000000 };
    int32_t parts = 1;
    while (parts < PARTS_MOST && rows % (2 * parts) == 0 && (int64_t)rows / parts * c->dims[IN] > VALUES_MOST)
        parts *= 2;
    return parts;
}

static int32_t projection_rows(const struct component *c, const struct block_kind *kind) {
    return c->dims[kind == &projection_kind_audio ? AUDIO : VIDEO];
}

static void projection_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    int32_t rows = projection_rows(c, ref->kind);
    dims[PARTS] = projection_parts(c, rows);
    dims[ROWS] = rows / dims[PARTS];
}

static int projection_list(const struct component *c, const struct block_kind *kind, struct block_ref *refs) {
    int parts = projection_parts(c, projection_rows(c, kind));
    for (int i = 0; i < parts; i++) refs[i] = (struct block_ref){.kind = kind, .number = i};
    return parts;
}

static int projection_blocks(const struct component *c, struct block_ref *refs) {
    if (!c->dims[SEPARATE]) return projection_list(c, &projection_kind_shared, refs);
    int n = projection_list(c, &projection_kind_video, refs);
    return n + projection_list(c, &projection_kind_audio, refs + n);
}

static enum status projection_configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    int hidden = d[IN] % 3840 ? d[IN] : 3840, states = 0; /* 3,840: Gemma 3 12B */
    bool separate = d[SEPARATE];
    config_int(config, "caption_channels", 1, 1 << 20, &hidden, e);
    config_int(config, "text_proj_in_factor", 1, 1 << 20, &states, e);
    config_bool(config, "per_modality_projections", &separate, e);
    d[HIDDEN] = hidden;
    d[STATES] = states ? states : d[IN] / hidden;
    if (e->code != OK) return e->code;
    if (d[STATES] < 2)
        return error_set(e, META,
                         "the text encoder's width is unknown" WHERE "%s" FOUND "%d columns" EXPECTED
                         "a multiple of 3840 as with Gemma 3 12B, or a config.json with 'caption_channels'",
                         c->index.sources[0].path, d[IN]);
    if ((int64_t)hidden * d[STATES] != d[IN])
        return error_set(e, META,
                         "the text projection's input has the wrong size" WHERE "%s" FOUND
                         "%d columns" EXPECTED "%d hidden states of %d channels",
                         c->index.sources[0].path, d[IN], d[STATES], hidden);
    if (separate == (d[SEPARATE] != 0)) return OK;
    return error_set(e, META,
                     "'per_modality_projections' contradicts the text projection's tensors" WHERE "%s",
                     c->index.sources[0].path);
}

static void projection_derive_dims(struct component *c) {
    c->dims[IN] = c->dims[HIDDEN] * c->dims[STATES];
}

static void projection_derive(struct component *c) {
    const int32_t *d = c->dims;
    *(struct projection_settings *)c->settings = (struct projection_settings){d[HIDDEN], d[STATES], d[VIDEO]};
    c->source_columns = d[IN];
    c->text_columns = d[VIDEO] + (d[SEPARATE] ? d[AUDIO] : 0);
}

static void projection_declare(const struct component *c, struct lane *lanes, int n_lanes,
                               struct arena *arena, struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes && !c->dims[SEPARATE]; i++)
        ((struct projection_state *)lanes[i].state)->statistics =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){c->dims[STATES], 2}, ok);
}

#define SHARED_NAMES "text_proj_in.weight", "aggregate_embed.weight"
#define VIDEO_NAMES  "video_text_proj_in.weight", "video_aggregate_embed.weight"
/* Published sizes: LTX-2.3. */
static const struct dimension projection_dimensions[] = {
    {"hidden", 3840, 8, 65536, .place = HIDDEN, .key = "caption_channels"},
    {"text_states", 49, 2, 1024, .place = STATES, .key = "text_proj_in_factor"},
    {"video_text", 4096, 8, 65536, .place = VIDEO, OF_TENSOR(2, 0, VIDEO_NAMES, SHARED_NAMES),
     .key = "video_hidden_dim"},
    {"audio_text", 2048, 8, 65536, .place = AUDIO,
     OF_TENSOR(2, 0, "audio_text_proj_in.weight", "audio_aggregate_embed.weight", SHARED_NAMES),
     .key = "audio_hidden_dim"},
    {"separate_texts", 1, 0, 1, .place = SEPARATE, OF_TENSOR(0, 0, VIDEO_NAMES),
     .key = "per_modality_projections", .form = FORM_BOOL},
    {.place = SEPARATE, .key = "proj_bias", .form = FORM_BOOL},
    {.place = IN, OF_TENSOR(2, 1, VIDEO_NAMES, SHARED_NAMES)},
};

static const struct state_tensor projection_state_tensors[] = {STATE_TENSOR(projection_state, statistics)};

static const char *const projection_names[] = {"text_proj_in.",
                                               "aggregate_embed.",
                                               "video_text_proj_in.",
                                               "video_aggregate_embed.",
                                               "audio_text_proj_in.",
                                               "audio_aggregate_embed.",
                                               NULL};

const struct family family_ltx2_projection = {
    .name = "ltx2_projection",
    .kind = FAMILY_TEXT,
    .display_name = "text projection of LTX-2",
    .files = {.config_key = "_class_name",
              .config_value = "LTX2TextConnectors",
              .probe = projection_probe,
              .names = projection_names},
    .config = {.dimensions = projection_dimensions,
               .n_dimensions = COUNT_OF(projection_dimensions),
               .configure = projection_configure,
               .derive_dims = projection_derive_dims,
               .derive = projection_derive},
    .reads = {.tokens = true},
    .blocks = {.list = projection_blocks, .dims = projection_block_dims},
    .state = {.bytes = sizeof(struct projection_state),
              .tensors = projection_state_tensors,
              .n_tensors = COUNT_OF(projection_state_tensors),
              .declare = projection_declare},
    .predicted =
        {{.kind = "video projection", .alone = true, .tokens = 256, .text_rows = 256, .text_columns = 6144}},
};
