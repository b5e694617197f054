/* Derivative-based samplers: Euler, Heun, DPM2, DPM2 ancestral, LMS, iPNDM and PNDM. */
#include "engine/sample/sampler_update.h"

#include <math.h>

static void sampler_update_euler(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    update_along_derivative(u, u->sample, &s->at, &s->to, u->output);
}

/* Heun's second evaluation is at the end of the step. A step that ends without noise has no second
 * evaluation. */
static bool evaluation_at_end(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
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

static bool evaluation_at_middle(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
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
    evaluation_at_middle(u->grid, u->step, 1, &at);
    update_along_derivative(u, u->sample, &s->at, &at, u->output);
}

/* Sigma that an ancestral step goes down to before adding noise, computed in float32 as in diffusers. */
static float sigma_down(const struct grid_step *s) {
    float from = s->at.sigma * s->at.sigma, to = s->to.sigma * s->to.sigma;
    float up = sqrtf(to * (from - to) / from);
    return sqrtf(to - up * up);
}

static bool evaluation_above_down(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    const struct grid_step *s = &grid->step[step];
    (void)evaluation;
    if (!(s->to.noise > 0)) return false;
    *at = grid_between(grid, step, geometric_mean_f32(s->at.sigma, sigma_down(s)));
    return true;
}

static void sampler_update_dpm2_a(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    struct grid_point at = s->to;
    if (!u->evaluation) {
        update_copy(u->history[0], u->sample, u->n);
        evaluation_above_down(u->grid, u->step, 1, &at);
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

enum { HISTORY = 3 };

static void multistep_update(const struct sampler_update *u, const double *factor, int order) {
    const struct grid_step *s = update_step(u);
    double scale = update_scale(u->grid, &s->to);
    struct term terms[HISTORY + 2] = {{scale / update_scale(u->grid, &s->at), u->sample},
                                      {scale * factor[0], u->output}};
    for (int k = 1; k < order; k++) terms[k + 1] = (struct term){scale * factor[k], u->history[k - 1]};
    update_sum(u->sample, u->n, terms, order + 1);
    update_push(u->history, HISTORY, u->output, u->n);
}

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

/* The noise levels between which a PNDM step goes; step 1 repeats step 0 with the corrected derivative. */
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

#define ZERO_SNR_REASON "its first step divides by the signal, which is 0 (zero terminal SNR)"

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
                                     .evaluation_point = evaluation_at_end,
                                     .update = sampler_update_heun};
const struct sampler sampler_dpm2 = {.name = "dpm2",
                                     .alias = "dpm_2",
                                     .form = PREDICTION_DERIVATIVE,
                                     .evaluations = 2,
                                     .history = 1,
                                     .no_zero_snr_reason = ZERO_SNR_REASON,
                                     .evaluation_point = evaluation_at_middle,
                                     .update = sampler_update_dpm2};
const struct sampler sampler_dpm2_a = {.name = "dpm2_a",
                                       .alias = "dpm_2_ancestral",
                                       .form = PREDICTION_DERIVATIVE,
                                       .evaluations = 2,
                                       .history = 1,
                                       .draws_noise = NOISE_AT_STEP_END,
                                       .no_zero_snr_reason = ZERO_SNR_REASON,
                                       .evaluation_point = evaluation_above_down,
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
