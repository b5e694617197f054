/* `--type` quantises weights while they are read: bit-identical results under every budget, memory within the
 * plan, different plans and pixels per type, sessions that change the type. test_quantise.c checks the bytes
 * of each type; test_convert.c compares with files converted beforehand. */
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

/* Returns a bf16 model whose row lengths are multiples of 256 or not, so that quantisation blocks of 256 and
 * of 32 values are both tested. */
static const char *small_checkpoint(void) {
    return random_model(
        "small", "zimage",
        "heads=4,axis0=16,axis1=24,axis2=24,layers=2,refiners=1,hidden=256,text_heads=4,text_key_heads=2,"
        "text_head_dim=32,text_ff=416,text_layers=3,vocabulary=400,vae0=32,vae1=32,vae2=32,vae3=32,vae_"
        "groups=8,latent_channels=16,dtype=bf16",
        11);
}

static struct sluice_request request_of(const char *type) {
    struct sluice_request request = request_fox(48, 32, 2, 1, 2.5);
    request.type = type;
    return request;
}

static const char *const types[] = {"f8_e4m3", "f8_e5m2", "q8_0", "q4_0",        "q4_k",
                                    "q6_k",    "f16",     "f32",  "int8_convrot"};
enum { TYPES = sizeof types / sizeof *types };

/* Runs under several budgets with delayed and short reads, so that read pieces end at any byte. */
static struct result test_type_keeps_bits(const char *folder, const char *type, int threads, bool all) {
    struct rig rig;
    struct sluice_request request = request_of(type);
    struct result want = run_fresh(folder, threads, request);
    if (!rig_open(&rig, folder, threads, 3)) return want;
    rig.fault_sys.delay_us = 300;
    rig.fault_sys.short_reads = true;
    budgets(&rig, request, &want, all ? 3 : 2, type);
    if (all) direct_reads(&rig, request, &want, 2, type);
    if (all) edited_plans(&rig, request, &want, 2, type);
    rig_close(&rig);
    return want;
}

/* Latents and plan hashes differ between weight types; types with fewer bits have fewer bytes in the plan. */
static void test_types_differ(const char *folder, const struct result *results) {
    struct rig rig;
    json_t *plans[TYPES];
    if (!rig_open(&rig, folder, 2, 3)) return;
    for (int i = 0; i < TYPES; i++) {
        struct sluice_request request = request_of(types[i]);
        plans[i] = query(&rig, &request, NULL);
        for (int k = 0; k < i; k++) {
            check(strcmp(results[i].latent[0], results[k].latent[0]), "%s and %s give equal latents",
                  types[i], types[k]);
            check(strcmp(word(plans[i], "hash"), word(plans[k], "hash")), "%s and %s have one plan hash",
                  types[i], types[k]);
        }
    }
    check(blocks_bytes(plans[4], "denoise") < blocks_bytes(plans[2], "denoise"),
          "q4_k is not smaller than q8_0");
    check(blocks_bytes(plans[2], "denoise") < blocks_bytes(plans[6], "denoise"),
          "q8_0 is not smaller than f16");
    rig_close(&rig);
}

/* f32 represents every bf16 value exactly. */
static void test_f32_is_lossless(const char *folder, const struct result *f32) {
    struct result stored = run_fresh(folder, 2, request_of(NULL));
    check(!strcmp(stored.latent[0], f32->latent[0]), "bf16 weights stored as f32 give another latent");
}

/* A request with `converted` set only plans for files converted beforehand; running it is an error. */
static void test_planned_type_cannot_run(const char *folder) {
    struct rig rig;
    struct sluice_request request = request_of("q8_0");
    bool fits = false;
    request.converted = true;
    if (!rig_open(&rig, folder, 2, 3)) return;
    json_t *plan = query(&rig, &request, &fits);
    check(fits && json_is_true(json_object_get(json_object_get(plan, "request"), "converted")),
          "plan with request.converted");
    run_refused(&rig, &request, "USAGE", 2, "");
    rig_close(&rig);
}

/* A session never uses residents of one weight type for another. */
static void test_session_changes_type(const char *folder, const struct result *results) {
    static const int order[] = {2, 4, 8, 0, 0, 7};
    struct rig rig;
    if (!rig_open(&rig, folder, 2, 3)) return;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        struct sluice_request request = request_of(types[order[i]]);
        run_same(&rig, &request, &results[order[i]], types[order[i]]);
        request.type = NULL;
        if (i == 1) run_same(&rig, &request, &results[7], "type of the files");
    }
    rig_close(&rig);
}

static void test_invalid_types_are_rejected(const char *folder) {
    static const char *const wrong[] = {"", "q9_0", "q2_k", "nvfp4", "i8"};
    struct rig rig;
    if (!rig_open(&rig, folder, 1, 3)) return;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sluice_request request = request_of(wrong[i]);
        run_refused(&rig, &request, "USAGE", 2, "q4_k");
    }
    struct sluice_request request = request_of("q8_0");
    const char *plan = plan_text(&rig, query(&rig, &request, NULL));
    request = request_of("f8_e4m3");
    request.plan = plan;
    run_refused(&rig, &request, "BUDGET", 4, "");
    rig_close(&rig);
}

/* Cancels while quantisation scales are computed, before the first visit. */
static void cancel_now(void *user, long n) {
    if (n == 3) sluice_cancel(user);
}

static void test_cancel_while_scaling(const char *folder, const struct result *want) {
    struct rig rig;
    struct sluice_request request = request_of(types[0]);
    if (!rig_open(&rig, folder, 2, 3)) return;
    rig.fault_sys.on_read = cancel_now;
    rig.fault_sys.on_read_user = rig.session;
    fault_sys_restart(&rig.fault_sys);
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_CANCELLED, "cancelled: %s", sluice_code_name(r.code));
    rig.fault_sys.on_read = NULL;
    run_same(&rig, &request, want, "after a cancelled run");
    rig_close(&rig);
}

int main(void) {
    static struct result results[TYPES];
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    const char *folder = small_checkpoint();
    /* Comparisons of sessions use two threads, because on some processors the thread count changes bits. */
    for (int i = 0; i < TYPES; i++)
        results[i] = test_type_keeps_bits(folder, types[i], i % 2 && i < 7 ? 1 : 2, i == 4 || i == 8);
    test_types_differ(folder, results);
    test_f32_is_lossless(folder, &results[7]);
    test_session_changes_type(folder, results);
    test_planned_type_cannot_run(folder);
    test_invalid_types_are_rejected(folder);
    test_cancel_while_scaling(folder, &results[0]);
    return finish();
}
