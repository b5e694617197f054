/* All samplers, in three groups: samplers that follow the derivative, samplers that use the current estimate
 * of the finished image, and multistep solvers in log(signal / noise); then the table of all samplers.
 * Implements sampler.h.
 */
#include "engine/sample/sampler.h"

#include "engine/sample/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ZERO_SNR_REASON "its first step divides by the signal, which is 0 (zero terminal SNR)"

/* ---- Helpers of updates ---- */

/* A term of a weighted sum of tensors: weight and values. */
struct term {
    double factor;
    const float *values;
};

enum { TERMS_MAX = 8 };

/* out := the weighted sum of the terms, added in the given order with weights rounded to float32. out may be
 * one of the terms' tensors. */
static void update_sum(float *out, int64_t n, const struct term *terms, int n_terms) {
    for (int64_t i = 0; i < n; i++) {
        float sum = (float)terms[0].factor * terms[0].values[i];
        for (int k = 1; k < n_terms; k++) sum += (float)terms[k].factor * terms[k].values[i];
        out[i] = sum;
    }
}

static void update_copy(float *to, const float *from, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

/* Copies values to the front of a history of n_past tensors and drops the oldest tensor. */
static void update_push(float *const *past, int n_past, const float *values, int64_t n) {
    for (int k = n_past - 1; k > 0; k--) update_copy(past[k], past[k - 1], n);
    update_copy(past[0], values, n);
}

/* Divisor that turns a sample into sample / signal (grid.h): the signal, or 1 for flow matching. */
static double update_scale(const struct grid *grid, const struct grid_point *p) {
    return grid->form == GRID_FLOW ? 1 : (double)p->signal;
}

static const struct grid_step *update_step(const struct sampler_update *u) {
    return &u->grid->step[u->step];
}

/* sample := `from` (a sample at noise level `at`), moved along a derivative (PREDICTION_DERIVATIVE) to noise
 * level `to`. */
static void update_along_derivative(const struct sampler_update *u, const float *from,
                                    const struct grid_point *at, const struct grid_point *to,
                                    const float *derivative) {
    double keep = update_scale(u->grid, to) / update_scale(u->grid, at);
    struct term terms[] = {{keep, from}, {(double)to->noise - (double)at->noise * keep, derivative}};
    update_sum(u->sample, u->n, terms, 2);
}

/* Ancestral step: goes down to sigma `down`, below the step's target sigma, multiplies the sample by `keep`,
 * and adds noise of standard deviation `up`. */
struct ancestral {
    double down, keep, up;
};
static struct ancestral update_ancestral(const struct grid *grid, double from, double to) {
    double down = to * (to / from);
    if (grid->form != GRID_FLOW) return (struct ancestral){down, 1, to * sqrt(1 - (to / from) * (to / from))};
    double keep = (1 - to) / (1 - down);
    return (struct ancestral){down, keep, sqrt(fmax(to * to - down * down * keep * keep, 0))};
}

/* ---- Along the derivative: Euler, Heun, DPM2, DPM2 ancestral, LMS, iPNDM and PNDM ---- */

static void sampler_update_euler(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    update_along_derivative(u, u->sample, &s->at, &s->to, u->output);
}

/* Heun's second evaluation is at the end of the step. A step that ends at noise 0 has no second evaluation.
 */
static bool heun_point(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    (void)evaluation;
    *at = grid->step[step].to;
    return at->noise > 0;
}

/* Heun: moves along the mean of the derivatives at the start and at the end of the step. */
static void sampler_update_heun(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    float *sample = u->history[0], *first = u->history[1];
    if (!u->evaluation) {
        update_copy(sample, u->sample, u->n);
        update_copy(first, u->output, u->n);
        update_along_derivative(u, sample, &s->at, &s->to, first);
        return;
    }
    update_sum(u->output, u->n, (struct term[]){{0.5, first}, {0.5, u->output}}, 2);
    update_along_derivative(u, sample, &s->at, &s->to, u->output);
}

/* Geometric mean of two sigmas, with the float32 rounding of torch.lerp. */
static float geometric_mean_f32(float sigma, float other) {
    float from = (float)log((double)sigma), to = (float)log((double)other);
    return (float)exp((double)(to - (to - from) * 0.5f));
}

/* DPM2's second evaluation is at the geometric mean of the step's sigmas. */
static bool dpm2_point(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    const struct grid_step *s = &grid->step[step];
    (void)evaluation;
    if (!(s->to.noise > 0)) return false;
    *at = grid_between(grid, step, geometric_mean_f32(s->to.sigma, s->at.sigma));
    return true;
}

/* DPM2: uses the derivative at the middle of the step for the whole step. */
static void sampler_update_dpm2(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    struct grid_point at = s->to;
    if (u->evaluation) {
        update_along_derivative(u, u->history[0], &s->at, &s->to, u->output);
        return;
    }
    update_copy(u->history[0], u->sample, u->n);
    dpm2_point(u->grid, u->step, 1, &at);
    update_along_derivative(u, u->sample, &s->at, &at, u->output);
}

/* Second evaluation of DPM2 ancestral: at the geometric mean of the step's first sigma and the sigma that the
 * ancestral step goes down to. */
static bool dpm2_a_point(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    const struct grid_step *s = &grid->step[step];
    (void)evaluation;
    if (!(s->to.noise > 0)) return false;
    /* sigma before the ancestral step adds noise, in float32 as in diffusers */
    float from = s->at.sigma * s->at.sigma, to = s->to.sigma * s->to.sigma;
    float up = sqrtf(to * (from - to) / from), down = sqrtf(to - up * up);
    *at = grid_between(grid, step, geometric_mean_f32(s->at.sigma, down));
    return true;
}

static void sampler_update_dpm2_a(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    struct grid_point at = s->to;
    if (!u->evaluation) {
        update_copy(u->history[0], u->sample, u->n);
        dpm2_a_point(u->grid, u->step, 1, &at);
        update_along_derivative(u, u->sample, &s->at, &at, u->output);
        return;
    }
    double from = (double)s->at.sigma, scale = update_scale(u->grid, &s->to);
    struct ancestral a = update_ancestral(u->grid, from, (double)s->to.sigma);
    struct term terms[] = {{a.keep * scale / update_scale(u->grid, &s->at), u->history[0]},
                           {a.keep * scale * (a.down - from), u->output},
                           {a.up * scale, u->noise}};
    update_sum(u->sample, u->n, terms, 3);
}

enum { HISTORY = 3 }; /* number of earlier predictions that LMS, iPNDM and PNDM keep */

/* Moves the sample by a weighted sum of the predictions of the last `order` steps. factor: the weights, in
 * units of sigma.
 */
static void multistep_update(const struct sampler_update *u, const double *factor, int order) {
    const struct grid_step *s = update_step(u);
    double scale = update_scale(u->grid, &s->to);
    struct term terms[HISTORY + 2] = {{scale / update_scale(u->grid, &s->at), u->sample},
                                      {scale * factor[0], u->output}};
    for (int k = 1; k < order; k++) terms[k + 1] = (struct term){scale * factor[k], u->history[k - 1]};
    update_sum(u->sample, u->n, terms, order + 1);
    update_push(u->history, HISTORY, u->output, u->n);
}

/* Number of predictions available to a multistep update: 4, or fewer in the first steps. */
static int available_order(const struct sampler_update *u) {
    return u->step < HISTORY ? u->step + 1 : HISTORY + 1;
}

/* Lagrange basis polynomial that is 1 at sigma j of the last `order` sigmas and 0 at the other sigmas. */
static double lagrange(const struct sampler_update *u, int order, int j, double sigma) {
    const struct grid_step *now = update_step(u);
    double product = 1, at = (double)now[-j].at.sigma;
    for (int k = 0; k < order; k++) {
        double other = (double)now[-k].at.sigma;
        if (k != j) product *= (sigma - other) / (at - other);
    }
    return product;
}

/* LMS: integrates Lagrange polynomials over the step by two-point Gauss quadrature, exact up to degree 3. */
static void sampler_update_lms(const struct sampler_update *u) {
    double from = (double)update_step(u)->at.sigma, to = (double)update_step(u)->to.sigma,
           factor[HISTORY + 1];
    double half = (to - from) / 2, middle_at = (from + to) / 2, off = half / sqrt(3);
    int order = available_order(u);
    for (int j = 0; j < order; j++)
        factor[j] = half * (lagrange(u, order, j, middle_at - off) + lagrange(u, order, j, middle_at + off));
    multistep_update(u, factor, order);
}

/* Adams-Bashforth coefficients of orders 1 to 4, for equal steps. */
static const double adams[HISTORY + 1][HISTORY + 1] = {
    {1}, {1.5, -0.5}, {23.0 / 12, -16.0 / 12, 5.0 / 12}, {55.0 / 24, -59.0 / 24, 37.0 / 24, -9.0 / 24}};

static void sampler_update_ipndm(const struct sampler_update *u) {
    int order = available_order(u);
    double factor[HISTORY + 1], step = (double)update_step(u)->to.sigma - (double)update_step(u)->at.sigma;
    for (int k = 0; k < order; k++) factor[k] = step * adams[order - 1][k];
    multistep_update(u, factor, order);
}

/* PNDM evaluates its second grid point twice, the first time to correct the step to the second point. Inserts
 * the extra step into the grid. */
static void repeat_second_point(struct grid *grid) {
    if (grid->n < 2) return;
    for (int i = grid->n; i > 1; i--) grid->step[i] = grid->step[i - 1];
    grid->n++;
    grid->n_total++;
}

/* Returns the noise levels at the ends of a PNDM step. Step 1 repeats step 0 with the corrected derivative.
 */
static struct grid_step pndm_step(const struct sampler_update *u) {
    struct grid_step s = *update_step(u);
    if (u->step != 1) return s;
    s.to = s.at;
    s.at = u->grid->step[0].at;
    if (!u->grid->timestep_stride) return s;
    int timestep = (int)s.to.timestep + u->grid->timestep_stride;
    if (timestep > TRAINED_TIMESTEPS - 1) timestep = TRAINED_TIMESTEPS - 1;
    s.at = grid_point_of_alpha(u->grid->table->alpha[timestep], (float)timestep);
    return s;
}

/* PNDM sums the denoiser's outputs of several steps, then converts the sum with the noise level at which the
 * current step begins. */
static void sampler_update_pndm(const struct sampler_update *u) {
    const struct grid_step s = pndm_step(u);
    int order = u->step < 2 ? 1 : u->step < 4 ? u->step : HISTORY + 1;
    struct term terms[HISTORY + 1] = {{adams[order - 1][0], u->output}};
    float *saved = u->history[1];
    if (u->step == 1) {
        update_sum(u->output, u->n, (struct term[]){{0.5, u->output}, {0.5, u->history[0]}}, 2);
        update_copy(u->sample, saved, u->n);
    } else {
        for (int k = 1; k < order; k++) terms[k] = (struct term){adams[order - 1][k], u->history[k - 1]};
        if (u->step == 0) update_copy(saved, u->sample, u->n);
        float *sum = u->history[HISTORY];
        update_sum(sum, u->n, terms, order);
        if (u->step) update_push(u->history, HISTORY, u->output, u->n);
        if (!u->step) update_copy(u->history[0], u->output, u->n);
        update_copy(u->output, sum, u->n);
    }
    u->prediction->convert(u->output, u->sample, u->n, &s.at, PREDICTION_DERIVATIVE);
    update_along_derivative(u, u->sample, &s.at, &s.to, u->output);
}

const struct sampler sampler_euler = {.name = "euler",
                                      .form = PREDICTION_DERIVATIVE,
                                      .evaluations = 1,
                                      .no_zero_snr_reason = ZERO_SNR_REASON,
                                      .update = sampler_update_euler};
const struct sampler sampler_heun = {.name = "heun",
                                     .form = PREDICTION_DERIVATIVE,
                                     .evaluations = 2,
                                     .history = 2,
                                     .no_zero_snr_reason = ZERO_SNR_REASON,
                                     .evaluation_point = heun_point,
                                     .update = sampler_update_heun};
const struct sampler sampler_dpm2 = {.name = "dpm2",
                                     .alias = "dpm_2",
                                     .form = PREDICTION_DERIVATIVE,
                                     .evaluations = 2,
                                     .history = 1,
                                     .no_zero_snr_reason = ZERO_SNR_REASON,
                                     .evaluation_point = dpm2_point,
                                     .update = sampler_update_dpm2};
const struct sampler sampler_dpm2_a = {.name = "dpm2_a",
                                       .alias = "dpm_2_ancestral",
                                       .form = PREDICTION_DERIVATIVE,
                                       .evaluations = 2,
                                       .history = 1,
                                       .draws_noise = NOISE_AT_STEP_END,
                                       .no_zero_snr_reason = ZERO_SNR_REASON,
                                       .evaluation_point = dpm2_a_point,
                                       .update = sampler_update_dpm2_a};
const struct sampler sampler_lms = {.name = "lms",
                                    .form = PREDICTION_DERIVATIVE,
                                    .evaluations = 1,
                                    .history = HISTORY,
                                    .no_zero_snr_reason = ZERO_SNR_REASON,
                                    .update = sampler_update_lms};
const struct sampler sampler_ipndm = {.name = "ipndm",
                                      .form = PREDICTION_DERIVATIVE,
                                      .evaluations = 1,
                                      .history = HISTORY,
                                      .no_zero_snr_reason = ZERO_SNR_REASON,
                                      .update = sampler_update_ipndm};
const struct sampler sampler_pndm = {.name = "pndm",
                                     .alias = "plms",
                                     .form = PREDICTION_OUTPUT,
                                     .evaluations = 1,
                                     .history = HISTORY + 1,
                                     .no_flow_reason = "PNDM is not defined for flow models",
                                     .no_zero_snr_reason = ZERO_SNR_REASON,
                                     .adjust_grid = repeat_second_point,
                                     .update = sampler_update_pndm};

/* ---- With the current estimate of the finished image: DDIM, Euler ancestral, DPM++ 2S ancestral, DPM++ SDE,
 * LCM and TCD ---- */

static void sampler_update_ddim(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    double ratio = (double)s->to.noise / (double)s->at.noise;
    struct term terms[] = {{ratio, u->sample},
                           {(double)s->to.signal - (double)s->at.signal * ratio, u->output}};
    update_sum(u->sample, u->n, terms, 2);
}

/* Weights of sample and predicted image in a step from `at` down to a sigma; `scale` multiplies the result.
 * The formula is also valid at signal 0. */
struct towards {
    double sample, picture;
};
static struct towards update_towards(const struct grid_point *at, double sigma, double scale) {
    return (struct towards){scale * sigma / (double)at->noise, scale * (1 - sigma / (double)at->sigma)};
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

/* DPM++ 2S's second evaluation is at the geometric mean of the sigma at which the step begins and the sigma
 * that the ancestral step goes down to; for flow models at the mean in log(signal / noise). */
static bool dpmpp_2s_a_point(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    const struct grid_step *s = &grid->step[step];
    (void)evaluation;
    if (!(s->to.noise > 0)) return false;
    double from = (double)s->at.sigma, down = update_ancestral(grid, from, (double)s->to.sigma).down;
    float sigma = 0.9999f;
    if (grid->form != GRID_FLOW)
        sigma = (float)(sqrt(from) * sqrt(down));
    else if (from < 1)
        sigma = (float)(1 / (exp((logit(from) + logit(down)) / 2) + 1));
    *at = grid_between(grid, step, sigma);
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
    if (!dpmpp_2s_a_point(u->grid, u->step, 1, &middle)) middle = s->to;
    struct towards t = update_towards(&s->at, (double)middle.sigma, update_scale(u->grid, &middle));
    update_sum(u->sample, u->n, (struct term[]){{t.sample, u->history[0]}, {t.picture, u->output}}, 2);
}

/* DPM++ SDE's second evaluation is at the geometric mean of the step's sigmas, in double. */
static bool sde_point(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
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
    if (!sde_point(u->grid, u->step, 1, &middle)) middle = s->to;
    step_ancestral(u, u->history[0], &s->at, &middle);
}

/* LCM: the predicted image, noised to the next level. The boundary condition of the model's distillation
 * (sigma_data 0.5, timestep_scaling 10) mixes in the sample. */
static void sampler_update_lcm(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    double t = 10 * (double)s->at.timestep, sum = t * t + 0.25, signal = (double)s->to.signal;
    bool bounded = u->solver->lcm_boundary_used;
    double of_sample = bounded ? 0.25 / sum * (double)s->at.input_scale : 0;
    double of_picture = bounded ? t / sqrt(sum) : 1;
    struct term terms[] = {
        {signal * of_sample, u->sample}, {signal * of_picture, u->output}, {(double)s->to.noise, u->noise}};
    update_sum(u->sample, u->n, terms, u->noise ? 3 : 2);
}

/* Gamma of TCD: how far below the next noise level a step goes before adding noise. */
#define TCD_GAMMA 0.3

/* TCD is computed for variance-preserving samples; variance-exploding samples are multiplied by `scale`. */
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
                                           .evaluation_point = dpmpp_2s_a_point,
                                           .update = sampler_update_2s_a};
const struct sampler sampler_dpmpp_sde = {.name = "dpm++_sde",
                                          .alias = "dpmpp_sde",
                                          .form = PREDICTION_DENOISED,
                                          .evaluations = 2,
                                          .history = 1,
                                          .draws_noise = NOISE_EVERY_EVALUATION,
                                          .no_flow_reason = "its noise is not defined for flow models",
                                          .evaluation_point = sde_point,
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

/* ---- Multistep solvers in log(signal / noise), with a history of predictions: DPM-Solver++ (Lu et al.
 * 2022), UniPC (Zhao et al. 2023) and DEIS (Zhang and Chen 2022), as in diffusers 0.42:
 * scheduling_dpmsolver_multistep.py, scheduling_unipc_multistep.py, scheduling_deis_multistep.py. At points
 * with signal 0 or noise 0 log(signal / noise) is infinite, but the updates stay finite. ---- */

/* log(signal / noise) of a noise level. */
static double log_snr(const struct grid_point *p) {
    return log((double)p->signal) - log((double)p->noise);
}

/* Runs with fewer steps than this use a lower order for their last steps, which are long (lower_order_final).
 */
enum { SHORT_RUN = 15 };

/* Order of the current step of DPM-Solver++ and DEIS. */
static int lowered_order(const struct sampler_update *u) {
    /* left: number of remaining steps, including this one. */
    int left = u->grid->n - u->step, order = u->solver->order;
    bool falls = !u->solver->no_lower_order_final && u->grid->n_total < SHORT_RUN;
    if (left == 1 && (u->solver->euler_at_final || falls || !(update_step(u)->to.noise > 0))) return 1;
    if (left == 2 && falls && order > 2) order = 2;
    return u->step + 1 < order ? u->step + 1 : order;
}

/* DPM-Solver++. h: the step's length in log(signal / noise); r0, r1: lengths of earlier steps / h; d0, d1,
 * d2: weights of the prediction and of the first and second divided differences of the predictions. The SDE
 * solver (draws_noise) decays the sample twice as far and adds noise. past: number of predictions to keep. */
static void dpmpp_update(const struct sampler_update *u, bool draws_noise, int past) {
    const struct grid_step *s = update_step(u);
    int order = lowered_order(u), n = 2;
    double now = log_snr(&s->at), before = order > 1 ? log_snr(&s[-1].at) : 0;
    double h = log_snr(&s->to) - now;
    double r0 = order > 1 ? (now - before) / h : 1;
    double r1 = order > 2 ? (before - log_snr(&s[-2].at)) / h : 1;

    double g = draws_noise ? 2 * h : h, fall = exp(-g) - 1, signal = (double)s->to.signal;
    double of_sample = (double)s->to.noise / (double)s->at.noise * (draws_noise ? exp(-h) : 1);
    double d0 = -signal * fall, d1 = 0, d2 = 0;
    double of_noise = draws_noise ? (double)s->to.noise * sqrt(1 - exp(-g)) : 0;
    if (order > 1) d1 = u->solver->heun || order > 2 ? signal * (fall / g + 1) : -0.5 * signal * fall;
    if (order > 2) d2 = -signal * ((fall + g) / (g * g) - 0.5);

    double first = order > 1 ? 1 / r0 : 0, second = order > 2 ? 1 / r1 : 0;
    double bend = order > 2 ? r0 / (r0 + r1) : 0, curve = order > 2 ? 1 / (r0 + r1) : 0;
    double newer = d1 * (1 + bend) + d2 * curve, older = -(d1 * bend + d2 * curve);
    struct term terms[5] = {{of_sample, u->sample}, {d0 + newer * first, u->output}};
    if (order > 1) terms[n++] = (struct term){older * second - newer * first, u->history[0]};
    if (order > 2) terms[n++] = (struct term){-older * second, u->history[1]};
    if (u->noise) terms[n++] = (struct term){of_noise, u->noise};
    update_sum(u->sample, u->n, terms, n);
    update_push(u->history, past, u->output, u->n);
}

static void sampler_update_2m(const struct sampler_update *u) {
    dpmpp_update(u, false, 1);
}

static void sampler_update_3m(const struct sampler_update *u) {
    dpmpp_update(u, false, 2);
}

static void sampler_update_2m_sde(const struct sampler_update *u) {
    dpmpp_update(u, true, 1);
}

enum { DEIS_ORDER_MAX = 3 };

/* Antiderivative of log(sigma)^power at a sigma. */
static double integral_of_log(double sigma, int power) {
    double l = log(sigma);
    return sigma * (power == 0 ? 1 : power == 1 ? l - 1 : l * l - 2 * l + 2);
}

/* Integral of log(sigma)^power over a step. */
static double over_step(const struct grid_step *s, int power) {
    return integral_of_log((double)s->to.sigma, power) - integral_of_log((double)s->at.sigma, power);
}

/* Weight of derivative j: the integral over the step of the j-th Lagrange basis polynomial in log(sigma). */
static double deis_weight(const struct grid_step *s, int order, int j) {
    double other[DEIS_ORDER_MAX] = {0}, at = log((double)s[-j].at.sigma), below = 1;
    int n = 0;
    for (int k = 0; k < order; k++) {
        if (k == j) continue;
        other[n] = log((double)s[-k].at.sigma);
        below *= at - other[n++];
    }
    if (order == 1) return (double)s->to.sigma - (double)s->at.sigma;
    if (order == 2) return (over_step(s, 1) - other[0] * over_step(s, 0)) / below;
    return (over_step(s, 2) - (other[0] + other[1]) * over_step(s, 1) +
            other[0] * other[1] * over_step(s, 0)) /
           below;
}

static void sampler_update_deis(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    double scale = update_scale(u->grid, &s->to);
    int order = lowered_order(u);
    struct term terms[DEIS_ORDER_MAX + 1] = {{scale / update_scale(u->grid, &s->at), u->sample}};
    for (int j = 0; j < order; j++)
        terms[j + 1] = (struct term){scale * deis_weight(s, order, j), j ? u->history[j - 1] : u->output};
    update_sum(u->sample, u->n, terms, order + 1);
    update_push(u->history, DEIS_ORDER_MAX - 1, u->output, u->n);
}

enum { UNIPC_ORDER_MAX = 3 };

/* Order of a step of UniPC: lower in the first steps, where predictions are missing, and in the last steps.
 */
static int unipc_order(const struct sampler_update *u, int step) {
    int left = u->grid->n - step, order = u->solver->order;
    if (!u->solver->no_lower_order_final && left < order) order = left;
    if (!(u->grid->step[step].to.noise > 0)) order = 1;
    return step + 1 < order ? step + 1 : order;
}

/* log(signal / noise) with signal at least 1e-6, as in diffusers for flow matching. */
static double unipc_log_snr(const struct grid_point *p) {
    return log(fmax((double)p->signal, 1e-6)) - log((double)p->noise);
}

/* Solves a rho = b, n x n, by Gaussian elimination; a is regular, because the columns of a are powers of
 * distinct values r. */
static void solve(double a[UNIPC_ORDER_MAX][UNIPC_ORDER_MAX], double *b, int n) {
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) {
            double factor = a[k][i] / a[i][i];
            for (int j = i; j < n; j++) a[k][j] -= factor * a[i][j];
            b[k] -= factor * b[i];
        }
    for (int i = n - 1; i >= 0; i--) {
        for (int j = i + 1; j < n; j++) b[i] -= a[i][j] * b[j];
        b[i] /= a[i][i];
    }
}

/* Coefficients of a UniPC predictor or corrector over one step. */
struct unipc {
    double h_phi_1, b_h;
    double r[UNIPC_ORDER_MAX],
        rho[UNIPC_ORDER_MAX]; /* r: positions of predictions in units of h; rho: their weights */
};

/* Computes the first n coefficients rho of UniPC. */
static void unipc_weights(const struct sampler_update *u, const struct grid_step *s, int order, int n,
                          struct unipc *c) {
    double now = unipc_log_snr(&s->at), h = unipc_log_snr(&s->to) - now, hh = -h,
           a[UNIPC_ORDER_MAX][UNIPC_ORDER_MAX];
    c->h_phi_1 = expm1(hh);
    c->b_h = u->solver->bh1 ? hh : c->h_phi_1;
    for (int i = 1; i < order; i++) c->r[i - 1] = (unipc_log_snr(&s[-i].at) - now) / h;
    c->r[order - 1] = 1;
    double phi = c->h_phi_1 / hh - 1, factorial = 1;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) a[i][k] = pow(c->r[k], i);
        c->rho[i] = phi * factorial / c->b_h;
        factorial *= i + 2;
        phi = phi / hh - 1 / factorial;
    }
    solve(a, c->rho, n);
}

/* Moves a sample by the prediction m0 and earlier predictions, all weighted and multiplied by b_h. newest:
 * for the corrector, the prediction at the end of the step; NULL for the predictor. */
static void unipc_move(const struct sampler_update *u, const struct grid_step *s, int order,
                       const struct unipc *c, const float *sample, const float *m0, float *const *before,
                       const float *newest) {
    double signal = (double)s->to.signal, of_m0 = -signal * c->h_phi_1, weight = -signal * c->b_h;
    struct term terms[TERMS_MAX] = {{(double)s->to.noise / (double)s->at.noise, sample}, {0, m0}};
    int n = 2;
    for (int i = 1; i < order; i++) {
        double factor = weight * c->rho[i - 1] / c->r[i - 1];
        terms[n++] = (struct term){factor, before[i - 1]};
        of_m0 -= factor;
    }
    if (newest) {
        terms[n++] = (struct term){weight * c->rho[order - 1], newest};
        of_m0 -= weight * c->rho[order - 1];
    }
    terms[1].factor = of_m0;
    update_sum(u->sample, u->n, terms, n);
}

/* UniPC: the corrector improves the current sample with the new prediction, then the predictor continues from
 * the corrected sample. history: the previous sample, then earlier predictions. */
static void sampler_update_unipc(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    float *last = u->history[0], *const *past = u->history + 1;
    struct unipc c;
    if (u->step) {
        int order = unipc_order(u, u->step - 1);
        unipc_weights(u, s - 1, order, order, &c);
        if (order == 1) c.rho[0] = 0.5;
        unipc_move(u, s - 1, order, &c, last, past[0], past + 1, u->output);
    }
    update_copy(last, u->sample, u->n);
    int order = unipc_order(u, u->step);
    unipc_weights(u, s, order, order - 1, &c);
    if (order == 2) c.rho[0] = 0.5;
    unipc_move(u, s, order, &c, last, u->output, past, NULL);
    update_push(past, UNIPC_ORDER_MAX, u->output, u->n);
}

#define SOLVER(title, other, is_of_order, remembers, noise, function)                                        \
    .name = title, .alias = other, .form = PREDICTION_DENOISED, .order = is_of_order, .evaluations = 1,      \
    .history = remembers, .draws_noise = noise, .update = function

const struct sampler sampler_dpmpp_2m = {SOLVER("dpm++2m", "dpmpp_2m", 2, 1, NOISE_NEVER, sampler_update_2m),
                                         .flow_schedule = &schedule_flow_dpm};
const struct sampler sampler_dpmpp_3m = {SOLVER("dpm++3m", NULL, 3, 2, NOISE_NEVER, sampler_update_3m),
                                         .flow_schedule = &schedule_flow_dpm};
const struct sampler sampler_dpmpp_2m_sde = {
    SOLVER("dpm++2m_sde", "dpmpp_2m_sde", 2, 1, NOISE_AT_STEP_END, sampler_update_2m_sde),
    .flow_schedule = &schedule_flow_dpm};
const struct sampler sampler_deis = {
    .name = "deis",
    .form = PREDICTION_DERIVATIVE,
    .order = 2,
    .evaluations = 1,
    .history = DEIS_ORDER_MAX - 1,
    .no_flow_reason = "it takes the logarithm of sigma, which is infinite at the first step of flow models",
    .no_zero_snr_reason = ZERO_SNR_REASON,
    .update = sampler_update_deis};
const struct sampler sampler_unipc = {
    SOLVER("unipc", "uni_pc", 2, 1 + UNIPC_ORDER_MAX, NOISE_NEVER, sampler_update_unipc),
    .flow_schedule = &schedule_flow_unipc};

const struct sampler *const samplers[] = {&sampler_euler,
                                          &sampler_euler_a,
                                          &sampler_heun,
                                          &sampler_dpm2,
                                          &sampler_dpm2_a,
                                          &sampler_dpmpp_2s_a,
                                          &sampler_dpmpp_2m,
                                          &sampler_dpmpp_3m,
                                          &sampler_dpmpp_2m_sde,
                                          &sampler_dpmpp_sde,
                                          &sampler_lms,
                                          &sampler_ipndm,
                                          &sampler_pndm,
                                          &sampler_ddim,
                                          &sampler_deis,
                                          &sampler_unipc,
                                          &sampler_lcm,
                                          &sampler_tcd,
                                          NULL};

enum status sampler_find(const char *name, const struct sampler **sampler, struct error *e) {
    char names[400] = "";
    size_t length = 0;
    for (const struct sampler *const *s = samplers; *s; s++) {
        if (!strcmp((*s)->name, name) || ((*s)->alias && !strcmp((*s)->alias, name))) {
            *sampler = *s;
            return OK;
        }
        if (length < sizeof names)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "",
                                       (*s)->name);
    }
    return error_set(e, USAGE, "unknown sampler (--sampler)" FOUND "%s" EXPECTED "%s", name, names);
}
