/* The named schedules of stable-diffusion.cpp, for eps, v and flow models. Each schedule computes its sigmas
 * from timesteps, or by a formula between the largest and the smallest sigma. */
#include "engine/sample/beta_quantile.h"
#include "engine/sample/schedule.h"

#include <math.h>
#include <stddef.h>

#define LAST (TRAINED_TIMESTEPS - 1)

/* Sigma of a timestep from 0 to LAST. */
static double sigma_of(const struct schedule_options *o, double timestep) {
    double u = (timestep + 1) / TRAINED_TIMESTEPS;
    return o->is_flow ? o->shift * u / (1 + (o->shift - 1) * u)
                      : noise_table_sigma_of_log(o->table, timestep);
}

static double max_sigma(const struct schedule_options *o) {
    return o->sigma_max > 0 ? o->sigma_max : sigma_of(o, LAST);
}

static double min_sigma(const struct schedule_options *o) {
    return o->sigma_min > 0 ? o->sigma_min : sigma_of(o, 0);
}

/* Position of step i of n in the run, 0 to 1. */
static double progress_of(int i, int n) {
    return n > 1 ? (double)i / (n - 1) : 0;
}

static float timestep_of(const struct schedule_options *o, float sigma) {
    if (o->is_flow) return sigma * 1000;
    return schedule_timestep(o, (double)sigma);
}

/* Returns sigma i of n. fill_by drops a sigma that equals the previous sigma, because samplers divide by the
 * step length; a run may therefore have fewer steps than requested. */
typedef double sigma_rule(const struct schedule_options *o, int i);

static void fill_by(const struct schedule_options *o, sigma_rule *rule, struct grid *grid) {
    enum grid_form form = o->is_flow ? GRID_FLOW : GRID_VARIANCE_EXPLODING;
    *grid = (struct grid){
        .form = form, .step = grid->step, .table = o->table, .continuous_timesteps = o->continuous_timesteps};
    for (int i = 0; i < o->n; i++) {
        float sigma = (float)rule(o, i);
        if (grid->n && sigma == grid->step[grid->n - 1].at.sigma) continue;
        grid->step[grid->n].at = grid_point_of_sigma(form, sigma, timestep_of(o, sigma));
        if (grid->n) grid->step[grid->n - 1].to = grid->step[grid->n].at;
        grid->n++;
    }
    grid->step[grid->n - 1].to = grid_point_of_sigma(form, 0, 0);
    grid->n_total = grid->n;
    grid->init_noise_sigma = o->is_flow ? 1 : grid->step[0].at.sigma;
}

static double discrete(const struct schedule_options *o, int i) {
    return sigma_of(o, LAST - LAST * progress_of(i, o->n));
}

static double sgm_uniform(const struct schedule_options *o, int i) {
    return sigma_of(o, LAST - LAST * progress_of(i, o->n + 1));
}

static double simple(const struct schedule_options *o, int i) {
    return sigma_of(o, LAST - (int)((float)i * ((float)TRAINED_TIMESTEPS / (float)o->n)));
}

static double smoothstep(const struct schedule_options *o, int i) {
    float u = 1 - (float)i / (float)o->n;
    return sigma_of(o, (double)roundf(u * u * (3 - 2 * u) * LAST));
}

static double beta(const struct schedule_options *o, int i) {
    return sigma_of(o, rint(beta_quantile(1 - (double)i / o->n, 0.6) * LAST));
}

/* The "lcm" schedule, which takes its steps from the 50 timesteps of LCM's distillation. */
static double lcm(const struct schedule_options *o, int i) {
    return sigma_of(o, (50 - i * 50 / o->n) * 20 - 1);
}

static double karras(const struct schedule_options *o, int i) {
    double from = pow(max_sigma(o), 1 / 7.0), to = pow(fmax(min_sigma(o), 1e-6), 1 / 7.0);
    return pow(from + progress_of(i, o->n) * (to - from), 7);
}

static double exponential(const struct schedule_options *o, int i) {
    double from = log(max_sigma(o)), to = log(min_sigma(o));
    return exp(from + progress_of(i, o->n) * (to - from));
}

static double kl_optimal(const struct schedule_options *o, int i) {
    double part = progress_of(i, o->n);
    return tan(part * atan(fmax(min_sigma(o), 1e-6)) + (1 - part) * atan(max_sigma(o)));
}

/* Point of an arctangent curve around a pivot step, scaled to go from `from` to `to`. */
static double tangent(int i, int n, double slope, double pivot, double from, double to) {
    double first = atan(slope * pivot), last = atan(-slope * (n - 1 - pivot)), range = first - last;
    if (fabs(range) < 1e-8) return n == 1 ? from : from + (to - from) * i / (n - 1);
    return (atan(-slope * (i - pivot)) - last) / range * (from - to) + to;
}

static double bong_tangent(const struct schedule_options *o, int i) {
    int all = o->n + 2, place = (int)((float)all * 0.6f), first = place - 1;
    double slope = 0.2 / (all / 40.0), middle = min_sigma(o) + (max_sigma(o) - min_sigma(o)) / 2;
    if (i < first) return tangent(i, place, slope, place, max_sigma(o), middle);
    return tangent(i - first, all - place, slope, 0, middle, min_sigma(o));
}

/* Sigmas of Sabour et al., "Align Your Steps" (2024), optimised for ten steps. */
const double ays_sigmas_sd1[AYS_SIGMAS] = {14.6146412293, 6.4745760956, 3.8636745985, 2.6946151520,
                                           1.8841921177,  1.3943805092, 0.9642583904, 0.6523686016,
                                           0.3977456272,  0.1515232662, 0.0291671582};
const double ays_sigmas_sdxl[AYS_SIGMAS] = {14.6146412293, 6.3184485287, 3.7681790315, 2.1811480769,
                                            1.3405244945,  0.8620721141, 0.5550693289, 0.3798540708,
                                            0.2332364134,  0.1114188177, 0.0291671582};

static double ays(const struct schedule_options *o, int i) {
    double place = (double)i / o->n * (AYS_SIGMAS - 1);
    int low = (int)place < AYS_SIGMAS - 2 ? (int)place : AYS_SIGMAS - 2;
    return exp(log(o->ays_sigmas[low]) +
               (place - low) * (log(o->ays_sigmas[low + 1]) - log(o->ays_sigmas[low])));
}

#define NAMED_SCHEDULES(X)                                                                                   \
    X(discrete, "normal", 0)                                                                                 \
    X(karras, NULL, 0)                                                                                       \
    X(exponential, NULL, 0)                                                                                  \
    X(ays, "align_your_steps", 0)                                                                            \
    X(sgm_uniform, NULL, 0)                                                                                  \
    X(simple, NULL, 0)                                                                                       \
    X(smoothstep, NULL, 0)                                                                                   \
    X(kl_optimal, NULL, 0)                                                                                   \
    X(lcm, NULL, 50)                                                                                         \
    X(bong_tangent, NULL, 0)                                                                                 \
    X(beta, NULL, 0)

#define FILL(rule, alias_, most_)                                                                            \
    static void schedule_fill_##rule(const struct schedule_options *o, struct grid *grid) {                  \
        fill_by(o, rule, grid);                                                                              \
    }                                                                                                        \
    static const struct schedule schedule_##rule = {                                                         \
        .name = #rule, .alias = alias_, .steps_max = most_, .fill = schedule_fill_##rule};
NAMED_SCHEDULES(FILL)

#define ROW(rule, alias_, most_) &schedule_##rule,
const struct schedule *const schedules[] = {NAMED_SCHEDULES(ROW) NULL};
