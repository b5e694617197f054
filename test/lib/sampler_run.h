/* Runs a sampler over its timestep grid with a synthetic denoiser, as test/golden/samplers.py does. Scheduler
 * and sampler tests compare the runs with diffusers' results. */
#ifndef SLUICE_TEST_SAMPLER_RUN_H
#define SLUICE_TEST_SAMPLER_RUN_H

#include "engine/sample/sampling.h"

#include <jansson.h>

enum { SAMPLER_STEPS_MAX = 64, SAMPLER_CALLS_MAX = 2 * SAMPLER_STEPS_MAX, SAMPLER_VALUES = 4 * 5 * 7 };

/* A sampling grid and the points at which the denoiser is called. */
struct sampler_run {
    struct sampling sampling;
    double shift;
    struct noise_table table;
    struct grid_step step[SAMPLER_STEPS_MAX + GRID_EXTRA_STEPS];
    struct grid grid;
    struct {
        int step, evaluation;
        struct grid_point at;
    } call[SAMPLER_CALLS_MAX];
    int n_calls;
};

/* Converts a JSON object to a struct config, which borrows the object's strings. values: an array of
 * CONFIG_KEYS_MAX. */
enum { CONFIG_KEYS_MAX = 40 };
struct config sampler_run_config(json_t *object, struct config_value *values);

/* Returns the sampling that a scheduler_config.json object and a request's choices give. */
struct sampling sampler_run_sampling(json_t *config, const struct sampling_choice *choice);

/* Fills the grid of n steps and the list of denoiser calls. */
void sampler_run_fill(struct sampler_run *c, int n);

/* Samples n steps from noise of seed n; strength above 0: from an image. sample: SAMPLER_VALUES values. */
void sampler_run_execute(struct sampler_run *c, int n, double strength, float *sample);

/* Returns the largest difference divided by the reference's root mean square. */
double relative_max_difference(const float *a, const float *truth);

/* Opens and closes the reference tensors in test/golden/samplers/NAME. */
void sampler_reference_open(const char *name);
void sampler_reference_close(void);
/* Reads at most `most` values of the named tensor. Returns the number of values, or 0 if the tensor does not
 * exist. */
int sampler_reference_read(const char *name, float *out, int most);

#endif
