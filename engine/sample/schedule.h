/* Schedules: the noise levels (sigmas) that the steps of a run go through. One table entry per schedule;
 * the recipe, scheduler_config.json or --scheduler chooses the schedule.
 *
 * Schedules of diffusers' schedulers follow its order of operations and match its timesteps and sigmas bit
 * for bit (0.42; square roots and logarithms as in grid.h): scheduling_flow_match_euler_discrete.py,
 * pipelines/z_image and pipelines/flux for flow matching, else the scheduling_*.py of the scheduler class.
 * Schedules with a --scheduler name are stable-diffusion.cpp's (src/denoiser.hpp), for eps, v and flow
 * models. */
#ifndef SLUICE_SAMPLE_SCHEDULE_H
#define SLUICE_SAMPLE_SCHEDULE_H

#include "engine/base/error.h"
#include "engine/sample/grid.h"

#include <stdint.h>

/* timestep_spacing of diffusers. */
enum spacing { SPACING_LINSPACE, SPACING_LEADING, SPACING_TRAILING };
/* Values of enum spacing in configurations and for --scheduler, NULL-terminated. */
extern const char *const spacing_names[];

/* Where sigmas come from: the timesteps, or a rule between the largest and smallest sigma
 * (use_karras_sigmas, use_exponential_sigmas, use_beta_sigmas). */
enum sigma_spacing { SIGMAS_OF_TIMESTEPS, SIGMAS_KARRAS, SIGMAS_EXPONENTIAL, SIGMAS_BETA };

enum { SAMPLE_SIGMAS_MAX = 64 };

struct schedule_options {
    int n; /* number of steps, at least 1 */
    /* schedule_flow: sigmas before the shift, which replace the evenly spaced ones if n is n_sample_sigmas
     * (sample_sigmas of QwenImage21Pipeline). NULL: none. */
    const float *sample_sigmas;
    int n_sample_sigmas;
    const double *sigmas;   /* schedule_sigmas: the n sigmas */
    bool grid_f64;          /* flow models: sigmas from numpy.linspace in f64; false: torch.linspace in f32 */
    bool exponential_shift; /* flow models: shift by s / (s + (1/u - 1)); false: s u / (1 + (s - 1) u) */
    bool is_flow;           /* true for flow models, false for eps and v models */
    bool shift_twice;       /* sigmas from 1 to 1/1000 are shifted twice (SD3) */
    double shift;           /* flow models: shift s, above 0 */
    double terminal; /* flow models: sigma at which the last step begins (shift_terminal); 0: no stretching */
    const struct noise_table *table;
    enum spacing spacing;
    int steps_offset; /* added to timesteps if the spacing is `leading` */
    enum sigma_spacing sigma_spacing;
    double sigma_min, sigma_max; /* sigma_min, sigma_max: range of sigma_spacing; 0: the schedule's default */
    bool round_timesteps;        /* timesteps of Karras sigmas are rounded to whole numbers */
    bool final_sigma_min; /* final_sigmas_type "sigma_min": last step ends at the smallest sigma, not 0 */
    /* With final_sigma_min: the smallest sigma of sigma_spacing, not of the training table. */
    bool final_sigma_of_spacing;
    bool continuous_timesteps; /* timesteps are log(sigma) / 4 (grid.h) */
    bool set_alpha_to_one;     /* DDIM, PNDM: last step ends without noise, not at timestep 0 */
    /* original_inference_steps of the LCM and TCD schedulers: timesteps of the distillation. */
    int original_steps;
    /* The AYS_SIGMAS sigmas of the schedule "ays"; NULL: none published for this model. */
    const double *ays_sigmas;
};

enum { AYS_SIGMAS = 11 };
extern const double ays_sigmas_sd1[AYS_SIGMAS], ays_sigmas_sdxl[AYS_SIGMAS];

struct schedule {
    const char *name;       /* --scheduler value; for the model's own schedule a description */
    const char *alias;      /* ComfyUI's name if different; or NULL */
    const char *class_name; /* _class_name in scheduler_config.json that selects the schedule; or NULL */
    const char *shift_key;  /* flow models: key of the shift in scheduler_config.json */
    int steps_max;          /* largest number of steps; 0: no limit */
    int rule;               /* variant of the schedule, interpreted by `fill` */
    /* Fills a grid with at most n steps; the grid's array has n elements. */
    void (*fill)(const struct schedule *self, const struct schedule_options *options, struct grid *grid);
};

/* FlowMatchEulerDiscreteScheduler: sigmas are evenly spaced from 1 to 1/n, then shifted; timestep = 1000
 * sigma. SIGMAS_BETA replaces the shifted sigmas; other values of sigma_spacing have no effect. */
extern const struct schedule schedule_flow;
/* use_flow_sigmas of UniPC and DPM-Solver++: computed in f64, timesteps truncated to whole numbers. UniPC
 * takes all but the last of n + 1 values from 1 to 1/1000, and subtracts 1e-6 from a sigma of 1. DPM-Solver++
 * takes all but the first of n + 1 values from 0 to 1 - 1/1000. */
extern const struct schedule schedule_flow_unipc, schedule_flow_dpm;
/* Flow models: sigmas that the request gives (--sigmas), without a shift; timestep = 1000 sigma, as
 * FlowMatchEulerDiscreteScheduler.set_timesteps(sigmas=...) with shift 1. */
extern const struct schedule schedule_sigmas;
/* Schedules of diffusers' scheduler classes for eps and v models. schedule_diffusers_euler is for Euler,
 * Heun, DPM2 and LMS: variance exploding with fractional timesteps. The other functions are variance
 * preserving with whole timesteps: ddpm for DDPM, lcm for LCM and TCD, ddim (each step spans 1000 / n
 * timesteps) for DDIM and PNDM, solver (n + 1 timesteps without the last) for DPM-Solver++, UniPC and DEIS.
 */
extern const struct schedule schedule_diffusers_euler, schedule_diffusers_ddpm, schedule_diffusers_ddim,
    schedule_diffusers_solver, schedule_diffusers_lcm;

/* The named schedules of stable-diffusion.cpp, NULL-terminated. */
extern const struct schedule *const schedules[];

/* Dynamic shift: e^mu, where mu is the linear function of the number of tokens with value base_mu at
 * base_tokens and most_mu at most_tokens (diffusers 0.42, pipelines/flux, calculate_shift). */
double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu);
/* Flux.2's dynamic shift: e^mu, where mu depends on the number of tokens of the generated image and on the
 * number of steps (diffusers 0.42, pipelines/flux2, compute_empirical_mu). */
double schedule_shift_flux2(int64_t tokens, int steps);

#endif
