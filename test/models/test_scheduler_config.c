/* scheduler_config.json: the meaning of each key, and the errors for unsupported values. */
#include "test/lib/assert_ok.h"
#include "test/lib/sampler_run.h"
#include "loaders/loaders.h"
#include "test/lib/cmocka_tests.h"

#include <stdio.h>
#include <string.h>

/* The sampling of Stable Diffusion's recipes, of Wan's, and of flow-matching recipes whose pipeline sets the
 * schedule. */
static const struct sampling eps = {.prediction = &prediction_eps, .schedule = &schedule_diffusers_euler},
                             eps_old = {.prediction = &prediction_eps,
                                        .schedule = &schedule_diffusers_euler,
                                        .fixes_legacy_config = true},
                             flow_of_class = {.prediction = &prediction_flow_timestep,
                                              .schedule = &schedule_flow_unipc,
                                              .sampler = &sampler_unipc,
                                              .grid_from_class = true},
                             flow_of_pipeline = {.prediction = &prediction_flow,
                                                 .schedule = &schedule_flow,
                                                 .sampler = &sampler_euler};

/* Reads a scheduler_config.json of this class (NULL: no class) and these keys, in which ' stands for ". */
static enum status read_config(const char *class, const char *keys, struct sampling *s, struct error *e) {
    struct config_value values[CONFIG_KEYS_MAX];
    char text[512];
    snprintf(text, sizeof text, "{%s%s%s%s%s}", class ? "'_class_name': '" : "", class ? class : "",
             class ? "'" : "", class && *keys ? ", " : "", keys);
    for (char *at = text; *at; at++)
        if (*at == '\'') *at = '"';
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    struct config config = sampler_run_config(object, values);
    sampling_read(&config, s, e);
    json_decref(object);
    return e->code;
}

static struct sampling expect_read(const struct sampling *of, const char *class, const char *keys) {
    struct sampling s = *of;
    struct error e = {0};
    read_config(class, keys, &s, &e);
    assert_ok(&e);
    return s;
}

#define EULER    "EulerDiscreteScheduler"
#define DPM      "DPMSolverMultistepScheduler"
#define UNIPC    "UniPCMultistepScheduler"
#define MATCHING "FlowMatchEulerDiscreteScheduler"
#define FLOW     "'use_flow_sigmas': true, 'prediction_type': 'flow_prediction'"

TEST(unsupported_values_refused) {
    static const struct {
        const struct sampling *of;
        const char *class, *keys, *found; /* found: text of the error */
    } rows[] = {
        {&eps, NULL, "", "_class_name"},
        {&eps, "DPMSolverSDEScheduler", "", "DPMSolverSDEScheduler"},
        {&eps, "DPMSolverSinglestepScheduler", "", "DPMSolverSinglestepScheduler"},
        {&eps, MATCHING, "", MATCHING},
        {&eps, EULER, "'x': 0, '_y': 1", "found x"},
        {&eps, EULER, "'prediction_type': 'sample'", "sample"},
        {&eps, EULER, "'timestep_spacing': 'odd'", "odd"},
        {&eps, EULER, "'beta_schedule': 'laplace'", "laplace"},
        {&eps, EULER, "'beta_start': -1", "beta_start"},
        {&eps, EULER, "'num_train_timesteps': 500", "500"},
        {&eps, EULER, "'sigma_min': 2, 'sigma_max': 1", "sigma_max"},
        {&eps, EULER, "'interpolation_type': 'log_linear'", "log"},
        {&eps, EULER, "'final_sigmas_type': 'one'", "one"},
        {&eps, EULER, "'use_karras_sigmas': true, 'use_beta_sigmas': true", "use_beta_sigmas"},
        {&eps, DPM, "'algorithm_type': 'dpmsolver'", "dpmsolver"},
        {&eps, DPM, "'solver_order': 4", "solver_order"},
        {&eps, DPM, "'algorithm_type': 'sde-dpmsolver++', 'solver_order': 3", "solver_order"},
        {&eps, DPM, "'use_lu_lambdas': true", "use_lu_lambdas"},
        {&eps, DPM, "'use_flow_sigmas': true", "use_flow_sigmas"},
        {&eps, DPM, "'lambda_min_clipped': -5.1", "lambda_min_clipped"},
        {&eps, UNIPC, "'predict_x0': false", "predict_x0"},
        {&eps, UNIPC, "'disable_corrector.0': 0", "disable_corrector"},
        {&eps, "DDPMScheduler", "'clip_sample': false, 'variance_type': 'fixed_large'", "fixed_large"},
        {&eps, "DDIMScheduler", "", "clip_sample"},
        {&eps, "DDIMScheduler", "'clip_sample': false, 'thresholding': true", "thresholding"},
        {&eps, "PNDMScheduler", "", "skip_prk_steps"},
        {&flow_of_pipeline, UNIPC, FLOW, UNIPC},
        {&flow_of_class, EULER, "", EULER},
        {&flow_of_class, UNIPC, "", "use_flow_sigmas"},
        {&flow_of_class, UNIPC, "'use_flow_sigmas': true", "prediction_type"},
        {&flow_of_class, UNIPC, "'use_flow_sigmas': true, 'prediction_type': 'epsilon'", "epsilon"},
        {&flow_of_class, UNIPC, FLOW ", 'use_karras_sigmas': true", "use_karras_sigmas"},
        {&flow_of_class, UNIPC, FLOW ", 'final_sigmas_type': 'sigma_min'", "sigma_min"},
        {&flow_of_class, MATCHING, "'odd': 1", "odd"},
        {&flow_of_pipeline, NULL, "'invert_sigmas': true", "invert_sigmas"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sampling s = *rows[i].of;
        struct error e = {0};
        char line[1024];
        read_config(rows[i].class, rows[i].keys, &s, &e);
        error_line(&e, line, sizeof line);
        if ((e.code != UNSUPPORTED && e.code != META) || !strstr(line, rows[i].found))
            fail_msg("row %zu: %d, %s: does not contain '%s'", i, e.code, line, rows[i].found);
    }
}

TEST(flow_matching_keys) {
    static const struct {
        const struct sampling *of;
        const char *class, *keys;
        const struct schedule *schedule;
        const struct sampler *sampler;
    } rows[] = {
        {&flow_of_class, UNIPC, FLOW, &schedule_flow_unipc, &sampler_unipc},
        {&flow_of_class, DPM, FLOW, &schedule_flow_dpm, &sampler_dpmpp_2m},
        {&flow_of_class, MATCHING, "'shift': 5", &schedule_flow, &sampler_euler},
        {&flow_of_class, NULL, "'flow_shift': 3, " FLOW, &schedule_flow_unipc, &sampler_unipc},
        {&flow_of_pipeline, NULL, "'shift': 3", &schedule_flow, &sampler_euler},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sampling s = expect_read(rows[i].of, rows[i].class, rows[i].keys);
        assert_ptr_equal(s.schedule, rows[i].schedule);
        assert_ptr_equal(s.sampler, rows[i].sampler);
    }
}

/* A sampler uses its diffusers class's timestep spacing where the pipeline does not set one, unless
 * --schedule names one. */
TEST(sampler_brings_class_spacing) {
    struct error e = {0};
    struct sampling s = flow_of_class, own = flow_of_pipeline;
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
TEST(old_steps_offset_corrected) {
    struct sampling s = expect_read(&eps_old, "DDIMScheduler", "'steps_offset': 0");
    assert_int_equal(s.grid.steps_offset, 1);
    assert_ptr_equal(expect_read(&eps_old, "PNDMScheduler", "").sampler, &sampler_pndm);
    assert_int_equal(expect_read(&eps, EULER, "").grid.steps_offset, 0);
}

TEST(unread_keys_ignored) {
    struct sampling s =
        expect_read(&eps, "EulerAncestralDiscreteScheduler",
                    "'use_karras_sigmas': true, 'skip_prk_steps': false, 'clip_sample': true, "
                    "'final_sigmas_type': 'sigma_min'");
    assert_true(s.grid.sigma_spacing == SIGMAS_OF_TIMESTEPS && !s.grid.final_sigma_min);
    assert_ptr_equal(s.sampler, &sampler_euler_a);
}

/* The keyword Infinity, which Python's json writes for an unlimited value, is accepted. */
TEST(infinite_bound_accepted) {
    struct sys sys;
    struct config config;
    struct sampling s = eps;
    struct error e = {0};
    const char *path = "build/scheduler_config_test.json";
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"_class_name\": \"" DPM
          "\", \"lambda_min_clipped\": -Infinity, \"_note\": \"a \\\" -Infinity\"}",
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
    struct sampling s = expect_read(&eps, EULER, "'steps_offset': 1");
    struct error e = {0};
    sampling_detect(has_one_of, (void *)(uintptr_t)marks, &s, &e);
    assert_ok(&e);
    return s;
}

TEST(prediction_type_from_tensors) {
    static const char *const playground[] = {"edm_mean", "edm_std", NULL};
    struct error e = {0};
    struct sampling s = detected_from((const char *const[]){"betas", NULL});
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
    return run_all_tests(NULL, NULL);
}
