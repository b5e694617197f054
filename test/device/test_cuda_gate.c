/* The residency gate on the CUDA device, emulated or real: plans change no bit, device memory stays within
 * the plan, no copy reads pageable memory, and after an out-of-memory error the next run gives the same
 * image. Comparisons are within this process only.
 *
 *     budgets of both memories          gpu_budgets
 *     residents, pools, rings, staging, full frames, depth, no_wrap, waits, keep      edited_gpu_plans
 *     batch against single seeds        batch_against_seeds
 *     shapes, prompt lengths            requests
 *     several text encoders, an input image            all tests but the batch, on the fixture of Flux.1
 *     delayed copies, thread orders                    every run (emulated only)
 *     products in int8: two budgets                    test_int8_keeps_bits
 *
 * Emulated only: test_pin_limits_keep_bits, test_out_of_memory_recovers, test_failed_copy_leaves_no_resident,
 * test_lost_gpu_is_reported, test_full_gpu_is_reported. */
#include "test/lib/residency.h"
#include "test/lib/fixtures.h"
#include "test/lib/gates.h"
#include "test/lib/random_models.h"

#include "test/device/emulated.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_disable() ((void)0)
#define __lsan_enable()  ((void)0)
#endif

enum { BUDGETS = 5, EDITS = 8 };

static json_int_t vram(json_t *plan, const char *which) {
    return number(json_object_get(plan, which), "vram_bytes");
}

static struct sluice_request request_small(int batch, double cfg_scale) {
    return request_fox(48, 32, 2, batch, cfg_scale);
}

static json_int_t measured_vram(struct rig *rig) {
    json_t *report = rig_report(rig);
    json_int_t bytes = number(json_object_get(report, "measured"), "vram_bytes");
    return bytes;
}

static struct result run_on_gpu(struct rig *rig, const struct sluice_request *request,
                                const struct result *want, const char *what) {
    static uint64_t n_runs;
    long pageable = emulated_pageable_copies();
    emulated_disorder(n_runs++);
    struct result r = run(rig, request);
    same(want, &r, what);
    if (!r.plan) return r;
    json_int_t used = measured_vram(rig), planned = vram(r.plan, "peak");
    check(used <= planned, "%s: %lld bytes of device memory used, %lld planned", what, (long long)used,
          (long long)planned);
    check(planned <= vram(r.plan, "budget"), "%s: the plan exceeds its budget", what);
    check(emulated_pageable_copies() == pageable, "%s: copies from pageable memory", what);
    return r;
}

struct limits {
    json_int_t least_vram, all_vram, least_ram, all_ram;
};

static struct limits limits_of(struct rig *rig, struct sluice_request request) {
    request.plan = NULL;
    request.max_ram_bytes = plenty;
    request.max_vram_bytes = 0;
    json_t *plan = query(rig, &request, NULL);
    struct limits l = {vram(plan, "least"), vram(plan, "peak"), ram(plan, "least"), ram(plan, "peak")};
    return l;
}

static void gpu_budgets(struct rig *rig, struct sluice_request request, const struct result *want,
                        bool streams_expected, const char *name) {
    struct limits l = limits_of(rig, request);
    int streams = 0, hosts = 0;
    for (int i = 0; i < BUDGETS; i++) {
        char what[128];
        double part = (double)i / (BUDGETS - 1);
        request.max_vram_bytes = l.least_vram + (int64_t)((double)(l.all_vram - l.least_vram) * part * part);
        request.max_ram_bytes = plenty;
        snprintf(what, sizeof what, "%s --max-vram %lld", name, (long long)request.max_vram_bytes);
        struct result r = run_on_gpu(rig, &request, want, what);
        streams += r.plan && streamed(r.plan, "denoise") > 0;
        hosts += r.plan && json_is_true(json_object_get(stage_of(r.plan, "decode"), "pictures_on_host"));
        /* Minimises the RAM budget for this VRAM budget, so that streamed blocks are read from disk. */
        json_t *plan = query(rig, &request, NULL);
        request.max_ram_bytes = ram(plan, "least");
        r = run_on_gpu(rig, &request, want, what);
    }
    printf("%s: %d budgets %lld..%lld, denoiser streams at %d, full frames in host memory at %d\n", name,
           BUDGETS, (long long)l.least_vram, (long long)l.all_vram, streams, hosts);
    check(!streams_expected || streams >= 2, "%s: the denoiser streams at only %d budgets", name, streams);
    request.max_ram_bytes = plenty;
    request.max_vram_bytes = l.least_vram - 1;
    struct result r = run(rig, &request);
    check(r.code == SLUICE_BUDGET, "%s: one byte below the minimum budget: %s", name,
          sluice_code_name(r.code));
}

static void edit_stage(json_t *stage, int edit, atomic_ullong *random) {
    static const int percents[] = {0, 100, 50, 20};
    json_int_t largest = 0, whole = 0;
    size_t i;
    json_t *block;
    json_array_foreach(json_object_get(stage, "blocks"), i, block) {
        bool resident = (int)(random_next_atomic(random) % 100) < percents[edit % 4],
             pooled = random_next_atomic(random) % 2;
        json_int_t bytes = resident ? 0 : number(block, "bytes");
        json_object_set_new(block, "resident", json_boolean(resident));
        json_object_set_new(block, "tier", json_string(pooled ? "ram" : "disk"));
        if (bytes > largest) largest = bytes;
        whole += bytes;
    }
    largest = (largest + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
    json_int_t ring = edit % 3 == 0 ? largest : edit % 3 == 1 ? whole : largest + (whole - largest) / 3;
    json_object_set_new(stage, "ring_bytes", json_integer(ring > largest ? ring : largest));
    json_object_set_new(stage, "staging_bytes",
                        json_integer(random_next_atomic(random) % 2 ? PLAN_STAGING : 3 * PLAN_STAGING));
    json_object_set_new(stage, "depth", json_integer((json_int_t)(random_next_atomic(random) % 3)));
    json_object_set_new(stage, "no_wrap", json_integer((json_int_t)(random_next_atomic(random) % 2)));
    json_object_set_new(stage, "waits", json_integer((json_int_t)(random_next_atomic(random) % 2)));
    if (json_object_get(stage, "vae_tiling"))
        json_object_set_new(stage, "pictures_on_host", json_boolean(random_next_atomic(random) % 2));
}

static void edited_gpu_plans(struct rig *rig, struct sluice_request request, const struct result *want,
                             const char *name) {
    atomic_ullong random = 79;
    request.max_ram_bytes = plenty;
    json_t *plan = query(rig, &request, NULL);
    for (int i = 0; i < EDITS; i++) {
        char what[64];
        size_t k;
        json_t *stage;
        snprintf(what, sizeof what, "%s edited plan %d", name, i);
        json_array_foreach(json_object_get(plan, "stages"), k, stage) edit_stage(stage, i, &random);
        json_object_set_new(plan, "keep", json_boolean(i / 2 % 2));
        char *text = json_dumps(plan, 0);
        request.plan = text;
        run_on_gpu(rig, &request, want, what);
        free(text);
    }
}

/* Opens a new session, which has no GPU memory and has not measured the pin limit. */
static bool renew_session(struct rig *rig) {
    struct sluice_session_options options = {.threads = 1};
    return rig_open_session(rig, options);
}

struct pinned {
    /* bytes in the plan: host pools; the most pinned memory at once; pinned memory outside of pools */
    json_int_t pools, most, staging;
};

static struct pinned pinned_of(json_t *plan) {
    struct pinned p = {0};
    size_t i;
    json_t *stage;
    json_int_t kept_pinned = 0;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        json_int_t staging = number(stage, "staging_bytes"), pinned = number(stage, "pinned_bytes");
        if (staging > p.staging) p.staging = staging;
        if (staging + pinned > p.most) p.most = staging + pinned;
        p.pools += number(stage, "pool_bytes");
        kept_pinned += pinned;
    }
    if (json_is_true(json_object_get(plan, "keep"))) p.most = p.staging + kept_pinned;
    p.staging += number(plan, "cross_bytes");
    p.most += number(plan, "cross_bytes");
    return p;
}

/* Runs with a limit on pinned memory: the limit is measured before the run, the plan pins less than the
 * limit, and unpinned pool blocks pass through staging. Copies read pageable memory only if not even staging
 * can be pinned. */
static void run_with_pin_limit(struct rig *rig, struct sluice_request request, const struct result *want,
                               int64_t limit, const char *name) {
    char what[96];
    snprintf(what, sizeof what, "%s, %lld bytes can be pinned", name, (long long)limit);
    emulated_pinnable(-1);
    if (!renew_session(rig)) return;
    emulated_pinnable(limit);
    long pageable = emulated_pageable_copies();
    struct result r = run(rig, &request);
    pageable = emulated_pageable_copies() - pageable;
    same(want, &r, what);
    struct pinned p = pinned_of(r.plan);
    json_int_t found = number(r.plan, "pin_limit_bytes"), windowed = rig_stages_sum(rig, "bytes_windowed");
    check(found > 0 && found <= (limit > PLAN_PAGE ? limit : PLAN_PAGE), "%s: measured limit %lld", what,
          (long long)found);
    bool staged = p.staging <= limit;
    check(!staged || p.most <= limit, "%s: %lld pinned bytes planned", what, (long long)p.most);
    check((pageable > 0) == (rig_stages_sum(rig, "bytes_unpinned") > 0), "%s: %ld pageable copies", what,
          pageable);
    check(!staged || !pageable, "%s: copies from pageable memory", what);
    check(!staged || windowed > 0 || p.most >= p.pools, "%s: no bytes passed through staging", what);
    check(measured_vram(rig) <= vram(r.plan, "peak"), "%s: more device memory used than planned", what);
    printf("%s: pools of %lld, %lld through staging, %ld pageable copies\n", what, (long long)p.pools,
           (long long)windowed, pageable);
}

static void test_pin_limits_keep_bits(struct rig *rig, struct sluice_request request,
                                      const struct result *want, const char *name) {
    if (!emulated()) return;
    request.max_vram_bytes = limits_of(rig, request).least_vram;
    request.max_ram_bytes = plenty;
    json_t *plan = query(rig, &request, NULL);
    struct pinned p = pinned_of(plan);
    check(p.pools > 0 && p.most >= p.pools, "%s: pools of %lld bytes, %lld pinned", name, (long long)p.pools,
          (long long)p.most);
    const int64_t limits[] = {p.staging + (p.most - p.staging) / 2, p.staging + (1 << 20), 3 << 19};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        run_with_pin_limit(rig, request, want, limits[i], name);
    emulated_pinnable(-1);
    if (!renew_session(rig)) return;
    emulated_pinnable(0);
    struct result r = run(rig, &request);
    check(r.code == SLUICE_BUDGET && strstr(r.error.what, "pinned"), "run without pinnable memory: %s %s",
          sluice_code_name(r.code), r.error.what);
    emulated_pinnable(-1);
    renew_session(rig);
}

static void requests(struct rig *rig, const char *name) {
    static const struct {
        int width, height;
        double cfg_scale;
        const char *prompt;
    } kinds[] = {
        {16, 64, 1, "fox"}, {80, 16, 3.5, ""}, {48, 48, 1, "an old harbour at dawn, fishing boats, mist"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char what[96];
        struct sluice_request request =
            request_fox(kinds[i].width, kinds[i].height, 2, 1, kinds[i].cfg_scale);
        request.prompt = kinds[i].prompt;
        snprintf(what, sizeof what, "%s %dx%d", name, request.width, request.height);
        struct result want = run(rig, &request);
        check(want.n_images == 1, "%s: %s", what, want.error.what);
        request.max_vram_bytes = limits_of(rig, request).least_vram;
        run_on_gpu(rig, &request, &want, what);
    }
}

/* Fails the n-th CUDA call of a kind; the session's next run must be bit-identical. */
static void fail_once(struct rig *rig, const struct sluice_request *request, const struct result *want,
                      enum emulated_call call, long n, long *n_failures) {
    char what[96];
    snprintf(what, sizeof what, "failing %s %ld", emulated_call_name(call), n);
    if (!renew_session(rig)) return;
    emulated_fail(call, n);
    struct result r = run(rig, request);
    emulated_fail(call, 0);
    bool named = r.code == SLUICE_MEMORY || r.code == SLUICE_DEVICE;
    check(!r.code || named, "%s: %s %s", what, sluice_code_name(r.code), r.error.what);
    if (!r.code) same(want, &r, what);
    *n_failures += named;
    r = run(rig, request);
    same(want, &r, what);
}

static void test_out_of_memory_recovers(struct rig *rig, struct sluice_request request,
                                        const struct result *want) {
    static const enum emulated_call calls[] = {EMULATED_DEVICE_MEMORY, EMULATED_SHARED_MEMORY, EMULATED_PIN};
    if (!emulated()) return;
    request.max_vram_bytes = limits_of(rig, request).least_vram + (1 << 20);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        long failures = 0;
        for (long n = 1; n <= 16; n = n < 3 ? n + 1 : 2 * n - 1)
            fail_once(rig, &request, want, calls[i], n, &failures);
        /* A failed pin call does not end a run, because unpinned memory can be copied too. */
        check(calls[i] == EMULATED_PIN || failures, "%s never failed", emulated_call_name(calls[i]));
    }
}

/* A failed copy is not retried as lack of memory, and its block does not stay resident for the next run. */
static void test_failed_copy_leaves_no_resident(struct rig *rig, struct sluice_request request,
                                                const struct result *want) {
    long failures = 0;
    if (!emulated()) return;
    request.max_vram_bytes = limits_of(rig, request).all_vram;
    json_t *plan = query(rig, &request, NULL);
    check(json_is_true(json_object_get(plan, "keep")), "the plan does not keep residents");
    for (long n = 1; n <= 33; n = n < 3 ? n + 1 : 2 * n - 1)
        fail_once(rig, &request, want, EMULATED_COPY, n, &failures);
    check(failures, "no copy failed");
}

/* Runs last: the process loses its GPU. test/device/program.sh loses the GPU at each kind of CUDA call. */
static void test_lost_gpu_is_reported(struct rig *rig, struct sluice_request request) {
    enum { ILLEGAL_ADDRESS = 700 }; /* cudaErrorIllegalAddress */
    if (!emulated()) return;
    request.max_vram_bytes = limits_of(rig, request).all_vram;
    __lsan_disable(); /* the lost GPU's driver memory is freed only by the end of the process */
    if (!renew_session(rig)) return;
    emu_fail(EMU_LAUNCH, 300, ILLEGAL_ADDRESS);
    for (int i = 0; i < 3; i++) {
        struct result r = run(rig, &request);
        check(r.code == SLUICE_DEVICE && strstr(r.error.what, "lost") && !r.n_images,
              "run %d on a lost GPU: %s %s", i, sluice_code_name(r.code), r.error.what);
        check_memory_released(rig, false, "a lost GPU");
    }
    __lsan_enable();
}

/* Other programs fill the GPU before a session's first run: the error reports the lack of memory, and the
 * session's next run works. */
static void test_full_gpu_is_reported(struct rig *rig, struct sluice_request request,
                                      const struct result *want) {
    if (!emulated()) return;
    struct limits l = limits_of(rig, request);
    request.max_vram_bytes = l.all_vram;
    if (!renew_session(rig)) return;
    struct device *device = rig->session->device;
    /* Leaves 64 MiB besides the emulator's context of 256 MiB. */
    emu_set_taken(device->memory_bytes - ((uint64_t)320 << 20));
    struct result r = run(rig, &request);
    check(r.code == SLUICE_MEMORY && strstr(r.error.found, "free"), "run on a full GPU: %s %s, found %s",
          sluice_code_name(r.code), r.error.what, r.error.found);
    emu_set_taken(0);
    r = run(rig, &request);
    same(want, &r, "run after a full GPU");
}

/* Returns a request for two images, with a small reference image if the fixture supports reference images. */
static struct sluice_request request_of(const struct gate *gate) {
    enum { SIDE = 32 };
    static uint8_t rgb[3 * SIDE * SIDE];
    static const struct sluice_picture small = {
        .struct_size = sizeof small, .width = SIDE, .height = SIDE, .rgb = rgb, .name = "small"};
    static const struct sluice_picture *const reference = &small;
    if (gate->small) return gate->request;
    struct sluice_request request = request_small(2, 3.5);
    for (int i = 0; i < (int)sizeof rgb; i++) rgb[i] = (uint8_t)(7 * i);
    request.references = &reference;
    request.n_references = gate->request.n_references > 0;
    return request;
}

static void test_plan_never_changes_bits(const char *folder, const char *name, const struct gate *gate) {
    struct rig rig;
    struct sluice_request request = request_of(gate);
    bool whole = gate->cuda == CUDA_EVERYTHING;
    if (!rig_open(&rig, folder, 1, 5)) return;
    struct result want = run(&rig, &request);
    check(want.n_images == 2, "%s: %s (%s) %s", name, want.error.what, want.error.where, want.error.found);
    rig.fault_sys.delay_us = 300;
    gpu_budgets(&rig, request, &want, false, name);
    /* Saves latents only: with decoding no weights would stream, because the VAE's workspace is larger. */
    struct result latents = want;
    latents.n_images = 0;
    request.no_decode = true;
    gpu_budgets(&rig, request, &latents, whole, name);
    request.no_decode = false;
    edited_gpu_plans(&rig, request, &want, name);
    request.no_decode = true;
    if (whole) test_pin_limits_keep_bits(&rig, request, &latents, name);
    request.no_decode = false;
    if (whole) requests(&rig, name);
    if (whole) {
        struct sluice_request three = request_small(3, 3.5);
        three.max_vram_bytes = limits_of(&rig, three).least_vram;
        batch_against_seeds(&rig, three, plenty, name);
    }
    if (whole) test_out_of_memory_recovers(&rig, request, &want);
    if (whole) test_failed_copy_leaves_no_resident(&rig, request, &want);
    if (whole) test_full_gpu_is_reported(&rig, request, &want);
    if (gate->cuda == CUDA_AND_THEN_LOST) test_lost_gpu_is_reported(&rig, request);
    rig_close(&rig);
}

#ifndef __SANITIZE_ADDRESS__ /* skipped under ASan to save time, as are most fixtures in main() */
/* Models with several weight types: quantised weights and scales stream or stay resident. test_cuda_weights.c
 * checks the values. */
static void test_stored_types_keep_bits(void) {
    static const char *const mixed[] = {"f8_e4m3_rows/i8_rows/nvfp4_tiled/mxfp8_tiled/f8_e5m2",
                                        "q4_0/q4_k/q6_k/q8_0/q5_1/iq4_xs/mxfp4/nvfp4"};
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
        struct rig rig;
        struct sluice_request request = request_small(1, 1);
        request.no_decode = true;
        if (!rig_open(&rig, stored_checkpoint(mixed[i]), 1, 5)) return;
        struct result want = run(&rig, &request);
        check(want.n_latents == 1, "%s: %s (%s) %s", mixed[i], want.error.what, want.error.where,
              want.error.found);
        rig.fault_sys.delay_us = 300;
        gpu_budgets(&rig, request, &want, true, mixed[i]);
        rig_close(&rig);
    }
}

#endif

/* int8 gives the same bits with resident and with streamed weights. The reader quantises the weights, or the
 * operator (--type bf16). test_cuda_int8.c checks the values. */
static void test_int8_keeps_bits(void) {
    static const char dims[] =
        "heads=2,axis0=16,axis1=24,axis2=24,layers=2,refiners=1,hidden=64,text_heads=2,"
        "text_key_heads=1,text_head_dim=32,text_ff=96,text_layers=3,vocabulary=400,dtype="
        "bf16,vae0=16,vae1=16,vae2=16,vae3=16,vae_groups=8,latent_channels=16";
    struct rig rig;
    struct sluice_request request = request_small(1, 2.5);
    request.precision = "int8";
    request.no_decode = true;
    if (!rig_open(&rig, random_model("zimage_int8", "zimage", dims, 11), 1, 5)) return;
    request.max_ram_bytes = plenty;
    rig.fault_sys.delay_us = 300;
    for (int i = 0; i < 2; i++) {
        request.type = i ? "bf16" : NULL;
        request.max_vram_bytes = 0;
        struct result want = run(&rig, &request);
        check(want.n_latents == 1, "int8: %s (%s) %s", want.error.what, want.error.where, want.error.found);
        request.max_vram_bytes = limits_of(&rig, request).least_vram;
        struct result r = run_on_gpu(&rig, &request, &want, i ? "int8, weights in bf16" : "int8");
        check(r.plan && streamed(r.plan, "denoise") > 0, "the least budget streams no weights");
    }
    rig_close(&rig);
}

static void gates(enum cuda_extent extent, char **names) {
    for (int i = 0; i < n_fixtures; i++) {
        const struct fixture *f = &fixtures[i];
        if (!f->gate || f->gate->cuda != extent || !fixture_is_selected(f, names)) continue;
        rig_fixture = f;
        test_plan_never_changes_bits(fixture_model(f), f->name, f->gate);
    }
    rig_fixture = NULL;
}

int main(int argc, char **argv) {
    char **names = argv + (argc > 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("SLUICE_TEST_DEVICE", "cuda", 0);
    temporary_make();
    gates_begin();
#ifndef __SANITIZE_ADDRESS__ /* skipped under ASan to save time: the same code runs with fewer fixtures */
    gates(CUDA_EVERYTHING, names);
    gates(CUDA_BUDGETS_AND_PLANS, names);
    if (!*names) test_stored_types_keep_bits();
#endif
    if (!*names || !strcmp(*names, "int8")) test_int8_keeps_bits();
    gates(CUDA_AND_THEN_LOST, names);
    return finish();
}
