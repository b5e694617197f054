/* The noise that a model was trained to see: 1000 levels, told by their timesteps. Of models that add noise;
 * flow matching needs no table.
 *
 * A level is abar, the part of the picture's variance that is left (alphas_cumprod), or sigma = sqrt((1 -
 * abar) / abar), noise for one of picture. In float32 and in diffusers' order of operations (0.42,
 * schedulers/scheduling_euler_discrete.py), products summed up in double as PyTorch does; square roots and
 * logarithms are rounded correctly, which those of PyTorch and NumPy are not: theirs differ by a last bit
 * between processors. */
#ifndef SLUICE_SAMPLE_NOISE_TABLE_H
#define SLUICE_SAMPLE_NOISE_TABLE_H

#include <stdbool.h>

enum { TRAINED_TIMESTEPS = 1000 };

/* How beta, the noise that a timestep adds, grows. */
enum betas {
    BETAS_LINEAR,
    BETAS_SCALED_LINEAR, /* its square root does */
    BETAS_COSINE,        /* squaredcos_cap_v2 */
};

enum zero_snr {
    ZERO_SNR_NO,
    ZERO_SNR_NEARLY, /* nothing of the picture is left at the last timestep, but for a variance of 2^-24 */
    ZERO_SNR_WHOLLY, /* nothing at all */
};

struct noise_settings {
    enum betas betas;
    double beta_start, beta_end;
    enum zero_snr zero_snr;
};

struct noise_table {
    float abar[TRAINED_TIMESTEPS], sigma[TRAINED_TIMESTEPS], log_sigma[TRAINED_TIMESTEPS];
};

void noise_table_fill(struct noise_table *table, const struct noise_settings *settings);

/* sqrt((1 - abar) / abar); FLT_MAX where nothing of the picture is left. */
float sigma_of_abar(float abar);
/* Linear in sigma between two timesteps, the ends' outside (numpy.interp). */
double noise_table_sigma(const struct noise_table *table, double timestep);
/* The same, linear in its logarithm (k-diffusion, DiscreteSchedule.t_to_sigma). */
double noise_table_sigma_of_log(const struct noise_table *table, double timestep);
/* The timestep whose sigma that is, by the logarithm; from 0 to 999 (_sigma_to_t). */
double noise_table_timestep(const struct noise_table *table, double sigma);
/* The same in float32: as diffusers has it for a sigma within a step. */
float noise_table_timestep_f32(const struct noise_table *table, float sigma);

#endif
