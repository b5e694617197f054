#include "test/lib/toy_family.h"

#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

struct toy_once {
    struct tensor row;
};

struct toy_mix {
    struct tensor norm, up, bias, down;
};

struct toy_scale {
    struct tensor norm;
};

static void toy_once_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct toy_state *s = scope->lane->state;
    op_broadcast_row(x, s->base, ((const struct toy_once *)weights)->row);
    op_glu(x, s->base, s->base, s->base, ACTIVATION_SILU);
}

static void toy_start_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    (void)weights;
    const struct toy_state *s = scope->lane->state;
    struct tensor row = context_tensor(x, DTYPE_F32, 2, (const int32_t[]){1, s->x.dim[1]});
    op_timestep(x, row, scope->timesteps[0], TIMESTEP_USUAL);
    op_broadcast_row(x, s->x, row);
    op_glu(x, s->x, s->x, scope->lane->latent, ACTIVATION_SILU);
}

static void toy_mix_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct toy_mix *w = weights;
    const struct toy_state *s = scope->lane->state;
    struct tensor normed = context_tensor(x, DTYPE_F32, 2, s->x.dim);
    struct tensor wide = context_tensor(x, DTYPE_F32, 2, (const int32_t[]){s->x.dim[0], w->up.dim[0]});
    op_rms_norm(x, normed, s->x, w->norm, 1e-5f, (struct modulation){0});
    op_linear(x, wide, normed, w->up, (struct epilogue){.bias = w->bias});
    op_linear(x, s->x, wide, w->down, (struct epilogue){.residual = s->x});
}

static void toy_scale_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct toy_state *s = scope->lane->state;
    op_rms_norm(x, s->x, s->x, ((const struct toy_scale *)weights)->norm, 1e-5f, (struct modulation){0});
}

static void toy_end_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    (void)weights;
    const struct toy_state *s = scope->lane->state;
    op_glu(x, scope->lane->prediction, s->x, s->base, ACTIVATION_SILU);
}

const struct block_kind toy_kind_once = {
    .name = "once",
    .format = "once",
    .weights = (const struct weight_spec[]){{.offset = offsetof(struct toy_once, row),
                                             .names = {"row"},
                                             .rank = 2,
                                             .dim = {TOY_ONE, TOY_D},
                                             .init_scale = 1}},
    .n_weights = 1,
    .weights_bytes = sizeof(struct toy_once),
    .forward = toy_once_forward,
};
static const struct block_kind toy_kind_start = {
    .name = "start", .format = "start", .weights_bytes = 1, .forward = toy_start_forward};
static const struct block_kind toy_kind_mix = {
    .name = "mix",
    .format = "mix.%d",
    .weights = (const struct weight_spec[]){{.offset = offsetof(struct toy_mix, norm),
                                             .names = {"mix.%d.norm"},
                                             .rank = 1,
                                             .dim = {TOY_D},
                                             .init_scale = 0},
                                            {.offset = offsetof(struct toy_mix, up),
                                             .names = {"mix.%d.up"},
                                             .rank = 2,
                                             .dim = {TOY_F, TOY_D},
                                             .init_scale = 1},
                                            {.offset = offsetof(struct toy_mix, bias),
                                             .names = {"mix.%d.bias"},
                                             .rank = 1,
                                             .dim = {TOY_F},
                                             .optional = true,
                                             .init_scale = 1},
                                            {.offset = offsetof(struct toy_mix, down),
                                             .names = {"mix.%d.down"},
                                             .rank = 2,
                                             .dim = {TOY_D, TOY_F},
                                             .init_scale = 1}},
    .n_weights = 4,
    .weights_bytes = sizeof(struct toy_mix),
    .forward = toy_mix_forward,
};
const struct block_kind toy_kind_scale = {
    .name = "scale",
    .format = "scale.%d",
    .weights = (const struct weight_spec[]){{.offset = offsetof(struct toy_scale, norm),
                                             .names = {"scale.%d.norm"},
                                             .rank = 1,
                                             .dim = {TOY_D},
                                             .init_scale = 0}},
    .n_weights = 1,
    .weights_bytes = sizeof(struct toy_scale),
    .forward = toy_scale_forward,
};
const struct block_kind toy_kind_end = {
    .name = "end", .format = "end", .weights_bytes = 1, .forward = toy_end_forward};

static enum status toy_configure(struct component *c, const struct config *config, struct error *e) {
    (void)c, (void)config;
    return e->code; /* whoever makes the files sets the dimensions */
}

static int toy_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &toy_kind_once};
    refs[n++] = (struct block_ref){.kind = &toy_kind_start};
    for (int i = 0; i < c->dims[TOY_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = i % 3 == 2 ? &toy_kind_scale : &toy_kind_mix, .number = i};
    refs[n++] = (struct block_ref){.kind = &toy_kind_end};
    return n;
}

static void toy_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    dims[TOY_F] = c->dims[TOY_F] * (1 + ref->number % 3);
}

static void toy_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                        struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct toy_state *s = lanes[i].state;
        s->x = arena_tensor(arena, DTYPE_F32, 2, (const int32_t[]){c->dims[TOY_T], c->dims[TOY_D]}, ok);
        s->base = arena_tensor(arena, DTYPE_F32, 2, (const int32_t[]){c->dims[TOY_T], c->dims[TOY_D]}, ok);
    }
}

static enum status toy_visits(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                              int evaluations, struct visit_list *list, struct error *e) {
    (void)lanes;
    visit_add(list, (struct visit){.stage = stage, .n_lanes = n_lanes, .evaluation = -1}, e);
    for (int i = 0; i < evaluations; i++)
        for (int b = 1; b < c->n_blocks; b++)
            visit_add(list,
                      (struct visit){.stage = stage,
                                     .block = b,
                                     .n_lanes = n_lanes,
                                     .evaluation = i,
                                     .ends_evaluation = b == c->n_blocks - 1},
                      e);
    return e->code;
}

const struct family toy_family = {
    .name = "toy",
    .kind = FAMILY_DENOISER,
    .configure = toy_configure,
    .blocks = toy_blocks,
    .block_dims = toy_block_dims,
    .ignorable = (const char *const[]){NULL},
    .lane_state_bytes = sizeof(struct toy_state),
    .declare = toy_declare,
    .visits = toy_visits,
};

/* Adds what a layer of the family needs; every other one is bf16. */
static void toy_add_layer(struct toy_files *f, const int32_t *dims, int i) {
    char name[TOY_NAME];
    int32_t d = dims[TOY_D], wide = dims[TOY_F] * (1 + i % 3);
    enum dtype dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
    snprintf(name, sizeof name, i % 3 == 2 ? "scale.%d.norm" : "mix.%d.norm", i);
    toy_files_add(f, name, DTYPE_F32, 1, (const int32_t[]){d});
    if (i % 3 == 2) return;
    snprintf(name, sizeof name, "mix.%d.up", i);
    toy_files_add(f, name, dtype, 2, (const int32_t[]){wide, d});
    snprintf(name, sizeof name, "mix.%d.bias", i);
    if (i % 4) toy_files_add(f, name, dtype, 1, (const int32_t[]){wide});
    snprintf(name, sizeof name, "mix.%d.down", i);
    toy_files_add(f, name, dtype, 2, (const int32_t[]){d, wide});
}

enum status toy_open(struct sys *sys, const int32_t *dims, uint64_t seed, struct toy_files *f,
                     struct component *c, struct error *e) {
    toy_files_begin(f, sys, seed);
    toy_files_add(f, "row", DTYPE_F32, 2, (const int32_t[]){1, dims[TOY_D]});
    for (int i = 0; i < dims[TOY_LAYERS]; i++) toy_add_layer(f, dims, i);
    toy_files_end(f);
    *c = (struct component){.family = &toy_family, .sys = sys, .index = f->index};
    memcpy(c->dims, dims, 4 * sizeof *dims);
    c->dims[TOY_ONE] = 1;
    return component_bind(c, &(struct config){0}, e);
}
