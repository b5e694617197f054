/* --cfg-until and --cfg-norm: lanes and FLOPs in the plan, batch groups, plan files, warnings, rejected
 * requests. test_golden.c compares their results with the reference; test_synthetic_pipeline.c with plain
 * loops for two denoisers; test_residency.c checks bits under plans. */
#include "test/lib/gates.h"
#include "test/lib/rig.h"

#include <math.h>

static char warnings[2048];

static void on_log(void *user, int level, const char *line) {
    if (level == SLUICE_WARNING) strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

enum { STEPS = 5 };

static struct sluice_request request_of(double norm, double until) {
    struct sluice_request r = gate_zimage_base.request;
    r.steps = STEPS;
    r.batch = 1;
    r.cfg_norm = norm;
    r.cfg_until = until;
    r.no_decode = true;
    return r;
}

static double flops_of(struct rig *rig, struct sluice_request request) {
    bool fits = false;
    double flops =
        json_number_value(json_object_get(stage_of(query(rig, &request, &fits), "denoise"), "flops"));
    check(flops > 0 && fits, "the plan has no FLOPs or does not fit");
    return flops;
}

/* With shift 6 the five steps begin at 1 - sigma = 0, .04, .1, .2 and .4. The unconditional lane costs the
 * same in each evaluation, because both captions have one padded length. */
static void test_plan_counts_guided_steps(struct rig *rig) {
    static const struct {
        double until;
        int guided;
    } rows[] = {{0.001, 1}, {0.03, 1}, {0.05, 2}, {0.15, 3}, {0.3, 4}, {0.45, 5}, {1, 5}, {0, 5}};
    struct sluice_request plain = request_of(0, 0);
    double guided = flops_of(rig, plain);
    plain.cfg_scale = 1;
    double part = (guided - flops_of(rig, plain)) / STEPS;
    struct sluice_request whole = request_of(0, 0), request = whole;
    struct result all = run(rig, &whole);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        request.cfg_until = rows[i].until;
        double flops = flops_of(rig, request), expected = guided - (STEPS - rows[i].guided) * part;
        check(fabs(flops - expected) < 1e-9 * guided, "--cfg-until %g: %.17g FLOPs, expected %.17g",
              rows[i].until, flops, expected);
        struct result r = run(rig, &request);
        check(r.code == SLUICE_OK && number(stage_of(r.plan, "denoise"), "lanes") == 2, "--cfg-until %g: %s",
              rows[i].until, r.error.what);
        check(!strcmp(r.latent[0], all.latent[0]) == (rows[i].guided == STEPS),
              "--cfg-until %g: wrong effect on the latent", rows[i].until);
    }
}

/* A limit that no prediction reaches changes no bit. */
static void test_norm_limits(struct rig *rig) {
    struct sluice_request plain = request_of(0, 0), loose = request_of(SLUICE_SCALE_MAX, 0);
    struct sluice_request tight = request_of(0.5, 0);
    struct result without = run(rig, &plain), limited = run(rig, &tight);
    run_equal(rig, &loose, &without, "a limit above all norms");
    check(strcmp(limited.latent[0], without.latent[0]), "--cfg-norm 0.5 has no effect");
}

enum { BATCH = 3 };

/* Every image of a batch is bit-identical to a single run of its seed, in groups of any size: its norm is its
 * own, and evaluations without unconditional lanes are counted by group. */
static void test_groups_keep_bits(struct rig *rig) {
    struct result single_runs[BATCH];
    struct sluice_request request = request_of(0.8, 0.1);
    for (int i = 0; i < BATCH; i++, request.seed++) single_runs[i] = run(rig, &request);
    request.seed -= BATCH;
    request.batch = BATCH;
    for (int groups = 1; groups <= BATCH; groups++) {
        json_t *plan = query(rig, &request, NULL);
        check(json_number_value(json_object_get(json_object_get(plan, "request"), "cfg_until")) == 0.1,
              "the plan has another --cfg-until");
        json_object_set_new(stage_of(plan, "denoise"), "groups", json_integer(groups));
        struct sluice_request edited = request;
        edited.plan = plan_text(rig, plan);
        struct result r = run(rig, &edited);
        check(r.n_latents == BATCH, "%d groups: %s", groups, r.error.what);
        for (int i = 0; i < r.n_latents; i++)
            check(!strcmp(r.latent[i], single_runs[i].latent[0]),
                  "%d groups: image %d differs from the run of its seed alone", groups, i);
        edited.cfg_until = 0.3;
        run_refused(rig, &edited, "BUDGET", 4, "cfg_until 0.1 in the plan");
    }
}

static void test_useless_settings_warn(struct rig *rig) {
    static const struct {
        double scale, norm, until;
        const char *warning;
    } rows[] = {{1, 0.5, 0, "--cfg-norm has no effect without guidance"},
                {1, 0, 0.5, "--cfg-until has no effect without guidance"},
                {1, 0.5, 0.5, "--cfg-norm and --cfg-until have no effect without guidance"},
                {2.5, 0, 0.5, "--cfg-until 0.5 has no effect: the last step begins at 0.4"},
                {2.5, 0.5, 0.3, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sluice_request request = request_of(rows[i].norm, rows[i].until);
        request.cfg_scale = rows[i].scale;
        *warnings = 0;
        run(rig, &request);
        check(rows[i].warning ? strstr(warnings, rows[i].warning) != NULL : !*warnings,
              "row %zu: warnings: %s", i, warnings);
    }
}

/* Image-to-image whose first step is beyond --cfg-until. */
static void test_no_guided_step_warns(struct rig *rig) {
    struct sluice_request request = gate_zimage_base.other, plain = request;
    request.cfg_until = 0.01;
    plain.cfg_scale = 1;
    plain.cfg_until = 0;
    struct result without = run(rig, &plain);
    *warnings = 0;
    run_equal(rig, &request, &without, "no guided step");
    check(strstr(warnings, "--cfg-until 0.01 turns guidance off: the first step begins at 0.0526") != NULL,
          "warnings: %s", warnings);
}

static void test_invalid_requests_are_rejected(struct rig *rig) {
    static const struct {
        double norm, until;
        const char *words;
    } rows[] = {{-1, 0, "invalid value for --cfg-norm: found -1, expected 0 to 1000"},
                {NAN, 0, "--cfg-norm"},
                {INFINITY, 0, "--cfg-norm"},
                {0, 1.5, "invalid value for --cfg-until: found 1.5, expected 0.001 to 1"},
                {0, -0.1, "--cfg-until"},
                {0, NAN, "--cfg-until"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sluice_request request = request_of(rows[i].norm, rows[i].until);
        run_refused(rig, &request, "USAGE", 2, rows[i].words);
    }
}

/* LTX-2's guidance: refused by other models, and values that LTX-2 refuses. */
static void test_denoised_guidance_is_rejected(struct rig *rig) {
    static const int blocks[] = {0, 3}, negative[] = {-1};
    static const struct {
        struct sluice_request request;
        const char *words;
    } others[] = {{{.stg_scale = 1}, "only LTX-2 has this guidance"},
                  {{.audio_cfg_rescale = 0.5}, "the second value of --cfg-rescale"},
                  {{.stg_blocks = blocks, .n_stg_blocks = 1}, "--stg-blocks"},
                  {{.save_audio_latent = "x.safetensors"}, "--save-audio-latent"}},
      rows[] = {{{.cfg_norm = 1}, "--cfg-rescale"},
                {{.stg_scale = 1}, "--stg-blocks too"},
                {{.audio_stg_scale = 1}, "--stg-blocks too"},
                {{.stg_blocks = blocks, .n_stg_blocks = 2}, "found 3, expected blocks from 0 to 2"},
                {{.stg_blocks = negative, .n_stg_blocks = 1}, "found -1"},
                {{.n_stg_blocks = 1}, "not NULL"},
                {{.cfg_rescale = 1.5}, "expected 0 to 1"}};
    struct rig ltx;
    for (int i = 0; i < COUNT_OF(others) + COUNT_OF(rows); i++) {
        bool is_ltx = i >= COUNT_OF(others);
        struct sluice_request request = is_ltx ? rows[i - COUNT_OF(others)].request : others[i].request;
        request.struct_size = sizeof request;
        request.prompt = "a red fox";
        request.width = request.height = 64;
        request.frames = is_ltx ? 9 : 1;
        request.steps = request.batch = 1;
        request.cfg_scale = 2;
        if (i == COUNT_OF(others) && !rig_open(&ltx, "test/golden/ltx2/model", 1, 3)) return;
        run_refused(is_ltx ? &ltx : rig, &request, "USAGE", 2,
                    is_ltx ? rows[i - COUNT_OF(others)].words : others[i].words);
    }
    rig_close(&ltx);
}

int main(void) {
    struct rig rig;
    struct sluice_session_options options = {.threads = 1, .on_log = on_log};
    temporary_make();
    gates_begin();
    if (!rig_open(&rig, "test/golden/zimage_base/model", 1, 3)) return finish();
    if (!rig_open_session(&rig, options)) return finish();
    test_plan_counts_guided_steps(&rig);
    test_norm_limits(&rig);
    test_groups_keep_bits(&rig);
    test_useless_settings_warn(&rig);
    test_no_guided_step_warns(&rig);
    test_invalid_requests_are_rejected(&rig);
    test_denoised_guidance_is_rejected(&rig);
    rig_close(&rig);
    return finish();
}
