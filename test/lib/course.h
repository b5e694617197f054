/* A course of a sampler through a grid, with a toy denoiser, as test/golden/samplers.py has it: what tests
 * compare with references of schedulers and samplers. */
#ifndef SLUICE_TEST_COURSE_H
#define SLUICE_TEST_COURSE_H

#include "engine/sample/sampling.h"

#include <jansson.h>

enum { COURSE_STEPS_MAX = 64, COURSE_CALLS_MAX = 2 * COURSE_STEPS_MAX, COURSE_N = 4 * 5 * 7 };

/* A grid and what the denoiser is called with in it. */
struct course {
    struct sampling sampling;
    double shift;
    struct noise_table table;
    struct grid_step step[COURSE_STEPS_MAX + GRID_EXTRA_STEPS];
    struct grid grid;
    struct {
        int step, evaluation;
        struct grid_point at;
    } call[COURSE_CALLS_MAX];
    int n_calls;
};

/* An object as a configuration, whose strings are the object's. values: COURSE_KEYS_MAX of them. */
enum { COURSE_KEYS_MAX = 40 };
struct config course_config(json_t *object, struct config_value *values);

/* Sampling as an object of scheduler_config.json says, and a request chooses. */
struct sampling course_sampling(json_t *config, const struct sampling_choice *choice);

/* The grid of n steps and its calls. */
void course_fill(struct course *c, int n);

/* What n steps make of the noise of seed n; strength above 0: from a picture. sample: COURSE_N values. */
void course_run(struct course *c, int n, double strength, float *sample);

/* The largest difference, for the root mean square of the truth. */
double course_difference(const float *a, const float *truth);

/* Opens and closes the reference's tensors, test/golden/samplers/NAME. */
void course_open_reference(const char *name);
void course_close_reference(void);
/* Returns how many values that tensor has, at most so many; 0: there is none. */
int course_reference(const char *name, float *out, int most);

#endif
