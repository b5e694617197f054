/* The blocks of the tiny decoders (TAESD, TAEHV), also in many bands, give the same bits as their operators
 * run one after another over whole images or frames, for block tests. */
#include "test/lib/block_tests.h"

#include <stdio.h>
#include <string.h>

enum tiny_names { TAESD_DIFFUSERS, TAESD_AUTHORS, TAEHV_DIFFUSERS, TAEHV_AUTHORS };

/* A tiny decoder whose operators run over whole frames. */
struct tiny {
    struct block_runner *b;
    enum tiny_names names;
};

/* Writes the name of a weight of TAEHV's layer `layer` in diffusers. rest: end of the checkpoint's name. */
static void name_taehv(int layer, const char *rest, char *name, size_t bytes) {
    static const char *const words[] = {"time_grow", "conv_out"};
    int level = (layer - 3) / 6, place = (layer - 3) % 6;
    if (layer == 1 || layer == 22)
        snprintf(name, bytes, "decoder.%s.%s", layer == 1 ? "conv_in" : "conv_out", rest);
    else if (place < 3) /* `rest` is, for example, "conv.0.weight" */
        snprintf(name, bytes, "decoder.blocks.%d.mem_blocks.%d.conv%d%s", level, place,
                 (rest[5] - '0') / 2 + 1, rest + 6);
    else
        snprintf(name, bytes, "decoder.blocks.%d.%s.weight", level, words[place - 4]);
}

/* Reads a weight of a layer, in TAESD's numbering by diffusers or TAEHV's numbering by its authors; rank 0 if
 * the file has none of this name. */
static struct tensor weight_of(const struct tiny *d, int layer, const char *part, const char *end) {
    static const char *const formats[] = {[TAESD_DIFFUSERS] = "decoder.layers.%d.%s",
                                          [TAESD_AUTHORS] = "%d.%s",
                                          [TAEHV_AUTHORS] = "decoder.%d.%s"};
    char rest[32], name[96];
    const struct tensor_index *index = &d->b->component->index;
    snprintf(rest, sizeof rest, "%s%s", part, end);
    if (d->names == TAEHV_DIFFUSERS)
        name_taehv(layer, rest, name, sizeof name);
    else
        snprintf(name, sizeof name, formats[d->names], layer + (d->names == TAESD_AUTHORS), rest);
    return index_find(index, name) ? read_tensor(index, name) : (struct tensor){0};
}

/* Runs the convolution `part` of a layer over a whole frame. */
static struct tensor convolve(const struct tiny *d, int layer, const char *part, struct tensor in,
                              struct tensor residual, int up, enum finishing finish) {
    struct tensor bias = up > 1 ? (struct tensor){0} : weight_of(d, layer, part, "bias");
    return runner_convolve(d->b, in, weight_of(d, layer, part, "weight"), bias, residual, up, finish);
}

/* Returns input channels [part * C, part * C + C) of a weight [N, 2 C, k, k]. */
static struct tensor inputs_of(struct tensor weight, int part) {
    int32_t dim[4] = {weight.dim[0], weight.dim[1] / 2, weight.dim[2], weight.dim[3]};
    struct tensor out = test_tensor(weight.dtype, 4, dim);
    size_t run = (size_t)tensor_bytes(&out) / (size_t)dim[0];
    for (int32_t i = 0; i < dim[0]; i++)
        memcpy((char *)out.data + (size_t)i * run, (char *)weight.data + (2 * (size_t)i + (size_t)part) * run,
               run);
    return out;
}

/* The first convolution of TAEHV's residual block, which also reads the previous frame. past: rank 0: there
 * is none. */
static struct tensor convolve_two(const struct tiny *d, int layer, struct tensor in, struct tensor past) {
    const struct tensor none = {0};
    struct tensor two = weight_of(d, layer, "conv.0.", "weight"),
                  bias = weight_of(d, layer, "conv.0.", "bias"), h = none;
    if (past.rank) {
        h = runner_convolve(d->b, past, inputs_of(two, 1), bias, none, 1, FINISH_NONE);
        bias = none;
    }
    return runner_convolve(d->b, in, inputs_of(two, 0), bias, h, 1, FINISH_RELU);
}

/* A residual block after its first convolution, whose output is h. */
static struct tensor rest_of_block(const struct tiny *d, int layer, struct tensor in, struct tensor h) {
    h = convolve(d, layer, "conv.2.", h, (struct tensor){0}, 1, FINISH_RELU);
    return convolve(d, layer, "conv.4.", h, in, 1, FINISH_RELU);
}

/* Decodes with TAESD layer by layer, each over the whole image. */
static struct tensor decode_picture(const struct tiny *d) {
    const struct tensor none = {0}, latent = d->b->lane.latent;
    const int32_t *dim = latent.dim;
    struct latent_format format = d->b->component->latent_format;
    struct tensor planes = tensor_reshape(latent, 3, (int32_t[]){dim[0], dim[2], dim[3]});
    struct tensor at = test_tensor(DTYPE_F32, 3, (int32_t[]){dim[2], dim[3], dim[0]});
    format.limit = 3;
    op_latent_to_image(&d->b->context, at, planes, format);
    at = convolve(d, 0, "", at, none, 1, FINISH_RELU);
    for (int layer = 2; layer < 18; layer++) {
        int place = (layer - 2) % 5; /* three residual blocks, upsampling without weights, a convolution */
        if (place < 3)
            at = rest_of_block(d, layer, at, convolve(d, layer, "conv.0.", at, none, 1, FINISH_RELU));
        else if (place == 4)
            at = convolve(d, layer, "", at, none, 2, FINISH_NONE);
    }
    return convolve(d, 18, "", at, none, 1, FINISH_TO_SIGNED);
}

/* All frames that a layer of TAEHV writes. */
enum { WHOLE_MOST = 16 };
struct whole {
    int n;
    struct tensor frame[WHOLE_MOST];
};

static void begin_video(const struct tiny *d, struct whole *w) {
    const struct tensor latent = d->b->lane.latent;
    const int32_t *dim = latent.dim;
    const struct latent_format format = {.n = 1, .scale = {1}, .shift = {0}, .limit = 3};
    w->n = dim[1];
    for (int32_t i = 0; i < dim[1]; i++) {
        struct tensor planes = test_tensor(DTYPE_F32, 3, (int32_t[]){dim[0], dim[2], dim[3]});
        struct tensor at = test_tensor(DTYPE_F32, 3, (int32_t[]){dim[2], dim[3], dim[0]});
        for (int32_t c = 0; c < dim[0]; c++)
            runner_put(tensor_slice(planes, c, 1),
                       tensor_slice(tensor_reshape(latent, 3, (int32_t[]){dim[0] * dim[1], dim[2], dim[3]}),
                                    c * dim[1] + i, 1));
        op_latent_to_image(&d->b->context, at, planes, format);
        w->frame[i] = convolve(d, 1, "", at, (struct tensor){0}, 1, FINISH_RELU);
    }
}

/* Three residual blocks, then the layers that multiply frames (`layer` + 4) and pixels (`layer` + 5). */
static void decode_level(const struct tiny *d, int layer, struct whole *w) {
    const struct tensor none = {0}, grow = weight_of(d, layer + 4, "conv.", "weight");
    enum finishing finish = layer == 15 ? FINISH_RELU : FINISH_NONE;
    int each = grow.dim[0] / grow.dim[1];
    for (int i = layer; i < layer + 3; i++)
        for (int k = w->n - 1; k >= 0; k--)
            w->frame[k] =
                rest_of_block(d, i, w->frame[k], convolve_two(d, i, w->frame[k], k ? w->frame[k - 1] : none));
    for (int k = w->n * each - 1; k >= 0; k--) {
        struct tensor rows = tensor_slice(grow, k % each * grow.dim[1], grow.dim[1]);
        struct tensor grown = runner_convolve(d->b, w->frame[k / each], rows, none, none, 1, FINISH_NONE);
        w->frame[k] = convolve(d, layer + 5, "", grown, none, 2, finish);
    }
    w->n *= each;
}

/* Decodes with TAEHV layer by layer, each over all frames; the first three output frames are dropped. */
static struct tensor decode_video(const struct tiny *d, struct tensor like) {
    struct whole w = {0};
    struct tensor out = test_tensor(DTYPE_F32, 4, like.dim);
    begin_video(d, &w);
    for (int layer = 3; layer < 20; layer += 6) decode_level(d, layer, &w);
    for (int32_t i = 0; i < out.dim[0]; i++) {
        struct tensor at = convolve(d, 22, "", w.frame[i + 3], (struct tensor){0}, 1, FINISH_TO_SIGNED);
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

/* Expects the same bits of whole-frame operators and of blocks, whose state memory starts as NaN. */
static void expect_same(const struct tiny *d, struct tensor whole, const struct tensor *blocks) {
    memset(d->b->state.base, 0xff, d->b->state.bytes);
    runner_run_all(d->b);
    assert_ok(&d->b->error);
    assert_memory_equal(blocks->data, whole.data, (size_t)tensor_bytes(&whole));
    runner_close(d->b);
}

/* Depending on the image size there is one band, two or three bands in the last level (the last band is
 * short), or several bands in all levels. */
void check_whole_picture(struct block_test *t, const json_t *step) {
    static const int32_t sizes[][2] = {{1, 1}, {2, 9}, {5, 120}, {8, 130}, {33, 31}, {4, 700}};
    struct tiny d = {.names =
                         json_is_true(json_object_get(step, "authors")) ? TAESD_AUTHORS : TAESD_DIFFUSERS};
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        void *mark = golden_state.memory;
        int32_t Y = sizes[i][0], X = sizes[i][1],
                dim[3] = {t->golden->model->component[ONLY_SLOT].latent_channels, Y, X};
        struct lane lane = {.latent = random_tensor(3, dim, 4, (uint64_t)Y + 1),
                            .picture = test_tensor(DTYPE_F32, 3, (int32_t[]){8 * Y, 8 * X, 3})};
        d.b = runner_open(t->golden, ONLY_SLOT, lane);
        expect_same(&d, decode_picture(&d), &d.b->lane.picture);
        test_memory_free_to(mark);
    }
}

/* Depending on the frame size there is one band, or several bands in the last level, the last two levels or
 * all levels. */
void check_whole_video(struct block_test *t, const json_t *step) {
    static const int32_t sizes[][3] = {{1, 1, 1},   {3, 1, 2},   {1, 5, 120}, {2, 4, 130},
                                       {1, 33, 31}, {2, 3, 520}, {1, 9, 260}, {1, 20, 520}};
    enum { CHUNK_FRAMES = 4 };
    const struct component *c = &t->golden->model->component[ONLY_SLOT];
    struct tiny d = {.names =
                         json_is_true(json_object_get(step, "diffusers")) ? TAEHV_DIFFUSERS : TAEHV_AUTHORS};
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        void *mark = golden_state.memory;
        int32_t F = sizes[i][0], Y = sizes[i][1], X = sizes[i][2], side = c->pixel_factor;
        int32_t dim[4] = {F > 1 ? CHUNK_FRAMES : 1, side * Y, side * X, 3};
        struct lane lane = {
            .latent = random_tensor(4, (int32_t[]){c->latent_channels, F, Y, X}, 4, (uint64_t)i + 1),
            .picture = test_tensor(DTYPE_F32, 4, dim)};
        d.b = runner_open(t->golden, ONLY_SLOT, lane);
        dim[0] = CHUNK_FRAMES * (F - 1) + 1;
        d.b->frames = test_tensor(DTYPE_F32, 4, dim);
        expect_same(&d, decode_video(&d, d.b->frames), &d.b->frames);
        test_memory_free_to(mark);
    }
}
