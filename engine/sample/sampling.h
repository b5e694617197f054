/* Sampling: all that decides how a run goes from noise to a picture, as a recipe has it, as a model's
 * scheduler_config.json changes it, and as a request chooses.
 *
 * A file's class says schedule and sampler, its keys the rest; keys of other classes are ignored, as
 * diffusers ignores them, and keys of none, and classes and values that nothing here computes, refused by
 * name. A request's sampler changes the update alone and keeps the grid, but of flow models whose pipelines
 * leave the grid to the scheduler's class. Its schedule replaces the grid:
 * leading, trailing and linspace are the model's own with that spacing and no spread, the others
 * stable-diffusion.cpp's.
 */
#ifndef SLUICE_SAMPLE_SAMPLING_H
#define SLUICE_SAMPLE_SAMPLING_H

#include "engine/base/config.h"
#include "engine/sample/sampler.h"
#include "engine/sample/schedule.h"

struct sampling {
    const struct prediction *prediction;
    const struct schedule *schedule;
    const struct sampler *sampler;
    struct schedule_options grid; /* but n, shift and table */
    struct noise_settings noise;  /* of models that add noise */
    struct solver solver;
    /* Diffusers' pipelines of such a model take steps_offset for 1 and clip_sample for false, whatever the
     * file says (pipelines/stable_diffusion). */
    bool mends_old_files;
    /* Of a flow model: its pipelines take any class that has flow matching, and the grid is its own. Else
     * they make it themselves, for all alike. */
    bool grid_of_class;
};

/* Stable Diffusion's noise: the square root of beta grows evenly. */
#define NOISE_OF_STABLE_DIFFUSION                                                                            \
    { .betas = BETAS_SCALED_LINEAR, .beta_start = 0.00085, .beta_end = 0.012 }

/* Of a model whose pipeline mixes signal and noise, or not: the class of diffusers that makes its schedule
 * and sampler. For files that are written. */
const char *sampling_class(const struct sampling *sampling);

/* As a request would choose its schedule: a spacing, or a schedule's name. */
const char *sampling_schedule_name(const struct sampling *sampling);

/* What a scheduler_config.json says of a model whose sampling is as its recipe has it, but of flow matching
 * its shift (schedule.shift_key) and what belongs to that. UNSUPPORTED, META. */
enum status sampling_read(const struct config *config, struct sampling *sampling, struct error *e);

/* What a request chooses; each name NULL: as it is. USAGE, by name, for what there is not, and for what the
 * model's kind of noise makes no sense of. */
struct sampling_choice {
    const char *sampler, *schedule, *prediction;
    int steps;
};
enum status sampling_choose(const struct sampling_choice *choice, struct sampling *sampling, struct error *e);

/* Of n steps those that a picture to start from leaves to run: the last n * strength, rounded up for flow
 * models and down for others (diffusers 0.42, get_timesteps of pipelines/flux/pipeline_flux_img2img.py and of
 * pipelines/stable_diffusion/pipeline_stable_diffusion_img2img.py). Returns the first. */
int sampling_first_step(const struct sampling *sampling, int n, double strength);

/* The grid of a request with such options (n, shift; table: where the schedule needs one), arranged for the
 * sampler. grid->step: the caller's, room for n and GRID_STEPS_MORE. */
void sampling_fill(const struct sampling *sampling, const struct schedule_options *options,
                   struct grid *grid);

/* Recognition of what a model predicts, from what its file holds beside weights that are bound: names of
 * tensors as "v_pred", "ztsnr", "edm_vpred.sigma_max". */
typedef bool sampling_has(void *user, const char *name);
/* UNSUPPORTED for "edm_mean": a denoiser and an autoencoder of another variance (Playground 2.5). */
enum status sampling_recognise(sampling_has *has, void *user, struct sampling *sampling, struct error *e);

#endif
