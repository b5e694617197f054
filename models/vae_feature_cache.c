/* State of causal video VAEs: sizes of the chunk buffer and of the feature caches. See vae_causal.h. */
#include "models/vae_causal.h"

int causal_frame_rate(const struct component *c, int from_deepest) {
    int most = c->dims[LEVELS] > 2 ? c->dims[LEVELS] - 2 : 0;
    return 1 << (from_deepest < most ? from_deepest : most);
}

/* Declares a buffer of `rows` rows. Sets *ok to false for more than 2^31 - 1 rows, which no published model
 * needs. */
static struct tensor causal_rows_tensor(struct arena *arena, int64_t rows, bool *ok) {
    if (rows > INT32_MAX) *ok = false;
    return arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows > INT32_MAX ? 1 : (int32_t)rows, CAUSAL_ROW},
                        ok);
}

struct causal_level {
    int32_t n, Y, X, in_channels, channels;
    int resnets;
};

static int64_t causal_frame_values(const struct causal_level *l, int32_t channels) {
    return (int64_t)l->Y * l->X * channels;
}

/* Sizes of the block outputs that pass through the chunk buffer one after another. */
struct causal_outputs {
    int n;
    struct {
        int32_t frames;
        int64_t size; /* floats per frame */
    } output[2 * VAE_LEVELS_MAX + 1];
};

static struct causal_outputs causal_list_outputs(const struct causal_level *levels, int n) {
    struct causal_outputs p = {0};
    for (int i = 0; i < n; i++) {
        const struct causal_level *l = &levels[i];
        p.output[p.n].frames = l->n;
        p.output[p.n++].size = causal_frame_values(l, l->in_channels);
        if (l->in_channels == l->channels) continue;
        p.output[p.n].frames = l->n;
        p.output[p.n++].size = causal_frame_values(l, l->channels);
    }
    return p;
}

/* Number of rows of the chunk buffer. The last output is written at the front, which needs the fewest rows:
 * output frame i ends before the first input frame still to be read. */
static int64_t causal_measure_buffer(const struct causal_outputs *p) {
    int64_t most = p->output[0].frames * p->output[0].size;
    for (int i = 1; i < p->n; i++) {
        int64_t in = p->output[i - 1].size, out = p->output[i].size, n_in = p->output[i - 1].frames,
                n_out = p->output[i].frames, all = n_in * in + n_out * out;
        if ((p->n - 1 - i) % 2 == 0) {
            int64_t first = (n_out > n_in ? n_out / n_in : 1) * out + n_in * in, last = n_out * out + in;
            all = first > last ? first : last;
        }
        if (all > most) most = all;
    }
    return causal_rows(most) + 1;
}

/* Declares the feature cache of one convolution, for n frames. */
static struct tensor causal_declare_cache(struct arena *pictures, int32_t n, const struct causal_level *l,
                                          int32_t channels, bool *ok) {
    return arena_tensor(pictures, DTYPE_F32, 4, (int32_t[]){n, l->Y, l->X, channels}, ok);
}

static void causal_declare_resnet_caches(struct causal_state *state, int level, const struct causal_level *l,
                                         int n, struct arena *pictures, bool *ok) {
    for (int i = 0; i < n; i++) {
        state->resnet[level][i][0] =
            causal_declare_cache(pictures, 2, l, i ? l->channels : l->in_channels, ok);
        state->resnet[level][i][1] = causal_declare_cache(pictures, 2, l, l->channels, ok);
    }
}

static void causal_declare_level_caches(struct causal_state *state, const struct causal_level *levels, int n,
                                        struct arena *pictures, bool *ok) {
    for (int i = 0; i < n; i++) {
        const struct causal_level *l = &levels[i], *next = l + 1;
        causal_declare_resnet_caches(state, i, l, l->resnets, pictures, ok);
        if (i + 1 == n) break;
        if (next->n > l->n) state->time[i] = causal_declare_cache(pictures, 2, l, l->channels, ok);
        if (next->n < l->n) state->time[i] = causal_declare_cache(pictures, 1, next, next->in_channels, ok);
    }
    state->out = causal_declare_cache(pictures, 2, &levels[n - 1], levels[n - 1].channels, ok);
}

/* Declares the level inputs for level shortcuts. A decoder's last level has no shortcut. */
static void causal_declare_level_inputs(struct causal_state *state, const struct causal_level *levels, int n,
                                        int deepest, struct arena *pictures, bool *ok) {
    int64_t most = 0;
    int used = deepest ? n : n - 1;
    for (int i = 0; i < used; i++) {
        int64_t rows = causal_rows(levels[i].n * causal_frame_values(&levels[i], levels[i].in_channels));
        if (rows > most) most = rows;
    }
    struct tensor memory = causal_rows_tensor(pictures, most, ok);
    for (int i = 0; i < used; i++)
        state->level_input[i] =
            tensor_make(memory.data, DTYPE_F32, 4,
                        (int32_t[]){levels[i].n, levels[i].Y, levels[i].X, levels[i].in_channels});
    if (deepest) state->level_input[CAUSAL_MIDDLE] = state->level_input[deepest];
}

/* Declares device copies that fit the largest caches of resnets and of the last convolution. */
static void causal_declare_cache_copies(struct causal_state *state, struct arena *arena, bool *ok) {
    int64_t most[2] = {tensor_elements(&state->out), 0};
    for (int i = 0; i < (VAE_LEVELS_MAX + 1) * CAUSAL_RESNETS_MAX * 2; i++) {
        const struct tensor *cache =
            &state->resnet[i / (CAUSAL_RESNETS_MAX * 2)][i / 2 % CAUSAL_RESNETS_MAX][i % 2];
        int64_t n = cache->rank ? tensor_elements(cache) : 0;
        if (n > most[i % 2]) most[i % 2] = n;
    }
    for (int i = 0; i < 2; i++) state->cache_copy[i] = causal_rows_tensor(arena, causal_rows(most[i]), ok);
}

/* Arenas of the state: `device` for the chunk buffer and cache copies, `pictures` for caches (may be host
 * memory). */
struct causal_arenas {
    struct arena *device, *pictures;
    bool *ok;
};

static void causal_declare_lane(const struct causal_level *levels, int n, int deepest, bool several,
                                bool is_residual, bool tiled, struct causal_state *state,
                                const struct causal_arenas *to) {
    struct causal_level middle = levels[deepest];
    struct causal_outputs outputs = causal_list_outputs(levels, n);
    struct arena *frames = tiled ? to->pictures : to->device;
    if (deepest == 0) middle.channels = middle.in_channels;
    middle.in_channels = middle.channels;
    *state = (struct causal_state){.starts_at_end = outputs.n % 2 == 0};
    state->buffer.memory = causal_rows_tensor(frames, causal_measure_buffer(&outputs), to->ok);
    if (is_residual) causal_declare_level_inputs(state, levels, n, deepest, frames, to->ok);
    if (!several) return;
    causal_declare_resnet_caches(state, CAUSAL_MIDDLE, &middle, VAE_MID_RESNETS, to->pictures, to->ok);
    causal_declare_level_caches(state, levels, n, to->pictures, to->ok);
    if (!tiled) causal_declare_cache_copies(state, to->device, to->ok);
}

void causal_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, bool is_residual,
                            struct arena *arena, struct arena *pictures, bool *ok) {
    struct causal_level levels[VAE_LEVELS_MAX] = {0};
    struct causal_state first;
    const int32_t *latent = lanes->latent.dim;
    int n = c->dims[LEVELS];
    for (int i = 0; i < n; i++)
        levels[i] = (struct causal_level){.n = latent[1] > 1 ? causal_frame_rate(c, i) : 1,
                                          .Y = latent[2] << i,
                                          .X = latent[3] << i,
                                          .in_channels = c->dims[IN_CHANNELS + i],
                                          .channels = c->dims[CHANNELS + i],
                                          .resnets = c->dims[RESNETS]};
    causal_declare_lane(levels, n, 0, latent[1] > 1, is_residual, lanes->tiled, &first,
                        &(struct causal_arenas){arena, pictures, ok});
    for (int i = 0; i < n_lanes; i++) *(struct causal_state *)lanes[i].state = first;
}

static void causal_declare_encoder_lane(const struct component *c, const struct lane *lane, bool is_residual,
                                        const struct causal_arenas *to) {
    struct causal_level levels[VAE_LEVELS_MAX] = {0};
    struct causal_state *state = lane->state;
    const int32_t *picture = lane->picture.dim;
    int n = c->dims[LEVELS], side = picture[3] == c->dims[COLOURS] ? 1 : CAUSAL_PATCH;
    bool several = picture[0] > 1;
    for (int i = 0; i < n; i++)
        levels[i] = (struct causal_level){.n = several ? causal_frame_rate(c, n - 1 - i) : 1,
                                          .Y = picture[1] / side >> i,
                                          .X = picture[2] / side >> i,
                                          .in_channels = c->dims[IN_CHANNELS + i],
                                          .channels = c->dims[CHANNELS + i],
                                          .resnets = c->dims[RESNETS]};
    causal_declare_lane(levels, n, n - 1, several, is_residual, lane->tiled, state, to);
    struct causal_level first = levels[0];
    if (several) state->in = causal_declare_cache(to->pictures, 2, &first, c->dims[COLOURS], to->ok);
}

/* Declares an encoder's state. Lanes run one after another, so their states overlap in memory. */
void causal_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, bool is_residual,
                            struct arena *arena, struct arena *pictures, bool *ok) {
    const struct causal_arenas to = {arena, pictures, ok};
    uint64_t begin[2] = {arena->used, pictures->used}, end[2] = {begin[0], begin[1]};
    for (int i = 0; i < n_lanes; i++) {
        arena->used = begin[0];
        pictures->used = begin[1];
        causal_declare_encoder_lane(c, &lanes[i], is_residual, &to);
        if (arena->used > end[0]) end[0] = arena->used;
        if (pictures->used > end[1]) end[1] = pictures->used;
    }
    arena->used = end[0];
    pictures->used = end[1];
}
