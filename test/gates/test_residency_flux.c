/* The residency gate of Flux.1: two text encoders, pictures encoded, starts at a picture, references, masks.
 * What is varied is as in test_residency.c; here it goes through every stage that the first family does not
 * have.
 *
 * Hashes are compared within one process only. The program runs itself once more with oneDNN limited to AVX2.
 */
#include "engine/sluice_bench.h"
#include "test/lib/residency.h"

enum { SIDE_MOST = 128 };

static uint8_t noise_rgb[SIDE_MOST * SIDE_MOST * 3];
static const struct sluice_picture picture = {sizeof picture, 48, 32, noise_rgb, "picture"},
                                   mask = {sizeof mask, 48, 32, noise_rgb + 3 * 48 * 32, "mask"},
                                   wide_picture = {sizeof wide_picture, 96, 32, noise_rgb, "wide picture"},
                                   tall_picture = {sizeof tall_picture, 16, 80, noise_rgb + 999,
                                                   "tall picture"};
static const struct sluice_picture *const references[] = {&wide_picture, &tall_picture};

static void fill_pictures(void) {
    atomic_ullong random = 5;
    for (size_t i = 0; i < sizeof noise_rgb; i++) noise_rgb[i] = (uint8_t)draw(&random);
}

static struct sluice_request request_drawn(void) {
    struct sluice_request request = request_fox(48, 32, 2, 2, 2.5);
    request.guidance = 3.5;
    return request;
}

static struct sluice_request request_from_picture(void) {
    struct sluice_request request = request_drawn();
    request.steps = 4;
    request.init_image = &picture;
    request.strength = 0.6;
    return request;
}

static struct sluice_request request_filled(void) {
    struct sluice_request request = request_from_picture();
    request.cfg_scale = 1;
    request.guidance = 30;
    request.mask = &mask;
    return request;
}

static struct sluice_request request_referring(void) {
    struct sluice_request request = request_drawn();
    request.references = references;
    request.n_references = 2;
    return request;
}

static struct sluice_request request_schnell(void) {
    struct sluice_request request = request_from_picture();
    request.guidance = 0;
    return request;
}

/* Weights outweigh activations in every stage at 48x32, in spite of 512 tokens of text. */
static const char *wide_flux(void) {
    static char folder[128];
    struct sluice_error e;
    snprintf(folder, sizeof folder, "%s/wide_flux", temporary);
    int code =
        sluice_checkpoint_write("flux", folder,
                                "heads=4,axis0=8,axis1=12,axis2=12,double_layers=4,single_layers=6,hidden="
                                "128,pooled=96,t5_vocabulary=500,"
                                "t5_heads=4,t5_head_dim=24,t5_ff=512,t5_layers=7,clip_vocabulary=900,clip_"
                                "heads=4,clip_ff=384,clip_layers=6,"
                                "vae0=96,vae1=96,vae2=64,vae3=32,vae_groups=8,latent_channels=16,dtype=f32",
                                11, NULL, NULL, &e);
    check(!code, "wide checkpoint: %s (%s) %s", e.what, e.where, e.found);
    return folder;
}

/* The same as a fresh session's: after another request, and again at once. */
static void sessions_past(struct rig *rig, const struct sluice_request *request,
                          const struct sluice_request *other, const struct result *want, const char *name) {
    char what[96];
    struct result between = run(rig, other);
    check(between.code == SLUICE_OK, "%s: another request: %s %s", name, between.error.what,
          between.error.found);
    for (int i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "%s session's past %d", name, i);
        struct result r = run_same(rig, request, want, what);
        result_free(&r);
    }
    result_free(&between);
}

struct gate {
    const char *folder, *name;
    struct sluice_request request, other;
    int threads, budgets, edits;
};

static struct tally gate(const struct gate *g) {
    struct rig rig;
    struct tally t = {0};
    json_int_t least, all;
    if (!rig_open(&rig, g->folder, g->threads, (uint64_t)g->threads)) return t;
    struct result want = fresh(g->folder, g->threads, g->request);
    bounds(&rig, g->request, &least, &all);
    rig.watch.delays = rig.watch.short_reads = true;
    t = budgets(&rig, g->request, &want, some(g->budgets), g->name);
    edited_plans(&rig, g->request, &want, some(g->edits), g->name);
    batch_against_seeds(&rig, g->request, least, g->name);
    sessions_past(&rig, &g->request, &g->other, &want, g->name);
    result_free(&want);
    rig_close(&rig);
    return t;
}

static void gate_wide(void) {
    struct gate g = {.folder = wide_flux(),
                     .name = "wide, picture",
                     .request = request_from_picture(),
                     .other = request_drawn(),
                     .threads = 2,
                     .budgets = BUDGETS,
                     .edits = EDITS};
    struct tally t = gate(&g);
    if (!thorough()) return;
    check(t.different >= 6, "only %d resident sets", t.different);
    for (int stage = TEXT; stage < STAGES; stage++)
        check(stage == HOIST || t.streams[stage] >= 2, "%s streams at %d budgets", stage_names[stage],
              t.streams[stage]);
}

static struct sluice_request alone(struct sluice_request request) {
    request.batch = 1;
    return request;
}

static void gate_fixtures(void) {
    const struct gate gates[] = {
        {"test/golden/flux_a/model", "a", request_drawn(), request_from_picture(), 1, 4, 5},
        {"test/golden/flux_b/model", "b", request_schnell(), alone(request_schnell()), 2, 3, 5},
        {"test/golden/flux_kontext/model", "kontext", request_referring(), request_drawn(), 2, 4, 5},
        {"test/golden/flux_fill/model", "fill", request_filled(), alone(request_filled()), 1, 4, 5},
    };
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++) gate(&gates[i]);
}

/* Once more in the types that text encoders and transformers are published in. */
static void gate_bf16(void) {
    struct gate g = {.folder = "test/golden/flux_kontext/model",
                     .name = "kontext in bf16",
                     .request = request_referring(),
                     .other = request_drawn(),
                     .threads = 2,
                     .budgets = 4,
                     .edits = 5};
    struct rig rig;
    if (!rig_open(&rig, g.folder, 1, 1)) return;
    const char *lacks = rig.session->device->lacks[PRECISION_BF16];
    rig_close(&rig);
    g.request.precision = g.other.precision = "bf16";
    if (lacks)
        printf("SKIP %s: %s\n", g.name, lacks);
    else
        gate(&g);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    fill_pictures();
    gate_wide();
    gate_fixtures();
    gate_bf16();
    return finish();
}
