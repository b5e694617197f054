/* stable-diffusion.cpp's schedules, for noise that is added and for flow models: see schedule.h. Each makes
 * sigmas from timesteps, or between the largest and the smallest. */
#include "engine/sample/beta_quantile.h"
#include "engine/sample/schedule.h"

#include <math.h>
#include <stddef.h>

#define LAST (TRAINED_TIMESTEPS - 1)

/* From 0 to LAST. */
static double sigma_of(const struct schedule_options *o, double timestep) {
    double u = (timestep + 1) / TRAINED_TIMESTEPS;
    return o->mixes ? o->shift * u / (1 + (o->shift - 1) * u) : noise_table_sigma_of_log(o->table, timestep);
}

static double most(const struct schedule_options *o) {
    return o->sigma_max > 0 ? o->sigma_max : sigma_of(o, LAST);
}

static double least(const struct schedule_options *o) {
    return o->sigma_min > 0 ? o->sigma_min : sigma_of(o, 0);
}

/* The part of the way that step i of n has behind it, the last all. */
static double part_of(int i, int n) {
    return n > 1 ? (double)i / (n - 1) : 0;
}

static float told(const struct schedule_options *o, float sigma) {
    if (o->mixes) return sigma * 1000;
    return schedule_timestep(o, (double)sigma);
}

/* A schedule is sigma number i of n. One that repeats the last is left out: a step over nothing, which
 * samplers that divide by steps cannot take; so there may be fewer steps than were asked for. */
typedef double sigma_rule(const struct schedule_options *o, int i);

static void fill_by(const struct schedule_options *o, sigma_rule *rule, struct grid *grid) {
    enum grid_form form = o->mixes ? GRID_MIXED : GRID_ADDED;
    *grid = (struct grid){.form = form, .step = grid->step, .table = o->table, .continuous = o->continuous};
    for (int i = 0; i < o->n; i++) {
        float sigma = (float)rule(o, i);
        if (grid->n && sigma == grid->step[grid->n - 1].at.sigma) continue;
        grid->step[grid->n].at = grid_point_of_sigma(form, sigma, told(o, sigma));
        if (grid->n) grid->step[grid->n - 1].to = grid->step[grid->n].at;
        grid->n++;
    }
    grid->step[grid->n - 1].to = grid_point_of_sigma(form, 0, 0);
    grid->n_whole = grid->n;
    grid->start = o->mixes ? 1 : grid->step[0].at.sigma;
}

/* ---- by timestep ---- */

static double discrete(const struct schedule_options *o, int i) {
    return sigma_of(o, LAST - LAST * part_of(i, o->n));
}

static double sgm_uniform(const struct schedule_options *o, int i) {
    return sigma_of(o, LAST - LAST * part_of(i, o->n + 1));
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

/* Of the 50 timesteps that LCM was distilled to. */
static double lcm(const struct schedule_options *o, int i) {
    return sigma_of(o, (50 - i * 50 / o->n) * 20 - 1);
}

/* ---- between the ends ---- */

static double karras(const struct schedule_options *o, int i) {
    double from = pow(most(o), 1 / 7.0), to = pow(fmax(least(o), 1e-6), 1 / 7.0);
    return pow(from + part_of(i, o->n) * (to - from), 7);
}

static double exponential(const struct schedule_options *o, int i) {
    double from = log(most(o)), to = log(least(o));
    return exp(from + part_of(i, o->n) * (to - from));
}

static double kl_optimal(const struct schedule_options *o, int i) {
    double part = part_of(i, o->n);
    return tan(part * atan(fmax(least(o), 1e-6)) + (1 - part) * atan(most(o)));
}

/* Arc tangents around two places, each piece stretched between its ends. */
static double tangent(int i, int n, double slope, double pivot, double from, double to) {
    double first = atan(slope * pivot), last = atan(-slope * (n - 1 - pivot)), range = first - last;
    if (fabs(range) < 1e-8) return n == 1 ? from : from + (to - from) * i / (n - 1);
    return (atan(-slope * (i - pivot)) - last) / range * (from - to) + to;
}

static double bong_tangent(const struct schedule_options *o, int i) {
    int all = o->n + 2, place = (int)((float)all * 0.6f), first = place - 1;
    double slope = 0.2 / (all / 40.0), middle = least(o) + (most(o) - least(o)) / 2;
    if (i < first) return tangent(i, place, slope, place, most(o), middle);
    return tangent(i - first, all - place, slope, 0, middle, least(o));
}

/* Levels that Sabour et al., "Align Your Steps" (2024), optimised for ten steps. */
const double schedule_aligned_sd1[ALIGNED_LEVELS] = {14.6146412293, 6.4745760956, 3.8636745985, 2.6946151520,
                                                     1.8841921177,  1.3943805092, 0.9642583904, 0.6523686016,
                                                     0.3977456272,  0.1515232662, 0.0291671582};
const double schedule_aligned_sdxl[ALIGNED_LEVELS] = {14.6146412293, 6.3184485287, 3.7681790315, 2.1811480769,
                                                      1.3405244945,  0.8620721141, 0.5550693289, 0.3798540708,
                                                      0.2332364134,  0.1114188177, 0.0291671582};

static double ays(const struct schedule_options *o, int i) {
    double place = (double)i / o->n * (ALIGNED_LEVELS - 1);
    int low = (int)place < ALIGNED_LEVELS - 2 ? (int)place : ALIGNED_LEVELS - 2;
    return exp(log(o->aligned[low]) + (place - low) * (log(o->aligned[low + 1]) - log(o->aligned[low])));
}

/* ---- the table ---- */

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
