#include "engine/sample/noise_table.h"

#include "engine/sample/linspace.h"

#include <float.h>
#include <math.h>

#define N TRAINED_TIMESTEPS

static double cosine_abar(double part) {
    double c = cos((part + 0.008) / 1.008 * M_PI / 2);
    return c * c;
}

static float beta_of(const struct training_noise *s, int i) {
    if (s->beta_schedule == BETAS_LINEAR)
        return linspace_torch((float)s->beta_start, (float)s->beta_end, i, N);
    if (s->beta_schedule == BETAS_COSINE)
        return (float)fmin(1 - cosine_abar((i + 1.0) / N) / cosine_abar((double)i / N), 0.999);
    float root = linspace_torch((float)sqrt(s->beta_start), (float)sqrt(s->beta_end), i, N);
    return root * root;
}

static void fill_abar(const float beta[N], float alpha[N]) {
    double product = 1;
    for (int i = 0; i < N; i++) {
        product *= (double)(1 - beta[i]);
        alpha[i] = (float)product;
    }
}

/* Zero terminal SNR: shifts and scales sqrt(alphas_cumprod) so that the last value is 0 and the first is
 * unchanged (Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed", 2023). */
static void rescale_betas(float beta[N], float alpha[N]) {
    float last = sqrtf(alpha[N - 1]), first = sqrtf(alpha[0]), factor = first / (first - last), before = 0;
    for (int i = 0; i < N; i++) {
        float root = (sqrtf(alpha[i]) - last) * factor, now = root * root;
        beta[i] = 1 - (i ? now / before : now);
        before = now;
    }
    fill_abar(beta, alpha);
}

float sigma_of_alpha(float alpha) {
    return alpha > 0 ? sqrtf((1 - alpha) / alpha) : FLT_MAX;
}

void noise_table_fill(struct noise_table *table, const struct training_noise *settings) {
    float *beta = table->sigma; /* scratch memory for the betas, which the sigmas then overwrite */
    for (int i = 0; i < N; i++) beta[i] = beta_of(settings, i);
    fill_abar(beta, table->alpha);
    if (settings->rescale_zero_snr != ZERO_SNR_NO) rescale_betas(beta, table->alpha);
    if (settings->rescale_zero_snr == ZERO_SNR_CLAMPED) table->alpha[N - 1] = 0x1p-24f;
    for (int i = 0; i < N; i++) {
        table->sigma[i] = sigma_of_alpha(table->alpha[i]);
        table->log_sigma[i] = (float)log((double)table->sigma[i]);
    }
}

/* Index of the table entry at or below a timestep. */
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
