/* Schedulers against diffusers' own (test/golden/samplers.py): every timestep and sigma bit for bit, and what
 * a sampler makes of noise, or of a picture and noise, with a toy denoiser. */
#include "engine/sample/noise.h"
#include "engine/sample/sampling.h"
#include "loaders/loaders.h"
#include "test/lib/assert_ok.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER "test/golden/samplers/"

enum { STEPS_MAX = 64, CALLS_MAX = 2 * STEPS_MAX, N = 4 * 5 * 7, KEYS_MAX = 32 };

static struct sys sys;
static struct tensor_index tensors;
static json_t *cases;

static int open_reference(void **state) {
    struct error e = {0};
    (void)state;
    sys_init_machine(&sys);
    cases = json_load_file(FOLDER "cases.json", 0, NULL);
    assert_non_null(cases);
    safetensors_open(&sys, FOLDER "reference.safetensors", &tensors, &e);
    assert_ok(&e);
    return 0;
}

static int close_reference(void **state) {
    (void)state;
    json_decref(cases);
    index_destroy(&tensors);
    return 0;
}

/* Returns how many values there are; 0: no such tensor. */
static int reference(const char *name, float *out, int most) {
    struct error e = {0};
    const struct index_entry *entry = index_find(&tensors, name);
    if (!entry) return 0;
    int n = (int)(entry->bytes / sizeof *out);
    assert_true(entry->dtype == DTYPE_F32 && n <= most);
    source_read(&tensors.sources[entry->source], out, entry->bytes, entry->offset, &e);
    assert_ok(&e);
    return n;
}

/* ---- a case ---- */

/* The case's file as a configuration, whose strings are the case's. */
static struct config config_of(json_t *file, struct config_value *values) {
    struct config config = {.path = "scheduler_config.json", .values = values};
    const char *key;
    json_t *value;
    json_object_foreach(file, key, value) {
        struct config_value *v = &values[config.n_values++];
        assert_true(config.n_values <= KEYS_MAX);
        *v = (struct config_value){.key = (char *)(uintptr_t)key, .kind = CONFIG_NUMBER};
        if (json_is_boolean(value)) v->kind = CONFIG_BOOL;
        if (json_is_string(value)) v->kind = CONFIG_STRING;
        if (json_is_string(value)) v->string = (char *)(uintptr_t)json_string_value(value);
        v->number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
        v->integer = json_is_integer(value);
    }
    return config;
}

static struct sampling sampling_of(json_t *c) {
    struct config_value values[KEYS_MAX];
    struct config config = config_of(json_object_get(c, "config"), values);
    struct sampling s = {
        .prediction = &prediction_eps, .schedule = &schedule_spaced, .sampler = &sampler_euler};
    struct error e = {0};
    sampling_read(&config, &s, &e);
    assert_ok(&e);
    sampling_choose(&(struct sampling_choice){.steps = 1}, &s, &e);
    assert_ok(&e);
    return s;
}

/* A grid and what the denoiser is called with in it. */
struct course {
    struct sampling sampling;
    struct noise_table table;
    struct grid_step step[STEPS_MAX + GRID_STEPS_MORE];
    struct grid grid;
    struct {
        int step, evaluation;
        struct grid_point at;
    } call[CALLS_MAX];
    int n_calls;
};

static void list_calls(struct course *c) {
    const struct sampler *sampler = c->sampling.sampler;
    c->n_calls = 0;
    for (int step = 0; step < c->grid.n; step++)
        for (int i = 0; i < sampler->evaluations; i++) {
            struct grid_point at = c->grid.step[step].at;
            if (i && !sampler->stands(&c->grid, step, i, &at)) break;
            c->call[c->n_calls].step = step;
            c->call[c->n_calls].evaluation = i;
            c->call[c->n_calls++].at = at;
        }
}

static void course_fill(struct course *c, int n) {
    struct schedule_options options = c->sampling.grid;
    options.n = n;
    options.table = &c->table;
    noise_table_fill(&c->table, &c->sampling.noise);
    c->grid = (struct grid){.step = c->step};
    sampling_fill(&c->sampling, &options, &c->grid);
    list_calls(c);
}

/* ---- grids ---- */

static void expect_grids(json_t *c) {
    static float timesteps[1024], sigmas[1024];
    struct course course = {.sampling = sampling_of(c)};
    const char *name = json_string_value(json_object_get(c, "name"));
    char key[96];
    snprintf(key, sizeof key, "%s.timesteps", name);
    int n_timesteps = reference(key, timesteps, 1024), at = 0, at_sigma = 0;
    snprintf(key, sizeof key, "%s.sigmas", name);
    int n_sigmas = reference(key, sigmas, 1024);
    json_t *steps = json_object_get(c, "steps");
    for (size_t k = 0; k < json_array_size(steps); k++) {
        int n = (int)json_integer_value(json_array_get(steps, k));
        course_fill(&course, n);
        for (int i = 0; i < course.n_calls; i++) {
            const struct grid_point *p = &course.call[i].at;
            assert_true(at < n_timesteps);
            if (p->timestep != timesteps[at] || (n_sigmas && p->sigma != sigmas[at_sigma]))
                fail_msg("%s: %d steps, call %d: timestep %.9g, not %.9g; sigma %.9g, not %.9g", name, n, i,
                         (double)p->timestep, (double)timesteps[at], (double)p->sigma,
                         n_sigmas ? (double)sigmas[at_sigma] : 0.0);
            at++, at_sigma++;
        }
        if (n_sigmas) assert_true(course.grid.step[course.grid.n - 1].to.sigma == sigmas[at_sigma++]);
    }
    assert_int_equal(at, n_timesteps);
    if (n_sigmas) assert_int_equal(at_sigma, n_sigmas);
}

static void test_grids(void **state) {
    size_t i;
    json_t *c;
    (void)state;
    json_array_foreach(cases, i, c) expect_grids(c);
    printf("%zu schedulers\n", json_array_size(cases));
    assert_true(json_array_size(cases) > 100);
}

/* ---- latents ---- */

static float pattern(int i) {
    return (float)(i * 37 % 64) / 64 - 0.5f;
}

/* Along the last axis the other way around. */
static float picture(int i) {
    return pattern(i / 7 * 7 + 6 - i % 7) * 3;
}

static void denoise(const struct course *c, const float *sample, const struct grid_point *at, float *out) {
    float scale = prediction_input_scale(c->sampling.prediction, at);
    for (int i = 0; i < N; i++) {
        float x = sample[i] * scale;
        out[i] = x / (fabsf(x) + 0.5f) + pattern(i) * (0.0005f * at->timestep);
    }
}

static void update(const struct course *c, int i, struct generator *random, float *sample, float *output) {
    static float past[SAMPLER_HISTORY_MAX][N], noise[N];
    static float *const history[] = {past[0], past[1], past[2], past[3]};
    const struct sampler *sampler = c->sampling.sampler;
    int step = c->call[i].step;
    bool ends = i + 1 == c->n_calls || c->call[i + 1].step != step;
    bool draws = sampler->draws != DRAWS_NOTHING && c->grid.step[step].to.noise > 0 &&
                 (ends || sampler->draws == DRAWS_ALWAYS);
    if (draws) generator_normals(random, noise, N);
    c->sampling.prediction->convert(output, sample, N, &c->call[i].at, sampler->form);
    sampler->update(&(struct sampler_update){.grid = &c->grid,
                                             .prediction = c->sampling.prediction,
                                             .solver = &c->sampling.solver,
                                             .step = step,
                                             .evaluation = c->call[i].evaluation,
                                             .sample = sample,
                                             .output = output,
                                             .history = history,
                                             .noise = draws ? noise : NULL,
                                             .n = N});
}

static void run(struct course *c, int n, double strength, float *sample) {
    struct generator random;
    float of_picture[N], output[N];
    generator_seed(&random, (uint64_t)n);
    generator_normals(&random, sample, N);
    for (int i = 0; i < N; i++) {
        sample[i] = rintf(sample[i] * 4096) / 4096;
        of_picture[i] = picture(i);
    }
    course_fill(c, n);
    if (strength > 0) grid_skip(&c->grid, sampling_first_step(&c->sampling, n, strength));
    list_calls(c);
    grid_begin(&c->grid, sample, strength > 0 ? of_picture : NULL, N);
    for (int i = 0; i < c->n_calls; i++) {
        denoise(c, sample, &c->call[i].at, output);
        update(c, i, &random, sample, output);
    }
}

/* The largest difference, for the root mean square of the truth. */
static double difference(const float *a, const float *truth) {
    double most = 0, sum = 0;
    for (int i = 0; i < N; i++) {
        double d = fabs((double)a[i] - (double)truth[i]);
        if (!(d <= most)) most = d;
        sum += (double)truth[i] * (double)truth[i];
    }
    return most / sqrt(sum / N);
}

static double expect_latents(json_t *c) {
    const char *name = json_string_value(json_object_get(c, "name"));
    struct course course = {.sampling = sampling_of(c)};
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
        assert_int_equal(reference(key, truth, N), N);
        run(&course, n, json_number_value(part), sample);
        double d = difference(sample, truth);
        if (!(d < 2e-5)) printf("  %-24s %2d steps, strength %s: %.2g\n", name, n, strength, d);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void test_latents(void **state) {
    double worst = 0;
    size_t i;
    json_t *c;
    (void)state;
    json_array_foreach(cases, i, c) worst = fmax(worst, expect_latents(c));
    printf("the largest difference: %.2g\n", worst);
    assert_true(worst < 2e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grids), cmocka_unit_test(test_latents)};
    return cmocka_run_group_tests_name("schedulers", tests, open_reference, close_reference);
}
