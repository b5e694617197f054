/* A course of a sampler through a grid, with a synthetic denoiser, as test/golden/samplers.py has it: what tests
 * compare with references of schedulers and samplers. */
#ifndef SLUICE_TEST_SAMPLER_RUN_H
#define SLUICE_TEST_SAMPLER_RUN_H

#include "engine/sample/sampling.h"

#include <jansson.h>

enum { SAMPLER_STEPS_MAX = 64, SAMPLER_CALLS_MAX = 2 * SAMPLER_STEPS_MAX, SAMPLER_VALUES = 4 * 5 * 7 };

/* A grid and what the denoiser is called with in it. */
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

/* An object as a configuration, whose strings are the object's. values: CONFIG_KEYS_MAX of them. */
enum { CONFIG_KEYS_MAX = 40 };
struct config sampler_run_config(json_t *object, struct config_value *values);

/* Sampling as an object of scheduler_config.json says, and a request chooses. */
struct sampling sampler_run_sampling(json_t *config, const struct sampling_choice *choice);

/* The grid of n steps and its calls. */
void sampler_run_fill(struct sampler_run *c, int n);

/* What n steps make of the noise of seed n; strength above 0: from a picture. sample: SAMPLER_VALUES values. */
void sampler_run_execute(struct sampler_run *c, int n, double strength, float *sample);

/* The largest difference, for the root mean square of the truth. */
double relative_max_difference(const float *a, const float *truth);

/* Opens and closes the reference's tensors, test/golden/samplers/NAME. */
void sampler_reference_open(const char *name);
void sampler_reference_close(void);
/* Returns how many values that tensor has, at most so many; 0: there is none. */
int sampler_reference_read(const char *name, float *out, int most);

#endif
