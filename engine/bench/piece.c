/* A part of a pipeline for benches: see bench_part.h. */
#include "engine/bench/piece.h"

#include "engine/bench/random_weights.h"
#include "kernels/ops.h"

#include <string.h>

static int choose_blocks(struct bench_part *part, const char *name) {
    int n = part->component.family->blocks(&part->component, part->refs);
    for (int i = 0; name && i < n; i++) {
        if (strcmp(part->refs[i].kind->name, name) != 0) continue;
        part->refs[0] = part->refs[i];
        return 1;
    }
    return n;
}

static void derive(struct bench_part *part, const struct bench_part_sizes *sizes) {
    enum { DIMENSIONS_MAX = 32 };
    const struct family *family = sizes->family;
    int published[DIMENSIONS_MAX];
    for (int i = 0; i < family->n_dimensions && i < DIMENSIONS_MAX; i++)
        published[i] = family->dimensions[i].published;
    part->component = (struct component){.family = family, .sys = part->sys};
    family->derive(&part->component, sizes->chosen ? sizes->chosen : published);
}

static enum status begin(struct bench_part *part, const struct bench_part_sizes *sizes, struct error *e) {
    struct sys *sys = part->sys;
    size_t structure_bytes = 0;
    derive(part, sizes);
    part->refs = sys->alloc(sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *part->refs);
    part->lane.state = sys->alloc(sys, LINE_HOST, sizes->family->lane_state_bytes);
    if (!part->refs || !part->lane.state) return error_set(e, MEMORY, "no memory for a bench");
    part->n_blocks = choose_blocks(part, sizes->block);
    for (int b = 0; b < part->n_blocks; b++) structure_bytes += part->refs[b].kind->weights_bytes;
    part->structures = sys->alloc(sys, LINE_HOST, structure_bytes);
    return part->structures ? OK : error_set(e, MEMORY, "no memory for a bench");
}

/* One weight and its scales in the arena; filled, unless that only counts. */
static struct tensor make_weight(const struct weight_spec *spec, struct tensor shape, uint64_t *random,
                                 struct arena *arena, bool *ok) {
    struct tensor t = arena_tensor(arena, shape.dtype, shape.rank, shape.dim, ok);
    t.scale = made_scale(&t, spec->spread);
    t.scales = &t; /* whatever it is: their size is asked for */
    int32_t bytes = dtype_is_quantised(t.dtype) ? (int32_t)tensor_scales_bytes(&t) : 0;
    bool apart = bytes && (dtype_tiled_values(t.dtype) || dtype_block_values(t.dtype) == 1);
    t.scales = apart ? arena_tensor(arena, DTYPE_U8, 1, &bytes, ok).data : NULL;
    if (t.data) made_weights(random, &t, spec->spread, t.data, (uint64_t)tensor_bytes(&t));
    if (t.scales) made_scales(random, &t, spec->spread, (void *)(uintptr_t)t.scales, (uint64_t)bytes);
    if (apart && !dtype_tiled_values(t.dtype)) t.scale = 1; /* rows have it */
    return t;
}

static void make_weights(const struct bench_part *part, const struct block_ref *ref, char *structure,
                         struct arena *arena, bool *ok) {
    int32_t dims[FAMILY_DIMS_MAX];
    uint64_t random = 1;
    component_block_dims(&part->component, ref, dims);
    for (int i = 0; i < ref->kind->n_weights; i++) {
        const struct weight_spec *spec = &ref->kind->weights[i];
        int32_t dim[WEIGHT_RANK_MAX];
        if (spec->optional) continue;
        for (int k = 0; k < spec->rank; k++) dim[k] = dims[spec->dim[k]];
        bool fits = spec->rank == 2 && dim[1] % dtype_block_values(part->type) == 0;
        struct tensor shape = {.dtype = fits ? part->type : DTYPE_BF16, .rank = spec->rank};
        memcpy(shape.dim, dim, sizeof dim);
        struct tensor t = make_weight(spec, shape, &random, arena, ok);
        memcpy(structure + spec->offset, &t, sizeof t);
    }
}

/* Weights, the lane and its state. */
static void lay_out(struct bench_part *part, const struct bench_part_sizes *sizes, struct arena *arena,
                    bool *ok) {
    int32_t side = sizes->latent_side, latent[3] = {sizes->latent_channels, side, side};
    int32_t picture[3] = {sizes->picture_side, sizes->picture_side, 3};
    char *structure = part->structures;
    part->lane.latent = arena_tensor(arena, DTYPE_F32, 3, latent, ok);
    part->lane.text =
        arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){sizes->text_rows, sizes->text_columns}, ok);
    part->lane.picture = arena_tensor(arena, DTYPE_F32, 3, picture, ok);
    memset(part->lane.state, 0, sizes->family->lane_state_bytes);
    sizes->family->declare(&part->component, &part->lane, 1, arena, arena, ok);
    if (arena->base) {
        struct tensor numbers = tensor_make(NULL, DTYPE_F32, 1, (int32_t[]){1});
        uint64_t random = 2;
        made_weights(&random, &numbers, 1, arena->base, arena->used);
    }
    for (int b = 0; b < part->n_blocks; b++) {
        make_weights(part, &part->refs[b], structure, arena, ok);
        structure += part->refs[b].kind->weights_bytes;
    }
}

/* What the forwards need besides: runs them dry, which also prepares the device. */
static enum status measure(struct bench_part *part, struct error *e) {
    struct dry dry;
    struct arena counting = arena_counting();
    dry_init(&dry, part->sys, part->device, true);
    part->context = (struct context){.scratch = &counting};
    bench_part_run(part, &dry.device, e);
    part->context = (struct context){.scratch = &part->scratch, .workspace_bytes = dry.workspace_bytes};
    part->scratch.bytes = counting.peak;
    dry_destroy(&dry);
    return e->code;
}

enum status bench_part_make(struct bench_part *part, struct sys *sys, struct device *device,
                            const struct bench_part_sizes *sizes, struct error *e) {
    struct arena arena = arena_counting();
    bool ok = true;
    *part = (struct bench_part){.sys = sys, .device = device, .type = sizes->type};
    if (begin(part, sizes, e) != OK) return e->code;
    lay_out(part, sizes, &arena, &ok);
    if (measure(part, e) != OK) return e->code;
    part->bytes = arena.peak + part->scratch.bytes + part->context.workspace_bytes;
    part->memory = sys->map(sys, LINE_ACTIVATION, part->bytes);
    if (!part->memory)
        return error_set(e, MEMORY, "no memory for a bench of %llu bytes", (unsigned long long)part->bytes);
    arena = (struct arena){.base = part->memory, .bytes = arena.peak};
    lay_out(part, sizes, &arena, &ok);
    part->scratch.base = arena.base + arena.bytes;
    part->context.workspace = part->scratch.base + part->scratch.bytes;
    return OK;
}

enum status bench_part_run(struct bench_part *part, struct device *device, struct error *e) {
    static const float timestep = 0.5f;
    const char *structure = part->structures;
    struct context *x = &part->context;
    x->device = device;
    x->error = e;
    for (int b = 0; b < part->n_blocks && e->code == OK; b++) {
        const struct block_ref *ref = &part->refs[b];
        struct visit_scope scope = {.settings = part->component.settings,
                                    .lane = &part->lane,
                                    .number = ref->number,
                                    .n_timesteps = 1,
                                    .timesteps = &timestep};
        x->scratch->used = 0;
        ref->kind->forward(x, structure, &scope);
        structure += ref->kind->weights_bytes;
    }
    return e->code;
}

void bench_part_destroy(struct bench_part *part) {
    struct sys *sys = part->sys;
    if (part->memory) sys->unmap(sys, LINE_ACTIVATION, part->memory, part->bytes);
    sys->release(sys, part->structures);
    sys->release(sys, part->lane.state);
    sys->release(sys, part->refs);
}
