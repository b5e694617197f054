/* LTX-2's video VAEs, decoder and encoder: frames and means against diffusers, for both namings and both
 * kinds of padding; the same bits for every chunk and with frames in host or device memory; memory that does
 * not grow with the length; refusals. */
#include "loaders/loaders.h"
#include "engine/run/component.h"
#include "models/models.h"
#include "models/vae_ltx2_blocks.h"
#include "test/lib/check.h"
#include "test/lib/plans.h"
#include "test/lib/vae_run.h"

#include <stdio.h>
#include <string.h>

enum { LENGTHS = 3, FRAME_FACTOR = 8, SIDE_FACTOR = 32, SAMPLED = 3, COLOURS = 3, NAME = 32 };

static const struct fixture_file {
    const char *name, *model, *config; /* config NULL: none */
    bool reflects;
} files[] = {
    {"ltx2", "test/golden/ltx2/model/vae/diffusion_pytorch_model.safetensors",
     "test/golden/ltx2/model/vae/config.json", true},
    {"ltx23", "test/golden/ltx23/model/vae/diffusion_pytorch_model.safetensors",
     "test/golden/ltx23/model/vae/config.json", false},
    {"authors", "test/golden/vae_ltx2/authors/vae.safetensors", NULL, true},
};

/* Relative L2 distance from the reference: measured 1.5e-6 at most on a CPU. GPUs multiply in f16. */
static double tolerance(void) {
    return on_gpu() ? 1e-2 : 5e-6;
}

/* One half of a VAE, and a run of it over F latent frames. */
struct half {
    struct component component;
    struct tensor_index reference;
    bool encodes;
    int32_t F, Y, X;
    struct lane lane;
    struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    int n_chunks;
    struct tensor result; /* decoder: frames [N, Y, X, 3]; encoder: moments [F, Y, X, 2 C] */
    struct vae_run run;
};

static enum status open_half(struct half *h, const struct fixture_file *f, bool encodes, struct error *e) {
    char path[128];
    struct config config = {0};
    *h = (struct half){.encodes = encodes,
                       .component = {.family = encodes ? &family_vae_ltx2_encoder : &family_vae_ltx2,
                                     .sys = &golden_state.sys,
                                     .video = true}};
    snprintf(path, sizeof path, "test/golden/vae_ltx2/%s.safetensors", f->name);
    safetensors_open(&golden_state.sys, path, &h->reference, e);
    safetensors_open(&golden_state.sys, f->model, &h->component.index, e);
    if (f->config) config_read(&golden_state.sys, f->config, &config, e);
    if (e->code == OK) component_bind(&h->component, &config, e);
    config_destroy(&config);
    return e->code;
}

static void close_half(struct half *h) {
    component_destroy(&h->component);
    index_destroy(&h->reference);
}

static struct ltx_vae_settings *settings_of(struct half *h) {
    return (struct ltx_vae_settings *)h->component.settings;
}

static struct tensor reference(const struct half *h, const char *what, int32_t F) {
    char name[NAME];
    snprintf(name, sizeof name, "%s%d", what, F);
    return read_tensor(&h->reference, name);
}

static char *frames_from(struct tensor frames, int32_t first) {
    return (char *)frames.data + tensor_bytes(&frames) / frames.dim[0] * first;
}

static size_t frames_bytes(struct tensor frames, int32_t n) {
    return (size_t)(tensor_bytes(&frames) / frames.dim[0] * n);
}

/* Values of `pattern` in test/golden/vae_ltx2.py. */
static void fill_picture(const struct half *h, const struct frame_chunk *chunk) {
    struct tensor picture = h->lane.picture;
    float *to = picture.data;
    memset(to, 0xff, (size_t)tensor_bytes(&picture));
    for (int32_t t = chunk->first_frame; t < chunk->first_frame + chunk->n_frames; t++)
        for (int32_t y = 0; y < picture.dim[1]; y++)
            for (int32_t x = 0; x < picture.dim[2]; x++)
                for (int32_t c = 0; c < COLOURS; c++)
                    *to++ = (float)((37 * t * t + 11 * y + 23 * x * (y % 7) + 101 * c) % 255) / 127 - 1;
}

static enum status chunk_begins(void *user, const struct visit *visit, struct error *e) {
    const struct half *h = user;
    if (h->encodes) fill_picture(h, &h->chunks[visit->evaluation]);
    return e->code;
}

static enum status chunk_ended(void *user, const struct visit *visit, struct error *e) {
    const struct half *h = user;
    const struct frame_chunk *chunk = &h->chunks[visit->evaluation];
    int32_t first = h->encodes ? chunk->first_latent : chunk->first_frame;
    memcpy(frames_from(h->result, first), h->encodes ? h->lane.moments.data : h->lane.picture.data,
           frames_bytes(h->result, h->encodes ? 1 : chunk->n_frames));
    return e->code;
}

/* Prepares a run over F latent frames in chunks of `chunk`; 0: as the family chooses. */
static void set_length(struct half *h, int32_t F, int chunk, bool tiled) {
    int32_t longest = 1, done = 0, C = h->component.latent_channels;
    struct tensor latent = reference(h, "latent", F);
    settings_of(h)->chunk = chunk;
    h->F = F;
    h->Y = latent.dim[2];
    h->X = latent.dim[3];
    h->n_chunks = component_frame_chunks(&h->component, F, h->chunks);
    for (int i = 0; i < h->n_chunks; i++) {
        const struct frame_chunk *c = &h->chunks[i];
        check(c->first_frame == done && c->n_frames >= 0, "chunk %d does not follow the chunk before", i);
        done += c->n_frames;
        if (c->n_frames > longest) longest = c->n_frames;
    }
    check(done == FRAME_FACTOR * (F - 1) + 1, "the chunks have %d frames", done);
    int32_t rows = h->Y * SIDE_FACTOR, columns = h->X * SIDE_FACTOR;
    h->lane = (struct lane){.latent = latent, .tiled = tiled};
    h->lane.picture = test_tensor(DTYPE_F32, 4, (int32_t[]){longest, rows, columns, COLOURS});
    if (h->encodes) h->lane.moments = test_tensor(DTYPE_F32, 3, (int32_t[]){h->Y, h->X, 2 * C});
    h->result = h->encodes ? test_tensor(DTYPE_F32, 4, (int32_t[]){F, h->Y, h->X, 2 * C})
                           : test_tensor(DTYPE_F32, 4, (int32_t[]){done, rows, columns, COLOURS});
}

/* Runs with unlimited memory, and with the least memory if `on_host`, which needs the paced device. */
static struct tensor run_half(struct half *h, struct device *device, bool on_host) {
    vae_run_measure(&h->run, &h->component, &h->lane, 1, device, h->n_chunks);
    if (!device->memory) h->run.residents.device = NULL;
    struct run_hooks hooks = *h->run.run.hooks;
    hooks.user = h;
    hooks.evaluation_begins = chunk_begins;
    hooks.evaluation_ended = chunk_ended;
    for (int i = 0; i <= on_host; i++) {
        plan_solve(&h->run.need, plenty, i ? (int64_t)h->run.plan.vram_least_bytes : plenty, &h->run.plan);
        check(h->run.plan.stage[0].pictures_on_host == i, "frames lie in %s memory", i ? "host" : "device");
        memset(h->result.data, 0xff, (size_t)tensor_bytes(&h->result));
        h->run.run.hooks = &hooks;
        vae_run_execute(&h->run);
    }
    visit_list_destroy(&h->run.visits);
    return h->result;
}

/* Returns the values that the reference has: every third row and column of frames; the means of moments. */
static struct tensor sampled(const struct half *h, struct tensor want) {
    struct tensor out = test_tensor(DTYPE_F32, 4, want.dim);
    int32_t step = h->encodes ? 1 : SAMPLED, C = want.dim[3];
    const int32_t *dim = h->result.dim;
    float *to = out.data;
    for (int32_t t = 0; t < want.dim[0]; t++)
        for (int32_t y = 0; y < want.dim[1]; y++)
            for (int32_t x = 0; x < want.dim[2]; x++, to += C) {
                int64_t pixel = ((int64_t)t * dim[1] + y * step) * dim[2] + x * step;
                memcpy(to, (const float *)h->result.data + pixel * dim[3], (size_t)C * sizeof *to);
            }
    return out;
}

static bool same(struct tensor a, struct tensor b) {
    return !memcmp(a.data, b.data, (size_t)tensor_bytes(&a));
}

static void test_half(const struct fixture_file *f, bool encodes) {
    static struct half h;
    struct error e = {0};
    if (!check(open_half(&h, f, encodes, &e) == OK, "%s opens: %s", f->name, e.what)) return;
    const char *what = h.component.family->name;
    check(h.component.n_unknown == 0, "%s, %s: every tensor is known", f->name, what);
    check(h.component.pixel_factor == SIDE_FACTOR && h.component.frame_factor == FRAME_FACTOR, "%s: factors",
          what);
    check(settings_of(&h)->border == (f->reflects && !encodes), "%s, %s: padding", f->name, what);
    for (int32_t F = 1; F <= LENGTHS; F++) {
        set_length(&h, F, 0, false);
        struct tensor whole = run_half(&h, golden_state.device, false);
        struct tensor want = reference(&h, encodes ? "mean" : "frames", F), got = sampled(&h, want);
        double error = distance(got.data, want.data, tensor_elements(&want));
        check(error <= tolerance(), "%s, %s, %d latent frames: error %.2e", f->name, what, F, error);
        printf("  %-8s %-17s %d latent frames: %.2e\n", f->name, what, F, error);
        for (int chunk = 1; chunk <= LENGTHS && !encodes; chunk++) {
            set_length(&h, F, chunk, chunk % 2);
            check(same(run_half(&h, golden_state.device, false), whole),
                  "%s, %d latent frames in chunks of %d: same bits", f->name, F, chunk);
        }
    }
    close_half(&h);
}

static void test_placement(const struct fixture_file *f, bool encodes) {
    static struct half h;
    struct error e = {0};
    struct device *device = golden_state.device;
    if (open_half(&h, f, encodes, &e) != OK) return;
    set_length(&h, LENGTHS, 0, false);
    struct tensor whole = run_half(&h, device, false);
    if (!on_gpu()) device = paced_open(&golden_state.sys, device, 0, &e);
    if (!check(e.code == OK, "a paced device")) return;
    for (int tiled = 0; tiled < 2; tiled++) {
        set_length(&h, LENGTHS, 0, tiled);
        check(same(run_half(&h, device, true), whole), "%s, %s: frames in host memory, tiled %d: same bits",
              f->name, h.component.family->name, tiled);
    }
    if (!on_gpu()) device->destroy(device);
    close_half(&h);
}

/* Returns the bytes of a decoder's feature caches for F latent frames [Y, X]; *frames: bytes of its frames.
 */
static uint64_t decoder_bytes(const struct component *c, int32_t F, int32_t Y, int32_t X, bool tiled,
                              uint64_t *frames) {
    struct arena device = arena_counting(), pictures = arena_counting();
    bool ok = true;
    struct lane lane = {.latent = tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){c->latent_channels, F, Y, X}),
                        .state = test_memory(c->family->state.bytes),
                        .tiled = tiled};
    c->family->state.declare(c, &lane, 1, &device, &pictures, &ok);
    check(ok, "state of %d frames", F);
    *frames = device.peak;
    return pictures.peak;
}

/* Three latent frames need as much memory as hundreds. Two, in a single chunk, need no feature caches and
 * less than 1.25 times the memory of frames. */
static void test_memory_bound(void) {
    static struct half h;
    struct error e = {0};
    uint64_t frames[3], caches[3];
    if (open_half(&h, &files[0], false, &e) != OK) return;
    for (int i = 0; i < 3; i++)
        caches[i] = decoder_bytes(&h.component, (int32_t[]){2, 3, 235}[i], 22, 40, false, &frames[i]);
    check(!caches[0] && caches[1] && caches[1] == caches[2], "caches do not grow with the length");
    check(frames[1] == frames[2] && frames[0] < frames[1] * 5 / 4, "frames do not grow with the length");
    static struct frame_chunk chunks[FRAME_CHUNKS_MAX];
    int n = component_frame_chunks(&h.component, 400, chunks);
    check(n > 0 && n <= FRAME_CHUNKS_MAX && chunks[n - 1].first_frame + chunks[n - 1].n_frames == 3193,
          "400 latent frames: %d chunks", n);
    close_half(&h);
}

/* Prints the memory of the published VAEs for the sizes in models/README.md. */
static void print_published(void) {
    static const int dims_20[] = {128, 1024, 5, 512, 5, 256, 5, 128, 5, 0, 0, 8, 8, 8, 0};
    static const int32_t sizes[][2] = {{22, 40}, {34, 60}};
    for (int is_20 = 0; is_20 < 2; is_20++) {
        struct component c = {.family = &family_vae_ltx2, .sys = &golden_state.sys, .video = true};
        component_derive(&c, is_20 ? dims_20 : NULL);
        for (int i = 0; i < 2; i++) {
            uint64_t frames, caches = decoder_bytes(&c, 16, sizes[i][0], sizes[i][1], false, &frames);
            printf("  LTX-2.%s, 121 frames of %dx%d: %.0f MB of frames, %.0f MB of feature caches\n",
                   is_20 ? "0" : "3", sizes[i][1] * SIDE_FACTOR, sizes[i][0] * SIDE_FACTOR,
                   (double)frames / 1e6, (double)caches / 1e6);
            check(frames + caches < (uint64_t)5 << 30, "the decoder's state fits into 5 GiB");
        }
    }
}

/* Opens the decoder with one value of the configuration changed, or one tensor renamed. */
static void check_refused(const char *config_text, const char *from, const char *to, enum status code,
                          const char *word) {
    struct component c = {.family = &family_vae_ltx2, .sys = &golden_state.sys, .video = true};
    struct config config = {0};
    struct error e = {0};
    safetensors_open(c.sys, files[0].model, &c.index, &e);
    if (config_text) config_parse(c.sys, "config.json", config_text, NULL, &config, &e);
    if (from) {
        struct index_entry *entry = index_find(&c.index, from);
        if (check(entry, "tensor %s", from)) entry->name = to;
    }
    if (check(e.code == OK, "opens: %s", e.what)) component_configure(&c, &config, &e);
    check(e.code == code && strstr(e.what, word), "refused for %s: %s", word, e.what);
    config_destroy(&config);
    component_destroy(&c);
}

static void test_refusals(void) {
    check_refused("{\"timestep_conditioning\": true}", NULL, NULL, UNSUPPORTED, "timestep_conditioning");
    check_refused("{\"decoder_inject_noise\": [false, true]}", NULL, NULL, UNSUPPORTED,
                  "decoder_inject_noise");
    check_refused("{\"decoder_spatial_padding_mode\": \"replicate\"}", NULL, NULL, UNSUPPORTED,
                  "decoder_spatial_padding_mode");
    check_refused("{\"encoder_causal\": false}", NULL, NULL, UNSUPPORTED, "encoder");
    check_refused(NULL, "decoder.mid_block.resnets.0.conv2.conv.weight", "decoder.time_embedder.x",
                  UNSUPPORTED, "timestep conditioning");
}

int main(void) {
    if (!golden_begin()) return 1;
    for (int i = 0; i < COUNT_OF(files); i++)
        for (int encodes = 0; encodes < 2; encodes++) {
            test_half(&files[i], encodes);
            test_placement(&files[i], encodes);
        }
    test_memory_bound();
    print_published();
    test_refusals();
    test_memory_free_to(NULL);
    golden_end();
    return finish();
}
