/* Schedules: the noise levels (sigmas) that the steps of a run go through. One table entry per schedule;
 * chosen by the recipe, scheduler_config.json or --scheduler.
 *
 * Schedules of diffusers' schedulers follow its order of operations and match its timesteps and sigmas bit
 * for bit (0.42; square roots and logarithms as in noise_table.h): scheduling_flow_match_euler_discrete.py,
 * pipelines/z_image and pipelines/flux for flow matching, else the scheduling_*.py of each entry. The named
 * ones are stable-diffusion.cpp's (src/denoiser.hpp), for eps/v models and flow models. */
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

struct schedule_options {
    int n;         /* steps, at least 1 */
    bool grid_f64; /* flow models: even spacing by NumPy's linspace in f64, rounded; else PyTorch's in f32 */
    bool exponential_shift; /* flow models: sigma = s / (s + (1/u - 1)); else s u / (1 + (s - 1) u) */
    bool is_flow;           /* true for flow models; read by schedules for both kinds of models */
    bool shift_twice;       /* sigmas from 1 to 1/1000 are shifted twice (SD3: see schedule.c) */
    double shift;           /* flow models: shift s, above 0 */
    double terminal; /* flow models: sigma at which the last step begins (shift_terminal); 0: no stretching */
    const struct noise_table *table;
    enum spacing spacing;
    int steps_offset; /* added to timesteps of spacing `leading` */
    enum sigma_spacing sigma_spacing;
    double sigma_min, sigma_max; /* sigma_min, sigma_max: range of sigma_spacing; 0: the schedule's default */
    bool round_timesteps;        /* timesteps of Karras sigmas are rounded */
    bool final_sigma_min; /* final_sigmas_type "sigma_min": last step ends at the smallest sigma, not 0 */
    bool final_sigma_of_spacing; /* with final_sigma_min: sigma_spacing's smallest sigma, not the table's */
    bool continuous_timesteps;   /* timesteps are log(sigma) / 4 (grid.h) */
    bool set_alpha_to_one;    /* DDIM, PNDM: last step ends without noise; else at the first training level */
    int original_steps;       /* original_inference_steps of LCM and TCD */
    const double *ays_sigmas; /* AYS_SIGMAS sigmas of "ays"; NULL: none published for this model */
};

enum { AYS_SIGMAS = 11 };
extern const double ays_sigmas_sd1[AYS_SIGMAS], ays_sigmas_sdxl[AYS_SIGMAS];

struct schedule {
    const char *name;       /* --scheduler name, or a description */
    const char *alias;      /* ComfyUI's name; NULL: the same or none */
    const char *class_name; /* _class_name in scheduler_config.json that implies this schedule; or NULL */
    const char *shift_key;  /* flow models: key of the shift in scheduler_config.json */
    int steps_max;          /* largest number of steps; 0: no limit */
    /* Fills a grid, whose array has n elements, with n or fewer steps. */
    void (*fill)(const struct schedule_options *options, struct grid *grid);
};

/* Timestep of a sigma of an eps or v model, for schedules. */
float schedule_timestep(const struct schedule_options *options, double sigma);

/* FlowMatchEulerDiscreteScheduler: u evenly spaced from 1 to 1/n, shifted; timestep = 1000 sigma. */
extern const struct schedule schedule_flow;
/* use_flow_sigmas of UniPC and DPM-Solver++: computed in f64, timesteps truncated to whole numbers. UniPC: n
 * + 1 values from 1 to 1/1000 without the last, 1e-6 subtracted from a sigma of 1. DPM-Solver++: n + 1 values
 * from 0 to 1 - 1/1000 without the first. */
extern const struct schedule schedule_flow_unipc, schedule_flow_dpm;
/* Schedules of diffusers for eps and v models, by timestep spacing. euler: fractional timesteps, variance
 * exploding (Euler, Heun, DPM2, LMS). The others are variance preserving with whole timesteps. ddpm: DDPM.
 * ddim: as ddpm, each step over 1000 / n timesteps (DDIM, PNDM). solver: n + 1 timesteps without the last
 * (DPM-Solver++, UniPC, DEIS). lcm: LCM, TCD. */
extern const struct schedule schedule_diffusers_euler, schedule_diffusers_ddpm, schedule_diffusers_ddim,
    schedule_diffusers_solver, schedule_diffusers_lcm;

/* The named schedules of stable-diffusion.cpp, NULL-terminated. */
extern const struct schedule *const schedules[];

/* Dynamic shift: e^mu, with mu linear in the number of tokens through (base_tokens, base_mu) and
 * (most_tokens, most_mu), extrapolated beyond (diffusers 0.42, pipelines/flux, calculate_shift). */
double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu);

#endif
