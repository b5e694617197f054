#include "engine/sample/schedule.h"

#include "engine/sample/linspace.h"

#include <math.h>
#include <stddef.h>

const char *const spacing_names[] = {
    [SPACING_LINSPACE] = "linspace", [SPACING_LEADING] = "leading", [SPACING_TRAILING] = "trailing", NULL};

float schedule_timestep(const struct schedule_options *options, double sigma) {
    return options->continuous_timesteps ? grid_continuous_timestep((float)sigma)
                                         : (float)noise_table_timestep(options->table, sigma);
}

/* shift_terminal: stretches sigmas so that the last step begins at sigma `terminal`. A grid with one step, or
 * whose steps all begin at pure noise, stays unchanged. */
static void stretch_to_terminal(struct grid *grid, double terminal) {
    float scale = (1 - grid->step[grid->n - 1].at.sigma) / (float)(1 - terminal);
    for (int i = 0; i < grid->n && scale > 0; i++) {
        float sigma = 1 - (1 - grid->step[i].at.sigma) / scale;
        grid->step[i].at = grid_point_of_sigma(GRID_FLOW, sigma, sigma * 1000);
    }
}

static float shifted_f32(const struct schedule_options *o, float u) {
    return (float)o->shift * u / (1 + (float)(o->shift - 1) * u);
}

static double shifted(const struct schedule_options *o, double u) {
    return o->shift * u / (1 + (o->shift - 1) * u);
}

/* Sigma i of a diffusers scheduler whose pipeline passes no sigmas: evenly spaced between the largest and the
 * smallest timestep, then shifted. The two timesteps are already shifted, so the shift applies twice. */
static float sigma_shifted_twice(const struct schedule_options *o, int i) {
    double most = (double)shifted_f32(o, 1), least = (double)shifted_f32(o, 1.0f / TRAINED_TIMESTEPS);
    double timestep = linspace_numpy(most * TRAINED_TIMESTEPS, least * TRAINED_TIMESTEPS, i, o->n);
    return (float)shifted(o, timestep / TRAINED_TIMESTEPS);
}

static float sigma_shifted(const struct schedule_options *o, int i) {
    float s = (float)o->shift;
    float u = o->grid_f64 ? (float)linspace_numpy(1, 1.0 / o->n, i, o->n)
                          : linspace_torch(1, (float)(1.0 / o->n), i, o->n);
    return o->exponential_shift ? s / (s + (1 / u - 1)) : shifted_f32(o, u);
}

static void schedule_fill_flow(const struct schedule_options *options, struct grid *grid) {
    int n = options->n;
    *grid = (struct grid){.form = GRID_FLOW, .step = grid->step, .init_noise_sigma = 1, .n = n, .n_total = n};
    for (int i = 0; i < n; i++) {
        float sigma = options->shift_twice ? sigma_shifted_twice(options, i) : sigma_shifted(options, i);
        grid->step[i].at = grid_point_of_sigma(GRID_FLOW, sigma, sigma * 1000);
    }
    if (options->terminal > 0) stretch_to_terminal(grid, options->terminal);
    for (int i = 1; i < n; i++) grid->step[i - 1].to = grid->step[i].at;
    grid->step[n - 1].to = grid_point_of_sigma(GRID_FLOW, 0, 0);
}

/* Subtracted from a sigma of 1, where log(signal / noise) would be infinite. */
#define NEARLY_ALL_NOISE 1e-6

typedef double flow_rule(int i, int n);

static double flow_unipc(int i, int n) {
    return linspace_numpy(1, 1.0 / TRAINED_TIMESTEPS, i, n + 1);
}

static double flow_dpm(int i, int n) {
    return 1 - linspace_numpy(1, 1.0 / TRAINED_TIMESTEPS, n - i, n + 1);
}

static void fill_solver_flow(const struct schedule_options *o, flow_rule *rule, struct grid *grid) {
    int n = o->n;
    double last = shifted(o, rule(n - 1, n)), stretch = o->terminal > 0 ? (1 - last) / (1 - o->terminal) : 0;
    *grid = (struct grid){.form = GRID_FLOW, .step = grid->step, .init_noise_sigma = 1, .n = n, .n_total = n};
    for (int i = 0; i < n; i++) {
        double sigma = shifted(o, rule(i, n));
        if (stretch > 0) sigma = 1 - (1 - sigma) / stretch;
        if (!i && fabs(sigma - 1) < NEARLY_ALL_NOISE) sigma -= NEARLY_ALL_NOISE;
        float timestep = (float)trunc(sigma * TRAINED_TIMESTEPS);
        grid->step[i].at = grid_point_of_sigma(GRID_FLOW, (float)sigma, timestep);
        if (i) grid->step[i - 1].to = grid->step[i].at;
    }
    grid->step[n - 1].to = grid_point_of_sigma(GRID_FLOW, 0, 0);
}

static void schedule_fill_flow_unipc(const struct schedule_options *options, struct grid *grid) {
    fill_solver_flow(options, flow_unipc, grid);
}

static void schedule_fill_flow_dpm(const struct schedule_options *options, struct grid *grid) {
    fill_solver_flow(options, flow_dpm, grid);
}

const struct schedule schedule_flow = {.name = "flow",
                                       .class_name = "FlowMatchEulerDiscreteScheduler",
                                       .shift_key = "shift",
                                       .fill = schedule_fill_flow};
const struct schedule schedule_flow_unipc = {
    .name = "flow of UniPC", .shift_key = "flow_shift", .fill = schedule_fill_flow_unipc};
const struct schedule schedule_flow_dpm = {
    .name = "flow of DPM-Solver++", .shift_key = "flow_shift", .fill = schedule_fill_flow_dpm};

double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu) {
    double slope = (most_mu - base_mu) / (most_tokens - base_tokens);
    return exp((double)tokens * slope + (base_mu - slope * base_tokens));
}
