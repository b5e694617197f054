/* The noise levels of training, and the points of a grid: implements grid.h. The compiler flags forbid
 * contracting a * b + c to fused multiply-adds, so only calls of fmaf fuse. */
#include "engine/sample/grid.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

float linspace_torch(float from, float to, int i, int n) {
    if (n == 1) return from;
    float step = (to - from) / (float)(n - 1);
    return i < n / 2 ? fmaf(step, (float)i, from) : fmaf(-step, (float)(n - i - 1), to);
}

double linspace_numpy(double from, double to, int i, int n) {
    if (n == 1) return from;
    return i + 1 == n ? to : i * ((to - from) / (n - 1)) + from;
}

#define N TRAINED_TIMESTEPS

/* alphas_cumprod of squaredcos_cap_v2 at a fraction of the timesteps, from 0 (first) to 1 (last). */
static double cosine_abar(double part) {
    double c = cos((part + 0.008) / 1.008 * M_PI / 2);
    return c * c;
}

/* Sets alpha[i] to the product of all 1 - beta[j] with j up to i (alphas_cumprod). */
static void fill_abar(const float beta[N], float alpha[N]) {
    double product = 1;
    for (int i = 0; i < N; i++) {
        product *= (double)(1 - beta[i]);
        alpha[i] = (float)product;
    }
}

float sigma_of_alpha(float alpha) {
    return alpha > 0 ? sqrtf((1 - alpha) / alpha) : FLT_MAX;
}

void noise_table_fill(struct noise_table *table, const struct training_noise *s) {
    /* The table's sigma array holds the betas until the sigmas are computed. */
    float *beta = table->sigma, *alpha = table->alpha;
    bool linear = s->beta_schedule == BETAS_LINEAR;
    float from = (float)(linear ? s->beta_start : sqrt(s->beta_start)),
          to = (float)(linear ? s->beta_end : sqrt(s->beta_end));
    for (int i = 0; i < N; i++) {
        float value = linspace_torch(from, to, i, N);
        beta[i] = linear ? value : value * value;
        if (s->beta_schedule == BETAS_COSINE)
            beta[i] = (float)fmin(1 - cosine_abar((i + 1.0) / N) / cosine_abar((double)i / N), 0.999);
    }
    fill_abar(beta, alpha);
    if (s->rescale_zero_snr != ZERO_SNR_NO) {
        /* Zero terminal SNR: shifts and scales sqrt(alphas_cumprod) so that the last value is 0 and the first
         * is unchanged (Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed", 2023). */
        float last = sqrtf(alpha[N - 1]), first = sqrtf(alpha[0]), factor = first / (first - last),
              before = 0;
        for (int i = 0; i < N; i++) {
            float root = (sqrtf(alpha[i]) - last) * factor, now = root * root;
            beta[i] = 1 - (i ? now / before : now);
            before = now;
        }
        fill_abar(beta, alpha);
    }
    if (s->rescale_zero_snr == ZERO_SNR_CLAMPED) alpha[N - 1] = 0x1p-24f;
    for (int i = 0; i < N; i++) {
        table->sigma[i] = sigma_of_alpha(alpha[i]);
        table->log_sigma[i] = (float)log((double)table->sigma[i]);
    }
}

/* Index of the noise table entry at or below a timestep, for interpolation with the next entry. */
static int entry_below(double timestep) {
    int low = (int)floor(timestep);
    return low < 0 ? 0 : low > N - 2 ? N - 2 : low;
}

double noise_table_sigma(const struct noise_table *table, double timestep) {
    if (timestep <= 0) return (double)table->sigma[0];
    if (timestep >= N - 1) return (double)table->sigma[N - 1];
    int low = entry_below(timestep);
    double from = (double)table->sigma[low], slope = (double)table->sigma[low + 1] - from;
    return slope * (timestep - low) + from;
}

double noise_table_sigma_of_log(const struct noise_table *table, double timestep) {
    int low = entry_below(timestep);
    double part = fmin(fmax(timestep - low, 0), 1);
    return exp((1 - part) * (double)table->log_sigma[low] + part * (double)table->log_sigma[low + 1]);
}

double noise_table_timestep(const struct noise_table *table, double sigma) {
    double wanted = log(fmax(sigma, 1e-10));
    int low = 0;
    while (low < N - 2 && wanted >= (double)table->log_sigma[low + 1]) low++;
    float from = table->log_sigma[low], span = from - table->log_sigma[low + 1];
    double part = fmin(fmax(((double)from - wanted) / (double)span, 0), 1);
    return (1 - part) * low + part * (low + 1);
}

float noise_table_timestep_f32(const struct noise_table *table, float sigma) {
    float wanted = (float)log(fmax((double)sigma, 1e-10));
    int low = 0;
    while (low < N - 2 && wanted >= table->log_sigma[low + 1]) low++;
    float part = (table->log_sigma[low] - wanted) / (table->log_sigma[low] - table->log_sigma[low + 1]);
    part = fminf(fmaxf(part, 0), 1);
    return (1 - part) * (float)low + part * (float)(low + 1);
}

struct grid_point grid_point_of_sigma(enum grid_form form, float sigma, float timestep) {
    struct grid_point p = {timestep, sigma, 1, sigma, 1};
    if (form == GRID_FLOW) p.signal = 1 - sigma;
    if (form == GRID_VARIANCE_EXPLODING) p.input_scale = 1 / sqrtf(sigma * sigma + 1);
    if (form == GRID_VARIANCE_PRESERVING) {
        p.signal = 1 / sqrtf(sigma * sigma + 1);
        p.noise = sigma * p.signal;
    }
    return p;
}

struct grid_point grid_point_of_alpha(float alpha, float timestep) {
    return (struct grid_point){timestep, sigma_of_alpha(alpha), sqrtf(alpha), sqrtf(1 - alpha), 1};
}

float grid_continuous_timestep(float sigma) {
    return 0.25f * (float)log((double)sigma);
}

struct grid_point grid_between(const struct grid *grid, int step, float sigma) {
    const struct grid_point *at = &grid->step[step].at, *to = &grid->step[step].to;
    float timestep;
    if (grid->continuous_timesteps)
        timestep = grid_continuous_timestep(sigma);
    else if (grid->table)
        timestep = noise_table_timestep_f32(grid->table, sigma);
    else
        timestep =
            at->timestep + (to->timestep - at->timestep) * ((sigma - at->sigma) / (to->sigma - at->sigma));
    return grid_point_of_sigma(grid->form, sigma, timestep);
}

void grid_skip(struct grid *grid, int first) {
    grid->n -= first;
    memmove(grid->step, grid->step + first, (size_t)grid->n * sizeof *grid->step);
}

void grid_initial_sample(const struct grid *grid, float *noise, const float *picture, int64_t n) {
    if (picture) grid_add_noise(&grid->step->at, picture, noise, noise, n);
    for (int64_t i = 0; i < n && !picture; i++) noise[i] *= grid->init_noise_sigma;
}

void grid_add_noise(const struct grid_point *at, const float *picture, const float *noise, float *out,
                    int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = at->noise * noise[i] + at->signal * picture[i];
}
