/* Schedules of stable-diffusion.cpp and samplers of k-diffusion, against their formulas
 * (test/golden/samplers_named.py): for variance-exploding, variance-preserving and flow models; impossible
 * combinations are refused. */
#include "test/lib/sampler_run.h"
#include "test/lib/seeded.h"

#include <math.h>
#include <string.h>

enum { N = SAMPLER_VALUES };

static json_t *named;

static int open_named(void **state) {
    named = json_load_file("test/golden/samplers/named.json", 0, NULL);
    assert_non_null(named);
    sampler_reference_open("named.safetensors");
    return 0;
}

static int close_named(void **state) {
    json_decref(named);
    sampler_reference_close();
    return 0;
}

static const char *text(json_t *row, size_t i) {
    return json_string_value(json_array_get(row, i));
}

/* Returns a sampler run: Stable Diffusion's sigmas with Euler or DDIM, or flow matching with shift 3. */
static struct sampler_run sampler_run_of(const char *kind, const char *sampler, const char *schedule) {
    struct sampler_run c = {.shift = 3};
    bool preserved = !strcmp(kind, "preserved"), flow = !strcmp(kind, "flow");
    json_t *file =
        json_pack("{s:s, s:s, s:f, s:f, s:i, s:b}", "_class_name",
                  preserved ? "DDIMScheduler" : "EulerDiscreteScheduler", "beta_schedule", "scaled_linear",
                  "beta_start", 0.00085, "beta_end", 0.012, "steps_offset", 1, "clip_sample", false);
    if (preserved) json_object_set_new(file, "set_alpha_to_one", json_false());
    struct sampling_choice choice = {.steps = 1, .sampler = sampler, .schedule = preserved ? NULL : schedule};
    if (flow) choice.prediction = "flow";
    c.sampling = sampler_run_sampling(file, &choice);
    json_decref(file);
    return c;
}

/* Difference relative to the reference `truth`, whose magnitude counts as at least 1e-3. */
static double relative(float a, float truth) {
    return fabs((double)a - (double)truth) / fmax(fabs((double)truth), 1e-3);
}

TEST(named_schedules) {
    double worst_sigma = 0, worst_timestep = 0;
    size_t k;
    json_t *row;
    json_array_foreach(json_object_get(named, "schedules"), k, row) {
        struct sampler_run c = sampler_run_of(text(row, 1), NULL, text(row, 0));
        float sigmas[SAMPLER_STEPS_MAX + 1], timesteps[SAMPLER_STEPS_MAX];
        int n = (int)json_integer_value(json_array_get(row, 2));
        char key[96];
        sampler_run_fill(&c, n);
        snprintf(key, sizeof key, "%s.%s.%d.timesteps", text(row, 0), text(row, 1), n);
        assert_int_equal(sampler_reference_read(key, timesteps, SAMPLER_STEPS_MAX), c.grid.n);
        snprintf(key, sizeof key, "%s.%s.%d.sigmas", text(row, 0), text(row, 1), n);
        assert_int_equal(sampler_reference_read(key, sigmas, SAMPLER_STEPS_MAX + 1), c.grid.n + 1);
        for (int i = 0; i < c.grid.n; i++) {
            const struct grid_step *s = &c.grid.step[i];
            worst_sigma = fmax(worst_sigma, relative(s->at.sigma, sigmas[i]));
            worst_sigma = fmax(worst_sigma, relative(s->to.sigma, sigmas[i + 1]));
            worst_timestep = fmax(worst_timestep, fabs((double)s->at.timestep - (double)timesteps[i]));
        }
    }
    assert_true(k > 100 && worst_sigma < 1e-6);
    assert_true(worst_timestep < 1e-3); /* timesteps up to 999 are derived from f32 sigmas */
}

TEST(named_samplers) {
    double worst = 0;
    size_t k;
    json_t *row;
    json_array_foreach(json_object_get(named, "runs"), k, row) {
        struct sampler_run c = sampler_run_of(text(row, 1), text(row, 0), "discrete");
        float truth[N], sample[N];
        int n = (int)json_integer_value(json_array_get(row, 2));
        char key[96];
        snprintf(key, sizeof key, "%s.%s.%d", text(row, 0), text(row, 1), n);
        assert_int_equal(sampler_reference_read(key, truth, N), N);
        sampler_run_execute(&c, n, 0, sample);
        double d = relative_max_difference(sample, truth);
        if (!(d < 2e-5)) printf("  %-12s %-9s %d steps: %.2g\n", text(row, 0), text(row, 1), n, d);
        if (!(d <= worst)) worst = d;
    }
    assert_true(k > 50 && worst < 2e-5);
}

static void expect_refused(struct sampling s, struct sampling_choice choice, const char *what) {
    struct error e = {0};
    char line[1024];
    if (!choice.steps) choice.steps = 5;
    assert_int_equal(sampling_choose(&choice, &s, &e), USAGE);
    error_line(&e, line, sizeof line);
    if (!strstr(line, what)) fail_msg("%s: does not contain '%s'", line, what);
}

TEST(refusals) {
    static const struct sampling flow = {
        .prediction = &prediction_flow, .schedule = &schedule_flow, .sampler = &sampler_euler};
    struct sampling added = sampler_run_of("added", NULL, NULL).sampling, bare = added, distilled = added,
                    edm = added;
    bare.noise.rescale_zero_snr = ZERO_SNR_EXACT;
    edm.grid.continuous_timesteps = true;
    distilled.schedule = &schedule_diffusers_lcm;
    expect_refused(added, (struct sampling_choice){.sampler = "eular"}, "euler_a, heun");
    expect_refused(added, (struct sampling_choice){.schedule = "karass"}, "leading, trailing, discrete");
    expect_refused(added, (struct sampling_choice){.prediction = "x0"}, "eps, v or flow");
    expect_refused(added, (struct sampling_choice){.steps = 1001}, "at most 1000");
    expect_refused(distilled, (struct sampling_choice){.steps = 51}, "at most 50");
    expect_refused(bare, (struct sampling_choice){.sampler = "heun"}, "heun");
    expect_refused(edm, (struct sampling_choice){.sampler = "tcd"}, "needs timesteps");
    expect_refused(edm, (struct sampling_choice){.schedule = "simple"}, "simple");
    expect_refused(flow, (struct sampling_choice){.sampler = "tcd"}, "tcd");
    expect_refused(flow, (struct sampling_choice){.schedule = "leading"}, "leading");
    expect_refused(flow, (struct sampling_choice){.schedule = "ays"}, "ays");
    expect_refused(flow, (struct sampling_choice){.prediction = "v"}, "flow model");
}

int main(void) {
    return run_all_tests(open_named, close_named);
}
