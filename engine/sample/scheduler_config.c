/* scheduler_config.json: see sampling.h. Classes, their keys and defaults are those
 * of diffusers 0.42, schedulers/. */
#include "engine/sample/sampling.h"

#include <string.h>

/* What a class reads beside what all read. */
enum {
    READS_SPREADS = 1 << 0,     /* use_karras_sigmas, use_exponential_sigmas, use_beta_sigmas */
    READS_FINAL_SIGMA = 1 << 1, /* final_sigmas_type */
    READS_ENDS = 1 << 2,        /* sigma_min, sigma_max */
    READS_CONTINUOUS = 1 << 3,  /* timestep_type */
    READS_DPM = 1 << 4,         /* algorithm_type and what belongs to it */
    READS_UNIPC = 1 << 5,
    READS_DEIS = 1 << 15,
    READS_PRK = 1 << 6,       /* skip_prk_steps, false by default */
    READS_ALPHA_ONE = 1 << 7, /* set_alpha_to_one */
    READS_CLIP = 1 << 8,      /* clip_sample */
    READS_DISTILLED = 1 << 9, /* original_inference_steps */
    ROUNDS_TIMESTEPS = 1 << 10,
    ALPHA_IS_ONE = 1 << 11,   /* set_alpha_to_one is true by default */
    CLIPS = 1 << 12,          /* clip_sample is */
    STABLE_BETAS = 1 << 13,   /* beta_start and beta_end are Stable Diffusion's by default */
    SCALED_BETAS = 1 << 14,   /* beta_schedule is scaled_linear by default */
    READS_VARIANCE = 1 << 16, /* variance_type */
    READS_FLOW = 1 << 17,     /* flow matching, which it may be asked for by use_flow_sigmas */
};

struct scheduler_class {
    const char *name;
    const struct schedule *schedule; /* NULL: it adds no noise */
    const struct sampler *sampler;
    enum spacing spacing;   /* the default */
    enum zero_snr zero_snr; /* what rescale_betas_zero_snr means; NO: it is not read */
    unsigned reads;
};

#define EULER_READS   (READS_SPREADS | READS_FINAL_SIGMA | READS_ENDS | READS_CONTINUOUS)
#define TWICE_READS   (READS_SPREADS | STABLE_BETAS)
#define LEAPING_READS (READS_ALPHA_ONE | ALPHA_IS_ONE | READS_CLIP | CLIPS)
#define LCM_READS     (READS_CLIP | READS_DISTILLED | STABLE_BETAS | SCALED_BETAS)

static const struct scheduler_class classes[] = {
    {"FlowMatchEulerDiscreteScheduler", NULL, &sampler_euler, SPACING_LINSPACE, ZERO_SNR_NO, READS_FLOW},
    {"EulerDiscreteScheduler", &schedule_spaced, &sampler_euler, SPACING_LINSPACE, ZERO_SNR_NEARLY,
     EULER_READS},
    {"EulerAncestralDiscreteScheduler", &schedule_spaced, &sampler_euler_a, SPACING_LINSPACE, ZERO_SNR_NEARLY,
     0},
    {"HeunDiscreteScheduler", &schedule_spaced, &sampler_heun, SPACING_LINSPACE, ZERO_SNR_NO,
     TWICE_READS | READS_CLIP},
    {"KDPM2DiscreteScheduler", &schedule_spaced, &sampler_dpm2, SPACING_LINSPACE, ZERO_SNR_NO,
     TWICE_READS | ROUNDS_TIMESTEPS},
    {"KDPM2AncestralDiscreteScheduler", &schedule_spaced, &sampler_dpm2_a, SPACING_LINSPACE, ZERO_SNR_NO,
     TWICE_READS | ROUNDS_TIMESTEPS},
    {"LMSDiscreteScheduler", &schedule_spaced, &sampler_lms, SPACING_LINSPACE, ZERO_SNR_NO, READS_SPREADS},
    {"DPMSolverMultistepScheduler", &schedule_solver, &sampler_dpmpp_2m, SPACING_LINSPACE, ZERO_SNR_NEARLY,
     READS_SPREADS | READS_FINAL_SIGMA | READS_DPM | READS_FLOW},
    {"UniPCMultistepScheduler", &schedule_solver, &sampler_unipc, SPACING_LINSPACE, ZERO_SNR_NEARLY,
     READS_SPREADS | READS_FINAL_SIGMA | READS_ENDS | READS_UNIPC | READS_FLOW},
    {"DEISMultistepScheduler", &schedule_solver, &sampler_deis, SPACING_LINSPACE, ZERO_SNR_NO,
     READS_SPREADS | READS_DEIS},
    {"DDIMScheduler", &schedule_leaping, &sampler_ddim, SPACING_LEADING, ZERO_SNR_WHOLLY, LEAPING_READS},
    {"PNDMScheduler", &schedule_leaping, &sampler_pndm, SPACING_LEADING, ZERO_SNR_NO,
     READS_ALPHA_ONE | READS_PRK},
    {"DDPMScheduler", &schedule_whole, &sampler_euler_a, SPACING_LEADING, ZERO_SNR_WHOLLY,
     READS_CLIP | CLIPS | READS_VARIANCE},
    {"LCMScheduler", &schedule_distilled, &sampler_lcm, SPACING_LEADING, ZERO_SNR_WHOLLY, LCM_READS},
    {"TCDScheduler", &schedule_distilled, &sampler_tcd, SPACING_LEADING, ZERO_SNR_WHOLLY, LCM_READS},
};

enum { N_CLASSES = sizeof classes / sizeof *classes };

/* Of any class: others are nobody's. */
static const char *const known_keys[] = {
    "algorithm_type",
    "base_image_seq_len",
    "base_shift",
    "beta_end",
    "beta_schedule",
    "beta_start",
    "clip_sample",
    "clip_sample_range",
    "disable_corrector",
    "dynamic_thresholding_ratio",
    "euler_at_final",
    "final_sigmas_type",
    "flow_shift",
    "interpolation_type",
    "invert_sigmas",
    "lambda_min_clipped",
    "lower_order_final",
    "max_image_seq_len",
    "max_shift",
    "noise_sampler_seed",
    "num_train_timesteps",
    "original_inference_steps",
    "predict_x0",
    "prediction_type",
    "rescale_betas_zero_snr",
    "rho",
    "sample_max_value",
    "set_alpha_to_one",
    "shift",
    "shift_terminal",
    "sigma_data",
    "sigma_max",
    "sigma_min",
    "sigma_schedule",
    "skip_prk_steps",
    "solver_order",
    "solver_p",
    "solver_type",
    "steps_offset",
    "stochastic_sampling",
    "thresholding",
    "time_shift_type",
    "timestep_scaling",
    "timestep_spacing",
    "timestep_type",
    "trained_betas",
    "use_beta_sigmas",
    "use_dynamic_shifting",
    "use_exponential_sigmas",
    "use_flow_sigmas",
    "use_karras_sigmas",
    "use_lu_lambdas",
    "variance_type",
};

static enum status refused(const struct config *config, const char *what, const char *found,
                           const char *expected, struct error *e) {
    error_set(e, UNSUPPORTED, "%s", what);
    error_where(e, "%s", config->path ? config->path : "scheduler_config.json");
    error_found(e, "%s", found);
    return expected ? error_expected(e, "%s", expected) : e->code;
}

/* A key, or an entry of it. */
static bool is_key(const char *key, const char *known) {
    size_t n = strlen(known);
    return !strncmp(key, known, n) && (!key[n] || key[n] == '.');
}

static enum status check_keys(const struct config *config, struct error *e) {
    for (int i = 0; i < config->n_values; i++) {
        const char *key = config->values[i].key;
        size_t k = 0, n = sizeof known_keys / sizeof *known_keys;
        while (k < n && !is_key(key, known_keys[k])) k++;
        if (k < n || *key == '_') continue;
        return refused(config, "the scheduler has a key that is not known", key, NULL, e);
    }
    return OK;
}

static bool is_for(const struct scheduler_class *of, const struct prediction *prediction) {
    return prediction->mixes ? (of->reads & READS_FLOW) != 0 : of->schedule != NULL;
}

static const struct scheduler_class *find_class(const struct config *config, const struct sampling *s,
                                                struct error *e) {
    const char *name = config_string(config, "_class_name", s->prediction->mixes ? sampling_class(s) : "");
    if (s->prediction->mixes && !s->grid_of_class)
        config_expect(config, "_class_name", s->schedule->class_name, e);
    if (e->code != OK) return NULL;
    for (int i = 0; i < N_CLASSES; i++)
        if (!strcmp(classes[i].name, name) && is_for(&classes[i], s->prediction)) return &classes[i];
    refused(config, "the model's scheduler is none that is known", *name ? name : "no _class_name", NULL, e);
    error_expected(e, "one of those that engine/sample/README.md lists, as %s",
                   s->prediction->mixes ? "UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler"
                                        : "EulerDiscreteScheduler or PNDMScheduler");
    return NULL;
}

/* The place of a key's string among names; the default where it is absent. UNSUPPORTED for others. */
static int one_of(const struct config *config, const char *key, const char *const *names, int otherwise,
                  struct error *e) {
    const char *found = config_string(config, key, names[otherwise]);
    int i = 0;
    while (names[i] && strcmp(names[i], found)) i++;
    if (names[i]) return i;
    config_expect(config, key, names[otherwise], e);
    return otherwise;
}

/* ---- noise ---- */

static enum status read_noise(const struct config *config, const struct scheduler_class *of,
                              struct noise_settings *noise, struct error *e) {
    static const char *const names[] = {"linear", "scaled_linear", "squaredcos_cap_v2", NULL};
    bool rescaled = false, stable = of->reads & STABLE_BETAS;
    int timesteps = TRAINED_TIMESTEPS;
    *noise =
        (struct noise_settings){.beta_start = stable ? 0.00085 : 0.0001, .beta_end = stable ? 0.012 : 0.02};
    config_int(config, "num_train_timesteps", TRAINED_TIMESTEPS, TRAINED_TIMESTEPS, &timesteps, e);
    config_float(config, "beta_start", 1e-7, 0.5, &noise->beta_start, e);
    config_float(config, "beta_end", 1e-7, 0.5, &noise->beta_end, e);
    config_refuse(config, "trained_betas", e);
    noise->betas = (enum betas)one_of(config, "beta_schedule", names, of->reads & SCALED_BETAS ? 1 : 0, e);
    if (of->zero_snr != ZERO_SNR_NO) config_bool(config, "rescale_betas_zero_snr", &rescaled, e);
    if (rescaled) noise->zero_snr = of->zero_snr;
    return e->code;
}

/* ---- grid ---- */

static enum status read_spread(const struct config *config, struct schedule_options *grid, struct error *e) {
    static const char *const keys[] = {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"};
    for (int i = 0; i < 3; i++) {
        bool given = false;
        if (config_bool(config, keys[i], &given, e) != OK) return e->code;
        if (given && grid->spread != SPREAD_NONE) return config_refuse(config, keys[i], e);
        if (given) grid->spread = (enum sigma_spread)(SPREAD_KARRAS + i);
    }
    return OK;
}

/* The largest of a spread's ends; those of EDM models are given. */
#define SIGMA_MOST 1e4

static enum status read_grid(const struct config *config, const struct scheduler_class *of, bool mends,
                             struct schedule_options *grid, struct error *e) {
    static const char *const finals[] = {"zero", "sigma_min", NULL};
    static const char *const types[] = {"discrete", "continuous", NULL};
    *grid = (struct schedule_options){.original_steps = 50, .aligned = grid->aligned};
    grid->rounds_timesteps = of->reads & ROUNDS_TIMESTEPS;
    grid->ends_with_picture = of->reads & ALPHA_IS_ONE;
    grid->ends_where_it_begins = of->reads & (READS_UNIPC | READS_DEIS);
    grid->ends_at_sigma_min = of->reads & READS_DEIS;
    grid->spacing = (enum spacing)one_of(config, "timestep_spacing", spacing_names, (int)of->spacing, e);
    config_int(config, "steps_offset", 0, TRAINED_TIMESTEPS - 1, &grid->steps_offset, e);
    if (mends) grid->steps_offset = 1;
    if (of->reads & READS_SPREADS) read_spread(config, grid, e);
    if (of->reads & READS_FINAL_SIGMA)
        grid->ends_at_sigma_min = one_of(config, "final_sigmas_type", finals, 0, e);
    if (of->reads & READS_ENDS) {
        config_float(config, "sigma_min", 1e-6, SIGMA_MOST, &grid->sigma_min, e);
        config_float(config, "sigma_max", grid->sigma_min > 0 ? grid->sigma_min : 1e-6, SIGMA_MOST,
                     &grid->sigma_max, e);
    }
    if (of->reads & READS_CONTINUOUS) {
        grid->continuous = one_of(config, "timestep_type", types, 0, e);
        config_expect(config, "interpolation_type", "linear", e);
    }
    if (of->reads & READS_ALPHA_ONE) config_bool(config, "set_alpha_to_one", &grid->ends_with_picture, e);
    if (of->reads & READS_DISTILLED)
        config_int(config, "original_inference_steps", 1, TRAINED_TIMESTEPS, &grid->original_steps, e);
    return e->code;
}

/* ---- solvers ---- */

static enum status read_dpm(const struct config *config, struct sampling *s, struct error *e) {
    static const char *const algorithms[] = {"dpmsolver++", "sde-dpmsolver++", NULL};
    static const char *const types[] = {"midpoint", "heun", "logrho", "bh1", "bh2", NULL};
    bool lower = true, draws = one_of(config, "algorithm_type", algorithms, 0, e);
    s->solver.order = 2;
    config_int(config, "solver_order", 1, draws ? 2 : 3, &s->solver.order, e);
    s->solver.heun = one_of(config, "solver_type", types, 0, e) == 1;
    config_bool(config, "lower_order_final", &lower, e);
    config_bool(config, "euler_at_final", &s->solver.euler_at_final, e);
    config_refuse(config, "use_lu_lambdas", e);
    config_refuse(config, "lambda_min_clipped", e);
    s->solver.same_order_final = !lower;
    if (draws) s->sampler = &sampler_dpmpp_2m_sde;
    if (s->solver.order > 2) s->sampler = &sampler_dpmpp_3m;
    return e->code;
}

/* Other solvers' names of what there is one of mean that. */
static enum status read_deis(const struct config *config, struct solver *solver, struct error *e) {
    static const char *const algorithms[] = {"deis", "dpmsolver", "dpmsolver++", NULL};
    static const char *const types[] = {"logrho", "midpoint", "heun", "bh1", "bh2", NULL};
    bool lower = true;
    solver->order = 2;
    config_int(config, "solver_order", 1, 3, &solver->order, e);
    config_bool(config, "lower_order_final", &lower, e);
    one_of(config, "algorithm_type", algorithms, 0, e);
    one_of(config, "solver_type", types, 0, e);
    solver->same_order_final = !lower;
    return e->code;
}

/* A list of steps, whose first entry may be step 0. */
static enum status refuse_list(const struct config *config, const char *first, struct error *e) {
    if (!config_find(config, first)) return OK;
    return refused(config, "the configuration asks for something that is not supported", first,
                   "an empty list", e);
}

static enum status read_unipc(const struct config *config, struct solver *solver, struct error *e) {
    static const char *const types[] = {"bh2", "bh1", "midpoint", "heun", "logrho", NULL};
    bool lower = true, predicts_picture = true;
    solver->order = 2;
    config_int(config, "solver_order", 1, 3, &solver->order, e);
    config_bool(config, "lower_order_final", &lower, e);
    config_bool(config, "predict_x0", &predicts_picture, e);
    solver->same_order_final = !lower;
    solver->bh1 = one_of(config, "solver_type", types, 0, e) == 1;
    refuse_list(config, "disable_corrector.0", e);
    config_refuse(config, "solver_p", e);
    if (predicts_picture || e->code != OK) return e->code;
    return refused(config, "UniPC that predicts noise is not there", "predict_x0 false", "true", e);
}

/* ---- all ---- */

/* Steps of another kind, and bounds on pictures that latents do not have. */
static enum status refuse_rest(const struct config *config, const struct scheduler_class *of, bool mends,
                               struct error *e) {
    static const char *const variances[] = {"fixed_small", "fixed_small_log", NULL};
    bool clips = of->reads & CLIPS, skips = !(of->reads & READS_PRK) || mends;
    if (of->reads & READS_CLIP) config_bool(config, "clip_sample", &clips, e);
    if (of->reads & READS_PRK) config_bool(config, "skip_prk_steps", &skips, e);
    config_refuse(config, "thresholding", e);
    if (of->reads & READS_VARIANCE) one_of(config, "variance_type", variances, 0, e);
    if (e->code != OK) return e->code;
    if (clips && !mends)
        return refused(config, "the scheduler clips what it predicts", "clip_sample is true", "false", e);
    return skips ? OK
                 : refused(config, "the scheduler begins with Runge-Kutta steps", "skip_prk_steps is false",
                           "true", e);
}

static enum status read_prediction(const struct config *config, struct sampling *s, struct error *e) {
    static const char *const names[] = {"epsilon", "v_prediction", NULL};
    s->prediction = one_of(config, "prediction_type", names, 0, e) ? &prediction_v : &prediction_eps;
    return e->code;
}

/* Grids that would be others are refused: those that spread sigmas take no shift, and a last step from the
 * last sigma to itself diffusers makes NaN of. */
static enum status read_flow(const struct config *config, const struct scheduler_class *of,
                             struct sampling *s, struct error *e) {
    static const char *const refused_keys[] = {"use_karras_sigmas", "use_exponential_sigmas",
                                               "use_beta_sigmas", "invert_sigmas", "stochastic_sampling"};
    bool flows = !of->schedule;
    int timesteps = TRAINED_TIMESTEPS;
    s->schedule = of->sampler->flow ? of->sampler->flow : &schedule_flow;
    for (size_t i = 0; i < sizeof refused_keys / sizeof *refused_keys; i++)
        config_refuse(config, refused_keys[i], e);
    config_int(config, "num_train_timesteps", TRAINED_TIMESTEPS, TRAINED_TIMESTEPS, &timesteps, e);
    config_bool(config, "use_flow_sigmas", &flows, e);
    if (!of->schedule || e->code != OK) return e->code;
    if (!flows)
        return refused(config, "the scheduler adds noise, which a flow model does not",
                       "no use_flow_sigmas, or false", "true", e);
    config_expect(config, "final_sigmas_type", "zero", e);
    return config_find(config, "prediction_type")
               ? config_expect(config, "prediction_type", "flow_prediction", e)
               : refused(config, "the scheduler predicts no flow", "no prediction_type",
                         "\"flow_prediction\"", e);
}

static enum status read_added(const struct config *config, const struct scheduler_class *of,
                              struct sampling *s, struct error *e) {
    s->schedule = of->schedule;
    config_refuse(config, "use_flow_sigmas", e);
    read_prediction(config, s, e);
    read_noise(config, of, &s->noise, e);
    return read_grid(config, of, s->mends_old_files, &s->grid, e);
}

enum status sampling_read(const struct config *config, struct sampling *sampling, struct error *e) {
    const char *only = sampling->prediction->mixes ? NULL : sampling->schedule->class_name;
    if (only) return config_expect(config, "_class_name", only, e);
    const struct scheduler_class *of = find_class(config, sampling, e);
    if (!of || check_keys(config, e) != OK) return e->code;
    sampling->sampler = of->sampler;
    sampling->solver = (struct solver){.at_boundary = of->sampler == &sampler_lcm};
    sampling->prediction->mixes ? read_flow(config, of, sampling, e) : read_added(config, of, sampling, e);
    if (of->reads & READS_DPM) read_dpm(config, sampling, e);
    if (of->reads & READS_DEIS) read_deis(config, &sampling->solver, e);
    if (of->reads & READS_UNIPC) read_unipc(config, &sampling->solver, e);
    return refuse_rest(config, of, sampling->mends_old_files, e);
}

const char *sampling_class(const struct sampling *sampling) {
    if (sampling->schedule->class_name) return sampling->schedule->class_name;
    for (int i = 0; i < N_CLASSES; i++)
        if (is_for(&classes[i], sampling->prediction) && classes[i].sampler == sampling->sampler &&
            (sampling->prediction->mixes || classes[i].schedule == sampling->schedule))
            return classes[i].name;
    return NULL;
}
