/* Schedules: see schedule.h. */
#include "engine/sample/schedule.h"

#include "engine/sample/linspace.h"

#include <math.h>
#include <stddef.h>

const char *const spacing_names[] = {
    [SPACING_LINSPACE] = "linspace", [SPACING_LEADING] = "leading", [SPACING_TRAILING] = "trailing", NULL};

float schedule_timestep(const struct schedule_options *options, double sigma) {
    return options->continuous ? grid_continuous_timestep((float)sigma)
                               : (float)noise_table_timestep(options->table, sigma);
}

/* One step alone, or steps that are all noise, have nothing that could be stretched. */
static void stretch_to_terminal(struct grid *grid, double terminal) {
    float scale = (1 - grid->step[grid->n - 1].at.sigma) / (float)(1 - terminal);
    for (int i = 0; i < grid->n && scale > 0; i++) {
        float sigma = 1 - (1 - grid->step[i].at.sigma) / scale;
        grid->step[i].at = grid_point_of_sigma(GRID_MIXED, sigma, sigma * 1000);
    }
}

static void schedule_fill_flow(const struct schedule_options *options, struct grid *grid) {
    int n = options->n;
    float s = (float)options->shift, less_one = (float)(options->shift - 1);
    *grid = (struct grid){.form = GRID_MIXED, .step = grid->step, .start = 1, .n = n, .n_whole = n};
    for (int i = 0; i < n; i++) {
        float u = options->grid_f64 ? (float)linspace_numpy(1, 1.0 / n, i, n)
                                    : linspace_torch(1, (float)(1.0 / n), i, n);
        float sigma = options->exponential ? s / (s + (1 / u - 1)) : s * u / (1 + less_one * u);
        grid->step[i].at = grid_point_of_sigma(GRID_MIXED, sigma, sigma * 1000);
    }
    if (options->terminal > 0) stretch_to_terminal(grid, options->terminal);
    for (int i = 1; i < n; i++) grid->step[i - 1].to = grid->step[i].at;
    grid->step[n - 1].to = grid_point_of_sigma(GRID_MIXED, 0, 0);
}

const struct schedule schedule_flow = {
    .name = "flow", .class_name = "FlowMatchEulerDiscreteScheduler", .fill = schedule_fill_flow};

double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu) {
    double slope = (most_mu - base_mu) / (most_tokens - base_tokens);
    return exp((double)tokens * slope + (base_mu - slope * base_tokens));
}
