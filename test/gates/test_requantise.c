/* Weights in another type than their files (`--type`): the same bits under every budget, within the plan;
 * other types, other pixels and other plans; a session that changes its mind. What each type's bytes are:
 * test_quantise.c; that a file converted beforehand gives the same picture: test_convert.c. */
#include "test/lib/random_models.h"
#include "test/lib/residency.h"

/* Rows of 256 and of other lengths, so that blocks of 256 and of 32 both occur; bf16, as models are
 * published. */
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

static const char *const types[] = {"f8_e4m3", "f8_e5m2", "q8_0", "q4_0", "q4_k", "q6_k", "f16", "f32"};
enum { TYPES = sizeof types / sizeof *types };

/* Budgets, and pieces that end anywhere: delayed and short reads, past the page cache and through it. */
static struct result gate(const char *folder, const char *type, int threads, bool all) {
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

static int64_t denoiser_bytes(json_t *plan) {
    int64_t bytes = 0;
    size_t i;
    json_t *block;
    json_array_foreach(json_object_get(stage_of(plan, "denoise"), "blocks"), i, block) bytes +=
        number(block, "bytes");
    return bytes;
}

/* Numbers differ, and so do plans; fewer bits are fewer bytes. */
static void compare(const struct result *results) {
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < i; k++) {
            const char *one = json_string_value(json_object_get(results[i].plan, "hash")),
                       *other = json_string_value(json_object_get(results[k].plan, "hash"));
            check(strcmp(results[i].latent[0], results[k].latent[0]), "%s has the bits of %s", types[i],
                  types[k]);
            check(one && other && strcmp(one, other), "%s has the plan of %s", types[i], types[k]);
        }
    check(denoiser_bytes(results[4].plan) < denoiser_bytes(results[2].plan), "q4_k is no smaller than q8_0");
    check(denoiser_bytes(results[2].plan) < denoiser_bytes(results[6].plan), "q8_0 is no smaller than f16");
}

/* f32 holds every bf16. */
static void lossless(const char *folder, const struct result *f32) {
    struct result stored = run_fresh(folder, 2, request_of(NULL));
    check(!strcmp(stored.latent[0], f32->latent[0]), "bf16 weights kept in f32 give other bits");
    result_free(&stored);
}

/* It is for planning only. */
static void not_converted_yet(const char *folder) {
    struct rig rig;
    struct sluice_request request = request_of("q8_0");
    bool fits = false;
    request.converted = true;
    if (!rig_open(&rig, folder, 2, 3)) return;
    json_t *plan = query(&rig, &request, &fits);
    check(fits && json_is_true(json_object_get(json_object_get(plan, "request"), "converted")), "planned");
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_USAGE, "drawn with files that are not there: %s", r.error.what);
    result_free(&r);
    json_decref(plan);
    rig_close(&rig);
}

/* What a session keeps of one type is not taken for another's. */
static void session_changes(const char *folder, const struct result *results) {
    static const int order[] = {2, 4, 2, 0, 0, 7};
    struct rig rig;
    if (!rig_open(&rig, folder, 2, 3)) return;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        struct sluice_request request = request_of(types[order[i]]);
        struct result r = run_same(&rig, &request, &results[order[i]], types[order[i]]);
        result_free(&r);
        request.type = NULL;
        if (i == 1) r = run_same(&rig, &request, &results[7], "as stored");
        if (i == 1) result_free(&r);
    }
    rig_close(&rig);
}

static void refusals(const char *folder) {
    static const char *const wrong[] = {"", "q9_0", "q2_k", "nvfp4", "i8", "int8_convrot"};
    struct rig rig;
    if (!rig_open(&rig, folder, 1, 3)) return;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sluice_request request = request_of(wrong[i]);
        struct result r = run(&rig, &request);
        check(r.code == SLUICE_USAGE && strstr(r.error.expected, "q4_k"), "--type '%s': %s", wrong[i],
              sluice_code_name(r.code));
        result_free(&r);
    }
    struct sluice_request request = request_of("q8_0");
    json_t *plan = query(&rig, &request, NULL);
    char *text = json_dumps(plan, 0);
    request = request_of("f8_e4m3");
    request.plan = text;
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_BUDGET, "a plan for q8_0 runs in f8_e4m3: %s", sluice_code_name(r.code));
    result_free(&r);
    free(text);
    json_decref(plan);
    rig_close(&rig);
}

/* Cancelled while scales are looked for, which is before the first visit. */
static void cancel_now(void *user, long n) {
    if (n == 3) sluice_cancel(user);
}

static void cancelled(const char *folder, const struct result *want) {
    struct rig rig;
    struct sluice_request request = request_of(types[0]);
    if (!rig_open(&rig, folder, 2, 3)) return;
    rig.fault_sys.on_read = cancel_now;
    rig.fault_sys.on_read_user = rig.session;
    fault_sys_restart(&rig.fault_sys);
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_CANCELLED, "cancelled: %s", sluice_code_name(r.code));
    result_free(&r);
    rig.fault_sys.on_read = NULL;
    r = run_same(&rig, &request, want, "after a cancelled one");
    result_free(&r);
    rig_close(&rig);
}

int main(void) {
    static struct result results[TYPES];
    setvbuf(stdout, NULL, _IOLBF, 0);
    temporary_make();
    const char *folder = small_checkpoint();
    /* Two threads where a session of two is compared with it: on some processors their number changes bits.
     */
    for (int i = 0; i < TYPES; i++)
        results[i] = gate(folder, types[i], i % 2 && i < 7 ? 1 : 2, i == 2 || i == 4);
    compare(results);
    lossless(folder, &results[7]);
    session_changes(folder, results);
    not_converted_yet(folder);
    refusals(folder);
    cancelled(folder, &results[0]);
    for (int i = 0; i < TYPES; i++) result_free(&results[i]);
    return finish();
}
