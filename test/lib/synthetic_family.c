#include "test/lib/synthetic_family.h"

#include "engine/run/visit.h"
#include "engine/run/component.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
#define ONCE(X, S)                                                                                           \
    X##WEIGHT(S, row, (.rank = 2, .dim = {SYNTHETIC_ONE, SYNTHETIC_D}, .init_scale = 1), "row")
#define MIX(X, S)                                                                                            \
    X##WEIGHT(S, norm, (.rank = 1, .dim = {SYNTHETIC_D}), "norm")                                            \
    X##WEIGHT(S, up, (.rank = 2, .dim = {SYNTHETIC_F, SYNTHETIC_D}, .init_scale = 1), "up")                  \
    X##WEIGHT(S, bias, (.rank = 1, .dim = {SYNTHETIC_F}, .init_scale = 1), "bias?")                          \
    X##WEIGHT(S, down, (.rank = 2, .dim = {SYNTHETIC_D, SYNTHETIC_F}, .init_scale = 1), "down")
#define SCALE(X, S) X##WEIGHT(S, norm, (.rank = 1, .dim = {SYNTHETIC_D}), "norm")
struct synthetic_once { ONCE(FIELD_, ) };
struct synthetic_mix { MIX(FIELD_, ) };
struct synthetic_scale { SCALE(FIELD_, ) };
WEIGHT_TABLE(synthetic_once_table, ONCE, synthetic_once, "", "");
WEIGHT_TABLE(synthetic_mix_table, MIX, synthetic_mix, "mix.%d.", "mix.%d.");
WEIGHT_TABLE(synthetic_scale_table, SCALE, synthetic_scale, "scale.%d.", "scale.%d.");
/* clang-format on */

static void synthetic_once_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct synthetic_state *s = scope->lane->state;
    op_broadcast_row(x, s->base, ((const struct synthetic_once *)weights)->row);
    op_glu(x, s->base, s->base, s->base, ACTIVATION_SILU);
}

static void synthetic_start_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    (void)weights;
    const struct synthetic_state *s = scope->lane->state;
    struct tensor row = context_tensor(x, DTYPE_F32, 2, (const int32_t[]){1, s->x.dim[1]});
    op_timestep(x, row, scope->timesteps[0], TIMESTEP_USUAL);
    op_broadcast_row(x, s->x, row);
    op_glu(x, s->x, s->x, scope->lane->latent, ACTIVATION_SILU);
}

static void synthetic_mix_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct synthetic_mix *w = weights;
    const struct synthetic_state *s = scope->lane->state;
    struct tensor normed = context_tensor(x, DTYPE_F32, 2, s->x.dim);
    struct tensor wide = context_tensor(x, DTYPE_F32, 2, (const int32_t[]){s->x.dim[0], w->up.dim[0]});
    op_rms_norm(x, normed, s->x, w->norm, 1e-5f, (struct modulation){0});
    op_linear(x, wide, normed, w->up, (struct epilogue){.bias = w->bias});
    op_linear(x, s->x, wide, w->down, (struct epilogue){.residual = s->x});
}

static void synthetic_scale_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct synthetic_state *s = scope->lane->state;
    op_rms_norm(x, s->x, s->x, ((const struct synthetic_scale *)weights)->norm, 1e-5f,
                (struct modulation){0});
}

static void synthetic_end_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    (void)weights;
    const struct synthetic_state *s = scope->lane->state;
    op_glu(x, scope->lane->prediction, s->x, s->base, ACTIVATION_SILU);
}

const struct block_kind synthetic_kind_once =
    BLOCK_KIND("once", "once", synthetic_once_table, synthetic_once, synthetic_once_forward);
static const struct block_kind synthetic_kind_start = {
    .name = "start", .format = "start", .weights_bytes = 1, .forward = synthetic_start_forward};
static const struct block_kind synthetic_kind_mix =
    BLOCK_KIND("mix", "mix.%d", synthetic_mix_table, synthetic_mix, synthetic_mix_forward);
const struct block_kind synthetic_kind_scale =
    BLOCK_KIND("scale", "scale.%d", synthetic_scale_table, synthetic_scale, synthetic_scale_forward);
const struct block_kind synthetic_kind_end = {
    .name = "end", .format = "end", .weights_bytes = 1, .forward = synthetic_end_forward};

static int synthetic_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &synthetic_kind_once};
    refs[n++] = (struct block_ref){.kind = &synthetic_kind_start};
    for (int i = 0; i < c->dims[SYNTHETIC_LAYERS]; i++)
        refs[n++] =
            (struct block_ref){.kind = i % 3 == 2 ? &synthetic_kind_scale : &synthetic_kind_mix, .number = i};
    refs[n++] = (struct block_ref){.kind = &synthetic_kind_end};
    return n;
}

static void synthetic_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    dims[SYNTHETIC_F] = c->dims[SYNTHETIC_F] * (1 + ref->number % 3);
}

static void synthetic_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                              struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct synthetic_state *s = lanes[i].state;
        s->x = arena_tensor(arena, DTYPE_F32, 2,
                            (const int32_t[]){c->dims[SYNTHETIC_T], c->dims[SYNTHETIC_D]}, ok);
        s->base = arena_tensor(arena, DTYPE_F32, 2,
                               (const int32_t[]){c->dims[SYNTHETIC_T], c->dims[SYNTHETIC_D]}, ok);
    }
}

static enum status synthetic_visits(const struct component *c, int stage, const struct lane *lanes,
                                    int n_lanes, int evaluations, struct visit_list *list, struct error *e) {
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

const struct family synthetic_family = {
    .name = "synthetic",
    .kind = FAMILY_DENOISER,
    .files = {.ignorable = (const char *const[]){NULL}},
    .blocks = {.list = synthetic_blocks, .dims = synthetic_block_dims},
    .state = {.bytes = sizeof(struct synthetic_state), .declare = synthetic_declare},
    .lanes = {.visits = synthetic_visits},
};

/* Adds the tensors of a layer; every other layer is bf16. */
static void synthetic_add_layer(struct synthetic_files *f, const int32_t *dims, int i) {
    char name[SYNTHETIC_NAME];
    int32_t d = dims[SYNTHETIC_D], wide = dims[SYNTHETIC_F] * (1 + i % 3);
    enum dtype dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
    snprintf(name, sizeof name, i % 3 == 2 ? "scale.%d.norm" : "mix.%d.norm", i);
    synthetic_files_add(f, name, DTYPE_F32, 1, (const int32_t[]){d});
    if (i % 3 == 2) return;
    snprintf(name, sizeof name, "mix.%d.up", i);
    synthetic_files_add(f, name, dtype, 2, (const int32_t[]){wide, d});
    snprintf(name, sizeof name, "mix.%d.bias", i);
    if (i % 4) synthetic_files_add(f, name, dtype, 1, (const int32_t[]){wide});
    snprintf(name, sizeof name, "mix.%d.down", i);
    synthetic_files_add(f, name, dtype, 2, (const int32_t[]){d, wide});
}

enum status synthetic_open(struct sys *sys, const int32_t *dims, uint64_t seed, struct synthetic_files *f,
                           struct component *c, struct error *e) {
    synthetic_files_begin(f, sys, seed);
    synthetic_files_add(f, "row", DTYPE_F32, 2, (const int32_t[]){1, dims[SYNTHETIC_D]});
    for (int i = 0; i < dims[SYNTHETIC_LAYERS]; i++) synthetic_add_layer(f, dims, i);
    synthetic_files_end(f);
    *c = (struct component){.family = &synthetic_family, .sys = sys, .index = f->index};
    memcpy(c->dims, dims, 4 * sizeof *dims);
    c->dims[SYNTHETIC_ONE] = 1;
    return component_bind(c, &(struct config){0}, e);
}
