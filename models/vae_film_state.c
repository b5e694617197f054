/* State of autoencoders of videos: see vae_film.h. */
#include "models/vae_film.h"

int film_rate(const struct component *c, int from_deepest) {
    int most = c->dims[LEVELS] > 2 ? c->dims[LEVELS] - 2 : 0;
    return 1 << (from_deepest < most ? from_deepest : most);
}

/* Memory of so many rows. More than 32 bits count belongs to no published model. */
static struct tensor film_memory(struct arena *arena, int64_t rows, bool *ok) {
    if (rows > INT32_MAX) *ok = false;
    return arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows > INT32_MAX ? 1 : (int32_t)rows, FILM_ROW}, ok);
}

/* A level as a chunk has it. */
struct film_level {
    int32_t n, Y, X, before, channels;
    int resnets;
};

static int64_t film_size(const struct film_level *l, int32_t channels) {
    return (int64_t)l->Y * l->X * channels;
}

/* What blocks put one after another. */
struct film_puts {
    int n;
    struct {
        int32_t frames;
        int64_t size; /* of one */
    } put[2 * CANVAS_LEVELS_MAX + 1];
};

static struct film_puts film_list_puts(const struct film_level *levels, int n) {
    struct film_puts p = {0};
    for (int i = 0; i < n; i++) {
        const struct film_level *l = &levels[i];
        p.put[p.n].frames = l->n;
        p.put[p.n++].size = film_size(l, l->before);
        if (l->before == l->channels) continue;
        p.put[p.n].frames = l->n;
        p.put[p.n++].size = film_size(l, l->channels);
    }
    return p;
}

/* Rows of the film. Its ends are chosen so that the last frames are written at the front, which costs least:
 * there frame i may end where the frames that are read still from then on begin. */
static int64_t film_measure(const struct film_puts *p) {
    int64_t most = p->put[0].frames * p->put[0].size;
    for (int i = 1; i < p->n; i++) {
        int64_t in = p->put[i - 1].size, out = p->put[i].size, n_in = p->put[i - 1].frames,
                n_out = p->put[i].frames, all = n_in * in + n_out * out;
        if ((p->n - 1 - i) % 2 == 0) {
            int64_t first = (n_out > n_in ? n_out / n_in : 1) * out + n_in * in, last = n_out * out + in;
            all = first > last ? first : last;
        }
        if (all > most) most = all;
    }
    return film_rows(most) + 1;
}

/* Frames that a convolution keeps. */
static struct tensor film_declare_kept(struct arena *pictures, int32_t n, const struct film_level *l,
                                       int32_t channels, bool *ok) {
    return arena_tensor(pictures, DTYPE_F32, 4, (int32_t[]){n, l->Y, l->X, channels}, ok);
}

static void film_declare_resnets(struct film_state *state, int level, const struct film_level *l, int n,
                                 struct arena *pictures, bool *ok) {
    for (int i = 0; i < n; i++) {
        state->resnet[level][i][0] = film_declare_kept(pictures, 2, l, i ? l->channels : l->before, ok);
        state->resnet[level][i][1] = film_declare_kept(pictures, 2, l, l->channels, ok);
    }
}

static void film_declare_kept_of_levels(struct film_state *state, const struct film_level *levels, int n,
                                        struct arena *pictures, bool *ok) {
    for (int i = 0; i < n; i++) {
        const struct film_level *l = &levels[i], *next = l + 1;
        film_declare_resnets(state, i, l, l->resnets, pictures, ok);
        if (i + 1 == n) break;
        if (next->n > l->n) state->time[i] = film_declare_kept(pictures, 2, l, l->channels, ok);
        if (next->n < l->n) state->time[i] = film_declare_kept(pictures, 1, next, next->before, ok);
    }
    state->out = film_declare_kept(pictures, 2, &levels[n - 1], levels[n - 1].channels, ok);
}

/* A decoder's last level adds nothing. */
static void film_declare_levels(struct film_state *state, const struct film_level *levels, int n, int deepest,
                                struct arena *pictures, bool *ok) {
    int64_t most = 0;
    int used = deepest ? n : n - 1;
    for (int i = 0; i < used; i++) {
        int64_t rows = film_rows(levels[i].n * film_size(&levels[i], levels[i].before));
        if (rows > most) most = rows;
    }
    struct tensor memory = film_memory(pictures, most, ok);
    for (int i = 0; i < used; i++)
        state->level[i] = tensor_make(memory.data, DTYPE_F32, 4,
                                      (int32_t[]){levels[i].n, levels[i].Y, levels[i].X, levels[i].before});
    if (deepest) state->level[FILM_MIDDLE] = state->level[deepest];
}

/* Room for the most that resnets and what ends the half keep. */
static void film_declare_near(struct film_state *state, struct arena *arena, bool *ok) {
    int64_t most[2] = {tensor_elements(&state->out), 0};
    for (int i = 0; i < (CANVAS_LEVELS_MAX + 1) * FILM_RESNETS_MAX * 2; i++) {
        const struct tensor *kept =
            &state->resnet[i / (FILM_RESNETS_MAX * 2)][i / 2 % FILM_RESNETS_MAX][i % 2];
        int64_t n = kept->rank ? tensor_elements(kept) : 0;
        if (n > most[i % 2]) most[i % 2] = n;
    }
    for (int i = 0; i < 2; i++) state->near[i] = film_memory(arena, film_rows(most[i]), ok);
}

/* Of the arenas that a half declares its state in. */
struct film_arenas {
    struct arena *near, *pictures;
    bool *ok;
};

static void film_declare_lane(const struct film_level *levels, int n, int deepest, bool several, bool adds,
                              bool tiled, struct film_state *state, const struct film_arenas *to) {
    struct film_level middle = levels[deepest];
    struct film_puts puts = film_list_puts(levels, n);
    struct arena *film = tiled ? to->pictures : to->near;
    if (deepest == 0) middle.channels = middle.before;
    middle.before = middle.channels;
    *state = (struct film_state){.first_at_back = puts.n % 2 == 0};
    state->film.memory = film_memory(film, film_measure(&puts), to->ok);
    if (adds) film_declare_levels(state, levels, n, deepest, film, to->ok);
    if (!several) return;
    film_declare_resnets(state, FILM_MIDDLE, &middle, VAE_MID_RESNETS, to->pictures, to->ok);
    film_declare_kept_of_levels(state, levels, n, to->pictures, to->ok);
    if (!tiled) film_declare_near(state, to->near, to->ok);
}

void film_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, bool adds,
                          struct arena *arena, struct arena *pictures, bool *ok) {
    struct film_level levels[CANVAS_LEVELS_MAX] = {0};
    struct film_state first;
    const int32_t *latent = lanes->latent.dim;
    int n = c->dims[LEVELS];
    for (int i = 0; i < n; i++)
        levels[i] = (struct film_level){.n = latent[1] > 1 ? film_rate(c, i) : 1,
                                        .Y = latent[2] << i,
                                        .X = latent[3] << i,
                                        .before = c->dims[BEFORE + i],
                                        .channels = c->dims[CHANNELS + i],
                                        .resnets = c->dims[RESNETS]};
    film_declare_lane(levels, n, 0, latent[1] > 1, adds, lanes->tiled, &first,
                      &(struct film_arenas){arena, pictures, ok});
    for (int i = 0; i < n_lanes; i++) *(struct film_state *)lanes[i].state = first;
}

static void film_declare_encoded(const struct component *c, const struct lane *lane, bool adds,
                                 const struct film_arenas *to) {
    struct film_level levels[CANVAS_LEVELS_MAX] = {0};
    struct film_state *state = lane->state;
    const int32_t *picture = lane->picture.dim;
    int n = c->dims[LEVELS], side = picture[3] == c->dims[COLOURS] ? 1 : FILM_PATCH;
    bool several = picture[0] > 1;
    for (int i = 0; i < n; i++)
        levels[i] = (struct film_level){.n = several ? film_rate(c, n - 1 - i) : 1,
                                        .Y = picture[1] / side >> i,
                                        .X = picture[2] / side >> i,
                                        .before = c->dims[BEFORE + i],
                                        .channels = c->dims[CHANNELS + i],
                                        .resnets = c->dims[RESNETS]};
    film_declare_lane(levels, n, n - 1, several, adds, lane->tiled, state, to);
    struct film_level first = levels[0];
    if (several) state->in = film_declare_kept(to->pictures, 2, &first, c->dims[COLOURS], to->ok);
}

/* Lanes take turns: the state of each lies where those of others do. */
void film_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, bool adds,
                          struct arena *arena, struct arena *pictures, bool *ok) {
    const struct film_arenas to = {arena, pictures, ok};
    uint64_t begin[2] = {arena->used, pictures->used}, end[2] = {begin[0], begin[1]};
    for (int i = 0; i < n_lanes; i++) {
        arena->used = begin[0];
        pictures->used = begin[1];
        film_declare_encoded(c, &lanes[i], adds, &to);
        if (arena->used > end[0]) end[0] = arena->used;
        if (pictures->used > end[1]) end[1] = pictures->used;
    }
    arena->used = end[0];
    pictures->used = end[1];
}
