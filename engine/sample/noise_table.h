/* The 1000 noise levels of training, by timestep; not for flow models.
 *
 * A noise level is given as alpha (alphas_cumprod in diffusers: the image's share of the variance) or as
 * sigma = sqrt((1 - alpha) / alpha). Computed in float32 in diffusers' order of operations (0.42,
 * schedulers/scheduling_euler_discrete.py), with products accumulated in double as in PyTorch. Square roots
 * and logarithms are correctly rounded; in PyTorch and NumPy the last bit of square roots and logarithms
 * depends on the processor. */
#ifndef SLUICE_SAMPLE_NOISE_TABLE_H
#define SLUICE_SAMPLE_NOISE_TABLE_H

#include <stdbool.h>

enum { TRAINED_TIMESTEPS = 1000 };

/* beta_schedule of diffusers: how the noise added per timestep grows. */
enum beta_schedule {
    BETAS_LINEAR,
    BETAS_SCALED_LINEAR, /* sqrt(beta) grows linearly */
    BETAS_COSINE,        /* squaredcos_cap_v2 */
};

enum rescale_zero_snr {
    ZERO_SNR_NO,
    ZERO_SNR_CLAMPED, /* the last alpha is 2^-24 instead of 0, as in EulerDiscreteScheduler */
    ZERO_SNR_EXACT,   /* the last alpha is 0 */
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
/* Sigma of a timestep, interpolated linearly between table entries and clamped outside (numpy.interp). */
double noise_table_sigma(const struct noise_table *table, double timestep);
/* Sigma of a timestep, interpolated linearly in log(sigma) (k-diffusion, DiscreteSchedule.t_to_sigma). */
double noise_table_sigma_of_log(const struct noise_table *table, double timestep);
/* Timestep of a sigma, interpolated in log(sigma), 0 to 999 (_sigma_to_t in diffusers). */
double noise_table_timestep(const struct noise_table *table, double sigma);
/* noise_table_timestep in float32, as diffusers computes it for a sigma within a step. */
float noise_table_timestep_f32(const struct noise_table *table, float sigma);

#endif
