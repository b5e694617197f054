/* Schedules: see schedule.h. Contraction into fused multiply-adds is off for the whole build. */
#include "engine/sample/schedule.h"

#include <math.h>
#include <stddef.h>

/* torch.linspace(1, 1/n, n) in float32: from both ends towards the middle, with the fused multiply-add that
 * PyTorch's AVX2 and AVX-512 builds make of it (measured: PyTorch 2, n to 130, no difference; without it 102
 * differ). */
static float schedule_linspace(int i, int n) {
    float end = (float)(1.0 / n);
    if (n == 1) return 1;
    float step = (end - 1) / (float)(n - 1);
    return i < n / 2 ? fmaf(step, (float)i, 1) : fmaf(-step, (float)(n - i - 1), end);
}

/* numpy.linspace(1, 1/n, n) in float64, then rounded. */
static float schedule_linspace_f64(int i, int n) {
    double end = 1.0 / n;
    if (i + 1 == n) return (float)end;
    return (float)(i * ((end - 1) / (n - 1)) + 1);
}

static void schedule_fill_flow(const struct schedule_options *options, struct grid *grid) {
    int n = options->n;
    float s = (float)options->shift, less_one = (float)(options->shift - 1);
    *grid = (struct grid){.form = GRID_MIXED, .step = grid->step, .start = 1, .n = n, .n_whole = n};
    for (int i = 0; i < n; i++) {
        float u = options->grid_f64 ? schedule_linspace_f64(i, n) : schedule_linspace(i, n);
        float sigma = options->exponential ? s / (s + (1 / u - 1)) : s * u / (1 + less_one * u);
        grid->step[i].at = grid_point_of_sigma(GRID_MIXED, sigma, sigma * 1000);
        if (i) grid->step[i - 1].to = grid->step[i].at;
    }
    grid->step[n - 1].to = grid_point_of_sigma(GRID_MIXED, 0, 0);
}

const struct schedule schedule_flow = {
    .name = "flow", .class_name = "FlowMatchEulerDiscreteScheduler", .fill = schedule_fill_flow};

double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu) {
    double slope = (most_mu - base_mu) / (most_tokens - base_tokens);
    return exp((double)tokens * slope + (base_mu - slope * base_tokens));
}
