#include "test/lib/sampler_run.h"

#include "engine/sample/noise.h"
#include "loaders/loaders.h"
#include "test/lib/assert_ok.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = SAMPLER_VALUES };

static struct sys sys;
static struct tensor_index tensors;

void sampler_reference_open(const char *name) {
    struct error e = {0};
    char path[256];
    sys_init_machine(&sys);
    snprintf(path, sizeof path, "test/golden/samplers/%s", name);
    safetensors_open(&sys, path, &tensors, &e);
    assert_ok(&e);
}

void sampler_reference_close(void) {
    index_destroy(&tensors);
}

int sampler_reference_read(const char *name, float *out, int most) {
    struct error e = {0};
    const struct index_entry *entry = index_find(&tensors, name);
    if (!entry) return 0;
    int n = (int)(entry->bytes / sizeof *out);
    assert_true(entry->dtype == DTYPE_F32 && n <= most);
    source_read(&tensors.sources[entry->source], out, entry->bytes, entry->offset, &e);
    assert_ok(&e);
    return n;
}

struct config sampler_run_config(json_t *file, struct config_value *values) {
    struct config config = {.path = "scheduler_config.json", .values = values};
    const char *key;
    json_t *value;
    json_object_foreach(file, key, value) {
        struct config_value *v = &values[config.n_values++];
        assert_true(config.n_values <= CONFIG_KEYS_MAX);
        *v = (struct config_value){.key = (char *)(uintptr_t)key, .kind = CONFIG_NUMBER};
        if (json_is_boolean(value)) v->kind = CONFIG_BOOL;
        if (json_is_string(value)) v->kind = CONFIG_STRING;
        if (json_is_string(value)) v->string = (char *)(uintptr_t)json_string_value(value);
        v->number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
        v->integer = json_is_integer(value);
    }
    return config;
}

/* True if the scheduler_config.json selects flow matching. */
static bool flows(json_t *file) {
    bool by_class = !strncmp(json_string_value(json_object_get(file, "_class_name")), "FlowMatch", 9);
    return by_class || json_is_true(json_object_get(file, "use_flow_sigmas"));
}

struct sampling sampler_run_sampling(json_t *file, const struct sampling_choice *choice) {
    struct config_value values[CONFIG_KEYS_MAX];
    struct config config = sampler_run_config(file, values);
    struct sampling s = {
        .prediction = &prediction_eps, .schedule = &schedule_diffusers_euler, .sampler = &sampler_euler};
    struct error e = {0};
    if (flows(file))
        s = (struct sampling){.prediction = &prediction_flow_timestep,
                              .schedule = &schedule_flow_unipc,
                              .sampler = &sampler_unipc,
                              .grid = {.grid_f64 = true},
                              .grid_from_class = true};
    sampling_read(&config, &s, &e);
    assert_ok(&e);
    s.grid.ays_sigmas = ays_sigmas_sd1;
    sampling_choose(choice, &s, &e);
    assert_ok(&e);
    return s;
}

static void list_calls(struct sampler_run *c) {
    const struct sampler *sampler = c->sampling.sampler;
    c->n_calls = 0;
    for (int step = 0; step < c->grid.n; step++)
        for (int i = 0; i < sampler->evaluations; i++) {
            struct grid_point at = c->grid.step[step].at;
            if (i && !sampler->evaluation_point(&c->grid, step, i, &at)) break;
            c->call[c->n_calls].step = step;
            c->call[c->n_calls].evaluation = i;
            c->call[c->n_calls++].at = at;
        }
}

void sampler_run_fill(struct sampler_run *c, int n) {
    struct schedule_options options = c->sampling.grid;
    options.n = n;
    options.shift = c->shift;
    options.is_flow = c->sampling.prediction->is_flow;
    if (!options.is_flow) options.table = &c->table;
    noise_table_fill(&c->table, &c->sampling.noise);
    c->grid = (struct grid){.step = c->step};
    sampling_fill(&c->sampling, &options, &c->grid);
    list_calls(c);
}

static float pattern(int i) {
    return (float)(i * 37 % 64) / 64 - 0.5f;
}

/* Pixel value i of a deterministic image: 3 times the test pattern, mirrored along the last axis. */
static float picture(int i) {
    return pattern(i / 7 * 7 + 6 - i % 7) * 3;
}

static void denoise(const float *sample, const struct grid_point *at, float *out) {
    for (int i = 0; i < N; i++) {
        float x = sample[i] * at->input_scale;
        out[i] = x / (fabsf(x) + 0.5f) + pattern(i) * (0.0005f * at->timestep);
    }
}

static void update(const struct sampler_run *c, int i, struct generator *random, float *sample,
                   float *output) {
    static float past[SAMPLER_HISTORY_MAX][N], noise[N];
    static float *const history[] = {past[0], past[1], past[2], past[3]};
    const struct sampler *sampler = c->sampling.sampler;
    int step = c->call[i].step;
    bool ends = i + 1 == c->n_calls || c->call[i + 1].step != step;
    bool draws = sampler->draws_noise != NOISE_NEVER && c->grid.step[step].to.noise > 0 &&
                 (ends || sampler->draws_noise == NOISE_EVERY_EVALUATION);
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

void sampler_run_execute(struct sampler_run *c, int n, double strength, float *sample) {
    struct generator random;
    float of_picture[N], output[N];
    generator_seed(&random, (uint64_t)n);
    generator_normals(&random, sample, N);
    for (int i = 0; i < N; i++) {
        sample[i] = rintf(sample[i] * 4096) / 4096;
        of_picture[i] = picture(i);
    }
    sampler_run_fill(c, n);
    if (strength > 0) grid_skip(&c->grid, sampling_first_step(&c->sampling, n, strength));
    list_calls(c);
    grid_initial_sample(&c->grid, sample, strength > 0 ? of_picture : NULL, N);
    for (int i = 0; i < c->n_calls; i++) {
        denoise(sample, &c->call[i].at, output);
        update(c, i, &random, sample, output);
    }
}

double relative_max_difference(const float *a, const float *truth) {
    double most = 0, sum = 0;
    for (int i = 0; i < N; i++) {
        double d = fabs((double)a[i] - (double)truth[i]);
        if (!(d <= most)) most = d;
        sum += (double)truth[i] * (double)truth[i];
    }
    return most / sqrt(sum / N);
}
