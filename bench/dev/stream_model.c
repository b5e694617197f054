#include "bench/dev/stream_model.h"

#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct linear_block_weights {
    struct tensor weight;
};

static void forward_product(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    const struct stream_model *model = *(const struct stream_model *const *)scope->settings;
    int32_t tokens = model->sizes[scope->number].tokens;
    struct tensor in = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens, w->weight.dim[1]});
    struct tensor out = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens, w->weight.dim[0]});
    op_linear(x, out, in, w->weight, (struct epilogue){0});
}

static const struct block_kind kind_product = {
    .name = "product",
    .format = "block.%d",
    .weights_bytes = sizeof(struct linear_block_weights),
    .forward = forward_product,
};

static void declare_none(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    (void)c, (void)lanes, (void)n_lanes, (void)arena, (void)pictures, (void)ok;
}

static const struct family family_bench = {
    .name = "bench", .kind = FAMILY_DENOISER, .state.bytes = 1, .state.declare = declare_none};

struct stream_block stream_block_of(double bytes, double seconds, double flops) {
    int32_t columns = bytes > 1e8 ? 16384 : 1024;
    int32_t rows = (int32_t)(bytes / 2 / columns + 0.5);
    double tokens = seconds * flops / (2.0 * rows * columns);
    return (struct stream_block){rows, columns, tokens < 1 ? 1 : (int32_t)(tokens + 0.5)};
}

static void make_block(struct stream_model *m, int i, uint64_t *offset) {
    const struct stream_block *size = &m->sizes[i];
    struct block *b = &m->blocks[i];
    struct tensor weight = tensor_make(NULL, DTYPE_BF16, 2, (int32_t[]){size->rows, size->columns});
    uint64_t bytes = (uint64_t)tensor_bytes(&weight);
    m->segments[i] = (struct packed_segment){.source = &m->source, .file_offset = *offset, .bytes = bytes};
    *b = (struct block){.kind = &kind_product,
                        .number = i,
                        .index = &m->component.index,
                        .segments = &m->segments[i],
                        .n_segments = 1,
                        .n_tensors = 1,
                        .bytes = align_up(bytes, ARENA_ALIGN)};
    b->tensors[0].shape = weight;
    snprintf(b->name, sizeof b->name, "block.%d", i);
    m->list[i] = b;
    *offset += bytes;
}

void stream_model_make(struct stream_model *model, struct sys *sys) {
    uint64_t offset = 0;
    const struct stream_model *self = model;
    model->sys = sys;
    model->source = (struct byte_source){.sys = sys, .path = model->path, .file = 0};
    snprintf(model->path, sizeof model->path, "synthetic weights");
    sys->identify(sys, 0, &model->source.identity);
    model->component = (struct component){.family = &family_bench,
                                          .sys = sys,
                                          .index = {.sys = sys, .sources = &model->source, .n_sources = 1},
                                          .blocks = model->blocks,
                                          .n_blocks = model->n_blocks};
    memcpy(model->component.settings, &self, sizeof self); /* for forward_product */
    for (int i = 0; i < model->n_blocks; i++) make_block(model, i, &offset);
}

/* Arguments and hooks of the executor, and the times that the hooks record. */
struct stream_runner {
    const struct stream_run *bench;
    struct stage stage;
    struct lane lanes[STREAM_LANES_MAX];
    struct visit_list visits;
    struct run run;
    struct run_hooks hooks;
    double ended[STREAM_EVALUATIONS];
};

static enum status stream_evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    struct stream_runner *runner = user;
    runner->ended[visit->evaluation] = runner->run.sys->clock(runner->run.sys);
    return e->code;
}

static enum status stream_stage_ended(void *user, int stage, struct error *e) {
    (void)user, (void)stage;
    return e->code;
}

static bool stream_tick(void *user, const struct visit *visit, double done, struct error *e) {
    const struct stream_run *run = ((const struct stream_runner *)user)->bench;
    (void)visit, (void)done;
    if (!run->go_on || run->go_on(run->user)) return true;
    error_set(e, CANCELLED, "cancelled");
    return false;
}

static enum status add_visits(const struct stream_run *run, struct stream_runner *runner, struct error *e) {
    int passes = run->branches_apart ? run->lanes : 1, n = run->model->n_blocks;
    for (int evaluation = 0; evaluation < run->evaluations; evaluation++)
        for (int pass = 0; pass < passes; pass++)
            for (int b = 0; b < n; b++)
                visit_add(&runner->visits,
                          (struct visit){.block = b,
                                         .first_lane = run->branches_apart ? pass : 0,
                                         .n_lanes = run->branches_apart ? 1 : run->lanes,
                                         .evaluation = evaluation,
                                         .ends_evaluation = b + 1 == n && pass + 1 == passes},
                          e);
    return e->code;
}

static enum status runner_init(const struct stream_run *run, struct stream_runner *runner, struct error *e) {
    struct sys *sys = run->model->sys;
    *runner = (struct stream_runner){
        .bench = run,
        .stage = {.name = "denoise",
                  .component = &run->model->component,
                  .blocks = (const struct block **)run->model->list,
                  .n_blocks = run->model->n_blocks,
                  .n_model_blocks = run->model->n_blocks,
                  .lanes = runner->lanes,
                  .n_lanes = run->lanes,
                  .n_groups = 1,
                  .evaluations = run->evaluations},
        .visits.sys = sys,
        .hooks = {.user = runner,
                  .evaluation_ended = stream_evaluation_ended,
                  .stage_ended = stream_stage_ended,
                  .tick = stream_tick},
        .run = {sys, run->device, &runner->stage, 1, &runner->visits, &runner->hooks, run->readers, NULL,
                false},
    };
    return add_visits(run, runner, e);
}

enum status stream_measure(const struct stream_run *run, struct run_need *need, struct error *e) {
    struct stream_runner runner;
    memset(need, 0, sizeof *need);
    need->rates = run->rates;
    need->separate = true;
    if (runner_init(run, &runner, e) == OK) executor_measure(&runner.run, true, need, e);
    visit_list_destroy(&runner.visits);
    return e->code;
}

enum status stream_execute(const struct stream_run *run, const struct run_need *need, const struct plan *plan,
                           struct stream_times *times, struct error *e) {
    struct stream_runner runner;
    struct residents residents = {.sys = run->model->sys, .device = run->device};
    double began = run->model->sys->clock(run->model->sys);
    if (runner_init(run, &runner, e) == OK) executor_run(&runner.run, need, plan, &residents, NULL, e);
    residents_destroy(&residents);
    visit_list_destroy(&runner.visits);
    times->first = runner.ended[0] - began;
    times->steady = (runner.ended[run->evaluations - 1] - runner.ended[run->evaluations - 3]) / 2;
    return e->code;
}

/* ---- models ---- */

/* Dense bf16 FLOPs per second reached in practice, from published measurements; assumed for the RTX 3060: the
 * same share of the peak (51 TFLOP/s) as the 4060 Ti reaches. */
#define FLOPS_3060   20e12
#define FLOPS_4060TI 32e12
#define FLOPS_4090   115e12
/* FLOPs per step: Z-Image at 1024x1024 with 200 text tokens, Flux at 1024x1024. */
#define ZIMAGE_LAYER_FLOPS (61.3e12 / 32)
#define FLUX_BLOCK_FLOPS   (74.3e12 / 57)

/* Blocks of Z-Image: number, bytes, compute seconds. The noise refiners process image tokens only. */
#define ZIMAGE_BLOCKS(flops)                                                                                 \
    {                                                                                                        \
        {2, 354e6, 0.95 * ZIMAGE_LAYER_FLOPS / (flops)}, {                                                   \
            30, 354e6, ZIMAGE_LAYER_FLOPS / (flops)                                                          \
        }                                                                                                    \
    }

/* Blocks of the published models: number, bytes (in bf16) and compute seconds. */
const struct stream_shape stream_shapes[STREAM_SHAPES_ALL] = {
    {"zimage", ZIMAGE_BLOCKS(FLOPS_4060TI)},
    /* The next two models have the compute times of an RTX 4090; qwen_image at 1328x1328. */
    {"flux", {{19, 680e6, FLUX_BLOCK_FLOPS / FLOPS_4090}, {38, 283.2e6, FLUX_BLOCK_FLOPS / FLOPS_4090}}},
    {"qwen_image", {{60, 680e6, 1.15 / 60}}},
    /* uniform: computing a block takes as long as copying the block over PCIe Gen4 x16. */
    {"uniform", {{40, 300e6, 0.5 / 40}}},
    {"zimage_4090", ZIMAGE_BLOCKS(FLOPS_4090)},
    {"zimage_3060", ZIMAGE_BLOCKS(FLOPS_3060)},
};

void stream_shape_add(const struct stream_shape *shape, double flops, struct stream_model *m) {
    for (int k = 0; k < COUNT_OF(shape->blocks); k++)
        for (int i = 0; i < shape->blocks[k].n; i++)
            m->sizes[m->n_blocks++] =
                stream_block_of(shape->blocks[k].bytes, shape->blocks[k].seconds, flops);
}
