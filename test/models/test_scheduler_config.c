/* scheduler_config.json: the meaning of each key, and the errors for unsupported values. */
#include "test/lib/assert_ok.h"
#include "test/lib/sampler_run.h"
#include "loaders/loaders.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static enum status read_text(const char *text, bool mends, struct sampling *s, struct error *e) {
    struct config_value values[CONFIG_KEYS_MAX];
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    struct config config = sampler_run_config(object, values);
    *s = (struct sampling){
        .prediction = &prediction_eps, .schedule = &schedule_diffusers_euler, .fixes_legacy_config = mends};
    sampling_read(&config, s, e);
    json_decref(object);
    return e->code;
}

static struct sampling expect_read(const char *text, bool mends) {
    struct sampling s;
    struct error e = {0};
    read_text(text, mends, &s, &e);
    assert_ok(&e);
    return s;
}

static void expect_refused(const char *text, bool mends, const char *what) {
    struct sampling s;
    struct error e = {0};
    char line[1024];
    read_text(text, mends, &s, &e);
    error_line(&e, line, sizeof line);
    if ((e.code != UNSUPPORTED && e.code != META) || !strstr(line, what))
        fail_msg("%s: %d, %s: does not contain '%s'", text, e.code, line, what);
}

#define OF(name, rest)      "{\"_class_name\": \"" name "\", " rest " \"x\": 0, \"_y\": 1}"
#define FILE_OF(name, rest) "{\"_class_name\": \"" name "\"" rest "}"

static void test_unsupported_values_refused(void **state) {
    (void)state;
    expect_refused("{}", false, "_class_name");
    expect_refused(FILE_OF("DPMSolverSDEScheduler", ""), false, "DPMSolverSDEScheduler");
    expect_refused(FILE_OF("DPMSolverSinglestepScheduler", ""), false, "DPMSolverSinglestepScheduler");
    expect_refused(FILE_OF("FlowMatchEulerDiscreteScheduler", ""), false, "FlowMatchEulerDiscreteScheduler");
    expect_refused(OF("EulerDiscreteScheduler", ""), false, "found x");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"prediction_type\": \"sample\""), false, "sample");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"timestep_spacing\": \"odd\""), false, "odd");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"beta_schedule\": \"laplace\""), false, "laplace");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"beta_start\": -1"), false, "beta_start");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"num_train_timesteps\": 500"), false, "500");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"sigma_min\": 2, \"sigma_max\": 1"), false,
                   "sigma_max");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"interpolation_type\": \"log_linear\""), false,
                   "log");
    expect_refused(FILE_OF("EulerDiscreteScheduler", ", \"final_sigmas_type\": \"one\""), false, "one");
    expect_refused(
        FILE_OF("EulerDiscreteScheduler", ", \"use_karras_sigmas\": true, \"use_beta_sigmas\": true"), false,
        "use_beta_sigmas");
    expect_refused(FILE_OF("DPMSolverMultistepScheduler", ", \"algorithm_type\": \"dpmsolver\""), false,
                   "dpmsolver");
    expect_refused(FILE_OF("DPMSolverMultistepScheduler", ", \"solver_order\": 4"), false, "solver_order");
    expect_refused(FILE_OF("DPMSolverMultistepScheduler",
                           ", \"algorithm_type\": \"sde-dpmsolver++\", \"solver_order\": 3"),
                   false, "solver_order");
    expect_refused(FILE_OF("DPMSolverMultistepScheduler", ", \"use_lu_lambdas\": true"), false,
                   "use_lu_lambdas");
    expect_refused(FILE_OF("DPMSolverMultistepScheduler", ", \"use_flow_sigmas\": true"), false,
                   "use_flow_sigmas");
    expect_refused(FILE_OF("DPMSolverMultistepScheduler", ", \"lambda_min_clipped\": -5.1"), false,
                   "lambda_min_clipped");
    expect_refused(FILE_OF("UniPCMultistepScheduler", ", \"predict_x0\": false"), false, "predict_x0");
    expect_refused(FILE_OF("UniPCMultistepScheduler", ", \"disable_corrector.0\": 0"), false,
                   "disable_corrector");
    expect_refused(FILE_OF("DDPMScheduler", ", \"clip_sample\": false, \"variance_type\": \"fixed_large\""),
                   false, "fixed_large");
    expect_refused(FILE_OF("DDIMScheduler", ""), false, "clip_sample");
    expect_refused(FILE_OF("DDIMScheduler", ", \"clip_sample\": false, \"thresholding\": true"), false,
                   "thresholding");
    expect_refused(FILE_OF("PNDMScheduler", ""), false, "skip_prk_steps");
}

/* The schedule of Wan's recipes. */
static const struct sampling flow_of_class = {.prediction = &prediction_flow_timestep,
                                              .schedule = &schedule_flow_unipc,
                                              .sampler = &sampler_unipc,
                                              .grid_from_class = true};
static const struct sampling flow_of_pipeline = {
    .prediction = &prediction_flow, .schedule = &schedule_flow, .sampler = &sampler_euler};

static enum status read_flow(const char *text, struct sampling *s, struct error *e) {
    struct config_value values[CONFIG_KEYS_MAX];
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    struct config config = sampler_run_config(object, values);
    sampling_read(&config, s, e);
    json_decref(object);
    return e->code;
}

static void expect_flow(struct sampling s, const char *text, const struct schedule *schedule,
                        const struct sampler *sampler) {
    struct error e = {0};
    read_flow(text, &s, &e);
    assert_ok(&e);
    assert_ptr_equal(s.schedule, schedule);
    assert_ptr_equal(s.sampler, sampler);
}

static void expect_flow_refused(struct sampling s, const char *text, const char *what) {
    struct error e = {0};
    char line[1024];
    read_flow(text, &s, &e);
    error_line(&e, line, sizeof line);
    if ((e.code != UNSUPPORTED && e.code != META) || !strstr(line, what))
        fail_msg("%s: %d, %s: does not contain '%s'", text, e.code, line, what);
}

#define FLOW ", \"use_flow_sigmas\": true, \"prediction_type\": \"flow_prediction\""

static void test_flow_matching_keys(void **state) {
    (void)state;
    expect_flow(flow_of_class, FILE_OF("UniPCMultistepScheduler", FLOW), &schedule_flow_unipc,
                &sampler_unipc);
    expect_flow(flow_of_class, FILE_OF("DPMSolverMultistepScheduler", FLOW), &schedule_flow_dpm,
                &sampler_dpmpp_2m);
    expect_flow(flow_of_class, FILE_OF("FlowMatchEulerDiscreteScheduler", ", \"shift\": 5"), &schedule_flow,
                &sampler_euler);
    expect_flow(flow_of_class, "{\"flow_shift\": 3" FLOW "}", &schedule_flow_unipc, &sampler_unipc);
    expect_flow(flow_of_pipeline, "{\"shift\": 3}", &schedule_flow, &sampler_euler);
    expect_flow_refused(flow_of_pipeline, FILE_OF("UniPCMultistepScheduler", FLOW),
                        "UniPCMultistepScheduler");
    expect_flow_refused(flow_of_class, FILE_OF("EulerDiscreteScheduler", ""), "EulerDiscreteScheduler");
    expect_flow_refused(flow_of_class, FILE_OF("UniPCMultistepScheduler", ""), "use_flow_sigmas");
    expect_flow_refused(flow_of_class, FILE_OF("UniPCMultistepScheduler", ", \"use_flow_sigmas\": true"),
                        "prediction_type");
    expect_flow_refused(
        flow_of_class,
        FILE_OF("UniPCMultistepScheduler", ", \"use_flow_sigmas\": true, \"prediction_type\": \"epsilon\""),
        "epsilon");
    expect_flow_refused(flow_of_class,
                        FILE_OF("UniPCMultistepScheduler", FLOW ", \"use_karras_sigmas\": true"),
                        "use_karras_sigmas");
    expect_flow_refused(flow_of_class,
                        FILE_OF("UniPCMultistepScheduler", FLOW ", \"final_sigmas_type\": \"sigma_min\""),
                        "sigma_min");
    expect_flow_refused(flow_of_class, FILE_OF("FlowMatchEulerDiscreteScheduler", ", \"odd\": 1"), "odd");
    expect_flow_refused(flow_of_pipeline, "{\"invert_sigmas\": true}", "invert_sigmas");
}

/* A sampler uses its diffusers class's timestep spacing where the pipeline does not set one, unless
 * --schedule names one. */
static void test_sampler_brings_class_spacing(void **state) {
    struct error e = {0};
    struct sampling s = flow_of_class, own = flow_of_pipeline;
    (void)state;
    sampling_choose(&(struct sampling_choice){.steps = 5}, &s, &e);
    assert_ptr_equal(s.schedule, &schedule_flow_unipc);
    sampling_choose(&(struct sampling_choice){.sampler = "euler", .steps = 5}, &s, &e);
    assert_ptr_equal(s.schedule, &schedule_flow);
    sampling_choose(&(struct sampling_choice){.sampler = "dpm++2m", .schedule = "linspace", .steps = 5}, &s,
                    &e);
    assert_ptr_equal(s.schedule, &schedule_flow_dpm);
    sampling_choose(&(struct sampling_choice){.sampler = "unipc", .schedule = "simple", .steps = 5}, &s, &e);
    assert_string_equal(s.schedule->name, "simple");
    sampling_choose(&(struct sampling_choice){.sampler = "unipc", .steps = 5}, &own, &e);
    assert_ptr_equal(own.schedule, &schedule_flow);
    assert_ok(&e);
    assert_string_equal(sampling_class_name(&flow_of_class), "UniPCMultistepScheduler");
}

/* Old configurations of Stable Diffusion 1 and 2 (steps_offset 0) are corrected as diffusers' pipelines
 * correct them. */
static void test_old_steps_offset_corrected(void **state) {
    (void)state;
    struct sampling s = expect_read(FILE_OF("DDIMScheduler", ", \"steps_offset\": 0"), true);
    assert_int_equal(s.grid.steps_offset, 1);
    assert_ptr_equal(expect_read(FILE_OF("PNDMScheduler", ""), true).sampler, &sampler_pndm);
    assert_int_equal(expect_read(FILE_OF("EulerDiscreteScheduler", ""), false).grid.steps_offset, 0);
}

static void test_unread_keys_ignored(void **state) {
    (void)state;
    struct sampling s = expect_read(
        FILE_OF("EulerAncestralDiscreteScheduler",
                ", \"use_karras_sigmas\": true, \"skip_prk_steps\": false, \"clip_sample\": true, "
                "\"final_sigmas_type\": \"sigma_min\""),
        false);
    assert_true(s.grid.sigma_spacing == SIGMAS_OF_TIMESTEPS && !s.grid.final_sigma_min);
    assert_ptr_equal(s.sampler, &sampler_euler_a);
}

/* The keyword Infinity, which Python's json writes for an unlimited value, is accepted. */
static void test_infinite_bound_accepted(void **state) {
    struct sys sys;
    struct config config;
    struct sampling s = {.prediction = &prediction_eps, .schedule = &schedule_diffusers_euler};
    struct error e = {0};
    const char *path = "build/scheduler_config_test.json";
    (void)state;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(FILE_OF("DPMSolverMultistepScheduler",
                  ", \"lambda_min_clipped\": -Infinity, \"_note\": \"a \\\" -Infinity\""),
          file);
    assert_int_equal(fclose(file), 0);
    sys_init_machine(&sys);
    config_read(&sys, path, &config, &e);
    assert_ok(&e);
    assert_string_equal(config_string(&config, "_note", ""), "a \" -Infinity");
    sampling_read(&config, &s, &e);
    assert_ok(&e);
    config_destroy(&config);
    remove(path);
    assert_ptr_equal(s.sampler, &sampler_dpmpp_2m);
}

static bool has_one_of(void *user, const char *name) {
    for (const char *const *mark = user; *mark; mark++)
        if (!strcmp(*mark, name)) return true;
    return false;
}

static struct sampling detected_from(const char *const *marks) {
    struct sampling s = expect_read(FILE_OF("EulerDiscreteScheduler", ", \"steps_offset\": 1"), false);
    struct error e = {0};
    sampling_detect(has_one_of, (void *)(uintptr_t)marks, &s, &e);
    assert_ok(&e);
    return s;
}

static void test_prediction_type_from_tensors(void **state) {
    static const char *const playground[] = {"edm_mean", "edm_std", NULL};
    struct error e = {0};
    struct sampling s = detected_from((const char *const[]){"betas", NULL});
    (void)state;
    assert_true(s.prediction == &prediction_eps && s.noise.rescale_zero_snr == ZERO_SNR_NO);
    s = detected_from((const char *const[]){"v_pred", NULL});
    assert_true(s.prediction == &prediction_v && s.noise.rescale_zero_snr == ZERO_SNR_NO &&
                !s.grid.continuous_timesteps);
    s = detected_from((const char *const[]){"v_pred", "ztsnr", NULL});
    assert_true(s.prediction == &prediction_v && s.noise.rescale_zero_snr == ZERO_SNR_CLAMPED);
    s = detected_from((const char *const[]){"edm_vpred.sigma_max", NULL});
    assert_true(s.prediction == &prediction_v && s.grid.continuous_timesteps && s.grid.sigma_max == 120);
    assert_int_equal(sampling_detect(has_one_of, (void *)(uintptr_t)playground, &s, &e), UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unsupported_values_refused),
                                       cmocka_unit_test(test_flow_matching_keys),
                                       cmocka_unit_test(test_sampler_brings_class_spacing),
                                       cmocka_unit_test(test_old_steps_offset_corrected),
                                       cmocka_unit_test(test_unread_keys_ignored),
                                       cmocka_unit_test(test_infinite_bound_accepted),
                                       cmocka_unit_test(test_prediction_type_from_tensors)};
    return cmocka_run_group_tests_name("scheduler_config.json", tests, NULL, NULL);
}
