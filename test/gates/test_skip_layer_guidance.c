/* Skip-layer guidance (SLG) in the synthetic pipeline: the covered steps, the cost in the plan, warnings
 * about SLG without effect, rejected requests. test_synthetic_pipeline.c compares its results with plain
 * loops; test_residency.c and test_batch_lanes.c check bits under plans and batches. */
#include "test/lib/gates.h"
#include "test/lib/random_models.h"
#include "test/lib/rig.h"

#include <math.h>

enum { LAYERS = 4, STEPS = 4 };

static char warnings[2048];

static void on_log(void *user, int level, const char *line) {
    if (level == SLUICE_WARNING) strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

static const int layers[] = {0, 1, 2, 3};

/* Returns a request that skips the first n layers from fraction `start` to `end` of the steps. */
static struct sluice_request request_of(int n, double start, double end) {
    struct sluice_request r = gate_synthetic.request;
    r.slg_layers = n ? layers : NULL;
    r.n_slg_layers = n;
    r.slg_start = start;
    r.slg_end = end;
    r.steps = STEPS;
    r.batch = 1;
    r.no_decode = true;
    return r;
}

static int lanes_of(json_t *plan, const char *stage) {
    return (int)number(stage_of(plan, stage), "lanes");
}

/* Steps 0 and 1 belong to the first of two denoisers. Both ends of the SLG interval are exclusive. */
static void test_interval_selects_steps(struct rig *rig) {
    static const struct {
        double start, end;
        bool first, second;
    } rows[] = {{0, 1, true, true},       {0.25, 1, false, true},    {0.25, 0.5, false, false},
                {0.24, 0.5, true, false}, {0.5, 1, false, true},     {0.5, 0.75, false, false},
                {0, 0.25, false, false},  {0.75, 0.25, false, false}};
    struct sluice_request plain = request_of(0, 0, 1);
    struct result without = run(rig, &plain);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sluice_request request = request_of(2, rows[i].start, rows[i].end);
        bool any = rows[i].first || rows[i].second;
        *warnings = 0;
        struct result r = run(rig, &request);
        check(r.code == SLUICE_OK && lanes_of(r.plan, "denoise") == 2 + rows[i].first &&
                  lanes_of(r.plan, "denoise_2") == 2 + rows[i].second,
              "from %g to %g: unexpected lanes: %s", rows[i].start, rows[i].end, r.error.what);
        check(strcmp(r.latent[0], without.latent[0]) ? any : !any,
              "from %g to %g: wrong effect on the latent", rows[i].start, rows[i].end);
        check(any ? !strstr(warnings, "--slg") : strstr(warnings, "none of the") != NULL,
              "from %g to %g: unexpected warnings: %s", rows[i].start, rows[i].end, warnings);
        check(any == (json_object_get(json_object_get(r.plan, "request"), "slg_layers") != NULL),
              "from %g to %g: wrong request in the plan", rows[i].start, rows[i].end);
    }
}

static void check_no_effect(struct rig *rig, struct sluice_request request, const char *why) {
    struct sluice_request plain = request;
    plain.n_slg_layers = 0;
    struct result without = run(rig, &plain);
    *warnings = 0;
    run_equal(rig, &request, &without, why);
    check(strstr(warnings, why) != NULL, "no warning '%s', but: %s", why, warnings);
}

static void test_useless_settings_warn(struct rig *rig) {
    struct sluice_request request = request_of(2, 0, 1);
    request.slg_scale = 0;
    check_no_effect(rig, request, "--slg-scale is 0");
    request = request_of(2, 0, 1);
    request.cfg_scale = 1;
    check_no_effect(rig, request, "without guidance");
}

static double flops_of(struct rig *rig, struct sluice_request request, const char *stage) {
    bool fits = false;
    json_t *plan = query(rig, &request, &fits);
    double flops = json_number_value(json_object_get(stage_of(plan, stage), "flops"));
    check(flops > 0 && fits, "the plan has no FLOPs or does not fit");
    return flops;
}

static const char *hash_of(struct rig *rig, struct sluice_request request) {
    return word(query(rig, &request, NULL), "hash");
}

/* In the plan, the SLG lane costs as much as one lane without the skipped layers. One of each denoiser's two
 * evaluations has an SLG lane. */
static void test_plan_counts_skipped_layers(struct rig *rig) {
    for (int k = 0; k < 2; k++) {
        const char *stage = k ? "denoise_2" : "denoise";
        double start = k ? 0.26 : 0.01, end = k ? 0.74 : 0.49, part = k ? 2 / 3.0 : 0.5;
        struct sluice_request single_runs = request_of(0, 0, 1);
        double guided = flops_of(rig, single_runs, stage);
        double one = flops_of(rig, request_of(1, start, end), stage),
               two = flops_of(rig, request_of(2, start, end), stage);
        double four = flops_of(rig, request_of(LAYERS, start, end), stage), third = four - guided;
        single_runs.cfg_scale = 1;
        double expected = part * flops_of(rig, single_runs, stage) - LAYERS * (one - two);
        check(fabs(third - expected) < 1e-9 * guided && third > 0, "%s: %.17g more FLOPs, expected %.17g",
              stage, third, expected);
    }
    const char *whole = hash_of(rig, request_of(2, 0, 1));
    check(strcmp(whole, hash_of(rig, request_of(0, 0, 1))), "plans with and without SLG have one hash");
    check(strcmp(whole, hash_of(rig, request_of(2, 0, 0.5))), "plans with other SLG steps have one hash");
}

enum { BATCH = 5 };

/* Each group of a batch has its own SLG lanes: every image is bit-identical to a single run of its seed, and
 * state bytes stay within the plan. */
static void test_groups_keep_bits(struct rig *rig) {
    static const int groups[] = {1, 2, 3, BATCH};
    struct result single_runs[BATCH];
    struct sluice_request request = request_of(2, 0.01, 0.7);
    for (int i = 0; i < BATCH; i++, request.seed++) single_runs[i] = run(rig, &request);
    request.seed -= BATCH;
    request.batch = BATCH;
    for (size_t k = 0; k < sizeof groups / sizeof *groups; k++) {
        json_t *plan = query(rig, &request, NULL);
        json_object_set_new(stage_of(plan, "denoise"), "groups", json_integer(groups[k]));
        json_object_set_new(stage_of(plan, "denoise_2"), "groups", json_integer(groups[k]));
        struct sluice_request edited = request;
        edited.plan = plan_text(rig, plan);
        fault_sys_restart(&rig->fault_sys);
        struct result r = run(rig, &edited);
        int together = (BATCH + groups[k] - 1) / groups[k];
        check(r.n_latents == BATCH && lanes_of(r.plan, "denoise_2") == 3 * together, "%d groups: %s",
              groups[k], r.error.what);
        for (int i = 0; i < r.n_latents; i++)
            check(!strcmp(r.latent[i], single_runs[i].latent[0]),
                  "%d groups: image %d differs from the run of its seed alone", groups[k], i);
        check(rig->fault_sys.sys.use.peak_bytes[LINE_STATE] <=
                  number(r.plan, "cross_bytes") + number(stage_of(r.plan, "denoise"), "state_bytes"),
              "%d groups: more state bytes than planned", groups[k]);
    }
}

static void test_invalid_requests_are_rejected(struct rig *rig) {
    static const int beyond[] = {1, LAYERS}, negative[] = {-1};
    static const struct {
        const int *layers;
        int n;
        double start, end, scale;
        const char *words;
    } rows[] = {
        {beyond, 2, 0, 1, 1, "invalid value for --slg-layers: found 4, expected layers from 0 to 3"},
        {negative, 1, 0, 1, 1, "found -1"},
        {NULL, 1, 0, 1, 1, "slg_layers to be set"},
        {NULL, -1, 0, 1, 1, "found -1, expected 0 to"},
        {layers, 2, NAN, 1, 1, "--slg-start"},
        {layers, 2, 0, 1.5, 1, "invalid value for --slg-end: found 1.5, expected 0 to 1"},
        {layers, 2, 0, 1, INFINITY, "--slg-scale"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sluice_request request = request_of(rows[i].n, rows[i].start, rows[i].end);
        request.slg_layers = rows[i].layers;
        request.slg_scale = rows[i].scale;
        run_refused(rig, &request, "USAGE", 2, rows[i].words);
    }
}

static void test_other_models_reject_slg(void) {
    struct rig rig;
    struct sluice_request request = request_fox(32, 16, 1, 1, 2);
    if (!rig_open(&rig, "test/golden/zimage_a/model", 1, 3)) return;
    request.slg_layers = layers;
    request.n_slg_layers = 1;
    run_refused(&rig, &request, "USAGE", 2, "a model with skip-layer guidance");
    rig_close(&rig);
}

int main(void) {
    struct rig rig;
    struct sluice_session_options options = {.threads = 1, .on_log = on_log};
    temporary_make();
    gates_begin();
    if (!rig_open(&rig, synthetic_checkpoint(), 1, 3)) return finish();
    if (!rig_open_session(&rig, options)) return finish();
    test_interval_selects_steps(&rig);
    test_useless_settings_warn(&rig);
    test_plan_counts_skipped_layers(&rig);
    test_groups_keep_bits(&rig);
    test_invalid_requests_are_rejected(&rig);
    rig_close(&rig);
    test_other_models_reject_slg();
    return finish();
}
