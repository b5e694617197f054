/* All schedules: flow matching, the schedules of diffusers' scheduler classes, and the named schedules of
 * stable-diffusion.cpp. Implements schedule.h. */
#include "engine/sample/schedule.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#define T TRAINED_TIMESTEPS

const char *const spacing_names[] = {
    [SPACING_LINSPACE] = "linspace", [SPACING_LEADING] = "leading", [SPACING_TRAILING] = "trailing", NULL};

/* Returns the training timestep of a sigma, for eps and v models. */
static float schedule_timestep(const struct schedule_options *options, double sigma) {
    return options->continuous_timesteps ? grid_continuous_timestep((float)sigma)
                                         : (float)noise_table_timestep(options->table, sigma);
}

/* Joins the grid's steps: each step ends where the next begins, and the last step ends at `end`. */
static void join(struct grid *grid, struct grid_point end) {
    for (int i = 0; i + 1 < grid->n; i++) grid->step[i].to = grid->step[i + 1].at;
    grid->step[grid->n - 1].to = end;
}

/* ---- The beta distribution ---- */

/* Continued fraction of the incomplete beta function by Lentz's method (Abramowitz and Stegun 26.5.8);
 * converges fast for x up to 1/2. */
static double continued_fraction(double x, double a) {
    double c = 1, d = 1 / (1 - x * 2 * a / (a + 1)), value = d;
    for (int m = 1; m < 500; m++) {
        double even = m * (a - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        double odd = -(a + m) * (2 * a + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 / (1 + even * d);
        c = 1 + even / c;
        value *= c * d;
        d = 1 / (1 + odd * d);
        c = 1 + odd / c;
        value *= c * d;
        if (fabs(c * d - 1) < DBL_EPSILON) break;
    }
    return value;
}

/* Logarithm of the gamma function. Not lgamma(), which is not thread-safe because of the global signgam. */
static double log_gamma(double x) {
    int sign;
    return lgamma_r(x, &sign);
}

/* Bisection in log(x) for quantiles below 1/2; exact to double after about 60 rounds. */
static double lower_quantile(double part, double a) {
    double log_beta = 2 * log_gamma(a) - log_gamma(2 * a), low = log(DBL_MIN), high = log(0.5);
    if (part <= 0) return 0;
    for (int i = 0; i < 64; i++) {
        double middle = (low + high) / 2;
        double x = exp(middle);
        double cumulative = exp(a * (log(x) + log1p(-x)) - log_beta) * continued_fraction(x, a) / a;
        *(cumulative < part ? &low : &high) = middle;
    }
    return exp((low + high) / 2);
}

/* Quantile function of the symmetric beta distribution: the x in [0, 1] with cumulative probability `part`
 * under beta(a, a), within 1e-12; a from 0.1 to 10. */
static double beta_quantile(double part, double a) {
    if (part == 0.5) return 0.5;
    return part < 0.5 ? lower_quantile(part, a) : 1 - lower_quantile(1 - part, a);
}

/* Largest and smallest sigma of sigma_spacing; the options sigma_max and sigma_min override them. */
struct ends {
    double from, to;
};

/* Sigma i of sigma_spacing (Karras, exponential or beta). */
static double spaced_sigma(const struct schedule_options *o, struct ends ends, int i) {
    double from = o->sigma_max > 0 ? o->sigma_max : ends.from, to = o->sigma_min > 0 ? o->sigma_min : ends.to;
    double part = linspace_numpy(0, 1, i, o->n);
    if (o->sigma_spacing == SIGMAS_KARRAS) {
        double root_from = pow(from, 1 / 7.0), root_to = pow(to, 1 / 7.0);
        return pow(root_from + part * (root_to - root_from), 7);
    }
    if (o->sigma_spacing == SIGMAS_BETA) return to + beta_quantile(1 - part, 0.6) * (from - to);
    return exp(linspace_numpy(log(from), log(to), i, o->n));
}

/* ---- Flow matching ---- */

/* The shift of flow matching: s u / (1 + (s - 1) u), in float32 or in double. */
static float shifted_f32(const struct schedule_options *o, float u) {
    return (float)o->shift * u / (1 + (float)(o->shift - 1) * u);
}

static double shifted(const struct schedule_options *o, double u) {
    return o->shift * u / (1 + (o->shift - 1) * u);
}

static void schedule_fill_flow(const struct schedule *self, const struct schedule_options *o,
                               struct grid *grid) {
    (void)self;
    int n = o->n;
    float s = (float)o->shift;
    *grid = (struct grid){.form = GRID_FLOW, .step = grid->step, .init_noise_sigma = 1, .n = n, .n_total = n};
    for (int i = 0; i < n; i++) {
        float u =
            o->grid_f64 ? (float)linspace_numpy(1, 1.0 / n, i, n) : linspace_torch(1, (float)(1.0 / n), i, n);
        if (o->sample_sigmas && n == o->n_sample_sigmas) u = o->sample_sigmas[i];
        float sigma = o->exponential_shift ? s / (s + (1 / u - 1)) : shifted_f32(o, u);
        if (o->shift_twice) {
            /* A diffusers scheduler whose pipeline passes no sigmas: evenly spaced between the largest and
             * the smallest timestep, then shifted. The two timesteps are already shifted, so the shift
             * applies twice. */
            double most = (double)shifted_f32(o, 1), least = (double)shifted_f32(o, 1.0f / T);
            sigma = (float)shifted(o, linspace_numpy(most * T, least * T, i, n) / T);
        }
        grid->step[i].at = grid_point_of_sigma(GRID_FLOW, sigma, sigma * 1000);
    }
    if (o->terminal > 0) {
        /* Stretches sigmas so that the last step begins at sigma `terminal`. A grid with one step, or whose
         * steps all begin at pure noise, stays unchanged. */
        float scale = (1 - grid->step[n - 1].at.sigma) / (float)(1 - o->terminal);
        for (int i = 0; i < n && scale > 0; i++) {
            float sigma = 1 - (1 - grid->step[i].at.sigma) / scale;
            grid->step[i].at = grid_point_of_sigma(GRID_FLOW, sigma, sigma * 1000);
        }
    }
    if (o->sigma_spacing == SIGMAS_BETA) {
        /* Replaces the sigmas by quantiles of the beta distribution between the first and the last sigma. */
        struct ends ends = {grid->step[0].at.sigma, grid->step[n - 1].at.sigma};
        for (int i = 0; i < n; i++) {
            float sigma = (float)spaced_sigma(o, ends, i);
            grid->step[i].at = grid_point_of_sigma(GRID_FLOW, sigma, sigma * 1000);
        }
    }
    join(grid, grid_point_of_sigma(GRID_FLOW, 0, 0));
}

static void schedule_fill_sigmas(const struct schedule *self, const struct schedule_options *o,
                                 struct grid *grid) {
    (void)self;
    *grid = (struct grid){
        .form = GRID_FLOW, .step = grid->step, .init_noise_sigma = 1, .n = o->n, .n_total = o->n};
    for (int i = 0; i < o->n; i++) {
        float sigma = (float)o->sigmas[i];
        grid->step[i].at = grid_point_of_sigma(GRID_FLOW, sigma, sigma * 1000);
    }
    join(grid, grid_point_of_sigma(GRID_FLOW, 0, 0));
}

enum { FLOW_UNIPC, FLOW_DPM };

/* Sigma i of use_flow_sigmas, before terminal stretching: evenly spaced from 1 to 1/1000 (UniPC) or from 0 to
 * 1 - 1/1000 (DPM-Solver++), then shifted. */
static double solver_flow_sigma(const struct schedule_options *o, bool dpm, int i) {
    double u = linspace_numpy(1, 1.0 / T, dpm ? o->n - i : i, o->n + 1);
    return shifted(o, dpm ? 1 - u : u);
}

/* Fills the grid of use_flow_sigmas (flow models with UniPC or DPM-Solver++). self->rule: FLOW_UNIPC or
 * FLOW_DPM. */
static void schedule_fill_solver_flow(const struct schedule *self, const struct schedule_options *o,
                                      struct grid *grid) {
    bool dpm = self->rule == FLOW_DPM;
    /* Subtracted from a sigma of 1, because log(signal / noise) is infinite at sigma 1. */
    const double NEARLY_ALL_NOISE = 1e-6;
    int n = o->n;
    double last = solver_flow_sigma(o, dpm, n - 1),
           stretch = o->terminal > 0 ? (1 - last) / (1 - o->terminal) : 0;
    *grid = (struct grid){.form = GRID_FLOW, .step = grid->step, .init_noise_sigma = 1, .n = n, .n_total = n};
    for (int i = 0; i < n; i++) {
        double sigma = solver_flow_sigma(o, dpm, i);
        if (stretch > 0) sigma = 1 - (1 - sigma) / stretch;
        if (!i && fabs(sigma - 1) < NEARLY_ALL_NOISE) sigma -= NEARLY_ALL_NOISE;
        grid->step[i].at = grid_point_of_sigma(GRID_FLOW, (float)sigma, (float)trunc(sigma * T));
    }
    join(grid, grid_point_of_sigma(GRID_FLOW, 0, 0));
}

const struct schedule schedule_flow = {.name = "flow",
                                       .class_name = "FlowMatchEulerDiscreteScheduler",
                                       .shift_key = "shift",
                                       .fill = schedule_fill_flow};
const struct schedule schedule_sigmas = {.name = "sigmas", .fill = schedule_fill_sigmas};
const struct schedule schedule_flow_unipc = {.name = "flow of UniPC",
                                             .shift_key = "flow_shift",
                                             .rule = FLOW_UNIPC,
                                             .fill = schedule_fill_solver_flow};
const struct schedule schedule_flow_dpm = {.name = "flow of DPM-Solver++",
                                           .shift_key = "flow_shift",
                                           .rule = FLOW_DPM,
                                           .fill = schedule_fill_solver_flow};

double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu) {
    double slope = (most_mu - base_mu) / (most_tokens - base_tokens);
    return exp((double)tokens * slope + (base_mu - slope * base_tokens));
}

double schedule_shift_flux2(int64_t tokens, int steps) {
    /* mu for 200 and for 10 steps; other numbers of steps interpolate linearly. Above 4300 tokens mu does not
     * depend on the steps. */
    double mu_200 = 0.00016927 * (double)tokens + 0.45666666;
    double mu_10 = 8.73809524e-05 * (double)tokens + 1.89833333, slope = (mu_200 - mu_10) / 190;
    return exp(tokens > 4300 ? mu_200 : slope * steps + (mu_200 - 200 * slope));
}

/* ---- Schedules of diffusers' scheduler classes, for eps and v models ---- */

/* Timestep i of n, descending. For `trailing` numpy.arange yields one value too many for some n (61, 103);
 * this function drops the extra value. */
static double spaced_timestep(const struct schedule_options *o, int i, int n) {
    if (o->spacing == SPACING_LINSPACE) return linspace_numpy(0, T - 1, n - 1 - i, n);
    if (o->spacing == SPACING_LEADING) return (n - 1 - i) * (T / n) + o->steps_offset;
    return rint(T + i * ((T - (double)T / n) - T)) - 1;
}

/* Initialises a grid of n steps. */
static struct grid *begin(const struct schedule_options *o, enum grid_form form, struct grid *grid) {
    *grid = (struct grid){.form = form,
                          .step = grid->step,
                          .init_noise_sigma = 1,
                          .continuous_timesteps = o->continuous_timesteps};
    grid->table = o->table;
    grid->n = grid->n_total = o->n;
    return grid;
}

static void schedule_fill_euler(const struct schedule *self, const struct schedule_options *o,
                                struct grid *grid) {
    (void)self;
    begin(o, GRID_VARIANCE_EXPLODING, grid);
    float largest = 0;
    struct ends ends = {noise_table_sigma(o->table, (double)(float)spaced_timestep(o, 0, o->n)),
                        noise_table_sigma(o->table, (double)(float)spaced_timestep(o, o->n - 1, o->n))};
    for (int i = 0; i < o->n; i++) {
        float timestep = (float)spaced_timestep(o, i, o->n);
        double sigma = noise_table_sigma(o->table, (double)timestep);
        if (o->sigma_spacing != SIGMAS_OF_TIMESTEPS) {
            sigma = spaced_sigma(o, ends, i);
            timestep = schedule_timestep(o, sigma);
        } else if (o->continuous_timesteps) {
            timestep = schedule_timestep(o, sigma);
        }
        if (o->sigma_spacing == SIGMAS_KARRAS && o->round_timesteps) timestep = rintf(timestep);
        grid->step[i].at = grid_point_of_sigma(grid->form, (float)sigma, timestep);
        if (grid->step[i].at.sigma > largest) largest = grid->step[i].at.sigma;
    }
    join(grid, grid_point_of_sigma(grid->form, o->final_sigma_min ? o->table->sigma[0] : 0, 0));
    grid->init_noise_sigma = o->spacing == SPACING_LEADING ? sqrtf(largest * largest + 1) : largest;
}

static void schedule_fill_solver(const struct schedule *self, const struct schedule_options *o,
                                 struct grid *grid) {
    (void)self;
    begin(o, GRID_VARIANCE_PRESERVING, grid);
    struct ends ends = {(double)o->table->sigma[T - 1], (double)o->table->sigma[0]};
    for (int i = 0; i < o->n; i++) {
        /* Takes n of n + 1 evenly spaced timesteps, without the last; `trailing` spaces n timesteps. */
        double timestep = o->spacing == SPACING_TRAILING ? spaced_timestep(o, i, o->n)
                                                         : rint(spaced_timestep(o, i, o->n + 1));
        double sigma = noise_table_sigma(o->table, timestep);
        if (o->sigma_spacing != SIGMAS_OF_TIMESTEPS) {
            sigma = spaced_sigma(o, ends, i);
            timestep = noise_table_timestep(o->table, sigma);
            if (o->sigma_spacing == SIGMAS_KARRAS) timestep = rint(timestep);
        }
        grid->step[i].at = grid_point_of_sigma(grid->form, (float)sigma, (float)trunc(timestep));
    }
    float least = o->final_sigma_of_spacing && o->sigma_spacing != SIGMAS_OF_TIMESTEPS
                      ? grid->step[o->n - 1].at.sigma
                      : o->table->sigma[0];
    join(grid, grid_point_of_sigma(grid->form, o->final_sigma_min ? least : 0, 0));
}

/* The training noise level of a timestep, at most 999. */
static struct grid_point trained(const struct schedule_options *o, double timestep) {
    int t = timestep > T - 1 ? T - 1 : (int)timestep;
    return grid_point_of_alpha(o->table->alpha[t], (float)t);
}

static void schedule_fill_ddpm(const struct schedule *self, const struct schedule_options *o,
                               struct grid *grid) {
    (void)self;
    begin(o, GRID_VARIANCE_PRESERVING, grid);
    for (int i = 0; i < o->n; i++) grid->step[i].at = trained(o, rint(spaced_timestep(o, i, o->n)));
    join(grid, grid_point_of_alpha(1, 0));
}

static void schedule_fill_ddim(const struct schedule *self, const struct schedule_options *o,
                               struct grid *grid) {
    schedule_fill_ddpm(self, o, grid);
    grid->timestep_stride = T / o->n;
    struct grid_point end = grid_point_of_alpha(o->set_alpha_to_one ? 1 : o->table->alpha[0], 0);
    for (int i = 0; i < o->n; i++) {
        int to = (int)grid->step[i].at.timestep - grid->timestep_stride;
        grid->step[i].to = to < 0 ? end : trained(o, to);
    }
}

static void schedule_fill_original_steps(const struct schedule *self, const struct schedule_options *o,
                                         struct grid *grid) {
    (void)self;
    begin(o, GRID_VARIANCE_PRESERVING, grid);
    for (int i = 0; i < o->n; i++) {
        int place = (int)floor(i * ((double)o->original_steps / o->n));
        grid->step[i].at = trained(o, (o->original_steps - place) * (T / o->original_steps) - 1);
    }
    join(grid, grid_point_of_alpha(1, 0));
}

const struct schedule schedule_diffusers_euler = {
    .name = "spaced", .steps_max = T, .fill = schedule_fill_euler};
const struct schedule schedule_diffusers_solver = {
    .name = "solver", .steps_max = T - 1, .fill = schedule_fill_solver};
const struct schedule schedule_diffusers_ddpm = {.name = "whole", .steps_max = T, .fill = schedule_fill_ddpm};
const struct schedule schedule_diffusers_ddim = {
    .name = "leaping", .steps_max = T, .fill = schedule_fill_ddim};
const struct schedule schedule_diffusers_lcm = {
    .name = "distilled", .steps_max = T, .fill = schedule_fill_original_steps};

/* ---- The named schedules of stable-diffusion.cpp, for eps, v and flow models ---- */

/* Sigmas of Sabour et al., "Align Your Steps" (2024), optimised for ten steps. */
const double ays_sigmas_sd1[AYS_SIGMAS] = {14.6146412293, 6.4745760956, 3.8636745985, 2.6946151520,
                                           1.8841921177,  1.3943805092, 0.9642583904, 0.6523686016,
                                           0.3977456272,  0.1515232662, 0.0291671582};
const double ays_sigmas_sdxl[AYS_SIGMAS] = {14.6146412293, 6.3184485287, 3.7681790315, 2.1811480769,
                                            1.3405244945,  0.8620721141, 0.5550693289, 0.3798540708,
                                            0.2332364134,  0.1114188177, 0.0291671582};

/* Point of an arctangent curve around a pivot step, scaled so that its values go from `from` to `to`. */
static double tangent(int i, int n, double slope, double pivot, double from, double to) {
    double first = atan(slope * pivot), last = atan(-slope * (n - 1 - pivot)), range = first - last;
    if (fabs(range) < 1e-8) return n == 1 ? from : from + (to - from) * i / (n - 1);
    return (atan(-slope * (i - pivot)) - last) / range * (from - to) + to;
}

/* Sigma of a timestep from 0 to 999. */
static double sigma_of(const struct schedule_options *o, double timestep) {
    return o->is_flow ? shifted(o, (timestep + 1) / T) : noise_table_sigma_of_log(o->table, timestep);
}

enum named_rule {
    DISCRETE,
    SGM_UNIFORM,
    SIMPLE,
    SMOOTHSTEP,
    BETA,
    LCM,
    KARRAS,
    EXPONENTIAL,
    KL_OPTIMAL,
    BONG_TANGENT,
    AYS,
};

/* Sigma i of n in a named schedule: the sigma of a timestep, or a formula between the largest and the
 * smallest sigma. */
static double named_sigma(const struct schedule_options *o, enum named_rule rule, int i) {
    int n = o->n, last = T - 1;
    double most = o->sigma_max > 0 ? o->sigma_max : sigma_of(o, last);
    double least = o->sigma_min > 0 ? o->sigma_min : sigma_of(o, 0);
    double part = n > 1 ? (double)i / (n - 1) : 0; /* position of the step in the run, 0 to 1 */
    switch (rule) {
    case DISCRETE:
        return sigma_of(o, last - last * part);
    case SGM_UNIFORM:
        return sigma_of(o, last - last * ((double)i / n));
    case SIMPLE:
        return sigma_of(o, last - (int)((float)i * ((float)T / (float)n)));
    case SMOOTHSTEP: {
        float u = 1 - (float)i / (float)n;
        return sigma_of(o, (double)roundf(u * u * (3 - 2 * u) * (float)last));
    }
    case BETA:
        return sigma_of(o, rint(beta_quantile(1 - (double)i / n, 0.6) * last));
    case LCM: /* the steps are among the 50 timesteps of LCM's distillation */
        return sigma_of(o, (50 - i * 50 / n) * 20 - 1);
    case KARRAS: {
        double from = pow(most, 1 / 7.0), to = pow(fmax(least, 1e-6), 1 / 7.0);
        return pow(from + part * (to - from), 7);
    }
    case EXPONENTIAL:
        return exp(log(most) + part * (log(least) - log(most)));
    case KL_OPTIMAL:
        return tan(part * atan(fmax(least, 1e-6)) + (1 - part) * atan(most));
    case BONG_TANGENT: {
        int all = n + 2, place = (int)((float)all * 0.6f), first = place - 1;
        double slope = 0.2 / (all / 40.0), middle = least + (most - least) / 2;
        if (i < first) return tangent(i, place, slope, place, most, middle);
        return tangent(i - first, all - place, slope, 0, middle, least);
    }
    case AYS: {
        double place = (double)i / n * (AYS_SIGMAS - 1);
        int low = (int)place < AYS_SIGMAS - 2 ? (int)place : AYS_SIGMAS - 2;
        double from = log(o->ays_sigmas[low]), to = log(o->ays_sigmas[low + 1]);
        return exp(from + (place - low) * (to - from));
    }
    }
    return 0;
}

/* A sigma that equals the previous sigma is dropped, because samplers divide by the step length; a run may
 * therefore have fewer steps than requested. */
static void schedule_fill_named(const struct schedule *self, const struct schedule_options *o,
                                struct grid *grid) {
    enum grid_form form = o->is_flow ? GRID_FLOW : GRID_VARIANCE_EXPLODING;
    *grid = (struct grid){
        .form = form, .step = grid->step, .table = o->table, .continuous_timesteps = o->continuous_timesteps};
    for (int i = 0; i < o->n; i++) {
        float sigma = (float)named_sigma(o, (enum named_rule)self->rule, i);
        if (grid->n && sigma == grid->step[grid->n - 1].at.sigma) continue;
        float timestep = o->is_flow ? sigma * 1000 : schedule_timestep(o, (double)sigma);
        grid->step[grid->n++].at = grid_point_of_sigma(form, sigma, timestep);
    }
    join(grid, grid_point_of_sigma(form, 0, 0));
    grid->n_total = grid->n;
    grid->init_noise_sigma = o->is_flow ? 1 : grid->step[0].at.sigma;
}

#define NAMED(title, other, most, number)                                                                    \
    &(const struct schedule) {                                                                               \
        .name = title, .alias = other, .steps_max = most, .rule = number, .fill = schedule_fill_named        \
    }

const struct schedule *const schedules[] = {NAMED("discrete", "normal", 0, DISCRETE),
                                            NAMED("karras", NULL, 0, KARRAS),
                                            NAMED("exponential", NULL, 0, EXPONENTIAL),
                                            NAMED("ays", "align_your_steps", 0, AYS),
                                            NAMED("sgm_uniform", NULL, 0, SGM_UNIFORM),
                                            NAMED("simple", NULL, 0, SIMPLE),
                                            NAMED("smoothstep", NULL, 0, SMOOTHSTEP),
                                            NAMED("kl_optimal", NULL, 0, KL_OPTIMAL),
                                            NAMED("lcm", NULL, 50, LCM),
                                            NAMED("bong_tangent", NULL, 0, BONG_TANGENT),
                                            NAMED("beta", NULL, 0, BETA),
                                            NULL};
