/* Noise levels: the levels of training by timestep (struct noise_table), and grids: the noise levels that the
 * steps of a run go through, each with its timestep.
 *
 * A sample is signal * image + noise * standard noise. Both factors follow from sigma and the grid's form:
 *
 *   variance exploding:   1, sigma (Euler, Heun, DPM2, LMS)
 *   variance preserving:  1 / sqrt(1 + sigma^2), sigma / sqrt(1 + sigma^2) (DDIM, DPM-Solver++, UniPC, LCM)
 *   flow matching:        1 - sigma, sigma
 *
 * The first two are equivalent: dividing a variance-exploding sample by sqrt(1 + sigma^2) gives a
 * variance-preserving sample. A run uses the form of the model's diffusers scheduler, so that latents match
 * diffusers at every step, also with zero terminal SNR (signal 0). Samplers work for any signal and noise, so
 * sampler and grid are independent choices. Denoisers read samples of variance 1: variance-preserving and
 * flow samples unchanged, variance-exploding samples divided by sqrt(1 + sigma^2).
 *
 * A step goes from noise level `at` to noise level `to`, which is the next step's `at`. Steps of DDIM and
 * PNDM, however, span a fixed number of timesteps; with spacings other than `leading` their `to` differs
 * slightly from the next step's `at`. */
#ifndef SLUICE_SAMPLE_GRID_H
#define SLUICE_SAMPLE_GRID_H

#include <stdbool.h>
#include <stdint.h>

/* Evenly spaced values with the rounding of torch.linspace and numpy.linspace, as in diffusers' schedules. */

/* Value i of torch.linspace(from, to, n) in float32: from both ends towards the middle, with the fused
 * multiply-add of PyTorch's AVX2 and AVX-512 builds (equal to PyTorch 2 from 1 to 1/n for n up to 130;
 * without fused multiply-adds 102 of the values differ). n >= 1, 0 <= i < n. For n = 1 the value is `from`.
 */
float linspace_torch(float from, float to, int i, int n);
/* Value i of numpy.linspace(from, to, n) in float64; only the last value is exactly `to`. */
double linspace_numpy(double from, double to, int i, int n);

/* The 1000 noise levels of training, by timestep; not for flow models.
 *
 * A noise level is given as alpha (alphas_cumprod in diffusers: the image's share of the variance) or as
 * sigma = sqrt((1 - alpha) / alpha). Computed in float32 in diffusers' order of operations (0.42,
 * schedulers/scheduling_euler_discrete.py), with products accumulated in double as in PyTorch. Square roots
 * and logarithms are correctly rounded; in PyTorch and NumPy the last bit of square roots and logarithms
 * depends on the processor. */

enum { TRAINED_TIMESTEPS = 1000 };

/* beta_schedule of diffusers: how the noise added per timestep grows. */
enum beta_schedule {
    BETAS_LINEAR,
    BETAS_SCALED_LINEAR, /* sqrt(beta) grows linearly */
    BETAS_COSINE,        /* squaredcos_cap_v2 */
};

enum rescale_zero_snr {
    ZERO_SNR_NO,
    /* alphas_cumprod of the last timestep is 2^-24 instead of 0, as in EulerDiscreteScheduler. */
    ZERO_SNR_CLAMPED,
    ZERO_SNR_EXACT, /* alphas_cumprod of the last timestep is 0 */
};

struct training_noise {
    enum beta_schedule beta_schedule;
    double beta_start, beta_end;
    enum rescale_zero_snr rescale_zero_snr;
};

struct noise_table {
    float alpha[TRAINED_TIMESTEPS], sigma[TRAINED_TIMESTEPS], log_sigma[TRAINED_TIMESTEPS];
};

void noise_table_fill(struct noise_table *table, const struct training_noise *settings);

/* Sigma of an alpha: sqrt((1 - alpha) / alpha); FLT_MAX for alpha 0. */
float sigma_of_alpha(float alpha);
/* Sigma of a timestep, interpolated linearly between table entries and clamped outside the table
 * (numpy.interp). */
double noise_table_sigma(const struct noise_table *table, double timestep);
/* Sigma of a timestep, interpolated linearly in log(sigma) (k-diffusion, DiscreteSchedule.t_to_sigma). */
double noise_table_sigma_of_log(const struct noise_table *table, double timestep);
/* Timestep of a sigma, interpolated in log(sigma), 0 to 999 (_sigma_to_t in diffusers). */
double noise_table_timestep(const struct noise_table *table, double sigma);
/* noise_table_timestep in float32, as diffusers computes it for a sigma within a step. */
float noise_table_timestep_f32(const struct noise_table *table, float sigma);

/* Relation of signal and noise factors to sigma; the formulas are at the top of grid.h. */
enum grid_form { GRID_FLOW, GRID_VARIANCE_EXPLODING, GRID_VARIANCE_PRESERVING };

struct grid_point {
    float timestep;      /* training timestep; 0 at the end of the run */
    float sigma;         /* flow matching: equal to `noise`; else noise / signal, at most FLT_MAX */
    float signal, noise; /* factors: sample = signal * image + noise * standard noise */
    float input_scale;   /* factor on the sample to get the denoiser's input */
};

struct grid_step {
    struct grid_point at, to;
};

struct grid {
    enum grid_form form;
    int n, n_total;         /* n: steps of the grid that run; n_total: also the steps that img2img skips */
    struct grid_step *step; /* array for the requested steps + GRID_EXTRA_STEPS; owned by the caller */
    float init_noise_sigma; /* standard deviation of the initial noise of text-to-image */
    /* Number of training timesteps per step (DDIM, PNDM); 0: each step ends where the next begins. */
    int timestep_stride;
    bool continuous_timesteps;       /* timesteps are log(sigma) / 4 (EDM) */
    const struct noise_table *table; /* noise levels by training timestep; NULL for flow models */
};

/* Largest number of steps that a sampler may add to a grid (adjust_grid in sampler.h). */
enum { GRID_EXTRA_STEPS = 1 };

struct grid_point grid_point_of_sigma(enum grid_form form, float sigma, float timestep);
/* The point of a variance-preserving grid for a value of alphas_cumprod. */
struct grid_point grid_point_of_alpha(float alpha, float timestep);

/* The timestep of a sigma where continuous_timesteps is set: log(sigma) / 4. */
float grid_continuous_timestep(float sigma);
/* A noise level within a step. The timestep comes from the training noise table, or without a table is
 * interpolated linearly in sigma. */
struct grid_point grid_between(const struct grid *grid, int step, float sigma);
/* Removes the first steps of the grid (img2img). */
void grid_skip(struct grid *grid, int first);

/* Turns standard noise into the first sample, in place: noised to the first step's level if there is an image
 * latent (picture, n values), else scaled by init_noise_sigma. */
void grid_initial_sample(const struct grid *grid, float *noise, const float *picture, int64_t n);
/* Noises a latent: out := at->signal * picture + at->noise * noise. out may be picture or noise. */
void grid_add_noise(const struct grid_point *at, const float *picture, const float *noise, float *out,
                    int64_t n);

#endif
