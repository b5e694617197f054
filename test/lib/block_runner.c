#include "test/lib/block_runner.h"

#include "engine/run/executor.h"
#include "engine/run/resident_memory.h"
#include "engine/run/reader.h"
#include "engine/run/visit.h"

#include <stdlib.h>
#include <string.h>

enum { RUNNER_SCRATCH = 64 << 20 };

static void eager_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}

static void eager_close(struct eager *eager) {
    if (eager->workspace) device_bytes_free(eager->workspace, eager->workspace_bytes);
    eager->workspace = NULL;
    eager->workspace_bytes = 0;
}

static enum status eager_run(struct device *device, const struct op *op, void *none, struct error *e) {
    struct eager *eager = (struct eager *)device;
    struct device *target = eager->target;
    struct op_cost cost = {0};
    double stalled = 0;
    (void)none;
    target->cost(target, op, &cost);
    if (cost.workspace_bytes >= eager->workspace_bytes) {
        eager_close(eager);
        eager->workspace_bytes = cost.workspace_bytes + 1;
        eager->workspace = device_bytes(eager->workspace_bytes);
    }
    if (target->prepare(target, op, e) == OK) target->run(target, op, eager->workspace, e);
    if (e->code == OK) device_wait(target, &stalled, e);
    return e->code;
}

static struct eager eager_open(struct device *target) {
    return (struct eager){.device = {.name = "eager", .cost = eager_cost, .run = eager_run},
                          .target = target};
}

/* Adds a frame dimension of 1, which the reference's image tensors lack: [C, Y, X] becomes [C, 1, Y, X]. */
static void add_frame_dimension(struct tensor *latent) {
    if (latent->rank == 3)
        *latent = tensor_reshape(*latent, 4, (int32_t[]){latent->dim[0], 1, latent->dim[1], latent->dim[2]});
}

struct block_runner *runner_open(const struct golden *g, int slot, struct lane lane) {
    struct block_runner *b = test_memory(sizeof *b);
    bool ok = true;
    b->component = &g->model->component[slot];
    b->settings = b->component->settings;
    add_frame_dimension(&lane.latent);
    add_frame_dimension(&lane.concat);
    add_frame_dimension(&lane.prediction);
    for (int i = 0; i < LANE_REFERENCES_MAX; i++) add_frame_dimension(&lane.reference[i]);
    if (lane.picture.rank == 3)
        lane.picture = tensor_reshape(
            lane.picture, 4, (int32_t[]){1, lane.picture.dim[0], lane.picture.dim[1], lane.picture.dim[2]});
    b->lane = lane;
    b->lane.state = test_memory(b->component->family->state.bytes);
    b->state = arena_counting();
    b->component->family->state.declare(b->component, &b->lane, 1, &b->state, &b->state, &ok);
    b->state = (struct arena){.bytes = b->state.peak};
    b->state.base = test_memory(b->state.bytes);
    memset(b->lane.state, 0, b->component->family->state.bytes);
    b->component->family->state.declare(b->component, &b->lane, 1, &b->state, &b->state, &ok);
    assert_true(ok);
    b->scratch = (struct arena){.bytes = RUNNER_SCRATCH, .base = device_bytes(RUNNER_SCRATCH)};
    b->eager = eager_open(golden_state.device);
    b->context = (struct context){.device = &b->eager.device,
                                  .precision = golden_state.precision,
                                  .scratch = &b->scratch,
                                  .error = &b->error};
    return b;
}

struct tensor runner_state(const struct block_runner *b, const char *name) {
    struct tensor t = component_state_tensor(b->component, &b->lane, name);
    if (!t.rank) fail_msg("family %s publishes no state tensor %s", b->component->family->name, name);
    return t;
}

void runner_close(struct block_runner *b) {
    device_bytes_free(b->scratch.base, RUNNER_SCRATCH);
    eager_close(&b->eager);
}

void runner_run(struct block_runner *b, const struct block *block, float timestep) {
    char *packed = device_bytes(block->bytes);
    void *weights = calloc(1, block->kind->weights_bytes);
    struct reader reader = {0};
    struct packed_segment segments[BLOCK_WEIGHTS_MAX];
    struct block read = *block;
    if (b->zeroed && block->segments <= b->zeroed &&
        b->zeroed < block->segments + block->n_segments) { /* a segment that is not read stays zero */
        read.segments = segments;
        for (int i = read.n_segments = 0; i < block->n_segments; i++)
            if (&block->segments[i] != b->zeroed) segments[read.n_segments++] = block->segments[i];
    }
    reader_read(&reader, &read, 0, read.bytes, packed, &b->error);
    block_point(block, packed_contiguous(block, packed), weights);
    struct visit_scope scope = {.settings = b->settings,
                                .latent_format = &b->component->latent_format,
                                .lane = &b->lane,
                                .number = block->number,
                                .chunk = b->chunk,
                                .first = true,
                                .first_of_prompt = true,
                                .n_timesteps = 1,
                                .timesteps = &timestep};
    b->scratch.used = 0;
    block->kind->forward(&b->context, weights, &scope);
    free(weights);
    device_bytes_free(packed, block->bytes);
    assert_ok(&b->error);
}

const struct block *runner_block(const struct block_runner *b, const char *name) {
    for (int i = 0; i < b->component->n_blocks; i++)
        if (!strcmp(b->component->blocks[i].name, name)) return &b->component->blocks[i];
    fail_msg("component has no block %s", name);
    return NULL;
}

void runner_put(struct tensor to, struct tensor from) {
    assert_int_equal(tensor_elements(&to), tensor_elements(&from));
    memcpy(to.data, from.data, (size_t)tensor_bytes(&from));
}

void runner_read_table(struct block_runner *b, int table) {
    struct block rows;
    component_gather_rows(b->component, table, &b->lane, &rows, &b->error);
    assert_ok(&b->error);
    runner_run(b, &rows, 0);
    block_destroy(&golden_state.sys, &rows);
}

void runner_list_visits(struct block_runner *b, struct visit_list *list) {
    const struct stage stage = {.component = b->component,
                                .n_model_blocks = b->component->n_blocks,
                                .lanes = &b->lane,
                                .n_lanes = 1,
                                .evaluations = 1};
    stage_visits(&stage, 0, list, &b->error);
}

/* Runs the blocks of the current chunk of frames. */
static void run_visits(struct block_runner *b) {
    struct visit_list list = {.sys = &golden_state.sys};
    int n_blocks = b->component->n_blocks;
    runner_list_visits(b, &list);
    for (int i = 0; i < list.n_visits; i++) {
        int block = list.visits[i].block;
        if (!list.visits[i].n_lanes) continue; /* the lane skips this block (skip-layer guidance) */
        if (block < n_blocks)
            runner_run(b, &b->component->blocks[block], b->timestep);
        else
            runner_read_table(b, block - n_blocks);
    }
    visit_list_destroy(&list);
}

void runner_run_all(struct block_runner *b) {
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    if (!b->frames.rank) {
        run_visits(b);
        return;
    }
    int n = component_frame_chunks(b->component, b->lane.latent.dim[1], chunks);
    for (b->chunk = 0; b->chunk < n; b->chunk++) {
        const struct frame_chunk *c = &chunks[b->chunk];
        run_visits(b);
        runner_put(tensor_slice(b->frames, c->first_frame, c->n_frames),
                   tensor_slice(b->lane.picture, 0, c->n_frames));
    }
}

struct tensor runner_convolve(struct block_runner *b, struct tensor in, struct tensor weight,
                              struct tensor bias, struct tensor residual, int up, enum finishing finish) {
    int32_t dim[3] = {up * in.dim[0], up * in.dim[1], weight.dim[0]};
    struct tensor out = test_tensor(DTYPE_F32, 3, dim);
    op_conv2d(&b->context, out, in, weight, (struct epilogue){.bias = bias, .residual = residual},
              (struct conv_options){.upsample = up, .finish = finish});
    assert_ok(&b->error);
    return out;
}
