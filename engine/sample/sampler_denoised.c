/* Samplers that use only the current estimate of the finished image: DDIM, Euler ancestral, DPM++ 2S
 * ancestral, DPM++ SDE, LCM and TCD. */
#include "engine/sample/sampler_update.h"

#include <math.h>

static void sampler_update_ddim(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    double ratio = (double)s->to.noise / (double)s->at.noise;
    struct term terms[] = {{ratio, u->sample},
                           {(double)s->to.signal - (double)s->at.signal * ratio, u->output}};
    update_sum(u->sample, u->n, terms, 2);
}

/* Ancestral step: moves `from` towards the predicted image, then adds noise. */
static void step_ancestral(const struct sampler_update *u, const float *from, const struct grid_point *at,
                           const struct grid_point *to) {
    double scale = update_scale(u->grid, to);
    struct ancestral a = update_ancestral(u->grid, (double)at->sigma, (double)to->sigma);
    struct towards t = update_towards(at, a.down, scale);
    struct term terms[] = {
        {a.keep * t.sample, from}, {a.keep * t.picture, u->output}, {scale * a.up, u->noise}};
    update_sum(u->sample, u->n, terms, u->noise ? 3 : 2);
}

static void sampler_update_euler_a(const struct sampler_update *u) {
    step_ancestral(u, u->sample, &update_step(u)->at, &update_step(u)->to);
}

static double logit(double sigma) {
    return log((1 - sigma) / sigma);
}

/* Sigma of DPM++ 2S's second evaluation: the geometric mean of the sigma at which the step begins and the
 * sigma that the ancestral step goes down to; for flow models the mean in log(signal / noise). */
static float sigma_between_down(const struct grid *grid, const struct grid_step *s) {
    double from = (double)s->at.sigma;
    double down = update_ancestral(grid, from, (double)s->to.sigma).down;
    if (grid->form != GRID_FLOW) return (float)(sqrt(from) * sqrt(down));
    if (from >= 1) return 0.9999f;
    return (float)(1 / (exp((logit(from) + logit(down)) / 2) + 1));
}

static bool evaluation_above_down(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    const struct grid_step *s = &grid->step[step];
    (void)evaluation;
    if (!(s->to.noise > 0)) return false;
    *at = grid_between(grid, step, sigma_between_down(grid, s));
    return true;
}

/* First evaluation: saves the sample. Second evaluation: takes the whole step from the saved sample, with the
 * second prediction. Returns true if the step is complete. */
static bool finish_step(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    if (u->evaluation)
        step_ancestral(u, u->history[0], &s->at, &s->to);
    else
        update_copy(u->history[0], u->sample, u->n);
    return u->evaluation;
}

static void sampler_update_2s_a(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    struct grid_point middle;
    if (finish_step(u)) return;
    if (!evaluation_above_down(u->grid, u->step, 1, &middle)) middle = s->to;
    struct towards t = update_towards(&s->at, (double)middle.sigma, update_scale(u->grid, &middle));
    update_sum(u->sample, u->n, (struct term[]){{t.sample, u->history[0]}, {t.picture, u->output}}, 2);
}

static bool evaluation_at_middle(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    const struct grid_step *s = &grid->step[step];
    (void)evaluation;
    if (!(s->to.noise > 0)) return false;
    *at = grid_between(grid, step, (float)(sqrt((double)s->at.sigma) * sqrt((double)s->to.sigma)));
    return true;
}

static void sampler_update_sde(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    struct grid_point middle;
    if (finish_step(u)) return;
    if (!evaluation_at_middle(u->grid, u->step, 1, &middle)) middle = s->to;
    step_ancestral(u, u->history[0], &s->at, &middle);
}

/* Weights of sample and predicted image in LCM's boundary condition (sigma_data 0.5, timestep_scaling 10). */
static void lcm_boundary(const struct sampler_update *u, double *of_sample, double *of_picture) {
    const struct grid_point *at = &update_step(u)->at;
    double t = 10 * (double)at->timestep, sum = t * t + 0.25;
    *of_sample = u->solver->lcm_boundary_used ? 0.25 / sum * (double)at->input_scale : 0;
    *of_picture = u->solver->lcm_boundary_used ? t / sqrt(sum) : 1;
}

static void sampler_update_lcm(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    double of_sample, of_picture, signal = (double)s->to.signal;
    lcm_boundary(u, &of_sample, &of_picture);
    struct term terms[] = {
        {signal * of_sample, u->sample}, {signal * of_picture, u->output}, {(double)s->to.noise, u->noise}};
    update_sum(u->sample, u->n, terms, u->noise ? 3 : 2);
}

/* Gamma of TCD: how far below the next noise level a step goes before adding noise. */
#define TCD_GAMMA 0.3

/* TCD is computed for variance-preserving samples; variance-exploding samples are larger by the factor
 * `scale`. */
static void sampler_update_tcd(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    const float *alpha = u->grid->table->alpha;
    double below = (double)alpha[(int)floor((1 - TCD_GAMMA) * (double)s->to.timestep)];
    double to = (double)alpha[(int)(s->to.timestep + 0.5f)];
    if (!u->noise) to = below;
    double keep = sqrt(to / below), per_noise = sqrt(1 - below) / (double)s->at.noise;
    double scale = u->grid->form == GRID_VARIANCE_PRESERVING ? 1 : 1 / sqrt(to);
    struct term terms[] = {{scale * keep * per_noise, u->sample},
                           {scale * keep * (sqrt(below) - per_noise * (double)s->at.signal), u->output},
                           {scale * sqrt(1 - to / below), u->noise}};
    update_sum(u->sample, u->n, terms, u->noise ? 3 : 2);
}

const struct sampler sampler_ddim = {
    .name = "ddim", .form = PREDICTION_DENOISED, .evaluations = 1, .update = sampler_update_ddim};
const struct sampler sampler_euler_a = {.name = "euler_a",
                                        .alias = "euler_ancestral",
                                        .form = PREDICTION_DENOISED,
                                        .evaluations = 1,
                                        .draws_noise = NOISE_AT_STEP_END,
                                        .update = sampler_update_euler_a};
const struct sampler sampler_dpmpp_2s_a = {.name = "dpm++2s_a",
                                           .alias = "dpmpp_2s_ancestral",
                                           .form = PREDICTION_DENOISED,
                                           .evaluations = 2,
                                           .history = 1,
                                           .draws_noise = NOISE_AT_STEP_END,
                                           .evaluation_point = evaluation_above_down,
                                           .update = sampler_update_2s_a};
const struct sampler sampler_dpmpp_sde = {.name = "dpm++_sde",
                                          .alias = "dpmpp_sde",
                                          .form = PREDICTION_DENOISED,
                                          .evaluations = 2,
                                          .history = 1,
                                          .draws_noise = NOISE_EVERY_EVALUATION,
                                          .no_flow_reason = "its noise is not defined for flow models",
                                          .evaluation_point = evaluation_at_middle,
                                          .update = sampler_update_sde};
const struct sampler sampler_lcm = {.name = "lcm",
                                    .form = PREDICTION_DENOISED,
                                    .evaluations = 1,
                                    .draws_noise = NOISE_AT_STEP_END,
                                    .update = sampler_update_lcm};
const struct sampler sampler_tcd = {.name = "tcd",
                                    .form = PREDICTION_DENOISED,
                                    .evaluations = 1,
                                    .draws_noise = NOISE_AT_STEP_END,
                                    .needs_timesteps = true,
                                    .no_flow_reason =
                                        "it needs the trained noise levels, which flow models lack",
                                    .update = sampler_update_tcd};
