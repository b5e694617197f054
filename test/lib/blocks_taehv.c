/* Tests the tiny video decoder (TAEHV) on data of test/golden/taehv.py: the frames, and the influence of
 * every weight. Its blocks, also in many bands, must give the same bits as its operators run one after
 * another over whole frames. test/models/test_vae_causal.c runs it with the other video VAEs. */
#include "engine/base/random.h"
#include "loaders/loaders.h"
#include "models/models.h"
#include "test/lib/block_runner.h"
#include "test/lib/suites.h"
#include "test/lib/vae_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tolerance tolerances[] = {{"frames", 6.7e-7, 1e-6}, {0}};
/* Measured under emulation: GPU convolutions round their operands to TF32. */
static const struct tolerance gpu_tolerances[] = {{"frames", 7.74e-4, 2.3e-3}, {0}};

enum { FRAMES = 4 };

static bool named_by_diffusers(const struct golden *g) {
    return !strcmp(g->name, "taehv/bf16");
}

void taehv_open(struct golden *g) {
    golden_open_component(g, (struct component){.family = &family_taehv, .video = true},
                          named_by_diffusers(g));
}

void taehv_close(struct golden *g) {
    golden_close_component(g);
}

static const struct component *taehv_of(const struct golden *g) {
    return &g->model->component[ONLY_SLOT];
}

/* A block runner with a latent, and all frames that the runner decodes. */
struct video_run {
    struct block_runner *block_runner;
    struct tensor frames;
};

static struct tensor frames_of(struct tensor frames, int32_t first, int32_t n) {
    return tensor_slice(frames, first, n);
}

/* Opens a run on a latent [C, F, Y, X]. */
static struct video_run video_open(const struct golden *g, struct tensor latent) {
    int32_t F = latent.dim[1], side = taehv_of(g)->pixel_factor;
    int32_t dim[4] = {F > 1 ? FRAMES : 1, side * latent.dim[2], side * latent.dim[3], 3};
    struct lane lane = {.latent = latent, .picture = test_tensor(DTYPE_F32, 4, dim)};
    dim[0] = FRAMES * (F - 1) + 1;
    return (struct video_run){runner_open(g, ONLY_SLOT, lane), test_tensor(DTYPE_F32, 4, dim)};
}

/* Decodes all frames with weight number `weight` of block `without` set to zero. `without` -1: all weights
 * are unchanged. */
static void video_decode(struct video_run *f, int without, int weight) {
    struct block_runner *b = f->block_runner;
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    int n = component_frame_chunks(b->component, b->lane.latent.dim[1], chunks);
    for (b->chunk = 0; b->chunk < n; b->chunk++) {
        for (int i = 0; i < b->component->n_blocks; i++) {
            struct block copy = b->component->blocks[i];
            struct packed_segment segments[BLOCK_WEIGHTS_MAX];
            for (int k = copy.n_segments = 0; k < b->component->blocks[i].n_segments; k++)
                if (i != without || k != weight)
                    segments[copy.n_segments++] = b->component->blocks[i].segments[k];
            copy.segments = segments;
            runner_run(b, &copy, 0);
        }
        const struct frame_chunk *c = &chunks[b->chunk];
        runner_put(frames_of(f->frames, c->first_frame, c->n_frames),
                   frames_of(b->lane.picture, 0, c->n_frames));
    }
}

static void video_close(struct video_run *f) {
    runner_close(f->block_runner);
}

static struct tensor golden_latent(const struct golden *g) {
    struct tensor in = golden(g, "video.decoder.in");
    return tensor_reshape(in, 4, in.dim + 1);
}

static void test_frames(const struct golden *g) {
    struct tensor truth = vae_frames_last(golden(g, "video.decoder.out"));
    struct video_run f = video_open(g, golden_latent(g));
    video_decode(&f, -1, 0);
    for (int i = 0; i < 4; i++) assert_int_equal(f.frames.dim[i], truth.dim[i]);
    expect_close(g, "frames", f.frames, truth.data);
    video_close(&f);
}

static void test_influence(const struct golden *g) {
    const double LEAST = 1e-3;
    struct video_run f = video_open(g, golden_latent(g));
    const struct component *c = f.block_runner->component;
    double least = INFINITY;
    int n = 0, of_two = 0, encoder = strcmp(g->name, "taehv/encoded") ? 0 : 2;
    video_decode(&f, -1, 0);
    struct tensor truth = test_copy(f.frames);
    for (int i = 0; i < c->n_blocks; i++) {
        const struct block *block = &c->blocks[i];
        assert_int_equal(block->n_segments, block->n_tensors);
        of_two += !strcmp(block->kind->name, "block");
        for (int k = 0; k < block->n_tensors; k++, n++) {
            video_decode(&f, i, k);
            double moved = distance(f.frames.data, truth.data, tensor_elements(&truth));
            if (!(moved > LEAST))
                fail_msg("%s: zeroing tensor %d changes the frames by only %.2e", block->name, k, moved);
            least = fmin(least, moved);
        }
    }
    printf("  %-13s %d tensors zeroed in turn; the smallest change of the frames is %.2e\n", g->name, n,
           least);
    assert_int_equal(n, c->index.n_entries - encoder + of_two);
    video_close(&f);
}

/* Writes the tensor name of a layer's weight, as in the checkpoint or in diffusers. */
static void name_of(bool diffusers, int layer, const char *rest, char *name, size_t bytes) {
    static const char *const words[] = {"time_grow", "conv_out"};
    int level = (layer - 3) / 6, place = (layer - 3) % 6;
    if (!diffusers)
        snprintf(name, bytes, "decoder.%d.%s", layer, rest);
    else if (layer == 1 || layer == 22)
        snprintf(name, bytes, "decoder.%s.%s", layer == 1 ? "conv_in" : "conv_out", rest);
    else if (place < 3) /* `rest` is the end of the tensor name, for example "conv.0.weight" */
        snprintf(name, bytes, "decoder.blocks.%d.mem_blocks.%d.conv%d%s", level, place,
                 (rest[5] - '0') / 2 + 1, rest + 6);
    else
        snprintf(name, bytes, "decoder.blocks.%d.%s.weight", level, words[place - 4]);
}

static struct tensor weight_of(const struct golden *g, int layer, const char *rest) {
    char name[64];
    name_of(named_by_diffusers(g), layer, rest, name, sizeof name);
    return read_tensor(&taehv_of(g)->index, name);
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

/* Computes one residual block of TAEHV on a whole frame. past: the previous frame; rank 0: there is none. */
static struct tensor whole_block(struct block_runner *b, const struct golden *g, int layer, struct tensor in,
                                 struct tensor past) {
    const struct tensor none = {0};
    struct tensor two = weight_of(g, layer, "conv.0.weight"), bias = weight_of(g, layer, "conv.0.bias"),
                  h = none;
    if (past.rank) {
        h = runner_convolve(b, past, inputs_of(two, 1), bias, none, 1, FINISH_NONE);
        bias = none;
    }
    h = runner_convolve(b, in, inputs_of(two, 0), bias, h, 1, FINISH_RELU);
    h = runner_convolve(b, h, weight_of(g, layer, "conv.2.weight"), weight_of(g, layer, "conv.2.bias"), none,
                        1, FINISH_RELU);
    return runner_convolve(b, h, weight_of(g, layer, "conv.4.weight"), weight_of(g, layer, "conv.4.bias"), in,
                           1, FINISH_RELU);
}

/* All frames that a decoder layer writes, at most WHOLE_MOST. */
enum { WHOLE_MOST = 16 };
struct whole {
    int n;
    struct tensor frame[WHOLE_MOST];
};

static void whole_begin(struct block_runner *b, const struct golden *g, struct whole *w) {
    const struct tensor none = {0}, latent = b->lane.latent;
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
        op_latent_to_image(&b->context, at, planes, format);
        w->frame[i] =
            runner_convolve(b, at, weight_of(g, 1, "weight"), weight_of(g, 1, "bias"), none, 1, FINISH_RELU);
    }
}

static void whole_level(struct block_runner *b, const struct golden *g, int layer, struct whole *w) {
    for (int i = 0; i < 3; i++)
        for (int k = w->n - 1; k >= 0; k--)
            w->frame[k] = whole_block(b, g, layer + i, w->frame[k], k ? w->frame[k - 1] : (struct tensor){0});
}

static void whole_up(struct block_runner *b, const struct golden *g, int layer, struct whole *w) {
    const struct tensor none = {0}, grow = weight_of(g, layer, "conv.weight");
    enum finishing finish = layer == 19 ? FINISH_RELU : FINISH_NONE;
    int each = grow.dim[0] / grow.dim[1];
    for (int k = w->n * each - 1; k >= 0; k--) {
        struct tensor rows = tensor_slice(grow, k % each * grow.dim[1], grow.dim[1]);
        struct tensor grown = runner_convolve(b, w->frame[k / each], rows, none, none, 1, FINISH_NONE);
        w->frame[k] = runner_convolve(b, grown, weight_of(g, layer + 1, "weight"), none, none, 2, finish);
    }
    w->n *= each;
}

/* Decodes layer by layer, each over all frames; the first three output frames are dropped. */
static struct tensor whole_decode(struct block_runner *b, const struct golden *g, struct tensor like) {
    struct whole w = {0};
    struct tensor out = test_tensor(DTYPE_F32, 4, like.dim);
    whole_begin(b, g, &w);
    for (int layer = 3; layer < 20; layer += 6) {
        whole_level(b, g, layer, &w);
        whole_up(b, g, layer + 4, &w);
    }
    for (int32_t i = 0; i < out.dim[0]; i++) {
        struct tensor at = runner_convolve(b, w.frame[i + 3], weight_of(g, 22, "weight"),
                                           weight_of(g, 22, "bias"), (struct tensor){0}, 1, FINISH_TO_SIGNED);
        struct tensor frame = tensor_reshape(frames_of(out, i, 1), 3, out.dim + 1);
        struct tensor pixels = tensor_reshape(at, 2, (int32_t[]){at.dim[0] * at.dim[1], at.dim[2]});
        if (at.dim[2] == 3)
            runner_put(frame, at);
        else
            op_unpatchify(&b->context, frame, pixels,
                          (struct patches){.side = 2, .order = PATCH_CHANNELS_FIRST, .pixels = true}, 1);
    }
    assert_ok(&b->error);
    return out;
}

/* Blocks and whole-frame operators give the same bits, although all state memory starts as NaN. Depending on
 * the frame size there is one band, or several bands in the last level, the last two levels or all levels. */
static void test_whole(const struct golden *g) {
    static const int32_t sizes[][3] = {{1, 1, 1},   {3, 1, 2},   {1, 5, 120}, {2, 4, 130},
                                       {1, 33, 31}, {2, 3, 520}, {1, 9, 260}, {1, 20, 520}};
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        void *mark = golden_state.memory;
        uint64_t random = (uint64_t)i + 1;
        int32_t dim[4] = {taehv_of(g)->latent_channels, sizes[i][0], sizes[i][1], sizes[i][2]};
        struct tensor latent = test_tensor(DTYPE_F32, 4, dim);
        for (int64_t k = 0; k < tensor_elements(&latent); k++)
            ((float *)latent.data)[k] = (float)((double)random_below(&random, 8001) / 1000 - 4);
        struct video_run f = video_open(g, latent);
        struct tensor whole = whole_decode(f.block_runner, g, f.frames);
        memset(f.block_runner->state.base, 0xff, f.block_runner->state.bytes);
        video_decode(&f, -1, 0);
        assert_memory_equal(f.frames.data, whole.data, (size_t)tensor_bytes(&whole));
        video_close(&f);
        test_memory_free_to(mark);
    }
}

static const struct golden_test tests[] = {{"frames", test_frames, PRECISION_F32, true, NULL},
                                           {"influence", test_influence, PRECISION_F32, false, NULL},
                                           {"whole", test_whole, PRECISION_F32, false, NULL}};

const struct suite blocks_taehv = {"taehv", tests, COUNT_OF(tests), tolerances, gpu_tolerances};
