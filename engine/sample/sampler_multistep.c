/* Multistep solvers in log(signal / noise), with a history of predictions: DPM-Solver++ (Lu et al. 2022),
 * UniPC (Zhao et al. 2023) and DEIS (Zhang and Chen 2022), as in diffusers 0.42:
 * scheduling_dpmsolver_multistep.py, scheduling_unipc_multistep.py, scheduling_deis_multistep.py. At points
 * with signal 0 or noise 0 log(signal / noise) is infinite, but the updates stay finite. */
#include "engine/sample/schedule.h"
#include "engine/sample/sampler_update.h"

#include <math.h>
#include <stddef.h>

static double log_snr(const struct grid_point *p) {
    return log((double)p->signal) - log((double)p->noise);
}

/* Index of a step, counting the steps that img2img skips. */
static int step_of_total(const struct sampler_update *u) {
    return u->grid->n_total - u->grid->n + u->step;
}

/* Runs with fewer steps use a lower order for their last steps, which are long (lower_order_final). */
enum { SHORT_RUN = 15 };

static int lowered_order(const struct sampler_update *u) {
    int left = u->grid->n_total - step_of_total(u), order = u->solver->order;
    bool falls = !u->solver->no_lower_order_final && u->grid->n_total < SHORT_RUN;
    if (left == 1 && (u->solver->euler_at_final || falls || !(update_step(u)->to.noise > 0))) return 1;
    if (left == 2 && falls && order > 2) order = 2;
    return u->step + 1 < order ? u->step + 1 : order;
}

/* Coefficients of a DPM-Solver++ step: the step's length h in log(signal / noise), r = lengths of earlier
 * steps / h, and the weights of the sample, the prediction D0, the predictions' first and second differences
 * D1 and D2, and noise. */
struct dpmpp {
    double h, r0, r1;
    double sample, d0, d1, d2, noise;
};

static void dpmpp_measure(const struct sampler_update *u, int order, struct dpmpp *d) {
    const struct grid_step *s = update_step(u);
    double now = log_snr(&s->at), before = order > 1 ? log_snr(&s[-1].at) : 0;
    d->h = log_snr(&s->to) - now;
    d->r0 = order > 1 ? (now - before) / d->h : 1;
    d->r1 = order > 2 ? (before - log_snr(&s[-2].at)) / d->h : 1;
}

/* Weights of a DPM-Solver++ step. The SDE solver decays the sample twice as far and adds noise. */
static void dpmpp_weights(const struct sampler_update *u, int order, bool draws_noise, struct dpmpp *d) {
    const struct grid_step *s = update_step(u);
    double g = draws_noise ? 2 * d->h : d->h, fall = exp(-g) - 1, signal = (double)s->to.signal;
    d->sample = (double)s->to.noise / (double)s->at.noise * (draws_noise ? exp(-d->h) : 1);
    d->d0 = -signal * fall;
    d->d1 = d->d2 = 0;
    d->noise = draws_noise ? (double)s->to.noise * sqrt(1 - exp(-g)) : 0;
    if (order > 1) d->d1 = u->solver->heun || order > 2 ? signal * (fall / g + 1) : -0.5 * signal * fall;
    if (order > 2) d->d2 = -signal * ((fall + g) / (g * g) - 0.5);
}

/* Moves the sample by a DPM-Solver++ step. D1 and D2 are divided differences of the predictions m0 (newest),
 * m1, m2. */
static void dpmpp_move(const struct sampler_update *u, int order, const struct dpmpp *d) {
    double first = order > 1 ? 1 / d->r0 : 0, second = order > 2 ? 1 / d->r1 : 0;
    double bend = order > 2 ? d->r0 / (d->r0 + d->r1) : 0, curve = order > 2 ? 1 / (d->r0 + d->r1) : 0;
    double newer = d->d1 * (1 + bend) + d->d2 * curve, older = -(d->d1 * bend + d->d2 * curve);
    struct term terms[5] = {{d->sample, u->sample}, {d->d0 + newer * first, u->output}};
    int n = 2;
    if (order > 1) terms[n++] = (struct term){older * second - newer * first, u->history[0]};
    if (order > 2) terms[n++] = (struct term){-older * second, u->history[1]};
    if (u->noise) terms[n++] = (struct term){d->noise, u->noise};
    update_sum(u->sample, u->n, terms, n);
}

static void dpmpp_update(const struct sampler_update *u, bool draws_noise, int past) {
    struct dpmpp d;
    int order = lowered_order(u);
    dpmpp_measure(u, order, &d);
    dpmpp_weights(u, order, draws_noise, &d);
    dpmpp_move(u, order, &d);
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

/* Moves a sample by the prediction m0 and earlier predictions, all times b_h. newest: for the corrector, the
 * prediction at the end of the step; NULL for the predictor. */
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
    .no_zero_snr_reason = "its first step divides by the signal, which is 0 (zero terminal SNR)",
    .update = sampler_update_deis};
const struct sampler sampler_unipc = {
    SOLVER("unipc", "uni_pc", 2, 1 + UNIPC_ORDER_MAX, NOISE_NEVER, sampler_update_unipc),
    .flow_schedule = &schedule_flow_unipc};
