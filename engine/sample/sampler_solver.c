/* Samplers that solve in the logarithm of signal / noise and remember past pictures: DPM-Solver++ (Lu et al.
 * 2022), UniPC (Zhao et al. 2023) and, of past derivatives, DEIS (Zhang and Chen 2022), as diffusers 0.42 has
 * them: scheduling_dpmsolver_multistep.py, scheduling_unipc_multistep.py, scheduling_deis_multistep.py.
 * Points without signal or noise are infinitely far; what follows from that is finite. */
#include "engine/sample/schedule.h"
#include "engine/sample/update.h"

#include <math.h>
#include <stddef.h>

static double log_snr(const struct grid_point *p) {
    return log((double)p->signal) - log((double)p->noise);
}

/* Of all steps, those left out too. */
static int place_in_whole(const struct sampler_update *u) {
    return u->grid->n_whole - u->grid->n + u->step;
}

/* Orders fall towards the end of short runs: steps are long there. */
enum { SHORT_RUN = 15 };

/* Of DPM-Solver++ and DEIS. */
static int falling_order(const struct sampler_update *u) {
    int left = u->grid->n_whole - place_in_whole(u), order = u->solver->order;
    bool falls = !u->solver->same_order_final && u->grid->n_whole < SHORT_RUN;
    if (left == 1 && (u->solver->euler_at_final || falls || !(update_step(u)->to.noise > 0))) return 1;
    if (left == 2 && falls && order > 2) order = 2;
    return u->step + 1 < order ? u->step + 1 : order;
}

/* ---- DPM-Solver++ ---- */

/* How far a step goes, h; of the ones before r = their h / this; and what it makes of pictures: of D0, of the
 * first difference D1, of the second D2. */
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

/* The stochastic solver falls twice as far as it goes, and makes up for it by noise. */
static void dpmpp_weigh(const struct sampler_update *u, int order, bool draws, struct dpmpp *d) {
    const struct grid_step *s = update_step(u);
    double g = draws ? 2 * d->h : d->h, fall = exp(-g) - 1, signal = (double)s->to.signal;
    d->sample = (double)s->to.noise / (double)s->at.noise * (draws ? exp(-d->h) : 1);
    d->d0 = -signal * fall;
    d->d1 = d->d2 = 0;
    d->noise = draws ? (double)s->to.noise * sqrt(1 - exp(-g)) : 0;
    if (order > 1) d->d1 = u->solver->heun || order > 2 ? signal * (fall / g + 1) : -0.5 * signal * fall;
    if (order > 2) d->d2 = -signal * ((fall + g) / (g * g) - 0.5);
}

/* D1 and D2 are differences of the pictures m0, m1, m2 over r. */
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

static void dpmpp_update(const struct sampler_update *u, bool draws, int past) {
    struct dpmpp d;
    int order = falling_order(u);
    dpmpp_measure(u, order, &d);
    dpmpp_weigh(u, order, draws, &d);
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

/* ---- DEIS ---- */

enum { DEIS_ORDER_MAX = 3 };

/* The integral of log(sigma)^power to that sigma. */
static double integral_of_log(double sigma, int power) {
    double l = log(sigma);
    return sigma * (power == 0 ? 1 : power == 1 ? l - 1 : l * l - 2 * l + 2);
}

static double over_step(const struct grid_step *s, int power) {
    return integral_of_log((double)s->to.sigma, power) - integral_of_log((double)s->at.sigma, power);
}

/* Over the step, of the polynomial in log(sigma) that is 1 where derivative j is of, and 0 at the others. */
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
    int order = falling_order(u);
    struct term terms[DEIS_ORDER_MAX + 1] = {{scale / update_scale(u->grid, &s->at), u->sample}};
    for (int j = 0; j < order; j++)
        terms[j + 1] = (struct term){scale * deis_weight(s, order, j), j ? u->history[j - 1] : u->output};
    update_sum(u->sample, u->n, terms, order + 1);
    update_push(u->history, DEIS_ORDER_MAX - 1, u->output, u->n);
}

/* ---- UniPC ---- */

enum { UNIPC_ORDER_MAX = 3 };

static int unipc_order(const struct sampler_update *u, int step) {
    int left = u->grid->n - step, order = u->solver->order;
    if (!u->solver->same_order_final && left < order) order = left;
    if (!(u->grid->step[step].to.noise > 0)) order = 1;
    return step + 1 < order ? step + 1 : order;
}

/* Points of flow matching without signal are taken to have a millionth, as diffusers has it. */
static double unipc_log_snr(const struct grid_point *p) {
    return log(fmax((double)p->signal, 1e-6)) - log((double)p->noise);
}

/* Solves a rho = b, of n rows, by Gauss' elimination; r's powers make it regular. */
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

/* A move from step number `from` to where the next begins, by so many pictures. */
struct unipc {
    double h_phi_1, b_h;
    double r[UNIPC_ORDER_MAX], rho[UNIPC_ORDER_MAX]; /* r: of the pictures before; the last is 1 */
};

/* rho of the first n of them. */
static void unipc_weigh(const struct sampler_update *u, const struct grid_step *s, int order, int n,
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

/* x := the move from a sample by the picture m0 and those before it, all times b_h; newest: the picture at
 * the end, which the corrector knows. */
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

/* The corrector makes the sample that this picture was evaluated at better by it; the predictor goes on from
 * there. history: the last sample, past pictures. */
static void sampler_update_unipc(const struct sampler_update *u) {
    const struct grid_step *s = update_step(u);
    float *last = u->history[0], *const *past = u->history + 1;
    struct unipc c;
    if (u->step) {
        int order = unipc_order(u, u->step - 1);
        unipc_weigh(u, s - 1, order, order, &c);
        if (order == 1) c.rho[0] = 0.5;
        unipc_move(u, s - 1, order, &c, last, past[0], past + 1, u->output);
    }
    update_keep(last, u->sample, u->n);
    int order = unipc_order(u, u->step);
    unipc_weigh(u, s, order, order - 1, &c);
    if (order == 2) c.rho[0] = 0.5;
    unipc_move(u, s, order, &c, last, u->output, past, NULL);
    update_push(past, UNIPC_ORDER_MAX, u->output, u->n);
}

/* ---- the table ---- */

#define SOLVER(title, other, is_of_order, remembers, noise, function)                                        \
    .name = title, .alias = other, .form = PREDICTION_DENOISED, .order = is_of_order, .evaluations = 1,      \
    .history = remembers, .draws = noise, .update = function

const struct sampler sampler_dpmpp_2m = {
    SOLVER("dpm++2m", "dpmpp_2m", 2, 1, DRAWS_NOTHING, sampler_update_2m), .flow = &schedule_flow_dpm};
const struct sampler sampler_dpmpp_3m = {SOLVER("dpm++3m", NULL, 3, 2, DRAWS_NOTHING, sampler_update_3m),
                                         .flow = &schedule_flow_dpm};
const struct sampler sampler_dpmpp_2m_sde = {
    SOLVER("dpm++2m_sde", "dpmpp_2m_sde", 2, 1, DRAWS_AT_ENDS, sampler_update_2m_sde),
    .flow = &schedule_flow_dpm};
const struct sampler sampler_deis = {
    .name = "deis",
    .form = PREDICTION_DERIVATIVE,
    .order = 2,
    .evaluations = 1,
    .history = DEIS_ORDER_MAX - 1,
    .lacks_mixing = "it takes logarithms of noise for one of picture, where flow models have none at first",
    .lacks_bare_noise = "it divides by what the first step has left of the picture, which is nothing",
    .update = sampler_update_deis};
const struct sampler sampler_unipc = {
    SOLVER("unipc", "uni_pc", 2, 1 + UNIPC_ORDER_MAX, DRAWS_NOTHING, sampler_update_unipc),
    .flow = &schedule_flow_unipc};
