/* Control networks in the synthetic pipeline (test/lib/synthetic_control.c): steps of the window, guess mode,
 * several networks and images, residuals shared by lanes, cost in the plan; the same bits for every budget,
 * plan and batch, under memory pressure, and after operators found no memory. */
#include "test/lib/failing_operators.h"
#include "test/lib/gates.h"
#include "test/lib/random_models.h"
#include "test/lib/residency.h"
#include "test/lib/synthetic_pipeline.h"

enum { STEPS = 4, EVALUATIONS = 7 }; /* two evaluations a step; the last step has one */

static struct sluice_picture images[3];

static struct sluice_control control_of(int network, int image, double strength) {
    return (struct sluice_control){.struct_size = sizeof(struct sluice_control),
                                   .network = network,
                                   .image = &images[image],
                                   .strength = strength,
                                   .end = 1,
                                   .mode = -1};
}

/* A request with n control images. */
static struct sluice_request request_with(const struct sluice_control *controls, int n) {
    struct sluice_request r = gate_synthetic.request;
    r.batch = 1;
    r.n_slg_layers = 0;
    r.slg_layers = NULL;
    r.frames = 3;
    r.controls = controls;
    r.n_controls = n;
    return r;
}

static bool differ(const struct result *a, const struct result *b) {
    return a->n_latents && b->n_latents && strcmp(a->latent[0], b->latent[0]);
}

/* FLOPs of both denoisers' stages in the plan. */
static double flops_of(struct rig *rig, const struct sluice_request *r) {
    json_t *plan = query(rig, r, NULL);
    return real(stage_of(plan, "denoise"), "flops") + real(stage_of(plan, "denoise_2"), "flops");
}

/* Windows by the rule of diffusers: step i of 4 runs if i/4 >= start and (i+1)/4 <= end. The FLOPs of the
 * plan count the evaluations of these steps. */
static void test_window_selects_steps(struct rig *rig) {
    static const struct {
        double start, end;
        int evaluations;
    } rows[] = {{0, 1, EVALUATIONS}, {0, 0.25, 2},   {0, 0.49, 2},   {0.25, 0.75, 4}, {0.26, 0.75, 2},
                {0.75, 1, 1},        {0, 0.2499, 0}, {0.51, 0.7, 0}, {0.5, 1, 3}};
    struct sluice_control control = control_of(0, 0, 1);
    struct sluice_request plain = request_with(NULL, 0), r = request_with(&control, 1);
    struct result without = run_ok(rig, &plain, "no control"), whole = run_ok(rig, &r, "whole");
    double base = flops_of(rig, &plain), each = (flops_of(rig, &r) - base) / EVALUATIONS;
    check(each > 0, "a control network costs nothing");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        control.start = rows[i].start;
        control.end = rows[i].end;
        struct result found = run_ok(rig, &r, "window");
        bool none = !rows[i].evaluations, all = rows[i].evaluations == EVALUATIONS;
        check(differ(&found, &without) == !none && differ(&found, &whole) == !all,
              "window %g to %g: wrong latent", rows[i].start, rows[i].end);
        /* blocks of the prompt and hoisted rows run once */
        double more = flops_of(rig, &r) - base, most = each * (rows[i].evaluations + 1);
        check(none ? more == 0 : more >= each * rows[i].evaluations * 0.9 && more <= most,
              "window %g to %g: %g FLOPs, of %g in an evaluation", rows[i].start, rows[i].end, more, each);
    }
}

/* In guess mode the negative prompt has no residuals, and lanes of the conditional prompt weaker ones. */
static void test_guess_mode(struct rig *rig) {
    struct sluice_control control = control_of(0, 0, 1);
    struct sluice_request plain = request_with(NULL, 0), r = request_with(&control, 1);
    double base = flops_of(rig, &plain), both = flops_of(rig, &r) - base;
    struct result full = run_ok(rig, &r, "both lanes");
    r.guess_mode = true;
    double one = flops_of(rig, &r) - base;
    struct result guess = run_ok(rig, &r, "guess mode");
    check(differ(&guess, &full), "guess mode changes nothing");
    check(one > 0.4 * both && one < 0.65 * both, "guess mode: %g FLOPs of %g", one, both);
}

/* Strength 1e-30 runs the network and is lost in rounding, whatever else runs. Two images of one network
 * share its weights. */
static void test_several_controls(struct rig *rig) {
    struct sluice_control controls[3] = {control_of(0, 0, 0.7)};
    struct sluice_request r = request_with(controls, 1);
    struct result one = run_ok(rig, &r, "one");
    json_int_t bytes = number(stage_of(one.plan, "denoise"), "streamed_bytes_per_evaluation");
    for (int network = 0; network < 2; network++) {
        controls[1] = control_of(network, 1, 1e-30);
        r.n_controls = 2;
        struct result two = run_equal(rig, &r, &one, "a second control of strength 1e-30");
        json_int_t more = number(stage_of(two.plan, "denoise"), "streamed_bytes_per_evaluation") - bytes;
        /* rows of embedding tables always stream */
        check(network ? more > 0 : more == 0, "network %d: %lld more streamed bytes with ample memory",
              network, (long long)more);
        size_t n[2] = {json_array_size(json_object_get(stage_of(one.plan, "denoise"), "blocks")),
                       json_array_size(json_object_get(stage_of(two.plan, "denoise"), "blocks"))};
        check(network ? n[1] > n[0] : n[1] == n[0], "network %d: %zu blocks instead of %zu", network, n[1],
              n[0]);
        controls[1].strength = 0.5;
        struct result other = run_ok(rig, &r, "two");
        check(differ(&other, &one), "a second control of network %d changes nothing", network);
        struct sluice_control swapped = controls[0];
        controls[0] = controls[1], controls[1] = swapped;
        other = run_ok(rig, &r, "two, swapped");
        check(differ(&other, &one), "network %d, swapped: the second control changes nothing", network);
        controls[1] = controls[0], controls[0] = swapped;
    }
    controls[1] = control_of(0, 1, 0.5);
    controls[2] = control_of(1, 2, 0.25);
    r.n_controls = 3;
    struct result three = run_ok(rig, &r, "three");
    check(differ(&three, &one), "three controls change nothing");
}

/* The union network runs once for each image, not for each lane, and reads all its images at once. */
static void test_union_network(struct rig *rig) {
    struct sluice_control controls[2] = {control_of(1, 0, 0.7), control_of(1, 1, 0.4)};
    struct sluice_request plain = request_with(NULL, 0), r = request_with(controls, 1);
    double base = flops_of(rig, &plain), guided = flops_of(rig, &r) - base;
    struct result one = run_ok(rig, &r, "one image");
    r.n_controls = 2;
    struct result two = run_ok(rig, &r, "two images");
    double both = flops_of(rig, &r) - base;
    check(differ(&one, &two), "the second image changes nothing");
    check(both < 1.5 * guided, "two images take %g FLOPs, one %g", both, guided);
    r.n_controls = 1;
    plain.cfg_scale = r.cfg_scale = 1;
    double alone = flops_of(rig, &r) - flops_of(rig, &plain);
    check(guided < 1.3 * alone, "%g FLOPs with guidance, %g without", guided, alone);
}

/* Bytes of weights that the plan predicts to move in the whole run. */
static double predicted_bytes(json_t *plan) {
    double bytes = 0;
    json_t *stage, *block;
    for (size_t s = 0; (stage = stage_at(plan, s)); s++)
        for (size_t i = 0; (block = block_at(stage, i)); i++) {
            const json_t *loads = json_object_get(block, "loads_per_evaluation");
            bool once = json_is_true(json_object_get(block, "resident")) ||
                        json_is_true(json_object_get(block, "hoisted"));
            bytes +=
                (double)number(block, "bytes") *
                (once ? 1 : (loads ? json_number_value(loads) : 1) * (double)number(stage, "evaluations"));
        }
    return bytes;
}

/* The plan counts the loads of blocks that run in a window, and of blocks with several visits in an
 * evaluation; the planned bytes include padding, 0.07 to 0.17 %. Names of their blocks have prefixes. */
static void test_plan_counts_loads(struct rig *rig) {
    struct sluice_control controls[2] = {control_of(0, 0, 1), control_of(1, 1, 1)};
    struct sluice_request r = request_with(controls, 2);
    json_int_t least, all;
    controls[0].start = 0.5;
    controls[1].end = 0.75;
    bounds(rig, r, &least, &all);
    for (int i = 0; i < 3; i++) {
        r.max_ram_bytes = least + (all - least) * i / 4;
        struct result found = run_ok(rig, &r, "loads");
        double planned = predicted_bytes(found.plan), moved = (double)rig_stages_sum(rig, "bytes_moved");
        check(planned >= moved && planned < 1.002 * moved, "budget %d: %.0f bytes moved, planned %.0f", i,
              moved, planned);
        char *text = json_dumps(found.plan, JSON_COMPACT);
        check(strstr(text, "\"control.layers.0\"") && strstr(text, "\"control_2.layers.0\""),
              "no blocks of control networks in the plan");
        free(text);
    }
}

static int evicted(struct rig *rig) {
    return (int)json_array_size(json_object_get(rig_report(rig), "replanned"));
}

static void test_memory_pressure(struct rig *rig, struct sluice_request request, const struct result *want) {
    int n = 0;
    for (int i = 0; i < 4; i++) {
        rig->fault_sys.free_percent = i % 2 ? 30 : 100;
        rig->fault_sys.free_bytes = i < 2 ? 1 : 200 << 20;
        fault_sys_restart(&rig->fault_sys);
        run_equal(rig, &request, want, "under pressure");
        n += evicted(rig);
    }
    rig->fault_sys.free_percent = 0;
    check(n >= 2, "residents were evicted only %d times", n);
}

/* Residuals are added to the state, so an evaluation that is computed again must not add them twice. */
static void test_operators_without_memory(struct rig *rig, struct sluice_request request,
                                          const struct result *want) {
    enum { TRIES = 12 };
    int again = 0;
    operators_begin(rig->session->device);
    run(rig, &request);
    long n = operators_counted();
    for (int i = 0; i < TRIES; i++) {
        operators_fail_at(1 + n * i / TRIES);
        struct result r = run(rig, &request);
        if (r.code == SLUICE_OK) same(want, &r, "an operator runs out of memory");
        check(r.code == SLUICE_OK || r.code == SLUICE_MEMORY, "%s", r.error.what);
        again += r.code == SLUICE_OK;
    }
    check(again >= TRIES / 2, "only %d of %d runs recovered", again, TRIES);
    operators_end(rig->session->device);
}

/* All kinds of lanes at once: guidance that ends early, skip-layer guidance, windows, both networks. */
static void test_plan_keeps_bits(struct rig *rig, bool guess) {
    struct sluice_control controls[3] = {control_of(0, 0, 0.7), control_of(1, 1, 0.5), control_of(0, 2, 0.3)};
    struct sluice_request r = request_with(controls, 3);
    json_int_t least, all;
    controls[0].end = 0.75;
    controls[1].start = 0.25;
    r.cfg_until = 0.5;
    r.n_slg_layers = gate_synthetic.request.n_slg_layers;
    r.slg_layers = gate_synthetic.request.slg_layers;
    r.guess_mode = guess;
    struct result want = run_ok(rig, &r, "all at once");
    bounds(rig, r, &least, &all);
    rig->fault_sys.delay_us = 100;
    budgets(rig, r, &want, thorough_or(BUDGETS_MOST, 4), "control");
    edited_plans(rig, r, &want, thorough_or(EDITS_ALL, 4), "control");
    batch_against_seeds(rig, r, least, "control");
    rig->fault_sys.delay_us = 0;
    if (guess) return;
    rig->model->no_hoist = true;
    run_equal(rig, &r, &want, "without hoisting");
    rig->model->no_hoist = false;
    test_memory_pressure(rig, r, &want);
    test_operators_without_memory(rig, r, &want);
}

int main(void) {
    struct rig rig;
    temporary_make();
    gates_begin();
    struct sluice_part nets[] = {
        {"--control-net", random_model("control", "synthetic_control", "dtype=f32", 5)},
        {"--control-net", random_model("union", "synthetic_control_union", "control_layers=2,dtype=f32", 6)}};
    for (int i = 0; i < 3; i++) images[i] = noise_picture(i, 12 + 2 * i, 8 + 4 * i);
    if (!rig_open_with(
            &rig, (struct sluice_model_options){.model = synthetic_checkpoint(), .parts = nets, .n_parts = 2},
            (struct sluice_session_options){.threads = 1}, 7))
        return finish();
    rig.model->open_bytes = 0;
    test_window_selects_steps(&rig);
    test_guess_mode(&rig);
    test_several_controls(&rig);
    test_union_network(&rig);
    test_plan_counts_loads(&rig);
    for (int guess = 0; guess < 2; guess++) test_plan_keeps_bits(&rig, guess);
    rig_close(&rig);
    return finish();
}
