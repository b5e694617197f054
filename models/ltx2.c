/* LTX-2 and 2.3: diffusion transformers over the tokens of a video and of its sound, denoised together.
 *
 * Each layer has the same steps in both streams, with different widths: self-attention, attention to the
 * prompt, attention to the other stream, feed-forward. Networks map the timestep to shifts, scales and gates
 * (adaLN single) that all layers share; each layer adds a learned table. Attention between the streams reads
 * both streams before either changes (the authors' order; ComfyUI's differs). A layer is streamed as four
 * blocks: the video's attention; the sound's attention; attention between the streams and the sound's
 * feed-forward; the video's feed-forward. The largest block of LTX-2.3 in bf16 has 270 MB, a whole layer 790.
 *
 * Tokens. Video: one per latent pixel, frame by frame. Sound: one per latent frame, with values in order
 * (channel, bin). lane.text: columns of the video stream, then of the sound stream. Clean frames (from the
 * input image) are modulated as at timestep 0, except in attention between the streams.
 *
 * Keys and values of the prompt's 1,024 rows are computed in every visit. Caching them would take 1.2 GB per
 * prompt in bf16; in LTX-2.3 they also depend on the timestep.
 *
 * Memory at 1280x704 and 121 frames (14,080 tokens of 4,096 values; 126 tokens of sound): tokens 231 MB for
 * each lane; in a visit keys and values of all tokens, 231 MB with 2-byte operands, and chunks of rows.
 *
 * Reference: diffusers 0.42, models/transformers/transformer_ltx2.py; the authors' names: LTX-2, packages/
 * ltx-core, and diffusers' scripts/convert_ltx2_to_diffusers.py. */
#include "models/ltx2.h"
#include "models/ltx2_stream.h"

/* Networks that map a timestep to a row of shifts, scales and gates (adaLN single). */
enum ltx2_net {
    NET_TIME,
    NET_SOUND_TIME,
    NET_CROSS, /* scales and shifts of attention between the streams */
    NET_SOUND_CROSS,
    NET_GATE, /* gates of attention between the streams */
    NET_SOUND_GATE,
    NET_PROMPT, /* shift and scale of the prompt's rows (LTX-2.3) */
    NET_SOUND_PROMPT,
    N_NETS,
};

struct ltx2_state {
    struct tensor tokens; /* video: [T, DIM] */
    struct tensor sound;  /* [L, SOUND_DIM] */
    /* Modulation of the current layer, one row per range of ltx2_video and ltx2_sound. The layer's attention
     * blocks write it; its other blocks read it. */
    struct tensor layer_modulation;       /* [2, TABLE_DIM] */
    struct tensor layer_sound_modulation; /* [1, SOUND_TABLE_DIM] */
    /* Embedded prompt, shared by the lanes of a prompt; rank 0: LTX-2.3, which reads lane.text. */
    struct tensor text;       /* [text rows, DIM] */
    struct tensor sound_text; /* [text rows, SOUND_DIM] */
    /* Rope tables and rows by timestep, shared by all lanes. There is one row per evaluation if hoisted, else
     * one row. */
    struct tensor rope;                 /* positions of frames, rows, columns: [F + Y + X, pairs / 3, 2] */
    struct tensor sound_rope;           /* [L, SOUND_DIM / 2, 2] */
    struct tensor cross_rope;           /* frames, for attention between the streams: [F, SOUND_DIM / 2, 2] */
    struct tensor cross_sound_rope;     /* the same for the sound: [L, SOUND_DIM / 2, 2] */
    struct tensor condition;            /* time embedding: [rows, DIM] */
    struct tensor sound_condition;      /* [rows, SOUND_DIM] */
    struct tensor modulation;           /* [rows, TABLE_DIM]: shift, scale and gate of self-attention, of the
                                           feed-forward and, in LTX-2.3, of attention to the prompt */
    struct tensor sound_modulation;     /* [rows, SOUND_TABLE_DIM] */
    struct tensor cross;                /* [rows, FOUR_DIM]: scale and shift for attention of the video to the
                                           sound, then of the sound to the video */
    struct tensor sound_cross;          /* [rows, SOUND_FOUR_DIM] */
    struct tensor gate, sound_gate;     /* gates between the streams: [rows, DIM], [rows, SOUND_DIM] */
    struct tensor prompt, sound_prompt; /* LTX-2.3: [rows, TWO_DIM], [rows, SOUND_TWO_DIM] */
    /* Counterparts of condition and modulation for clean frames, at timestep 0; rank 0: no clean frames. */
    struct tensor clean_condition, clean_modulation; /* [1, DIM] and [1, TABLE_DIM] */
};

/* Attention of one stream to itself and to the prompt. */
struct ltx2_stream_weights {
    struct ltx2_attention_weights self, text;
    struct tensor table;        /* added to the timestep's modulation: [TABLE, C] */
    struct tensor prompt_table; /* LTX-2.3: [TWO, C] */
};

/* Attention between the streams, and the sound's feed-forward. */
struct ltx2_cross_weights {
    struct ltx2_attention_weights to_video; /* queries of the video, keys and values of the sound */
    struct ltx2_attention_weights to_sound; /* queries of the sound, keys and values of the video */
    struct tensor table, sound_table; /* scale and shift for to_video, then for to_sound; gate: [5, C] */
    struct linear_weights up, down;
};

struct ltx2_mlp_weights {
    struct linear_weights up, down;
};

struct ltx2_net_weights {
    struct linear_weights in, out, rows; /* timestep embedder; linear layer to shifts, scales and gates */
};

struct ltx2_final_weights {
    struct tensor table, sound_table; /* shift and scale: [TWO, C] */
    struct linear_weights linear, sound_linear;
};

struct ltx2_embedder_weights {
    struct linear_weights video, sound;
};

/* clang-format off */
/* Attention. Queries are computed from rows of `dim` columns, keys and values from rows of `keys` columns;
 * all three have `inner` columns. */
#define ATTENTION(X, S, member, name, dim, keys, inner, heads)                                               \
    X##LINEAR(S, member.q, inner, dim, name ".to_q")                                                         \
    X##VECTOR(S, member.q_norm, inner, name ".norm_q", name ".q_norm")                                       \
    X##LINEAR(S, member.k, inner, keys, name ".to_k")                                                        \
    X##VECTOR(S, member.k_norm, inner, name ".norm_k", name ".k_norm")                                       \
    X##LINEAR(S, member.v, inner, keys, name ".to_v")                                                        \
    X##LINEAR(S, member.out, dim, inner, name ".to_out.0")                                                   \
    X##LINEAR(IF_DIM(S, GATED), member.gates, heads, dim, name ".to_gate_logits")
#define STREAM(X, S, of, dim, heads, vectors)                                                                \
    ATTENTION(X, S, self, of "attn1", dim, dim, dim, heads)                                                  \
    ATTENTION(X, S, text, of "attn2", dim, dim, dim, heads)                                                  \
    X##WEIGHT(S, table, SHAPED(2, vectors, dim), of "scale_shift_table")                                     \
    X##WEIGHT(IF_DIM(S, GATED), prompt_table, SHAPED(2, TWO, dim), of "prompt_scale_shift_table")
#define VIDEO(X, S) STREAM(X, S, "", DIM, HEADS, TABLE)
#define SOUND(X, S) STREAM(X, S, "audio_", SOUND_DIM, SOUND_HEADS, SOUND_TABLE)
#define FEED_FORWARD_OF(X, S, of, dim, wide)                                                                 \
    X##LINEAR(S, up, wide, dim, of "ff.net.0.proj")                                                          \
    X##LINEAR(S, down, dim, wide, of "ff.net.2")
#define CROSS(X, S)                                                                                          \
    ATTENTION(X, S, to_video, "audio_to_video_attn", DIM, SOUND_DIM, SOUND_DIM, SOUND_HEADS)                 \
    ATTENTION(X, S, to_sound, "video_to_audio_attn", SOUND_DIM, DIM, SOUND_DIM, SOUND_HEADS)                 \
    X##WEIGHT(S, table, SHAPED(2, FIVE, DIM), "video_a2v_cross_attn_scale_shift_table",                      \
              "scale_shift_table_a2v_ca_video")                                                              \
    X##WEIGHT(S, sound_table, SHAPED(2, FIVE, SOUND_DIM), "audio_a2v_cross_attn_scale_shift_table",          \
              "scale_shift_table_a2v_ca_audio")                                                              \
    FEED_FORWARD_OF(X, S, "audio_", SOUND_DIM, SOUND_FEED_FORWARD)
#define VIDEO_FEED_FORWARD(X, S) FEED_FORWARD_OF(X, S, "", DIM, FEED_FORWARD)
#define LAYER "transformer_blocks.%d."
WEIGHT_TABLE(ltx2_video_table, VIDEO, ltx2_stream_weights, LAYER, LAYER);
WEIGHT_TABLE(ltx2_sound_table, SOUND, ltx2_stream_weights, LAYER, LAYER);
WEIGHT_TABLE(ltx2_cross_table, CROSS, ltx2_cross_weights, LAYER, LAYER);
WEIGHT_TABLE(ltx2_feed_forward_table, VIDEO_FEED_FORWARD, ltx2_mlp_weights, LAYER, LAYER);

#define NET(X, S, dim, n)                                                                                    \
    X##LINEAR(S, in, dim, FREQUENCIES, "emb.timestep_embedder.linear_1")                                     \
    X##LINEAR(S, out, dim, dim, "emb.timestep_embedder.linear_2")                                            \
    X##LINEAR(S, rows, n, dim, "linear")
#define NET_OF_TIME(X, S)         NET(X, S, DIM, TABLE_DIM)
#define NET_OF_SOUND_TIME(X, S)   NET(X, S, SOUND_DIM, SOUND_TABLE_DIM)
#define NET_OF_CROSS(X, S)        NET(X, S, DIM, FOUR_DIM)
#define NET_OF_SOUND_CROSS(X, S)  NET(X, S, SOUND_DIM, SOUND_FOUR_DIM)
#define NET_OF_GATE(X, S)         NET(X, S, DIM, DIM)
#define NET_OF_SOUND_GATE(X, S)   NET(X, S, SOUND_DIM, SOUND_DIM)
#define NET_OF_PROMPT(X, S)       NET(X, S, DIM, TWO_DIM)
#define NET_OF_SOUND_PROMPT(X, S) NET(X, S, SOUND_DIM, SOUND_TWO_DIM)

/* Embedders of the prompt's rows (LTX-2.0). */
#define TEXT(X, S)                                                                                           \
    X##LINEAR(S, up, DIM, CAPTION, "caption_projection.linear_1")                                            \
    X##LINEAR(S, down, DIM, DIM, "caption_projection.linear_2")
#define SOUND_TEXT(X, S)                                                                                     \
    X##LINEAR(S, up, SOUND_DIM, CAPTION, "audio_caption_projection.linear_1")                                \
    X##LINEAR(S, down, SOUND_DIM, SOUND_DIM, "audio_caption_projection.linear_2")
#define EMBEDDER(X, S)                                                                                       \
    X##LINEAR(S, video, DIM, CHANNELS, "proj_in", "patchify_proj")                                           \
    X##LINEAR(S, sound, SOUND_DIM, SOUND_CHANNELS, "audio_proj_in", "audio_patchify_proj")
#define FINAL(X, S)                                                                                          \
    X##WEIGHT(S, table, SHAPED(2, TWO, DIM), "scale_shift_table")                                            \
    X##LINEAR(S, linear, CHANNELS, DIM, "proj_out")                                                          \
    X##WEIGHT(S, sound_table, SHAPED(2, TWO, SOUND_DIM), "audio_scale_shift_table")                          \
    X##LINEAR(S, sound_linear, SOUND_CHANNELS, SOUND_DIM, "audio_proj_out")
/* clang-format on */

/* ---- blocks of a layer ---- */

/* Returns the prompt's rows as one layer of LTX-2.3 reads them: text (1 + scale) + shift. row: shift and
 * scale of the timestep [1, 2 C]; table: of the layer [2, C], added to it. */
static struct tensor ltx2_modulate_text(struct context *x, struct tensor text, struct tensor row,
                                        struct tensor table) {
    int32_t dim = text.dim[1];
    struct tensor sum = context_tensor(x, DTYPE_F32, 2, row.dim);
    struct tensor out = context_tensor(x, DTYPE_F32, 2, text.dim);
    op_add(x, sum, row, tensor_reshape(table, 2, row.dim));
    op_broadcast_row(x, out, tensor_slice_columns(sum, dim, dim));
    op_glu(x, out, out, text, ACTIVATION_NONE);
    op_add(x, out, out, text);
    op_add(x, out, out, tensor_slice_columns(sum, 0, dim));
    return out;
}

/* True if the layer's self-attention returns its values (spatio-temporal guidance). perturbed_attn false in
 * config.json, as in some LTX-2 folders, disables it, as in diffusers. Without the key it is enabled, as in
 * the authors' programs. */
static bool ltx2_is_stg(const struct visit_scope *scope) {
    const struct ltx2_settings *settings = scope->settings;
    for (int i = 0; i < scope->lane->n_stg_blocks && settings->perturbed; i++)
        if (scope->lane->stg_blocks[i] == scope->number) return true;
    return false;
}

/* Returns the video stream: clean frames and noisy frames are ranges. The modulation has no layer's table
 * yet. */
static struct ltx2_stream ltx2_video(const struct visit_scope *scope) {
    const struct ltx2_settings *settings = scope->settings;
    const struct ltx2_state *state = scope->lane->state;
    const int32_t *grid = scope->lane->latent.dim + 1;
    int32_t T = state->tokens.dim[0], dim = state->tokens.dim[1];
    int32_t clean = T / grid[0] * scope->lane->n_clean_frames;
    struct ltx2_stream s = {
        .tokens = state->tokens,
        .heads = settings->heads,
        .eps = settings->eps,
        .rope = {state->rope,
                 {.heads = settings->heads,
                  .pairs = ROPE_HALVES,
                  .axes = {.n_axes = 3,
                           .extent = {grid[0], grid[1], grid[2]},
                           .n_unrotated = dim / 2 - 3 * state->rope.dim[1]}}},
        .cross_rope = {state->cross_rope,
                       {.heads = settings->heads,
                        .pairs = ROPE_HALVES,
                        .axes = {.n_axes = 1, .extent = {grid[0], grid[1] * grid[2]}}}},
    };
    if (clean)
        s.range[s.n_ranges++] =
            (struct ltx2_range){0, clean, state->clean_condition, state->clean_modulation};
    if (clean < T)
        s.range[s.n_ranges++] = (struct ltx2_range){clean, T - clean, scope_rows(state->condition, scope),
                                                    scope_rows(state->modulation, scope)};
    return s;
}

/* Returns the sound stream, which is one range. */
static struct ltx2_stream ltx2_sound(const struct visit_scope *scope) {
    const struct ltx2_settings *settings = scope->settings;
    const struct ltx2_state *state = scope->lane->state;
    int32_t L = state->sound.dim[0];
    struct rotation rotation = {
        .heads = settings->sound_heads, .pairs = ROPE_HALVES, .axes = {.n_axes = 1, .extent = {L}}};
    struct ltx2_stream s = {
        .tokens = state->sound,
        .heads = settings->sound_heads,
        .eps = settings->eps,
        .rope = {state->sound_rope, rotation},
        .cross_rope = {state->cross_sound_rope, rotation},
        .n_ranges = 1,
        .range = {{0, L, scope_rows(state->sound_condition, scope),
                   scope_rows(state->sound_modulation, scope)}},
    };
    return s;
}

/* Sets each range's modulation to that of the layer: a row of `rows` (state.layer_modulation). table: the
 * layer's, added to the timestep's modulation; absent: an earlier block of the layer has written `rows`. */
static void ltx2_layer_modulation(struct context *x, struct ltx2_stream *s, struct tensor rows,
                                  struct tensor table) {
    for (int i = 0; i < s->n_ranges; i++) {
        struct tensor sum = tensor_slice(rows, i, 1);
        if (table.rank) op_add(x, sum, s->range[i].modulation, tensor_reshape(table, 2, sum.dim));
        s->range[i].modulation = sum;
    }
}

static void ltx2_forward_video(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_stream_weights *w = weights;
    const struct ltx2_state *state = scope->lane->state;
    struct ltx2_stream s = ltx2_video(scope);
    struct tensor text = state->text;
    ltx2_layer_modulation(x, &s, state->layer_modulation, w->table);
    ltx2_attend_self(x, &w->self, &s, ltx2_is_stg(scope));
    if (w->prompt_table.rank)
        text = ltx2_modulate_text(x, tensor_slice_columns(scope->lane->text, 0, s.tokens.dim[1]),
                                  scope_rows(state->prompt, scope), w->prompt_table);
    ltx2_attend_text(x, &w->text, &s, text);
}

static void ltx2_forward_sound(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_stream_weights *w = weights;
    const struct ltx2_state *state = scope->lane->state;
    struct ltx2_stream s = ltx2_sound(scope);
    struct tensor text = state->sound_text, both = scope->lane->text;
    int32_t dim = s.tokens.dim[1];
    ltx2_layer_modulation(x, &s, state->layer_sound_modulation, w->table);
    ltx2_attend_self(x, &w->self, &s, ltx2_is_stg(scope));
    if (w->prompt_table.rank)
        text = ltx2_modulate_text(x, tensor_slice_columns(both, both.dim[1] - dim, dim),
                                  scope_rows(state->sound_prompt, scope), w->prompt_table);
    ltx2_attend_text(x, &w->text, &s, text);
}

/* Returns the modulation of attention between the streams [1, 5 C]: the layer's table plus the timestep's
 * rows. */
static struct tensor ltx2_cross_modulation(struct context *x, struct tensor table, struct tensor rows,
                                           struct tensor gate) {
    int32_t dim = table.dim[1], four[] = {1, CROSS_GATE * dim}, one[] = {1, dim};
    struct tensor sum = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, (CROSS_GATE + 1) * dim});
    op_add(x, tensor_slice_columns(sum, 0, four[1]), rows,
           tensor_reshape(tensor_slice(table, 0, CROSS_GATE), 2, four));
    op_add(x, tensor_slice_columns(sum, four[1], dim), gate,
           tensor_reshape(tensor_slice(table, CROSS_GATE, 1), 2, one));
    return sum;
}

/* Attention of each stream to the other, then the sound's feed-forward. Keys and values of both streams are
 * computed before either changes. Clean frames have the run's timestep here. */
static void ltx2_forward_cross(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_cross_weights *w = weights;
    const struct ltx2_state *state = scope->lane->state;
    struct ltx2_stream video = ltx2_video(scope), sound = ltx2_sound(scope);
    int32_t T = video.tokens.dim[0], L = sound.tokens.dim[0], inner = w->to_video.q.weight.dim[0];
    uint64_t before = x->scratch->used;
    if (!scope->lane->isolated) {
        video.n_ranges = 1;
        video.range[0] = (struct ltx2_range){.rows = T};
        struct tensor of_video = ltx2_cross_modulation(x, w->table, scope_rows(state->cross, scope),
                                                       scope_rows(state->gate, scope));
        struct tensor of_sound = ltx2_cross_modulation(
            x, w->sound_table, scope_rows(state->sound_cross, scope), scope_rows(state->sound_gate, scope));
        struct ltx2_kv sound_kv = ltx2_kv_alloc(x, L, inner, sound.heads);
        ltx2_project_cross(x, &w->to_video, &sound, of_sound, CROSS_TO_VIDEO, &sound_kv);
        uint64_t mark = x->scratch->used;
        struct ltx2_kv video_kv = ltx2_kv_alloc(x, T, inner, sound.heads);
        ltx2_project_cross(x, &w->to_sound, &video, of_video, CROSS_TO_SOUND, &video_kv);
        ltx2_attend_cross(x, &w->to_sound, &sound, of_sound, CROSS_TO_SOUND, &video_kv);
        x->scratch->used = mark;
        ltx2_attend_cross(x, &w->to_video, &video, of_video, CROSS_TO_VIDEO, &sound_kv);
        x->scratch->used = before;
    }
    ltx2_layer_modulation(x, &sound, state->layer_sound_modulation, (struct tensor){0});
    ltx2_feed_forward(x, &w->up, &w->down, &sound);
}

static void ltx2_forward_feed_forward(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct ltx2_mlp_weights *w = weights;
    const struct ltx2_state *state = scope->lane->state;
    struct ltx2_stream s = ltx2_video(scope);
    ltx2_layer_modulation(x, &s, state->layer_modulation, (struct tensor){0});
    ltx2_feed_forward(x, &w->up, &w->down, &s);
}

/* ---- other blocks ---- */

/* Where a network writes in struct ltx2_state: its row, and its time embedding if the final layer reads it
 * (else 0). */
static const struct ltx2_net_output {
    size_t rows, condition;
} ltx2_nets[N_NETS] = {
    [NET_TIME] = {offsetof(struct ltx2_state, modulation), offsetof(struct ltx2_state, condition)},
    [NET_SOUND_TIME] = {offsetof(struct ltx2_state, sound_modulation),
                        offsetof(struct ltx2_state, sound_condition)},
    [NET_CROSS] = {offsetof(struct ltx2_state, cross), 0},
    [NET_SOUND_CROSS] = {offsetof(struct ltx2_state, sound_cross), 0},
    [NET_GATE] = {offsetof(struct ltx2_state, gate), 0},
    [NET_SOUND_GATE] = {offsetof(struct ltx2_state, sound_gate), 0},
    [NET_PROMPT] = {offsetof(struct ltx2_state, prompt), 0},
    [NET_SOUND_PROMPT] = {offsetof(struct ltx2_state, sound_prompt), 0},
};

static struct tensor *ltx2_state_tensor(struct ltx2_state *state, size_t offset) {
    return (struct tensor *)(void *)((char *)state + offset);
}

/* Computes a network for each timestep. rows, condition: outputs, one row per timestep; condition may be
 * absent. scale: factor of the timesteps. */
static void ltx2_embed_times(struct context *x, struct tensor rows, struct tensor condition,
                             const float *times, float scale, const struct ltx2_net_weights *w) {
    int32_t n = rows.dim[0];
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[1]});
    if (!condition.rank) condition = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->out.weight.dim[0]});
    for (int32_t i = 0; i < n; i++) op_timestep(x, tensor_slice(f, i, 1), times[i] * scale, TIMESTEP_USUAL);
    mmdit_embed(x, condition, f, &w->in, &w->out);
    mmdit_modulation(x, rows, condition, &w->rows);
}

/* Computes the rope tables. Coordinates are pixels of the video, and seconds. */
static void ltx2_rope_tables(struct context *x, const struct visit_scope *scope) {
    const struct ltx2_settings *s = scope->settings;
    const struct ltx2_state *state = scope->lane->state;
    const int32_t *grid = scope->lane->latent.dim + 1;
    float cross_size = s->time_size > s->sound_time_size ? s->time_size : s->sound_time_size;
    struct rope_axis time = {s->theta, 8, -7, 1, scope->lane->fps, s->time_size, false};
    struct rope_axis side = {s->theta, 32, 0, 1, 1, s->height_size, false};
    struct rope_axis sound = {s->theta, 4, -3, s->hop, s->sample_rate, s->sound_time_size, false};
    op_rope_axis(x, tensor_slice(state->rope, 0, grid[0]), time);
    op_rope_axis(x, tensor_slice(state->rope, grid[0], grid[1]), side);
    side.size = s->width_size;
    op_rope_axis(x, tensor_slice(state->rope, grid[0] + grid[1], grid[2]), side);
    op_rope_axis(x, state->sound_rope, sound);
    time.size = sound.size = cross_size;
    op_rope_axis(x, state->cross_rope, time);
    op_rope_axis(x, state->cross_sound_rope, sound);
}

/* Computes one network. The block NET_TIME also computes the rope tables, because it runs once for all lanes
 * and can be hoisted, and the modulation of clean frames. */
static void ltx2_forward_net(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_settings *settings = scope->settings;
    const struct ltx2_net_output *output = &ltx2_nets[scope->number];
    struct ltx2_state *state = scope->lane->state;
    static const float clean_time = 0;
    bool gates = scope->number == NET_GATE || scope->number == NET_SOUND_GATE;
    struct tensor condition = {0}, rows = scope_rows(*ltx2_state_tensor(state, output->rows), scope);
    if (output->condition) condition = scope_rows(*ltx2_state_tensor(state, output->condition), scope);
    ltx2_embed_times(x, rows, condition, scope->timesteps, gates ? settings->gate_time_scale / 1000 : 1,
                     weights);
    if (scope->number != NET_TIME) return;
    if (state->clean_condition.rank)
        ltx2_embed_times(x, state->clean_modulation, state->clean_condition, &clean_time, 1, weights);
    ltx2_rope_tables(x, scope);
}

/* Embeds the prompt's rows of one stream (LTX-2.0). */
static void ltx2_embed_text(struct context *x, struct tensor out, struct tensor text,
                            const struct ltx2_mlp_weights *w) {
    struct tensor h = context_operand(x, 2, out.dim);
    op_linear(x, h, text, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_TANH});
    mmdit_linear(x, out, h, &w->down);
}

static void ltx2_forward_text(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_mlp_weights *w = weights;
    const struct ltx2_state *state = scope->lane->state;
    ltx2_embed_text(x, state->text, tensor_slice_columns(scope->lane->text, 0, w->up.weight.dim[1]), w);
}

static void ltx2_forward_sound_text(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_mlp_weights *w = weights;
    const struct ltx2_state *state = scope->lane->state;
    int32_t columns = w->up.weight.dim[1];
    ltx2_embed_text(x, state->sound_text, tensor_slice_columns(scope->lane->text, columns, columns), w);
}

/* Returns one channel [L, B] of a sound latent [C, 1, L, B]. */
static struct tensor ltx2_sound_channel(struct tensor sound, int32_t channel) {
    return tensor_reshape(tensor_slice(sound, channel, 1), 2, sound.dim + 2);
}

static const struct patches ltx2_pixel = {.side = 1, .order = PATCH_CHANNELS_FIRST};

static void ltx2_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_embedder_weights *w = weights;
    const struct ltx2_state *state = scope->lane->state;
    struct tensor sound = scope->lane->sound;
    int32_t bins = sound.dim[3];
    struct tensor pixels =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){state->tokens.dim[0], w->video.weight.dim[1]});
    struct tensor sound_tokens =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){state->sound.dim[0], w->sound.weight.dim[1]});
    op_patchify(x, pixels, latent_planes(scope->lane->latent), ltx2_pixel);
    mmdit_linear(x, state->tokens, pixels, &w->video);
    for (int32_t c = 0; c < sound.dim[0]; c++)
        op_copy(x, tensor_slice_columns(sound_tokens, c * bins, bins), ltx2_sound_channel(sound, c));
    mmdit_linear(x, state->sound, sound_tokens, &w->sound);
}

/* Predicts the velocity of flow matching, noise - data, of both latents. */
static void ltx2_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_final_weights *w = weights;
    struct ltx2_stream video = ltx2_video(scope), sound = ltx2_sound(scope);
    struct tensor predicted = scope->lane->sound_prediction;
    int32_t bins = predicted.dim[3];
    op_unpatchify(x, latent_planes(scope->lane->prediction), ltx2_predict(x, &video, w->table, &w->linear),
                  ltx2_pixel, 1);
    struct tensor sound_tokens = ltx2_predict(x, &sound, w->sound_table, &w->sound_linear);
    for (int32_t c = 0; c < predicted.dim[0]; c++)
        op_copy(x, ltx2_sound_channel(predicted, c), tensor_slice_columns(sound_tokens, c * bins, bins));
}

#define NET_KIND(kind, name, checkpoint, LIST)                                                               \
    BLOCK_OF_LIST(kind, name, name, LIST, ltx2_net_weights, name ".", checkpoint ".", ltx2_forward_net,      \
                  .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true)
/* clang-format off */
NET_KIND(ltx2_kind_time, "time_embed", "adaln_single", NET_OF_TIME);
NET_KIND(ltx2_kind_sound_time, "audio_time_embed", "audio_adaln_single", NET_OF_SOUND_TIME);
NET_KIND(ltx2_kind_net_cross, "av_cross_attn_video_scale_shift", "av_ca_video_scale_shift_adaln_single",
         NET_OF_CROSS);
NET_KIND(ltx2_kind_net_sound_cross, "av_cross_attn_audio_scale_shift", "av_ca_audio_scale_shift_adaln_single",
         NET_OF_SOUND_CROSS);
NET_KIND(ltx2_kind_net_gate, "av_cross_attn_video_a2v_gate", "av_ca_a2v_gate_adaln_single", NET_OF_GATE);
NET_KIND(ltx2_kind_net_sound_gate, "av_cross_attn_audio_v2a_gate", "av_ca_v2a_gate_adaln_single",
         NET_OF_SOUND_GATE);
NET_KIND(ltx2_kind_net_prompt, "prompt_adaln", "prompt_adaln_single", NET_OF_PROMPT);
NET_KIND(ltx2_kind_net_sound_prompt, "audio_prompt_adaln", "audio_prompt_adaln_single", NET_OF_SOUND_PROMPT);
static const struct block_kind *const ltx2_net_kinds[N_NETS] = {
    [NET_TIME] = &ltx2_kind_time, [NET_SOUND_TIME] = &ltx2_kind_sound_time,
    [NET_CROSS] = &ltx2_kind_net_cross, [NET_SOUND_CROSS] = &ltx2_kind_net_sound_cross,
    [NET_GATE] = &ltx2_kind_net_gate, [NET_SOUND_GATE] = &ltx2_kind_net_sound_gate,
    [NET_PROMPT] = &ltx2_kind_net_prompt, [NET_SOUND_PROMPT] = &ltx2_kind_net_sound_prompt};
BLOCK_OF_LIST(ltx2_kind_text, "text", "caption_projection", TEXT, ltx2_mlp_weights, "", "", ltx2_forward_text,
              .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK_OF_LIST(ltx2_kind_sound_text, "sound_text", "audio_caption_projection", SOUND_TEXT, ltx2_mlp_weights,
              "", "", ltx2_forward_sound_text, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK_OF_LIST(ltx2_kind_embedder, "embedder", "proj_in", EMBEDDER, ltx2_embedder_weights, "", "",
              ltx2_forward_embedder, .never_quantised = true);
BLOCK_OF_LIST(ltx2_kind_final, "final", "proj_out", FINAL, ltx2_final_weights, "", "", ltx2_forward_final,
              .never_quantised = true);
/* clang-format on */
BLOCK(ltx2_kind_video, "video", LAYER "video", ltx2_video_table, ltx2_stream_weights, ltx2_forward_video,
      .perturbable = true);
BLOCK(ltx2_kind_sound, "sound", LAYER "sound", ltx2_sound_table, ltx2_stream_weights, ltx2_forward_sound,
      .perturbable = true);
BLOCK(ltx2_kind_cross, "cross", LAYER "cross", ltx2_cross_table, ltx2_cross_weights, ltx2_forward_cross);
BLOCK(ltx2_kind_feed_forward, "feed_forward", LAYER "feed_forward", ltx2_feed_forward_table, ltx2_mlp_weights,
      ltx2_forward_feed_forward);

/* True for LTX-2 and 2.3, and for LTX-2.5 and LTX-Video 0.9 (without sound), which ltx2_refuse rejects by
 * name. */
static bool ltx2_probe(const struct tensor_index *index) {
    bool silent =
        (index_find(index, "patchify_proj.weight") && index_find(index, "adaln_single.linear.weight")) ||
        (index_find(index, "proj_in.weight") && index_find(index, "time_embed.linear.weight") &&
         index_find(index, "caption_projection.linear_1.weight"));
    return ltx2_has_sound(index) || silent;
}

static int ltx2_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, nets = c->dims[GATED] ? N_NETS : NET_PROMPT;
    for (int i = 0; i < nets; i++) refs[n++] = (struct block_ref){.kind = ltx2_net_kinds[i], .number = i};
    if (c->dims[CAPTION]) {
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_text};
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_sound_text};
    }
    refs[n++] = (struct block_ref){.kind = &ltx2_kind_embedder};
    for (int i = 0; i < c->dims[LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_video, .number = i};
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_sound, .number = i};
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_cross, .number = i};
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_feed_forward, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &ltx2_kind_final};
    return n;
}

static struct tensor ltx2_rows_tensor(struct arena *arena, int32_t rows, int32_t columns, bool *ok) {
    return arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, columns}, ok);
}

/* Declares the tensors that all lanes share: rope tables and rows by timestep. */
static void ltx2_declare_shared(const struct component *c, const struct lane *lane, struct arena *arena,
                                bool *ok) {
    static const int columns[N_NETS] = {TABLE_DIM, SOUND_TABLE_DIM, FOUR_DIM, SOUND_FOUR_DIM,
                                        DIM,       SOUND_DIM,       TWO_DIM,  SOUND_TWO_DIM};
    struct ltx2_state *s = lane->state;
    const int32_t *d = c->dims, *grid = lane->latent.dim + 1;
    int32_t rows = lane->hoisted ? lane->hoisted : 1, L = lane->sound.dim[2], pairs = d[SOUND_DIM] / 2;
    for (int i = 0; i < (d[GATED] ? N_NETS : NET_PROMPT); i++)
        *ltx2_state_tensor(s, ltx2_nets[i].rows) = ltx2_rows_tensor(arena, rows, d[columns[i]], ok);
    s->condition = ltx2_rows_tensor(arena, rows, d[DIM], ok);
    s->sound_condition = ltx2_rows_tensor(arena, rows, d[SOUND_DIM], ok);
    s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){grid[0] + grid[1] + grid[2], d[DIM] / 6, 2}, ok);
    s->sound_rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){L, pairs, 2}, ok);
    s->cross_rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){grid[0], pairs, 2}, ok);
    s->cross_sound_rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){L, pairs, 2}, ok);
    if (!lane->n_clean_frames) return;
    s->clean_condition = ltx2_rows_tensor(arena, 1, d[DIM], ok);
    s->clean_modulation = ltx2_rows_tensor(arena, 1, d[TABLE_DIM], ok);
}

static void ltx2_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    const int32_t *d = c->dims;
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct ltx2_state *s = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        if (i)
            *s = *(const struct ltx2_state *)lanes[first == i ? 0 : first].state;
        else
            ltx2_declare_shared(c, &lanes[0], arena, ok);
        s->tokens = ltx2_rows_tensor(arena, mmdit_token_count(lanes[i].latent, 1), d[DIM], ok);
        s->sound = ltx2_rows_tensor(arena, lanes[i].sound.dim[2], d[SOUND_DIM], ok);
        s->layer_modulation = ltx2_rows_tensor(arena, LTX2_RANGES, d[TABLE_DIM], ok);
        s->layer_sound_modulation = ltx2_rows_tensor(arena, 1, d[SOUND_TABLE_DIM], ok);
        if (first != i || !d[CAPTION]) continue;
        s->text = ltx2_rows_tensor(arena, lanes[i].text.dim[0], d[DIM], ok);
        s->sound_text = ltx2_rows_tensor(arena, lanes[i].text.dim[0], d[SOUND_DIM], ok);
    }
}

/* Rejects a sound latent with another number of values per latent frame than the weights have. */
static enum status ltx2_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                                    struct error *e) {
    struct tensor sound = lanes[0].sound;
    (void)n_lanes;
    if (sound.rank == 4 && sound.dim[0] * sound.dim[3] == c->dims[SOUND_CHANNELS]) return OK;
    return error_set(e, SHAPE,
                     "the transformer does not fit the audio VAE's latent" WHERE "%s" FOUND
                     "%d channels of %d bins" EXPECTED "%d values (channels times bins)",
                     c->index.n_sources ? c->index.sources[0].path : c->family->name,
                     sound.rank ? sound.dim[0] : 0, sound.rank ? sound.dim[3] : 0, c->dims[SOUND_CHANNELS]);
}

/* Weights of the text connectors, which the authors store in the transformer's file. */
static const char *const ltx2_ignorable[] = {"video_embeddings_connector.", "audio_embeddings_connector.",
                                             NULL};
static const char *const ltx2_architectures[] = {"ltxv", "ltx2", NULL};
static const char *const ltx2_others[] = {"AVTransformer3DModel", NULL};

static const struct state_tensor ltx2_state_tensors[] = {STATE_TENSOR(ltx2_state, tokens),
                                                         STATE_TENSOR(ltx2_state, sound),
                                                         STATE_TENSOR(ltx2_state, text),
                                                         STATE_TENSOR(ltx2_state, sound_text),
                                                         STATE_TENSOR(ltx2_state, rope),
                                                         STATE_TENSOR(ltx2_state, sound_rope),
                                                         STATE_TENSOR(ltx2_state, cross_rope),
                                                         STATE_TENSOR(ltx2_state, cross_sound_rope),
                                                         STATE_TENSOR(ltx2_state, condition),
                                                         STATE_TENSOR(ltx2_state, sound_condition),
                                                         STATE_TENSOR(ltx2_state, modulation),
                                                         STATE_TENSOR(ltx2_state, sound_modulation),
                                                         STATE_TENSOR(ltx2_state, cross),
                                                         STATE_TENSOR(ltx2_state, sound_cross),
                                                         STATE_TENSOR(ltx2_state, gate),
                                                         STATE_TENSOR(ltx2_state, sound_gate),
                                                         STATE_TENSOR(ltx2_state, prompt),
                                                         STATE_TENSOR(ltx2_state, sound_prompt),
                                                         STATE_TENSOR(ltx2_state, clean_condition),
                                                         STATE_TENSOR(ltx2_state, clean_modulation),
                                                         STATE_TENSOR(ltx2_state, layer_modulation),
                                                         STATE_TENSOR(ltx2_state, layer_sound_modulation)};

/* 121 frames of 1280 x 704. */
#define PREDICTED_VIDEO                                                                                      \
    .alone = true, .tokens = 16 * 22 * 40, .text_rows = 1024, .text_columns = 7680, .latent_channels = 128,  \
    .latent_frames = 16, .latent_side = 22, .latent_columns = 40, .sound = {8, 126, 16}

const struct family family_ltx2 = {
    .name = "ltx2",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = ltx2_architectures,
              .config_key = "_class_name",
              .config_value = "LTX2VideoTransformer3DModel",
              .config_others = ltx2_others,
              .probe = ltx2_probe,
              .refuse = ltx2_refuse,
              .ignorable = ltx2_ignorable},
    .config = {.dimensions = ltx2_dimensions,
               .n_dimensions = N_LTX2_DIMENSIONS,
               .settings = ltx2_settings_rows,
               .n_settings = N_LTX2_SETTINGS,
               .expects = ltx2_expects,
               .configure = ltx2_configure,
               .derive_dims = ltx2_derive_dims,
               .derive = ltx2_derive},
    .blocks = {.list = ltx2_blocks},
    .state = {.bytes = sizeof(struct ltx2_state),
              .tensors = ltx2_state_tensors,
              .n_tensors = COUNT_OF(ltx2_state_tensors),
              .declare = ltx2_declare},
    .lanes = {.check = ltx2_check_lanes},
    .predicted = {{.kind = "video", PREDICTED_VIDEO}, {.kind = "feed_forward", PREDICTED_VIDEO}},
};
