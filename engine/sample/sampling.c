/* Sampling: see sampling.h. */
#include "engine/sample/sampling.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

static bool is_called(const char *given, const char *name, const char *alias) {
    return !strcmp(given, name) || (alias && !strcmp(given, alias));
}

/* Not the model's own. */
static bool is_named(const struct schedule *schedule) {
    const struct schedule *const *k = schedules;
    while (*k && *k != schedule) k++;
    return *k;
}

const char *sampling_schedule_name(const struct sampling *s) {
    if (is_named(s->schedule)) return s->schedule->name;
    return spacing_names[s->prediction->mixes ? SPACING_LINSPACE : s->grid.spacing];
}

/* ---- what a request chooses ---- */

static enum status choose_prediction(const char *name, struct sampling *s, struct error *e) {
    static const struct prediction *const added[] = {&prediction_eps, &prediction_v,
                                                     &prediction_flow_of_timestep};
    const struct prediction *own = s->prediction;
    if (!name || !strcmp(name, own->name)) return OK;
    for (size_t i = 0; i < sizeof added / sizeof *added && !own->mixes; i++)
        if (!strcmp(name, added[i]->name)) s->prediction = added[i];
    if (s->prediction == own) {
        error_set(e, USAGE, "the model does not predict that (--prediction)");
        error_found(e, "%s", name);
        return error_expected(e, own->mixes ? "flow: this is a flow model" : "eps, v or flow");
    }
    if (!s->prediction->mixes) return OK;
    s->schedule = &schedule_flow;
    if (s->sampler->lacks_mixing) s->sampler = &sampler_euler;
    s->noise = (struct noise_settings){0};
    return OK;
}

/* The model's own with that spacing; of flow models' there is one. */
static bool choose_spacing(const char *name, struct sampling *s) {
    for (int i = 0; spacing_names[i]; i++) {
        if (strcmp(name, spacing_names[i]) || (s->prediction->mixes && i != SPACING_LINSPACE)) continue;
        s->grid.spacing = (enum spacing)i;
        s->grid.spread = SPREAD_NONE;
        if (s->schedule == &schedule_distilled) s->schedule = &schedule_leaping;
        return true;
    }
    return false;
}

/* Levels that somebody optimised for a model are for that; models that are told the level itself, and not a
 * timestep, have no timesteps that schedules could be made of. */
static bool makes_sense(const struct schedule *schedule, const struct sampling *s) {
    static const char *const between_ends[] = {"karras", "exponential", "kl_optimal", "bong_tangent", NULL};
    if (!strcmp(schedule->name, "ays")) return s->grid.aligned && !s->prediction->mixes;
    if (!s->grid.continuous) return true;
    for (int i = 0; between_ends[i]; i++)
        if (!strcmp(schedule->name, between_ends[i])) return true;
    return false;
}

static enum status no_schedule(const struct sampling *s, const char *name, struct error *e) {
    char names[300] = "linspace";
    size_t length = strlen(names);
    if (!s->prediction->mixes) length = (size_t)snprintf(names, sizeof names, "linspace, leading, trailing");
    for (const struct schedule *const *k = schedules; *k && length < sizeof names; k++)
        if (makes_sense(*k, s))
            length += (size_t)snprintf(names + length, sizeof names - length, ", %s", (*k)->name);
    error_set(e, USAGE, "there is no such schedule for this model (--scheduler)");
    error_found(e, "%s", name);
    return error_expected(e, "%s", names);
}

static enum status choose_schedule(const char *name, struct sampling *s, struct error *e) {
    if (!name || choose_spacing(name, s)) return OK;
    for (const struct schedule *const *k = schedules; *k; k++) {
        if (!is_called(name, (*k)->name, (*k)->alias) || !makes_sense(*k, s)) continue;
        s->schedule = *k;
        s->solver.at_boundary = false;
        return OK;
    }
    return no_schedule(s, name, e);
}

/* Nothing of the picture is there where it begins: in the table's last entry, and if that is taken. */
static bool begins_bare(const struct sampling *s) {
    return s->noise.zero_snr == ZERO_SNR_WHOLLY;
}

static enum status check_sampler(const struct sampling *s, struct error *e) {
    const char *why = s->prediction->mixes ? s->sampler->lacks_mixing : NULL;
    if (!why && begins_bare(s)) why = s->sampler->lacks_bare_noise;
    if (s->grid.continuous && s->sampler->counts_timesteps)
        why = "it counts timesteps, and the model is told the level of noise itself";
    if (!why) return OK;
    error_set(e, USAGE, "the sampler cannot be used with this model: %s", why);
    error_found(e, "%s", s->sampler->name);
    return error_expected(e, s->prediction->mixes ? "euler, or another that flow models have"
                                                  : "ddim, euler_a, dpm++2m or lcm");
}

static enum status check_steps(const struct sampling *s, int steps, struct error *e) {
    int most = s->schedule->steps_max;
    if (s->schedule == &schedule_distilled && s->grid.original_steps < most) most = s->grid.original_steps;
    if (!most || steps <= most) return OK;
    error_set(e, USAGE, "the schedule has not so many steps (--steps)");
    error_found(e, "%d", steps);
    return error_expected(e, "at most %d", most);
}

enum status sampling_choose(const struct sampling_choice *choice, struct sampling *s, struct error *e) {
    if (choose_prediction(choice->prediction, s, e) != OK) return e->code;
    if (choose_schedule(choice->schedule, s, e) != OK) return e->code;
    const struct sampler *own = s->sampler;
    if (choice->sampler && sampler_find(choice->sampler, &s->sampler, e) != OK) return e->code;
    if (s->sampler != own || !s->solver.order) s->solver.order = s->sampler->order;
    if (s->grid_of_class && !is_named(s->schedule))
        s->schedule = s->sampler->flow ? s->sampler->flow : &schedule_flow;
    if (check_sampler(s, e) != OK) return e->code;
    return check_steps(s, choice->steps, e);
}

/* ---- the grid ---- */

int sampling_first_step(const struct sampling *sampling, int n, double strength) {
    double left = n * strength < n ? n * strength : n;
    return sampling->prediction->mixes ? (int)(n - left) : n - (int)left;
}

void sampling_fill(const struct sampling *sampling, const struct schedule_options *options,
                   struct grid *grid) {
    sampling->schedule->fill(options, grid);
    if (sampling->sampler->arrange) sampling->sampler->arrange(grid);
}

/* ---- what a file says ---- */

/* EDM models see noise from 0.002 to 120, told its logarithm. */
static void recognise_edm(struct sampling *s) {
    s->schedule = &schedule_spaced;
    s->sampler = &sampler_euler;
    s->grid.spread = SPREAD_EXPONENTIAL;
    s->grid.continuous = true;
    s->grid.sigma_min = 0.002;
    s->grid.sigma_max = 120;
}

enum status sampling_recognise(sampling_has *has, void *user, struct sampling *sampling, struct error *e) {
    bool edm = has(user, "edm_vpred.sigma_max");
    if (has(user, "edm_mean")) {
        error_set(e, UNSUPPORTED, "the model sees pictures of another variance, as Playground 2.5 does");
        return error_found(e, "a tensor edm_mean");
    }
    if (!edm && !has(user, "v_pred")) return OK;
    sampling->prediction = &prediction_v;
    if (edm) recognise_edm(sampling);
    if (has(user, "ztsnr")) sampling->noise.zero_snr = ZERO_SNR_NEARLY;
    return OK;
}
