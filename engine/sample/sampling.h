/* Sampling: prediction type, schedule, sampler and their options, from the recipe, the model's
 * scheduler_config.json and the request.
 *
 * The class in scheduler_config.json determines schedule and sampler; the file's keys set the options. Keys
 * of other classes are ignored, as in diffusers; unknown keys and unsupported classes or values are refused
 * by name.
 * --sampler changes the update and keeps the noise levels, except for flow models with grid_from_class.
 * --scheduler replaces the noise levels. The values leading, trailing and linspace choose the model's own
 * schedule with the named timestep spacing, without Karras or similar sigmas; other values choose a schedule
 * of stable-diffusion.cpp. --sigmas gives the noise levels themselves. */
#ifndef SLUICE_SAMPLE_SAMPLING_H
#define SLUICE_SAMPLE_SAMPLING_H

#include "engine/base/config.h"
#include "engine/sample/sampler.h"
#include "engine/sample/schedule.h"

struct sampling {
    const struct prediction *prediction;
    const struct schedule *schedule;
    const struct sampler *sampler;
    struct schedule_options grid; /* schedule options of the model; each request sets n, shift and table */
    struct training_noise noise;  /* training noise levels; eps and v models only */
    struct solver solver;
    /* Stable Diffusion 1 and 2: steps_offset is always 1 and clip_sample false, even if scheduler_config.json
     * has other values, as in diffusers' pipelines (pipelines/stable_diffusion). */
    bool fixes_legacy_config;
    /* Flow models: each scheduler class makes its own grid (WAN, SD3); false: the pipeline makes one grid for
     * all classes. */
    bool grid_from_class;
};

/* Stable Diffusion's training noise, where sqrt(beta) grows linearly. */
#define NOISE_STABLE_DIFFUSION                                                                               \
    { .beta_schedule = BETAS_SCALED_LINEAR, .beta_start = 0.00085, .beta_end = 0.012 }

/* Name of the diffusers scheduler class with this schedule and sampler, for scheduler_config.json files that
 * Sluice writes. */
const char *sampling_class_name(const struct sampling *sampling);

/* Returns the --scheduler value for this schedule: a timestep spacing or a schedule name; "sigmas" for
 * sigmas that the request gives. */
const char *sampling_schedule_name(const struct sampling *sampling);

/* Applies a scheduler_config.json to the sampling of a recipe. The shift of flow models
 * (schedule.shift_key) and related keys are read by engine/open/model_open.c. Fails with UNSUPPORTED or META.
 */
enum status sampling_read(const struct config *config, struct sampling *sampling, struct error *e);

/* Applies the sampling choices of a request; NULL leaves a choice unchanged. Fails with USAGE for unknown
 * names and for combinations that the model does not support. */
struct sampling_choice {
    const char *sampler, *schedule, *prediction;
    int steps;
    const double *sigmas; /* the `steps` sigmas of --sigmas; *sampling keeps the pointer. NULL: none */
};
/* Fails with USAGE unless the n sigmas of a flag decrease from at most 1 to above 0. */
enum status sampling_check_sigmas(const char *flag, const double *sigmas, int n, struct error *e);
enum status sampling_choose(const struct sampling_choice *choice, struct sampling *sampling, struct error *e);

/* First step to run for img2img: the last n * strength steps run, rounded up for flow models and down for
 * others (diffusers 0.42, get_timesteps of pipelines/flux/pipeline_flux_img2img.py and of
 * pipelines/stable_diffusion/pipeline_stable_diffusion_img2img.py). */
int sampling_first_step(const struct sampling *sampling, int n, double strength);

/* Fills the grid from schedule options (n, shift and, if the schedule needs one, table) and adjusts the grid
 * for the sampler. grid->step: the caller's array of at least n + GRID_EXTRA_STEPS. */
void sampling_fill(const struct sampling *sampling, const struct schedule_options *options,
                   struct grid *grid);

/* True if the model file has an unused tensor of the given name, such as "v_pred", "ztsnr" or
 * "edm_vpred.sigma_max". */
typedef bool sampling_has_tensor(void *user, const char *name);
/* Detects v prediction, zero terminal SNR and EDM from marker tensors (has). Fails with UNSUPPORTED for
 * "edm_mean", whose models have latents of another variance (Playground 2.5). */
enum status sampling_detect(sampling_has_tensor *has, void *user, struct sampling *sampling, struct error *e);

#endif
