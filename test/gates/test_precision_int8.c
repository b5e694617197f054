/* --precision int8 gives the same bits under every budget, in batches, and after runs in other precisions:
 * with weights that are quantised on load, in files, or by the operator. The models are random, because the
 * fixtures' rows are not whole rotation groups. test_int8.c checks the products. */
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

#define SMALL_VAE  "vae0=16,vae1=16,vae2=16,vae3=16,vae_groups=8,latent_channels=16"
#define SMALL_T5   "t5_vocabulary=600,t5_heads=2,t5_head_dim=16,t5_ff=64,t5_layers=1"
#define SMALL_CLIP "clip_vocabulary=600,clip_heads=2,clip_ff=64,clip_layers=2"

/* Denoisers have rows of 64, 192 and 256 values and more, so all rotation groups occur. */
static const struct {
    const char *family, *dims;
    bool thoroughly; /* runs all tests of budgets; false: only the least and the largest budget */
} models[] = {
    {"zimage",
     "heads=4,axis0=16,axis1=24,axis2=24,layers=2,refiners=1,hidden=64,text_heads=2,text_key_heads=1,text_"
     "head_dim=32,text_ff=96,text_layers=3,vocabulary=400,dtype=bf16," SMALL_VAE,
     true},
    {"flux",
     "heads=2,axis0=16,axis1=24,axis2=24,double_layers=1,single_layers=2,hidden=64,pooled=32,clip_projection="
     "32," SMALL_CLIP "," SMALL_T5 "," SMALL_VAE,
     false},
    {"sd35_medium",
     "heads=2,layers=2,sd3_seconds=1,hidden=64,pooled=32,clip_projection=32,sd3_pooled=64," SMALL_CLIP
     "," SMALL_T5 "," SMALL_VAE,
     false},
};

static struct sluice_request int8_request(void) {
    struct sluice_request request = request_fox(48, 32, 2, 1, 2.5);
    request.precision = "int8";
    return request;
}

/* Runs under budgets from the least to all resident, with delayed and short reads. */
static void test_budgets_keep_bits(const char *folder, const char *name, bool thoroughly) {
    struct rig rig;
    struct sluice_request request = int8_request();
    json_int_t least, all;
    struct result want = run_fresh(folder, 2, request);
    if (!rig_open(&rig, folder, 2, 3)) return;
    rig.fault_sys.delay_us = 300;
    rig.fault_sys.short_reads = true;
    bounds(&rig, request, &least, &all);
    budgets(&rig, request, &want, thoroughly ? 4 : 2, name);
    if (thoroughly) direct_reads(&rig, request, &want, 2, name);
    edited_plans(&rig, request, &want, thorough_or(EDITS_ALL, thoroughly ? 3 : 1), name);
    if (thoroughly) batch_against_seeds(&rig, request, least, name);
    rig_close(&rig);
}

/* The denoiser's bf16 weights become int8 while they are read; the text encoder's keep their type. */
static void test_plan_has_fewer_bytes(const char *folder) {
    struct rig rig;
    struct sluice_request request = int8_request();
    if (!rig_open(&rig, folder, 2, 3)) return;
    json_t *int8 = query(&rig, &request, NULL);
    request.precision = "f32";
    json_t *f32 = query(&rig, &request, NULL);
    double share = (double)blocks_bytes(int8, "denoise") / (double)blocks_bytes(f32, "denoise");
    /* Embedders, biases and norms keep bf16; every row has a scale and every tensor is aligned. */
    check(share > 0.5 && share < 0.65, "int8 has %.2f of the denoiser's bytes in bf16", share);
    check(blocks_bytes(int8, "text") == blocks_bytes(f32, "text"), "int8 changes the text encoder's bytes");
    check(!strcmp(word(int8, "precision"), "int8"), "the plan's precision is %s", word(int8, "precision"));
    rig_close(&rig);
}

/* A session never uses residents of one precision or type for another. With --type bf16 or q8_0 the operator
 * rotates and quantises the weights. */
static void test_session_changes_precision(const char *folder) {
    static const struct {
        const char *precision, *type;
    } runs[] = {{"int8", NULL},   {"f32", NULL},           {"int8", "bf16"},
                {"int8", "q8_0"}, {"f32", "int8_convrot"}, {"int8", "int8_convrot"}};
    enum { RUNS = sizeof runs / sizeof *runs };
    static struct result results[RUNS];
    struct rig rig;
    if (!rig_open(&rig, folder, 2, 3)) return;
    for (int i = 0; i < 2 * RUNS; i++) {
        int at = i % RUNS;
        struct sluice_request request = int8_request();
        request.precision = runs[at].precision;
        request.type = runs[at].type;
        if (i < RUNS)
            results[at] = run_fresh(folder, 2, request);
        else
            run_same(
                &rig, &request, &results[at],
                format_text("%s, %s", runs[at].precision, runs[at].type ? runs[at].type : "stored types"));
    }
    for (int i = 0; i < RUNS; i++)
        for (int k = 0; k < i; k++)
            check(strcmp(results[i].latent[0], results[k].latent[0]) != 0,
                  "%s, %s and %s, %s give equal latents", runs[i].precision,
                  runs[i].type ? runs[i].type : "stored types", runs[k].precision,
                  runs[k].type ? runs[k].type : "stored types");
    rig_close(&rig);
}

/* Returns true if the CPU supports int8. Otherwise checks that a run is refused with one line. */
static bool has_int8(const char *folder) {
    struct rig rig;
    struct sluice_request request = int8_request();
    if (!rig_open(&rig, folder, 2, 3)) return false;
    const char *reason = rig.session->device->unsupported[PRECISION_INT8];
    if (reason) {
        run_refused(&rig, &request, "USAGE", 2, "f32");
        printf("SKIP int8: %s\n", reason);
    }
    rig_close(&rig);
    return !reason;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *folder = random_model(models[i].family, models[i].family, models[i].dims, 11);
        if (!has_int8(folder)) break;
        test_budgets_keep_bits(folder, models[i].family, models[i].thoroughly);
        if (i) continue;
        test_plan_has_fewer_bytes(folder);
        test_session_changes_precision(folder);
    }
    return finish();
}
