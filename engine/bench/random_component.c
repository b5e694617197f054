#include "engine/bench/random_component.h"
#include "engine/run/component.h"

#include "engine/job/request.h"
#include "engine/bench/random_weights.h"
#include "kernels/dry/dry.h"
#include "kernels/ops.h"

#include <string.h>

enum dtype random_component_type(const struct family *family, enum precision precision, enum dtype asked) {
    if (asked != N_DTYPES) return asked;
    if (precision == PRECISION_INT8) return DTYPE_I8_ROT256;
    return family->f16_operands ? DTYPE_F16 : DTYPE_BF16;
}

bool random_component_at_last(const struct random_component_sizes *sizes, const struct block_ref *ref) {
    return sizes->last.kind && !strcmp(ref->kind->name, sizes->last.kind) &&
           ref->number == sizes->last.number;
}

static int choose_blocks(struct random_component *c, const struct random_component_sizes *sizes) {
    int all = c->component.family->blocks.list(&c->component, c->refs), n = 0;
    for (int i = 0; i < all; i++) {
        struct block_ref ref = c->refs[i];
        if (random_component_at_last(sizes, &ref)) all = i + 1;
        if (ref.unused) continue;
        if (sizes->block && !strcmp(ref.kind->name, sizes->block)) {
            c->refs[0] = ref;
            return 1;
        }
        c->refs[n++] = ref;
    }
    return n;
}

static enum status bench_random_component_begin(struct random_component *c,
                                                const struct random_component_sizes *sizes, struct error *e) {
    struct sys *sys = c->sys;
    size_t structure_bytes = 0, n_weights = 0;
    c->component = (struct component){.family = sizes->family, .sys = sys, .video = sizes->chunk > 0};
    component_derive(&c->component, sizes->chosen);
    c->refs = sys->alloc(sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *c->refs);
    c->lane.state = sys->alloc(sys, LINE_HOST, sizes->family->state.bytes);
    if (!c->refs || !c->lane.state) return error_set(e, MEMORY, "no memory for the benchmark");
    c->n_blocks = choose_blocks(c, sizes);
    for (int b = 0; b < c->n_blocks; b++) {
        structure_bytes += c->refs[b].kind->weights_bytes;
        n_weights += (size_t)c->refs[b].kind->n_weights;
    }
    c->structures = sys->alloc(sys, LINE_HOST, structure_bytes);
    if (sizes->adapter_rank) c->adapters = sys->alloc(sys, LINE_HOST, n_weights * sizeof *c->adapters);
    return c->structures && (c->adapters || !sizes->adapter_rank)
               ? OK
               : error_set(e, MEMORY, "no memory for the benchmark");
}

/* Allocates one weight and its scales in the arena; fills weight and scales unless the arena only counts. */
static struct tensor make_weight(const struct weight_spec *spec, struct tensor shape, uint64_t *random,
                                 struct arena *arena, bool *ok) {
    struct tensor t = arena_tensor(arena, shape.dtype, shape.rank, shape.dim, ok);
    t.scale = random_weights_scale(&t, spec->init_scale);
    t.scales = &t; /* temporary non-NULL value: only the size of the scales is computed */
    int32_t bytes = dtype_is_quantised(t.dtype) ? (int32_t)tensor_scales_bytes(&t) : 0;
    bool apart = bytes && (dtype_tiled_values(t.dtype) || dtype_scales_rows(t.dtype));
    t.scales = apart ? arena_tensor(arena, DTYPE_U8, 1, &bytes, ok).data : NULL;
    if (t.data) random_weights_fill(random, &t, spec->init_scale, t.data, (uint64_t)tensor_bytes(&t));
    if (t.scales)
        random_weights_fill_scales(random, &t, spec->init_scale, (void *)(uintptr_t)t.scales,
                                   (uint64_t)bytes);
    /* the row scales already include the weight's scale */
    if (apart && !dtype_tiled_values(t.dtype)) t.scale = 1;
    return t;
}

static struct tensor make_factor(int32_t rows, int32_t columns, uint64_t *random, struct arena *arena,
                                 bool *ok) {
    static const struct weight_spec spec = {.init_scale = 0.25};
    struct tensor shape = tensor_make(NULL, DTYPE_BF16, 2, (int32_t[]){rows, columns});
    return make_weight(&spec, shape, random, arena, ok);
}

/* Allocates and fills all weights of a block. adapters: array for the block's adapters, or NULL. */
static void make_weights(const struct random_component *c, const struct block_ref *ref, char *structure,
                         struct low_rank *adapters, struct arena *arena, bool *ok) {
    int32_t dims[FAMILY_DIMS_MAX];
    uint64_t random = 1, random_factors = 4;
    component_block_dims(&c->component, ref, dims);
    for (int i = 0; i < ref->kind->n_weights; i++) {
        const struct weight_spec *spec = &ref->kind->weights[i];
        int32_t dim[WEIGHT_RANK_MAX];
        if (weight_is_optional(spec) || !block_has_weight(spec, dims)) continue;
        for (int k = 0; k < spec->rank; k++) dim[k] = dims[spec->dim[k]];
        bool fits = spec->rank == 2 && dim[1] % dtype_block_values(c->type) == 0;
        struct tensor shape = {.dtype = fits ? c->type : DTYPE_BF16, .rank = spec->rank};
        memcpy(shape.dim, dim, sizeof dim);
        struct tensor t = make_weight(spec, shape, &random, arena, ok);
        if (adapters && t.rank == 2) {
            adapters[i] =
                (struct low_rank){.down = make_factor(c->adapter_rank, dim[1], &random_factors, arena, ok),
                                  .up = make_factor(dim[0], c->adapter_rank, &random_factors, arena, ok)};
            t.adapters = &adapters[i];
        }
        memcpy(structure + spec->offset, &t, sizeof t);
    }
}

static void random_component_lay_out(struct random_component *c, const struct random_component_sizes *sizes,
                                     struct arena *arena, bool *ok) {
    int32_t frames = sizes->latent_frames ? sizes->latent_frames : 1;
    int32_t columns = sizes->latent_columns ? sizes->latent_columns : sizes->latent_side;
    int32_t latent[4] = {sizes->latent_channels, frames, sizes->latent_side, columns};
    int32_t picture[4] = {c->chunk ? c->component.frame_factor : 1, sizes->picture_side,
                          sizes->picture_side / sizes->latent_side * columns,
                          c->component.picture_channels ? c->component.picture_channels : 3};
    char *structure = c->structures;
    struct low_rank *adapters = c->adapters;
    c->lane.latent = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    c->lane.prediction = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    if (sizes->sound[0]) {
        int32_t sound[4] = {sizes->sound[0], 1, sizes->sound[1], sizes->sound[2]};
        c->lane.sound = arena_tensor(arena, DTYPE_F32, 4, sound, ok);
        c->lane.sound_prediction = arena_tensor(arena, DTYPE_F32, 4, sound, ok);
        c->lane.fps = 24;
    }
    if (sizes->family->kind == FAMILY_VOCODER) {
        int32_t mel[2] = {sizes->sound[1], sizes->sound[0] * sizes->sound[2]},
                wave[2] = {mel[0] * c->component.samples_a_frame, c->component.sound_channels};
        c->lane.mel = arena_tensor(arena, DTYPE_F32, 2, mel, ok);
        c->lane.wave = arena_tensor(arena, DTYPE_F32, 2, wave, ok);
    }
    c->lane.text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){sizes->text_rows, sizes->text_columns}, ok);
    c->lane.picture = arena_tensor(arena, DTYPE_F32, 4, picture, ok);
    if (sizes->family->kind == FAMILY_UPSCALER) {
        int32_t scale = c->component.pixel_factor,
                enlarged[4] = {1, scale * picture[1], scale * picture[2], picture[3]};
        c->lane.enlarged = arena_tensor(arena, DTYPE_F32, 4, enlarged, ok);
    }
    if (sizes->family->kind == FAMILY_LATENT_UPSCALER) {
        int32_t factor = c->component.pixel_factor, divisor = c->component.pixel_divisor,
                enlarged[4] = {latent[0], latent[1], (latent[2] * factor + divisor - 1) / divisor,
                               (latent[3] * factor + divisor - 1) / divisor};
        c->lane.enlarged = arena_tensor(arena, DTYPE_F32, 4, enlarged, ok);
    }
    if (c->component.source_columns)
        c->lane.source =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){sizes->text_rows, c->component.source_columns}, ok);
    if (c->component.pooled_columns)
        c->lane.pooled = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, c->component.pooled_columns}, ok);
    for (int i = 0; i < ADD_TIME_IDS_MAX; i++) c->lane.add_time_ids[i] = (float)sizes->picture_side;
    c->lane.n_tokens = sizes->text_rows;
    c->lane.operand = c->device->operands.in[c->precision];
    memset(c->lane.state, 0, sizes->family->state.bytes);
    sizes->family->state.declare(&c->component, &c->lane, 1, arena, arena, ok);
    if (arena->base) {
        /* Fills the state with pairs of random bf16 values; each pair is also a valid f32 value. */
        struct tensor pairs = tensor_make(NULL, DTYPE_BF16, 1, (int32_t[]){1});
        uint64_t random = 2;
        random_weights_fill(&random, &pairs, 1, arena->base, arena->used);
    }
    for (int b = 0; b < c->n_blocks; b++) {
        make_weights(c, &c->refs[b], structure, adapters, arena, ok);
        structure += c->refs[b].kind->weights_bytes;
        if (adapters) adapters += c->refs[b].kind->n_weights;
    }
}

/* Measures the sizes of scratch memory and workspace by a dry run, which also prepares the device. */
static enum status random_component_measure(struct random_component *c, struct error *e) {
    struct dry dry;
    struct arena counting = arena_counting();
    dry_init(&dry, c->sys, c->device, true);
    c->context.scratch = &counting;
    random_component_run(c, &dry.device, e);
    c->context.scratch = &c->scratch;
    c->context.workspace_bytes = dry.workspace_bytes;
    c->scratch.bytes = counting.peak;
    dry_destroy(&dry);
    return e->code;
}

static void random_component_start(struct random_component *c, struct sys *sys, struct device *device,
                                   const struct random_component_sizes *sizes) {
    *c = (struct random_component){.sys = sys,
                                   .device = device,
                                   .precision = sizes->precision == PRECISION_F32
                                                    ? family_precision(sizes->family, device)
                                                    : sizes->precision,
                                   .type = sizes->type,
                                   .adapter_rank = sizes->adapter_rank,
                                   .chunk = sizes->chunk};
}

enum status random_component_make(struct random_component *c, struct sys *sys, struct device *device,
                                  const struct random_component_sizes *sizes, struct error *e) {
    struct arena arena = arena_counting();
    bool ok = true;
    random_component_start(c, sys, device, sizes);
    if (bench_random_component_begin(c, sizes, e) != OK) return e->code;
    random_component_lay_out(c, sizes, &arena, &ok);
    if (random_component_measure(c, e) != OK) return e->code;
    c->bytes = arena.peak + c->scratch.bytes + c->context.workspace_bytes;
    c->memory = sys->map(sys, LINE_ACTIVATION, c->bytes);
    if (!c->memory)
        return error_set(e, MEMORY, "no memory for a benchmark of %llu bytes", (unsigned long long)c->bytes);
    arena = (struct arena){.base = c->memory, .bytes = arena.peak};
    random_component_lay_out(c, sizes, &arena, &ok);
    c->scratch.base = arena.base + arena.bytes;
    c->context.workspace = c->scratch.base + c->scratch.bytes;
    return OK;
}

enum status random_component_count(struct random_component *c, struct sys *sys, struct device *device,
                                   const struct random_component_sizes *sizes, struct error *e) {
    struct arena arena = arena_counting();
    bool ok = true;
    random_component_start(c, sys, device, sizes);
    if (bench_random_component_begin(c, sizes, e) != OK) return e->code;
    random_component_lay_out(c, sizes, &arena, &ok);
    c->scratch = arena_counting();
    c->context.scratch = &c->scratch;
    return OK;
}

enum status random_component_run(struct random_component *c, struct device *device, struct error *e) {
    static const float timestep = 0.5f;
    const char *structure = c->structures;
    struct context *x = &c->context;
    x->device = device;
    x->error = e;
    for (int b = 0; b < c->n_blocks && e->code == OK; b++) {
        const struct block_ref *ref = &c->refs[b];
        c->running = b;
        struct visit_scope scope = {.settings = c->component.settings,
                                    .latent_format = &c->component.latent_format,
                                    .lane = &c->lane,
                                    .number = ref->number,
                                    .chunk = c->chunk,
                                    .first = true,
                                    .first_of_prompt = true,
                                    .n_timesteps = 1,
                                    .timesteps = &timestep};
        x->scratch->used = 0;
        x->precision = block_precision(ref->kind, c->precision, device);
        ref->kind->forward(x, structure, &scope);
        structure += ref->kind->weights_bytes;
    }
    return e->code;
}

void random_component_destroy(struct random_component *c) {
    struct sys *sys = c->sys;
    if (c->memory) sys->unmap(sys, LINE_ACTIVATION, c->memory, c->bytes);
    sys->release(sys, c->structures);
    sys->release(sys, c->adapters);
    sys->release(sys, c->lane.state);
    sys->release(sys, c->refs);
}
