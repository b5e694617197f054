/* Schedulers against diffusers (test/golden/samplers.py): every timestep and sigma bit for bit, and the final
 * latents of a synthetic denoiser that starts from noise or from an image with noise. */
#include "test/lib/sampler_run.h"
#include "test/lib/seeded.h"

#include <math.h>
#include <string.h>

enum { N = SAMPLER_VALUES };

static json_t *cases;

static int open_cases(void **state) {
    cases = json_load_file("test/golden/samplers/cases.json", 0, NULL);
    assert_non_null(cases);
    sampler_reference_open("reference.safetensors");
    return 0;
}

static int close_cases(void **state) {
    json_decref(cases);
    sampler_reference_close();
    return 0;
}

static struct sampler_run sampler_run_of(json_t *c) {
    json_t *config = json_object_get(c, "config");
    struct sampler_run sampler_run = {
        .sampling = sampler_run_sampling(config, &(struct sampling_choice){.steps = 1})};
    if (!sampler_run.sampling.prediction->is_flow) return sampler_run;
    json_t *shift = json_object_get(config, sampler_run.sampling.schedule->shift_key);
    sampler_run.shift = shift ? json_number_value(shift) : 1;
    sampler_run.sampling.grid.shift_twice = json_is_true(json_object_get(c, "again"));
    sampler_run.sampling.grid.terminal = json_number_value(json_object_get(config, "shift_terminal"));
    return sampler_run;
}

static void expect_grids(json_t *c) {
    static float timesteps[1024], sigmas[1024];
    struct sampler_run sampler_run = sampler_run_of(c);
    const char *name = json_string_value(json_object_get(c, "name"));
    char key[96];
    snprintf(key, sizeof key, "%s.timesteps", name);
    int n_timesteps = sampler_reference_read(key, timesteps, 1024), at = 0, at_sigma = 0;
    snprintf(key, sizeof key, "%s.sigmas", name);
    int n_sigmas = sampler_reference_read(key, sigmas, 1024);
    json_t *steps = json_object_get(c, "steps");
    for (size_t k = 0; k < json_array_size(steps); k++) {
        int n = (int)json_integer_value(json_array_get(steps, k));
        sampler_run_fill(&sampler_run, n);
        for (int i = 0; i < sampler_run.n_calls; i++) {
            const struct grid_point *p = &sampler_run.call[i].at;
            assert_true(at < n_timesteps);
            if (p->timestep != timesteps[at] || (n_sigmas && p->sigma != sigmas[at_sigma]))
                fail_msg("%s: %d steps, call %d: timestep %.9g, not %.9g; sigma %.9g, not %.9g", name, n, i,
                         (double)p->timestep, (double)timesteps[at], (double)p->sigma,
                         n_sigmas ? (double)sigmas[at_sigma] : 0.0);
            at++, at_sigma++;
        }
        if (n_sigmas)
            assert_true(sampler_run.grid.step[sampler_run.grid.n - 1].to.sigma == sigmas[at_sigma++]);
    }
    assert_int_equal(at, n_timesteps);
    if (n_sigmas) assert_int_equal(at_sigma, n_sigmas);
}

TEST(timesteps_and_sigmas_bit_for_bit) {
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) expect_grids(c);
    assert_true(json_array_size(cases) > 150);
}

static double expect_latents(json_t *c) {
    const char *name = json_string_value(json_object_get(c, "name"));
    struct sampler_run sampler_run = sampler_run_of(c);
    json_t *runs = json_object_get(c, "runs"), *r;
    double worst = 0;
    size_t k;
    json_array_foreach(runs, k, r) {
        float truth[N], sample[N];
        char key[96], strength[16] = "None";
        json_t *part = json_array_get(r, 1);
        int n = (int)json_integer_value(json_array_get(r, 0));
        if (json_is_number(part)) snprintf(strength, sizeof strength, "%.1f", json_number_value(part));
        snprintf(key, sizeof key, "%s.%d.%s.latent", name, n, strength);
        assert_int_equal(sampler_reference_read(key, truth, N), N);
        sampler_run_execute(&sampler_run, n, json_number_value(part), sample);
        double d = relative_max_difference(sample, truth);
        if (!(d < 2e-5)) printf("  %-24s %2d steps, strength %s: %.2g\n", name, n, strength, d);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

TEST(sampled_latents) {
    double worst = 0;
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) worst = fmax(worst, expect_latents(c));
    assert_true(worst < 2e-5);
}

/* Flux.2's schedules (test/golden/samplers_flux2.py), bit for bit. */
TEST(flux2_schedules) {
    enum { CASES_MAX = 128, VALUES_MAX = 4096, STEPS_MAX = 256 };
    static float tokens[CASES_MAX], steps[CASES_MAX], sigmas[VALUES_MAX], timesteps[VALUES_MAX];
    static struct grid_step step[STEPS_MAX];
    sampler_reference_close();
    sampler_reference_open("flux2.safetensors");
    int n_cases = sampler_reference_read("tokens", tokens, CASES_MAX), at = 0;
    assert_int_equal(sampler_reference_read("steps", steps, CASES_MAX), n_cases);
    int n_values = sampler_reference_read("sigmas", sigmas, VALUES_MAX);
    assert_int_equal(sampler_reference_read("timesteps", timesteps, VALUES_MAX), n_values - n_cases);
    for (int c = 0; c < n_cases; c++) {
        struct grid grid = {.step = step};
        struct schedule_options options = {.n = (int)steps[c],
                                           .grid_f64 = true,
                                           .exponential_shift = true,
                                           .shift = schedule_shift_flux2((int)tokens[c], (int)steps[c])};
        assert_true(options.n <= STEPS_MAX);
        schedule_flow.fill(&schedule_flow, &options, &grid);
        for (int i = 0; i < grid.n; i++, at++)
            if (step[i].at.sigma != sigmas[at] || step[i].at.timestep != timesteps[at - c])
                fail_msg("%g tokens, %d steps, step %d: sigma %.9g, not %.9g; timestep %.9g, not %.9g",
                         (double)tokens[c], grid.n, i, (double)step[i].at.sigma, (double)sigmas[at],
                         (double)step[i].at.timestep, (double)timesteps[at - c]);
        assert_true(step[grid.n - 1].to.sigma == sigmas[at++]);
    }
    assert_int_equal(at, n_values);
    assert_int_equal(n_cases, 77);
}

/* Sigmas of a request (--sigmas): the sigmas and timesteps of diffusers' FlowMatchEulerDiscreteScheduler with
 * shift 1 after set_timesteps(sigmas=...). */
TEST(sigmas_of_request) {
    static const double sigmas[] = {1, 0.99375, 0.909375, 0.725, 0.421875, 1.0 / 3, 0.1};
    static const float timesteps[] = {1000, 993.75F, 909.375F, 725, 421.875F, 0x1.4d5556p+8F, 100};
    enum { STEPS = sizeof sigmas / sizeof *sigmas };
    struct grid_step step[STEPS];
    struct grid grid = {.step = step};
    struct sampling sampling = {
        .prediction = &prediction_flow_timestep, .schedule = &schedule_flow, .sampler = &sampler_euler};
    struct sampling_choice choice = {.steps = STEPS, .sigmas = sigmas};
    struct error e = {0};
    assert_int_equal(sampling_choose(&choice, &sampling, &e), OK);
    assert_string_equal(sampling_schedule_name(&sampling), "sigmas");
    struct schedule_options options = sampling.grid;
    options.n = STEPS;
    options.shift = 3;
    sampling_fill(&sampling, &options, &grid);
    assert_int_equal(grid.n, STEPS);
    for (int i = 0; i < STEPS; i++) {
        assert_true(step[i].at.sigma == (float)sigmas[i] && step[i].at.noise == (float)sigmas[i]);
        assert_true(step[i].at.timestep == timesteps[i]);
        assert_true(step[i].to.sigma == (i + 1 < STEPS ? (float)sigmas[i + 1] : 0));
    }
    sampling.prediction = &prediction_eps;
    assert_int_equal(sampling_choose(&choice, &sampling, &e), USAGE);
    assert_non_null(strstr(e.what, "--sigmas needs a flow model"));
}

int main(void) {
    return run_all_tests(open_cases, close_cases);
}
