/* Causal video VAEs, encoder and decoder chunk by chunk: frames and moments against diffusers; the same bits
 * for every length, with frames in host or device memory, and after an operator ran out of memory; memory
 * that does not grow with the length. */
#include "loaders/loaders.h"
#include "engine/run/component.h"
#include "models/models.h"
#include "models/vae_causal.h"
#include "test/lib/failing_operators.h"
#include "test/lib/tensor_notation.h"
#include "test/lib/vae_run.h"

#include <stdio.h>
#include <string.h>

enum { FRAMES = 13, CHUNK_FRAMES = 4 };

/* Relative L2 distance from the reference. On a GPU: with TF32 convolutions and bf16 attention, measured
 * under emulation. */
static const struct tolerance tolerances[] = {{"video", 7.8e-7, 2e-6}, {0}},
                              gpu_tolerances[] = {{"video", 3.5e-3, 1e-2}, {0}};

struct half {
    const struct golden *golden;
    const struct component *component;
    bool encodes;
    struct tensor in, out; /* reference tensors. Decoder: latent [C, T, Y, X], frames [F, Y, X, 3]; encoder:
                              frames, moments [T, Y, X, C] */
    struct lane lane;
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    int n_chunks, begun, ended;
    struct tensor result;
    struct vae_run run;
};

static void half_open(struct half *h, const struct golden *g, const struct component *c) {
    *h = (struct half){.golden = g, .component = c, .encodes = c->family->kind == FAMILY_ENCODER};
    const char *in = h->encodes ? "video.encoder.in" : "video.decoder.in",
               *out = h->encodes ? "video.encoder.out" : "video.decoder.out";
    h->in = notation_read(golden(g, in), h->encodes ? "[0] cnyx->nyxc" : "[0]");
    h->out = notation_read(golden(g, out), "[0] cnyx->nyxc");
}

static size_t frames_bytes(struct tensor frames, int32_t n) {
    return (size_t)(tensor_bytes(&frames) / frames.dim[0] * n);
}

static char *frames_from(struct tensor frames, int32_t first) {
    return (char *)frames.data + frames_bytes(frames, first);
}

/* Prepares a run of an encoder or decoder over the first `frames` frames of the reference. */
static void half_set_length(struct half *h, int32_t frames) {
    int32_t f = h->component->pixel_factor, T = (frames - 1) / CHUNK_FRAMES + 1;
    int32_t longest = frames > 1 ? CHUNK_FRAMES : 1;
    assert_int_equal(component_frame_factor(h->component), CHUNK_FRAMES);
    h->n_chunks = component_frame_chunks(h->component, T, h->chunks);
    assert_int_equal(h->n_chunks, T);
    if (h->encodes) {
        int32_t Y = h->in.dim[1], X = h->in.dim[2];
        h->lane.picture = test_tensor(DTYPE_F32, 4, (int32_t[]){longest, Y, X, 3});
        h->lane.moments = test_tensor(DTYPE_F32, 3, (int32_t[]){Y / f, X / f, h->out.dim[3]});
        h->result = test_tensor(DTYPE_F32, 4, (int32_t[]){T, Y / f, X / f, h->out.dim[3]});
        return;
    }
    const int32_t *in = h->in.dim;
    h->lane.latent = test_tensor(DTYPE_F32, 4, (int32_t[]){in[0], T, in[2], in[3]});
    h->lane.picture = test_tensor(DTYPE_F32, 4, (int32_t[]){longest, in[2] * f, in[3] * f, 3});
    h->result = test_tensor(DTYPE_F32, 4, (int32_t[]){frames, in[2] * f, in[3] * f, 3});
    const struct latent_format *format = &h->component->latent_format;
    int64_t plane = (int64_t)in[2] * in[3];
    for (int32_t c = 0; c < in[0]; c++) {
        int32_t of = format->n > 1 ? c : 0;
        for (int64_t i = 0; i < T * plane; i++)
            ((float *)h->lane.latent.data)[c * T * plane + i] =
                (((float *)h->in.data)[c * in[1] * plane + i] - format->shift[of]) * format->scale[of];
    }
}

static enum status chunk_begins(void *user, const struct visit *visit, struct error *e) {
    struct half *h = user;
    const struct frame_chunk *chunk = &h->chunks[visit->evaluation];
    h->begun++;
    if (!h->encodes) return e->code;
    memset(h->lane.picture.data, 0xff, (size_t)tensor_bytes(&h->lane.picture));
    memcpy(h->lane.picture.data, frames_from(h->in, chunk->first_frame),
           frames_bytes(h->in, chunk->n_frames));
    return e->code;
}

static enum status chunk_ended(void *user, const struct visit *visit, struct error *e) {
    struct half *h = user;
    const struct frame_chunk *chunk = &h->chunks[visit->evaluation];
    assert_int_equal(visit->evaluation, h->ended++); /* evaluations end in order, each once */
    int32_t first = h->encodes ? chunk->first_latent : chunk->first_frame;
    memcpy(frames_from(h->result, first), h->encodes ? h->lane.moments.data : h->lane.picture.data,
           frames_bytes(h->result, h->encodes ? 1 : chunk->n_frames));
    return e->code;
}

static void half_measure(struct half *h, struct device *device) {
    vae_run_measure(&h->run, h->component, &h->lane, 1, device, h->n_chunks);
}

static void half_execute(struct half *h, const struct run_hooks *hooks) {
    h->begun = h->ended = 0;
    memset(h->result.data, 0xff, (size_t)tensor_bytes(&h->result));
    h->run.run.hooks = hooks;
    vae_run_execute(&h->run);
    assert_int_equal(h->ended, h->n_chunks);
}

static struct run_hooks half_hooks(struct half *h) {
    struct run_hooks hooks = *h->run.run.hooks;
    hooks.user = h;
    hooks.evaluation_begins = chunk_begins;
    hooks.evaluation_ended = chunk_ended;
    return hooks;
}

/* Plans and runs an encoder or decoder on the test's device, with unlimited memory. */
static struct tensor half_make(struct half *h, int32_t frames) {
    half_set_length(h, frames);
    half_measure(h, golden_state.device);
    if (!golden_state.device->memory) h->run.residents.device = NULL;
    plan_solve(&h->run.need, plenty, plenty, &h->run.plan);
    struct run_hooks hooks = half_hooks(h);
    half_execute(h, &hooks);
    visit_list_destroy(&h->run.visits);
    return h->result;
}

/* Calls body for the fixture's video decoder and, if it has one, its encoder. */
static void each_half(const struct golden *g, void (*body)(struct half *h)) {
    static struct half h;
    const struct family *halves[2] = {NULL, NULL};
    int n = 0;
    for (int i = 0; i < SLOTS_MAX; i++) {
        const struct component *c = &g->model->component[i];
        if (!c->family || !(family_decodes(c->family) || c->family->kind == FAMILY_ENCODER)) continue;
        assert_true(n < 2);
        halves[n++] = c->family;
        half_open(&h, g, c);
        body(&h);
    }
    assert_true(n > 0);
    for (const struct family *const *f = families; *f; f++)
        assert_int_equal((*f)->files.probe(&h.component->index), *f == halves[0] || *f == halves[1]);
}

static void check_reference(struct half *h) {
    struct tensor whole = {0};
    for (int32_t frames = FRAMES; frames > 0; frames -= CHUNK_FRAMES) {
        struct tensor result = half_make(h, frames);
        expect_error(h->golden, "video", h->component->family->name,
                     distance(result.data, h->out.data, tensor_elements(&result)));
        if (frames == FRAMES) whole = result;
        assert_memory_equal(result.data, whole.data, (size_t)tensor_bytes(&result));
    }
}

static void test_frames_equal_reference(const struct golden *g) {
    each_half(g, check_reference);
}

static void check_placement(struct half *h, struct device *device, bool tiled, struct tensor want) {
    uint64_t least = 0;
    half_set_length(h, FRAMES);
    h->lane.tiled = tiled;
    half_measure(h, device);
    struct run_hooks hooks = half_hooks(h);
    for (int host = 0; host < 2; host++) {
        plan_solve(&h->run.need, plenty, host ? h->run.plan.vram_least_bytes : plenty, &h->run.plan);
        assert_int_equal(h->run.plan.stage[0].pictures_on_host, host);
        half_execute(h, &hooks);
        assert_memory_equal(h->result.data, want.data, (size_t)tensor_bytes(&want));
        least = h->run.plan.vram_least_bytes;
    }
    printf("  %-18s needs %llu bytes of the device's memory%s\n", h->component->family->name,
           (unsigned long long)least, tiled ? ", tiled" : "");
    visit_list_destroy(&h->run.visits);
    h->lane.tiled = false;
}

static void check_placements(struct half *h) {
    struct error e = {0};
    struct tensor want = half_make(h, FRAMES);
    struct device *device = golden_state.device;
    if (!on_gpu()) device = paced_open(&golden_state.sys, device, 0, &e);
    assert_ok(&e);
    for (int tiled = 0; tiled < 2; tiled++) check_placement(h, device, tiled, want);
    if (!on_gpu()) device->destroy(device);
}

static void test_frame_placement_does_not_change_bits(const struct golden *g) {
    each_half(g, check_placements);
}

/* After a failure the lane starts again from its first chunk. The host callback runs once for each chunk. */
static void check_recomputed(struct half *h) {
    enum { PLACES = 12 };
    if (!strcmp(h->golden->name, "taehv/f32")) return; /* evicting its small blocks frees no memory */
    struct tensor want = half_make(h, FRAMES);
    half_set_length(h, FRAMES);
    half_measure(h, golden_state.device);
    h->run.residents.device = NULL;
    struct run_hooks hooks = half_hooks(h);
    long all = 0;
    int again = 0;
    operators_begin(golden_state.device);
    for (int i = 0; i <= PLACES; i++) {
        plan_solve(&h->run.need, plenty, plenty, &h->run.plan);
        operators_fail_at(i ? 1 + all * (2 * i - 1) / (2 * PLACES) : 0);
        half_execute(h, &hooks);
        assert_memory_equal(h->result.data, want.data, (size_t)tensor_bytes(&want));
        if (!i) all = operators_counted();
        assert_in_range(h->begun, h->n_chunks + (i > 0), 2 * h->n_chunks);
        again += h->begun - h->n_chunks;
    }
    operators_end(golden_state.device);
    assert_true(again > PLACES * 2);
    visit_list_destroy(&h->run.visits);
}

static void test_operator_without_memory_recomputed(const struct golden *g) {
    each_half(g, check_recomputed);
}

/* Checks that 5 frames need as much memory as hundreds of frames. */
static void check_memory_bound(struct half *h) {
    uint64_t bytes = 0;
    const struct component *c = h->component;
    for (int32_t T = 2; T <= 200; T += 99) {
        struct arena none = arena_counting(), pictures = arena_counting();
        bool ok = true;
        struct lane lane = {
            .latent = tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){c->latent_channels, T, 30, 52}),
            .picture = tensor_make(NULL, DTYPE_F32, 4,
                                   (int32_t[]){CHUNK_FRAMES, 30 * c->pixel_factor, 52 * c->pixel_factor, 3}),
            .state = test_memory(c->family->state.bytes)};
        c->family->state.declare(c, &lane, 1, &none, &pictures, &ok);
        assert_true(ok && pictures.peak > 0 && (!bytes || pictures.peak == bytes));
        bytes = pictures.peak;
    }
}

static void test_memory_independent_of_length(const struct golden *g) {
    each_half(g, check_memory_bound);
}

/* Refuses channel counts for which the mean or repeat shortcut is undefined. */
static void test_channels_without_shortcut_refused(const struct golden *g) {
    static const char *const names[] = {"decoder.up_blocks.1.resnets.0.conv1.bias",
                                        "encoder.down_blocks.1.resnets.0.conv1.bias"};
    char path[GOLDEN_PATH + 64];
    snprintf(path, sizeof path, "%s/model/vae/diffusion_pytorch_model.safetensors", g->path);
    if (strcmp(g->name, "wan_ti2v") != 0) return;
    for (int encodes = 0; encodes < 2; encodes++) {
        struct component c = {.family = encodes ? &family_vae_wan22_encoder : &family_vae_wan22,
                              .sys = &golden_state.sys,
                              .video = true};
        struct config none = {0};
        struct error e = {0};
        safetensors_open(c.sys, path, &c.index, &e);
        assert_ok(&e);
        ((struct index_entry *)index_find(&c.index, names[encodes]))->dim[0] = 51;
        assert_int_equal(component_configure(&c, &none, &e), SHAPE);
        assert_non_null(strstr(e.what, "the shortcut of level 1 does not fit its channels"));
        component_destroy(&c);
    }
}

static const struct golden_test tests[] = {
    {"frames equal reference", test_frames_equal_reference, PRECISION_F32, true, NULL},
    {"frame placement", test_frame_placement_does_not_change_bits, PRECISION_F32, true, NULL},
    {"operator without memory", test_operator_without_memory_recomputed, PRECISION_F32, false, NULL},
    {"memory independent of length", test_memory_independent_of_length, PRECISION_F32, true, NULL},
    {"channels without shortcut", test_channels_without_shortcut_refused, PRECISION_F32, true, NULL}};

static const struct suite *const *suites_of(const struct fixture *f) {
    static const char *const names[] = {"wan_i2v", "wan_ti2v", "taehv/f32", "taehv/bf16"};
    static const struct suite causal = {"causal", tests, COUNT_OF(tests), tolerances, gpu_tolerances},
                              *const suites[] = {&causal, NULL};
    for (int i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(f->name, names[i])) return suites;
    return NULL;
}

int main(int argc, char **argv) {
    return golden_main("vae_causal", suites_of, argv + (argc > 0));
}
