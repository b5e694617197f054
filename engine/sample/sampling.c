/* Applies the sampling choices of a request, and the marker tensors of a model: implements sampling.h, with
 * scheduler_config.c. */
#include "engine/sample/sampling.h"

#include <stdio.h>
#include <string.h>

/* True for schedules that --scheduler can name; false for the model's own schedule. */
static bool is_named_schedule(const struct schedule *schedule) {
    const struct schedule *const *k = schedules;
    while (*k && *k != schedule) k++;
    return *k;
}

const char *sampling_schedule_name(const struct sampling *s) {
    if (is_named_schedule(s->schedule) || s->schedule == &schedule_sigmas) return s->schedule->name;
    return spacing_names[s->prediction->is_flow ? SPACING_LINSPACE : s->grid.spacing];
}

/* Applies --prediction, which overrides the recipe's prediction type. It can also make a flow model of an eps
 * or v model. */
static enum status choose_prediction(const char *name, struct sampling *s, struct error *e) {
    static const struct prediction *const added[] = {&prediction_eps, &prediction_v,
                                                     &prediction_flow_timestep};
    const struct prediction *own = s->prediction;
    if (!name || !strcmp(name, own->name)) return OK;
    for (size_t i = 0; i < sizeof added / sizeof *added && !own->is_flow; i++)
        if (!strcmp(name, added[i]->name)) s->prediction = added[i];
    if (s->prediction == own)
        return error_set(e, USAGE,
                         "this model cannot use that prediction type (--prediction)" FOUND "%s" EXPECTED "%s",
                         name, own->is_flow ? "flow: this is a flow model" : "eps, v or flow");
    if (!s->prediction->is_flow) return OK;
    s->schedule = &schedule_flow;
    if (s->sampler->no_flow_reason) s->sampler = &sampler_euler;
    s->noise = (struct training_noise){0};
    return OK;
}

/* False for schedules that the model cannot use: "ays" needs published sigmas for the model; models with
 * continuous timesteps (EDM) only take schedules that need no timesteps. */
static bool schedule_applies(const struct schedule *schedule, const struct sampling *s) {
    static const char *const between_ends[] = {"karras", "exponential", "kl_optimal", "bong_tangent", NULL};
    if (!strcmp(schedule->name, "ays")) return s->grid.ays_sigmas && !s->prediction->is_flow;
    if (!s->grid.continuous_timesteps) return true;
    for (int i = 0; between_ends[i]; i++)
        if (!strcmp(schedule->name, between_ends[i])) return true;
    return false;
}

/* Fails with USAGE; the error lists the --scheduler values that the model can use. */
static enum status unknown_schedule(const struct sampling *s, const char *name, struct error *e) {
    char names[300] = "linspace";
    size_t length = strlen(names);
    if (!s->prediction->is_flow)
        length = (size_t)snprintf(names, sizeof names, "linspace, leading, trailing");
    for (const struct schedule *const *k = schedules; *k && length < sizeof names; k++)
        if (schedule_applies(*k, s))
            length += (size_t)snprintf(names + length, sizeof names - length, ", %s", (*k)->name);
    return error_set(e, USAGE, "unknown schedule for this model (--scheduler)" FOUND "%s" EXPECTED "%s", name,
                     names);
}

/* Applies --scheduler: a timestep spacing for the model's own schedule, or a named schedule. */
static enum status choose_schedule(const char *name, struct sampling *s, struct error *e) {
    if (!name) return OK;
    for (int i = 0; spacing_names[i]; i++) {
        /* flow models accept only the spacing linspace */
        if (strcmp(name, spacing_names[i]) || (s->prediction->is_flow && i != SPACING_LINSPACE)) continue;
        s->grid.spacing = (enum spacing)i;
        s->grid.sigma_spacing = SIGMAS_OF_TIMESTEPS;
        if (s->schedule == &schedule_diffusers_lcm) s->schedule = &schedule_diffusers_ddim;
        return OK;
    }
    for (const struct schedule *const *k = schedules; *k; k++) {
        bool named = !strcmp(name, (*k)->name) || ((*k)->alias && !strcmp(name, (*k)->alias));
        if (!named || !schedule_applies(*k, s)) continue;
        s->schedule = *k;
        s->solver.lcm_boundary_used = false;
        return OK;
    }
    return unknown_schedule(s, name, e);
}

enum status sampling_check_sigmas(const char *flag, const double *sigmas, int n, struct error *e) {
    if (n < 1)
        return error_set(e, USAGE,
                         "%s has no sigmas" EXPECTED "1 or more decreasing numbers above 0, up to 1", flag);
    for (int i = 0; i < n; i++) {
        if (!(sigmas[i] > 0 && sigmas[i] <= 1))
            return error_set(e, USAGE,
                             "invalid value for %s" WHERE "sigma %d" FOUND "%g" EXPECTED
                             "a number above 0, to 1; the final 0 is implied",
                             flag, i + 1, sigmas[i]);
        if (i && (float)sigmas[i] >= (float)sigmas[i - 1])
            return error_set(e, USAGE,
                             "the values of %s must decrease" WHERE "sigma %d" FOUND "%g after %g" EXPECTED
                             "a smaller sigma",
                             flag, i + 1, sigmas[i], sigmas[i - 1]);
    }
    return OK;
}

/* Applies --sigmas, which replace the schedule of a flow model. */
static enum status choose_sigmas(const struct sampling_choice *choice, struct sampling *s, struct error *e) {
    if (!choice->sigmas) return OK;
    if (!s->prediction->is_flow)
        return error_set(e, USAGE,
                         "--sigmas needs a flow model" FOUND "a model with %s prediction" EXPECTED
                         "no --sigmas: --scheduler chooses the noise levels",
                         s->prediction->name);
    if (choice->schedule)
        return error_set(e, USAGE,
                         "--sigmas cannot be combined with --scheduler" FOUND "--scheduler %s" EXPECTED
                         "one of the two",
                         choice->schedule);
    s->schedule = &schedule_sigmas;
    s->grid.sigmas = choice->sigmas;
    return sampling_check_sigmas("--sigmas", choice->sigmas, choice->steps, e);
}

/* Refuses a sampler that does not support the model: flow matching, zero terminal SNR, or no timesteps (EDM).
 */
static enum status check_sampler(const struct sampling *s, struct error *e) {
    const char *why = s->prediction->is_flow ? s->sampler->no_flow_reason : NULL;
    if (!why && s->noise.rescale_zero_snr == ZERO_SNR_EXACT) why = s->sampler->no_zero_snr_reason;
    if (s->grid.continuous_timesteps && s->sampler->needs_timesteps)
        why = "it needs timesteps from 0 to 999, and this model (EDM) has none";
    if (!why) return OK;
    return error_set(e, USAGE, "the sampler cannot be used with this model: %s" FOUND "%s" EXPECTED "%s", why,
                     s->sampler->name,
                     s->prediction->is_flow ? "euler, or another sampler for flow models"
                                            : "ddim, euler_a, dpm++2m or lcm");
}

enum status sampling_choose(const struct sampling_choice *choice, struct sampling *s, struct error *e) {
    if (choose_prediction(choice->prediction, s, e) != OK) return e->code;
    if (choose_schedule(choice->schedule, s, e) != OK) return e->code;
    const struct sampler *own = s->sampler;
    if (choice->sampler && sampler_find(choice->sampler, &s->sampler, e) != OK) return e->code;
    if (s->sampler != own || !s->solver.order) s->solver.order = s->sampler->order;
    if (s->grid_from_class && !is_named_schedule(s->schedule))
        s->schedule = s->sampler->flow_schedule ? s->sampler->flow_schedule : &schedule_flow;
    if (choose_sigmas(choice, s, e) != OK || check_sampler(s, e) != OK) return e->code;
    int most = s->schedule->steps_max;
    if (s->schedule == &schedule_diffusers_lcm && s->grid.original_steps < most)
        most = s->grid.original_steps;
    if (!most || choice->steps <= most) return OK;
    return error_set(e, USAGE, "too many steps for this schedule (--steps)" FOUND "%d" EXPECTED "at most %d",
                     choice->steps, most);
}

int sampling_first_step(const struct sampling *sampling, int n, double strength) {
    double left = n * strength < n ? n * strength : n;
    return sampling->prediction->is_flow ? (int)(n - left) : n - (int)left;
}

void sampling_fill(const struct sampling *sampling, const struct schedule_options *options,
                   struct grid *grid) {
    sampling->schedule->fill(sampling->schedule, options, grid);
    if (sampling->sampler->adjust_grid) sampling->sampler->adjust_grid(grid);
}

enum status sampling_detect(sampling_has_tensor *has, void *user, struct sampling *sampling,
                            struct error *e) {
    bool edm = has(user, "edm_vpred.sigma_max");
    if (has(user, "edm_mean"))
        return error_set(e, UNSUPPORTED,
                         "unsupported model: its latents are scaled differently (Playground 2.5)" FOUND
                         "the tensor edm_mean");
    if (!edm && !has(user, "v_pred")) return OK;
    sampling->prediction = &prediction_v;
    if (edm) { /* EDM: sigmas from 0.002 to 120, timesteps are log(sigma) / 4 */
        sampling->schedule = &schedule_diffusers_euler;
        sampling->sampler = &sampler_euler;
        sampling->grid.sigma_spacing = SIGMAS_EXPONENTIAL;
        sampling->grid.continuous_timesteps = true;
        sampling->grid.sigma_min = 0.002;
        sampling->grid.sigma_max = 120;
    }
    if (has(user, "ztsnr")) sampling->noise.rescale_zero_snr = ZERO_SNR_CLAMPED;
    return OK;
}
