/* The blocks of the tiny decoders (TAESD, TAEHV), also in many bands, give the same bits as their operators
 * run one after another over whole images or frames, for block tests. */
#include "test/lib/block_tests.h"
#include "test/lib/tensor_notation.h"

#include <stdio.h>
#include <string.h>

enum { TINY_WEIGHTS_MAX = 96 };

/* A tiny decoder whose operators run over whole frames, in the order in which its file's tensors are bound.
 */
struct tiny {
    struct block_runner *b;
    const struct index_entry *entry[TINY_WEIGHTS_MAX];
    int n, next; /* next: index of the first weight that no operator has used */
};

/* Lists the file's tensors in the order of blocks and their weights. A tensor that is two weights of a block
 * is listed once. */
static struct tiny open_tiny(const struct golden *g, struct lane lane) {
    struct tiny d = {.b = runner_open(g, ONLY_SLOT, lane)};
    for (int i = 0; i < d.b->component->n_blocks; i++)
        for (int k = 0; k < d.b->component->blocks[i].n_tensors; k++) {
            const struct index_entry *entry = d.b->component->blocks[i].tensors[k].entry;
            if (d.n && entry == d.entry[d.n - 1]) continue;
            assert_true(d.n < TINY_WEIGHTS_MAX);
            d.entry[d.n++] = entry;
        }
    return d;
}

struct convolution {
    struct tensor weight, bias; /* bias: rank 0 if there is none */
};

static struct tensor next_weight(struct tiny *d) {
    assert_true(d->next < d->n);
    return read_tensor(&d->b->component->index, d->entry[d->next++]->name);
}

static struct convolution next_convolution(struct tiny *d) {
    struct convolution c = {.weight = next_weight(d)};
    if (d->next < d->n && d->entry[d->next]->rank == 1) c.bias = next_weight(d);
    return c;
}

/* Convolves a whole frame. */
static struct tensor convolve(const struct tiny *d, struct convolution c, struct tensor in,
                              struct tensor residual, int up, enum finishing finish) {
    return runner_convolve(d->b, in, c.weight, c.bias, residual, up, finish);
}

/* Returns input channels [part * C, part * C + C) of a weight [N, 2 C, k, k]. */
static struct tensor inputs_of(struct tensor weight, int part) {
    int32_t C = weight.dim[1] / 2;
    char channels[32];
    snprintf(channels, sizeof channels, "[:,%d:%d]", part * C, part * C + C);
    return notation_read(weight, channels);
}

/* All frames that a layer writes; an image is one frame. */
enum { FRAMES_MAX = 16 };
struct frames {
    int n;
    struct tensor frame[FRAMES_MAX];
};

static const struct tensor none;

/* The first convolution. format: of the latent that it reads. */
static void run_first(struct tiny *d, const struct latent_format *format, struct frames *w) {
    const struct convolution in = next_convolution(d);
    struct tensor latent = d->b->lane.latent;
    for (w->n = 0; w->n < latent.dim[1]; w->n++) {
        char frame[16];
        snprintf(frame, sizeof frame, "[:,%d]", w->n);
        struct tensor at =
            test_tensor(DTYPE_F32, 3, (int32_t[]){latent.dim[2], latent.dim[3], latent.dim[0]});
        op_latent_to_image(&d->b->context, at, notation_read(latent, frame), *format);
        w->frame[w->n] = convolve(d, in, at, none, 1, FINISH_RELU);
    }
}

/* A residual block, over all frames. The first convolution of a video's block also reads the previous frame.
 */
static void run_block(struct tiny *d, bool video, struct frames *w) {
    struct convolution conv[3];
    for (int i = 0; i < 3; i++) conv[i] = next_convolution(d);
    for (int k = w->n - 1; k >= 0; k--) {
        struct convolution first = conv[0];
        struct tensor in = w->frame[k], h = none;
        if (video) first.weight = inputs_of(conv[0].weight, 0);
        if (video && k) {
            h = convolve(d, (struct convolution){inputs_of(conv[0].weight, 1), first.bias}, w->frame[k - 1],
                         none, 1, FINISH_NONE);
            first.bias = none;
        }
        h = convolve(d, first, in, h, 1, FINISH_RELU);
        h = convolve(d, conv[1], h, none, 1, FINISH_RELU);
        w->frame[k] = convolve(d, conv[2], h, in, 1, FINISH_RELU);
    }
}

/* Upsampling; in a video, after a 1x1 convolution that multiplies frames. */
static void run_upsample(struct tiny *d, bool video, enum finishing finish, struct frames *w) {
    struct tensor grow = video ? next_weight(d) : none;
    struct convolution up = next_convolution(d);
    int each = video ? grow.dim[0] / grow.dim[1] : 1;
    for (int k = w->n * each - 1; k >= 0; k--) {
        struct tensor in = w->frame[k / each];
        if (video)
            in = convolve(
                d, (struct convolution){.weight = tensor_slice(grow, k % each * grow.dim[1], grow.dim[1])},
                in, none, 1, FINISH_NONE);
        w->frame[k] = convolve(d, up, in, none, 2, finish);
    }
    w->n *= each;
}

/* Decodes layer by layer, each over all frames. The first three frames of a video are dropped. */
static struct tensor decode(struct tiny *d, bool video, struct tensor like) {
    enum { LEVELS_UP = 3, BLOCKS = 3, DROPPED = 3 };
    struct latent_format format = {.n = 1, .scale = {1}, .shift = {0}};
    struct frames w;
    struct tensor out = test_tensor(DTYPE_F32, 4, like.dim);
    if (!video) format = d->b->component->latent_format;
    format.limit = 3;
    run_first(d, &format, &w);
    for (int level = 0; level < LEVELS_UP; level++) {
        for (int i = 0; i < BLOCKS; i++) run_block(d, video, &w);
        run_upsample(d, video, video && level + 1 == LEVELS_UP ? FINISH_RELU : FINISH_NONE, &w);
    }
    if (!video) run_block(d, video, &w);
    const struct convolution last = next_convolution(d);
    for (int32_t i = 0; i < out.dim[0]; i++) {
        struct tensor at = convolve(d, last, w.frame[video ? i + DROPPED : i], none, 1, FINISH_TO_SIGNED);
        struct tensor frame = tensor_reshape(tensor_slice(out, i, 1), 3, out.dim + 1);
        struct tensor pixels = tensor_reshape(at, 2, (int32_t[]){at.dim[0] * at.dim[1], at.dim[2]});
        if (at.dim[2] == 3)
            runner_put(frame, at);
        else
            op_unpatchify(&d->b->context, frame, pixels,
                          (struct patches){.side = 2, .order = PATCH_CHANNELS_FIRST, .pixels = true}, 1);
    }
    return out;
}

/* Compares whole-frame operators with blocks, whose state memory starts as NaN, on a random latent. */
static void check_whole(const struct golden *g, bool video, int32_t F, int32_t Y, int32_t X) {
    enum { CHUNK_FRAMES = 4 };
    void *mark = golden_state.memory;
    const struct component *c = &g->model->component[ONLY_SLOT];
    int32_t side = c->pixel_factor, dim[4] = {F > 1 ? CHUNK_FRAMES : 1, side * Y, side * X, 3};
    struct lane lane = {.latent =
                            random_tensor(4, (int32_t[]){c->latent_channels, F, Y, X}, 4, (uint64_t)(F + Y)),
                        .picture = test_tensor(DTYPE_F32, 4, dim)};
    struct tiny d = open_tiny(g, lane);
    dim[0] = CHUNK_FRAMES * (F - 1) + 1;
    if (video) d.b->frames = test_tensor(DTYPE_F32, 4, dim);
    struct tensor blocks = video ? d.b->frames : d.b->lane.picture, whole = decode(&d, video, blocks);
    assert_int_equal(d.next, d.n);
    memset(d.b->state.base, 0xff, d.b->state.bytes);
    runner_run_all(d.b);
    assert_ok(&d.b->error);
    assert_memory_equal(blocks.data, whole.data, (size_t)tensor_bytes(&whole));
    runner_close(d.b);
    test_memory_free_to(mark);
}

/* Depending on the size there is one band, two or three bands in the last level (the last band is short), or
 * several bands in the last two levels or in all levels. */
void check_whole_picture(struct block_test *t, const json_t *step) {
    static const int32_t sizes[][2] = {{1, 1}, {2, 9}, {5, 120}, {8, 130}, {33, 31}, {4, 700}};
    (void)step;
    for (int i = 0; i < COUNT_OF(sizes); i++) check_whole(t->golden, false, 1, sizes[i][0], sizes[i][1]);
}

void check_whole_video(struct block_test *t, const json_t *step) {
    static const int32_t sizes[][3] = {{1, 1, 1},   {3, 1, 2},   {1, 5, 120}, {2, 4, 130},
                                       {1, 33, 31}, {2, 3, 520}, {1, 9, 260}, {1, 20, 520}};
    (void)step;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        check_whole(t->golden, true, sizes[i][0], sizes[i][1], sizes[i][2]);
}
