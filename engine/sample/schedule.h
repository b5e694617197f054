/* Schedules: which noise levels the steps of a run go through. One row a schedule; a recipe names its own, a
 * model's scheduler_config.json or a flag another.
 *
 * Those of diffusers' schedulers are computed in its order of operations and give its timesteps and sigmas
 * bit for bit (0.42; square roots and logarithms as noise_table.h says):
 * scheduling_flow_match_euler_discrete.py, pipelines/z_image and pipelines/flux for flow matching by Euler,
 * the scheduling_*.py of each row else. The others are stable-diffusion.cpp's (src/denoiser.hpp), whose names
 * they have, for models that add noise and for flow models. */
#ifndef SLUICE_SAMPLE_SCHEDULE_H
#define SLUICE_SAMPLE_SCHEDULE_H

#include "engine/base/error.h"
#include "engine/sample/grid.h"

#include <stdint.h>

/* Where timesteps lie in training's 1000. */
enum spacing { SPACING_LINSPACE, SPACING_LEADING, SPACING_TRAILING };
/* As configurations and people call them, NULL-terminated. */
extern const char *const spacing_names[];

/* How sigmas lie between the largest and the smallest, instead of where timesteps do. */
enum sigma_spread { SPREAD_NONE, SPREAD_KARRAS, SPREAD_EXPONENTIAL, SPREAD_BETA };

struct schedule_options {
    int n; /* steps, at least 1 */
    /* Flow matching. */
    bool grid_f64;    /* evenly spaced values are made in f64 and rounded (NumPy's linspace), not in f32
                         (PyTorch's) */
    bool exponential; /* sigma = s / (s + (1/u - 1)), not s u / (1 + (s - 1) u): the same but for roundings */
    bool mixes;       /* of a flow model: for the schedules that are for both */
    bool again;       /* from 1 to the least that training has, 1/1000, shifted; and each shifted again */
    double shift;     /* s, above 0 */
    double terminal;  /* what is left of the picture is stretched so that the last step begins with so much
                         noise; 0: it is not */
    /* Noise that is added. */
    const struct noise_table *table;
    enum spacing spacing;
    int steps_offset; /* added to the timesteps of `leading` */
    enum sigma_spread spread;
    double sigma_min, sigma_max; /* ends of a spread; 0: the schedule's own */
    bool rounds_timesteps;       /* those of Karras' spread */
    bool ends_at_sigma_min;      /* the last step ends with the least noise, not with none */
    bool ends_where_it_begins;   /* then, with a spread, where it begins: the least of that */
    bool continuous;             /* see grid.h */
    bool ends_with_picture; /* schedules that leap: the last step ends without noise, not with the least */
    int original_steps;     /* that a consistency model was distilled from */
    const double *aligned;  /* ALIGNED_LEVELS sigmas of "ays"; NULL: nobody optimised any for it */
};

enum { ALIGNED_LEVELS = 11 };
extern const double schedule_aligned_sd1[ALIGNED_LEVELS], schedule_aligned_sdxl[ALIGNED_LEVELS];

struct schedule {
    const char *name;       /* that people choose it by, or of what it is */
    const char *alias;      /* ComfyUI's; or NULL */
    const char *class_name; /* in scheduler_config.json, where that names the schedule alone; else NULL */
    const char *shift_key;  /* of flow models, there: its shift */
    int steps_max;          /* 0: as many as anybody wants */
    /* Fills a grid that has room for n steps; these may be fewer. */
    void (*fill)(const struct schedule_options *options, struct grid *grid);
};

/* What training calls a sigma of noise that is added. For schedules. */
float schedule_timestep(const struct schedule_options *options, double sigma);

/* Flow matching: evenly spaced values u from 1 to 1/n, shifted; a timestep is 1000 sigma. */
extern const struct schedule schedule_flow;
/* The same for solvers, in f64 before they are rounded, and with whole timesteps, cut off: of n + 1 values
 * from 1 to 1/1000 the last is left out (UniPC, which takes a millionth of a sigma of 1 away), or of those
 * from 0 to 1 - 1/1000 the first (DPM-Solver++). */
extern const struct schedule schedule_flow_unipc, schedule_flow_dpm;
/* Timesteps of a spacing. spaced: fractional, noise added: Euler, Heun, DPM2, LMS. whole: whole ones,
 * PRESERVED: DDPM. leaping: the same, each step over 1000 / n timesteps: DDIM, PNDM. solver: whole ones of n
 * + 1, the last of them left out, PRESERVED: DPM-Solver++, UniPC. distilled: LCM, TCD. */
extern const struct schedule schedule_spaced, schedule_whole, schedule_leaping, schedule_solver,
    schedule_distilled;

/* stable-diffusion.cpp's, NULL-terminated. */
extern const struct schedule *const schedules[];

/* e^mu, mu linear in the number of tokens: at base_tokens base_mu, at most_tokens most_mu, and on beyond both
 * (diffusers 0.42, pipelines/flux, calculate_shift). */
double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu);

#endif
