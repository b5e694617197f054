/* Reads scheduler_config.json: implements sampling_read of sampling.h. Classes, keys and defaults are those
 * of diffusers 0.42, schedulers/. */
#include "engine/sample/sampling.h"

#include <stdio.h>
#include <string.h>

/* Flags of a scheduler class: the keys that the class reads (READS_), and default values of keys. */
enum {
    READS_SIGMA_SPACING = 1 << 0, /* keys use_karras_sigmas, use_exponential_sigmas, use_beta_sigmas */
    READS_FINAL_SIGMA = 1 << 1,   /* key final_sigmas_type */
    READS_ENDS = 1 << 2,          /* keys sigma_min, sigma_max */
    READS_CONTINUOUS = 1 << 3,    /* key timestep_type */
    READS_DPM = 1 << 4,           /* key algorithm_type and the other DPM-Solver++ keys */
    READS_UNIPC = 1 << 5,
    READS_DEIS = 1 << 15,
    READS_PRK = 1 << 6,       /* key skip_prk_steps, false by default */
    READS_ALPHA_ONE = 1 << 7, /* key set_alpha_to_one */
    READS_CLIP = 1 << 8,      /* key clip_sample */
    READS_DISTILLED = 1 << 9, /* key original_inference_steps */
    ROUNDS_TIMESTEPS = 1 << 10,
    ALPHA_IS_ONE = 1 << 11,   /* default of set_alpha_to_one is true */
    CLIPS = 1 << 12,          /* default of clip_sample is true */
    STABLE_BETAS = 1 << 13,   /* beta_start and beta_end default to Stable Diffusion's */
    SCALED_BETAS = 1 << 14,   /* beta_schedule is scaled_linear by default */
    READS_VARIANCE = 1 << 16, /* key variance_type */
    READS_FLOW = 1 << 17,     /* key use_flow_sigmas and the other keys of flow matching */
};

struct scheduler_class {
    const char *name;
    /* Default schedule for eps and v models; NULL: the class is for flow models only. */
    const struct schedule *schedule;
    const struct sampler *sampler;
    enum spacing spacing; /* default timestep_spacing */
    /* Effect of the key rescale_betas_zero_snr; NO: the class does not read the key. */
    enum rescale_zero_snr rescale_zero_snr;
    unsigned reads;
};

#define EULER_READS   (READS_SIGMA_SPACING | READS_FINAL_SIGMA | READS_ENDS | READS_CONTINUOUS)
#define TWICE_READS   (READS_SIGMA_SPACING | STABLE_BETAS)
#define LEAPING_READS (READS_ALPHA_ONE | ALPHA_IS_ONE | READS_CLIP | CLIPS)
#define LCM_READS     (READS_CLIP | READS_DISTILLED | STABLE_BETAS | SCALED_BETAS)

static const struct scheduler_class classes[] = {
    {"FlowMatchEulerDiscreteScheduler", NULL, &sampler_euler, SPACING_LINSPACE, ZERO_SNR_NO, READS_FLOW},
    {"EulerDiscreteScheduler", &schedule_diffusers_euler, &sampler_euler, SPACING_LINSPACE, ZERO_SNR_CLAMPED,
     EULER_READS},
    {"EulerAncestralDiscreteScheduler", &schedule_diffusers_euler, &sampler_euler_a, SPACING_LINSPACE,
     ZERO_SNR_CLAMPED, 0},
    {"HeunDiscreteScheduler", &schedule_diffusers_euler, &sampler_heun, SPACING_LINSPACE, ZERO_SNR_NO,
     TWICE_READS | READS_CLIP},
    {"KDPM2DiscreteScheduler", &schedule_diffusers_euler, &sampler_dpm2, SPACING_LINSPACE, ZERO_SNR_NO,
     TWICE_READS | ROUNDS_TIMESTEPS},
    {"KDPM2AncestralDiscreteScheduler", &schedule_diffusers_euler, &sampler_dpm2_a, SPACING_LINSPACE,
     ZERO_SNR_NO, TWICE_READS | ROUNDS_TIMESTEPS},
    {"LMSDiscreteScheduler", &schedule_diffusers_euler, &sampler_lms, SPACING_LINSPACE, ZERO_SNR_NO,
     READS_SIGMA_SPACING},
    {"DPMSolverMultistepScheduler", &schedule_diffusers_solver, &sampler_dpmpp_2m, SPACING_LINSPACE,
     ZERO_SNR_CLAMPED, READS_SIGMA_SPACING | READS_FINAL_SIGMA | READS_DPM | READS_FLOW},
    {"UniPCMultistepScheduler", &schedule_diffusers_solver, &sampler_unipc, SPACING_LINSPACE,
     ZERO_SNR_CLAMPED, READS_SIGMA_SPACING | READS_FINAL_SIGMA | READS_ENDS | READS_UNIPC | READS_FLOW},
    {"DEISMultistepScheduler", &schedule_diffusers_solver, &sampler_deis, SPACING_LINSPACE, ZERO_SNR_NO,
     READS_SIGMA_SPACING | READS_DEIS},
    {"DDIMScheduler", &schedule_diffusers_ddim, &sampler_ddim, SPACING_LEADING, ZERO_SNR_EXACT,
     LEAPING_READS},
    {"PNDMScheduler", &schedule_diffusers_ddim, &sampler_pndm, SPACING_LEADING, ZERO_SNR_NO,
     READS_ALPHA_ONE | READS_PRK},
    {"DDPMScheduler", &schedule_diffusers_ddpm, &sampler_euler_a, SPACING_LEADING, ZERO_SNR_EXACT,
     READS_CLIP | CLIPS | READS_VARIANCE},
    {"LCMScheduler", &schedule_diffusers_lcm, &sampler_lcm, SPACING_LEADING, ZERO_SNR_EXACT, LCM_READS},
    {"TCDScheduler", &schedule_diffusers_lcm, &sampler_tcd, SPACING_LEADING, ZERO_SNR_EXACT, LCM_READS},
};

enum { N_CLASSES = sizeof classes / sizeof *classes };

/* Keys of all scheduler classes, each between blanks; any other key is refused. */
static const char known_keys[] =
    " algorithm_type base_image_seq_len base_shift beta_end beta_schedule beta_start clip_sample"
    " clip_sample_range disable_corrector dynamic_thresholding_ratio euler_at_final"
    " final_sigmas_type flow_shift interpolation_type invert_sigmas lambda_min_clipped"
    " lower_order_final max_image_seq_len max_shift noise_sampler_seed num_train_timesteps"
    " original_inference_steps predict_x0 prediction_type rescale_betas_zero_snr rho"
    " sample_max_value set_alpha_to_one shift shift_terminal sigma_data sigma_max sigma_min"
    " sigma_schedule skip_prk_steps solver_order solver_p solver_type steps_offset"
    " stochastic_sampling thresholding time_shift_type timestep_scaling timestep_spacing"
    " timestep_type trained_betas use_beta_sigmas use_dynamic_shifting use_exponential_sigmas"
    " use_flow_sigmas use_karras_sigmas use_lu_lambdas variance_type ";

/* Fails with UNSUPPORTED; the error has the path of scheduler_config.json. expected: text for the error, or
 * NULL. */
static enum status unsupported(const struct config *config, const char *what, const char *found,
                               const char *expected, struct error *e) {
    error_set(e, UNSUPPORTED, "%s" WHERE "%s" FOUND "%s", what,
              config->path ? config->path : "scheduler_config.json", found);
    return expected ? error_expected(e, "%s", expected) : e->code;
}

/* Refuses keys that no scheduler class has, except those that begin with _. An entry of a list ("known.0")
 * counts as the list's key. */
static enum status check_keys(const struct config *config, struct error *e) {
    for (int i = 0; i < config->n_values; i++) {
        const char *key = config->values[i].key;
        char word[64]; /* the key between blanks; a longer key is unknown */
        snprintf(word, sizeof word, " %.*s ", (int)strcspn(key, "."), key);
        if (*key == '_' || (!strchr(key, ' ') && strstr(known_keys, word))) continue;
        return unsupported(config, "unknown key in the scheduler configuration", key, NULL, e);
    }
    return OK;
}

/* True if diffusers uses this scheduler class for models of this prediction type. */
static bool class_handles(const struct scheduler_class *cls, const struct prediction *prediction) {
    return prediction->is_flow ? (cls->reads & READS_FLOW) != 0 : cls->schedule != NULL;
}

/* Returns the scheduler class that scheduler_config.json names; NULL with an error if it is unsupported. */
static const struct scheduler_class *find_class(const struct config *config, const struct sampling *s,
                                                struct error *e) {
    const char *name =
        config_string(config, "_class_name", s->prediction->is_flow ? sampling_class_name(s) : "");
    if (s->prediction->is_flow && !s->grid_from_class)
        config_expect(config, "_class_name", s->schedule->class_name, e);
    if (e->code != OK) return NULL;
    for (int i = 0; i < N_CLASSES; i++)
        if (!strcmp(classes[i].name, name) && class_handles(&classes[i], s->prediction)) return &classes[i];
    unsupported(config, "unsupported scheduler class", *name ? name : "no _class_name", NULL, e);
    error_expected(e, "a class listed in engine/sample/README.md, such as %s",
                   s->prediction->is_flow ? "UniPCMultistepScheduler or FlowMatchEulerDiscreteScheduler"
                                          : "EulerDiscreteScheduler or PNDMScheduler");
    return NULL;
}

/* Returns the index in `names` of a configuration key's string value; `otherwise` if the key is absent. Fails
 * with UNSUPPORTED if the string is not in `names`. */
static int config_enum(const struct config *config, const char *key, const char *const *names, int otherwise,
                       struct error *e) {
    const char *found = config_string(config, key, names[otherwise]);
    int i = 0;
    while (names[i] && strcmp(names[i], found)) i++;
    if (names[i]) return i;
    config_expect(config, key, names[otherwise], e);
    return otherwise;
}

/* Reads the training noise levels from scheduler_config.json. */
static enum status read_noise(const struct config *config, const struct scheduler_class *cls,
                              struct training_noise *noise, struct error *e) {
    static const char *const names[] = {"linear", "scaled_linear", "squaredcos_cap_v2", NULL};
    bool rescaled = false, stable = cls->reads & STABLE_BETAS;
    int timesteps = TRAINED_TIMESTEPS;
    *noise =
        (struct training_noise){.beta_start = stable ? 0.00085 : 0.0001, .beta_end = stable ? 0.012 : 0.02};
    config_int(config, "num_train_timesteps", TRAINED_TIMESTEPS, TRAINED_TIMESTEPS, &timesteps, e);
    config_float(config, "beta_start", 1e-7, 0.5, &noise->beta_start, e);
    config_float(config, "beta_end", 1e-7, 0.5, &noise->beta_end, e);
    config_refuse(config, "trained_betas", e);
    noise->beta_schedule =
        (enum beta_schedule)config_enum(config, "beta_schedule", names, cls->reads & SCALED_BETAS ? 1 : 0, e);
    if (cls->rescale_zero_snr != ZERO_SNR_NO) config_bool(config, "rescale_betas_zero_snr", &rescaled, e);
    if (rescaled) noise->rescale_zero_snr = cls->rescale_zero_snr;
    return e->code;
}

/* Reads the three keys of sigma_spacing, of which one may be true. */
static enum status read_sigma_spacing(const struct config *config, struct schedule_options *grid,
                                      struct error *e) {
    static const char *const keys[] = {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"};
    for (int i = 0; i < 3; i++) {
        bool used = false;
        if (config_bool(config, keys[i], &used, e) != OK) return e->code;
        if (used && grid->sigma_spacing != SIGMAS_OF_TIMESTEPS) return config_refuse(config, keys[i], e);
        if (used) grid->sigma_spacing = (enum sigma_spacing)(SIGMAS_KARRAS + i);
    }
    return OK;
}

/* Upper limit of sigma_min and sigma_max. */
#define SIGMA_LIMIT 1e4

/* Reads the schedule's options from scheduler_config.json. */
static enum status read_grid(const struct config *config, const struct scheduler_class *cls, bool fix_legacy,
                             struct schedule_options *grid, struct error *e) {
    static const char *const finals[] = {"zero", "sigma_min", NULL};
    static const char *const types[] = {"discrete", "continuous", NULL};
    *grid = (struct schedule_options){.original_steps = 50, .ays_sigmas = grid->ays_sigmas};
    grid->round_timesteps = cls->reads & ROUNDS_TIMESTEPS;
    grid->set_alpha_to_one = cls->reads & ALPHA_IS_ONE;
    grid->final_sigma_of_spacing = cls->reads & (READS_UNIPC | READS_DEIS);
    grid->final_sigma_min = cls->reads & READS_DEIS;
    grid->spacing =
        (enum spacing)config_enum(config, "timestep_spacing", spacing_names, (int)cls->spacing, e);
    config_int(config, "steps_offset", 0, TRAINED_TIMESTEPS - 1, &grid->steps_offset, e);
    if (fix_legacy) grid->steps_offset = 1;
    if (cls->reads & READS_SIGMA_SPACING) read_sigma_spacing(config, grid, e);
    if (cls->reads & READS_FINAL_SIGMA)
        grid->final_sigma_min = config_enum(config, "final_sigmas_type", finals, 0, e);
    if (cls->reads & READS_ENDS) {
        config_float(config, "sigma_min", 1e-6, SIGMA_LIMIT, &grid->sigma_min, e);
        config_float(config, "sigma_max", grid->sigma_min > 0 ? grid->sigma_min : 1e-6, SIGMA_LIMIT,
                     &grid->sigma_max, e);
    }
    if (cls->reads & READS_CONTINUOUS) {
        grid->continuous_timesteps = config_enum(config, "timestep_type", types, 0, e);
        config_expect(config, "interpolation_type", "linear", e);
    }
    if (cls->reads & READS_ALPHA_ONE) config_bool(config, "set_alpha_to_one", &grid->set_alpha_to_one, e);
    if (cls->reads & READS_DISTILLED)
        config_int(config, "original_inference_steps", 1, TRAINED_TIMESTEPS, &grid->original_steps, e);
    return e->code;
}

/* Reads the options of DPM-Solver++, which also choose its sampler. */
static enum status read_dpm(const struct config *config, struct sampling *s, struct error *e) {
    static const char *const algorithms[] = {"dpmsolver++", "sde-dpmsolver++", NULL};
    static const char *const types[] = {"midpoint", "heun", "logrho", "bh1", "bh2", NULL};
    bool lower = true, draws_noise = config_enum(config, "algorithm_type", algorithms, 0, e);
    s->solver.order = 2;
    config_int(config, "solver_order", 1, draws_noise ? 2 : 3, &s->solver.order, e);
    s->solver.heun = config_enum(config, "solver_type", types, 0, e) == 1;
    config_bool(config, "lower_order_final", &lower, e);
    config_bool(config, "euler_at_final", &s->solver.euler_at_final, e);
    config_refuse(config, "use_lu_lambdas", e);
    config_refuse(config, "lambda_min_clipped", e);
    s->solver.no_lower_order_final = !lower;
    if (draws_noise) s->sampler = &sampler_dpmpp_2m_sde;
    if (s->solver.order > 2) s->sampler = &sampler_dpmpp_3m;
    return e->code;
}

/* DEIS has one algorithm. As in diffusers, algorithm names of other solvers are accepted and select the DEIS
 * algorithm. */
static enum status read_deis(const struct config *config, struct solver *solver, struct error *e) {
    static const char *const algorithms[] = {"deis", "dpmsolver", "dpmsolver++", NULL};
    static const char *const types[] = {"logrho", "midpoint", "heun", "bh1", "bh2", NULL};
    bool lower = true;
    solver->order = 2;
    config_int(config, "solver_order", 1, 3, &solver->order, e);
    config_bool(config, "lower_order_final", &lower, e);
    config_enum(config, "algorithm_type", algorithms, 0, e);
    config_enum(config, "solver_type", types, 0, e);
    solver->no_lower_order_final = !lower;
    return e->code;
}

/* Reads the options of UniPC. */
static enum status read_unipc(const struct config *config, struct solver *solver, struct error *e) {
    static const char *const types[] = {"bh2", "bh1", "midpoint", "heun", "logrho", NULL};
    bool lower = true, predicts_picture = true;
    solver->order = 2;
    config_int(config, "solver_order", 1, 3, &solver->order, e);
    config_bool(config, "lower_order_final", &lower, e);
    config_bool(config, "predict_x0", &predicts_picture, e);
    solver->no_lower_order_final = !lower;
    solver->bh1 = config_enum(config, "solver_type", types, 0, e) == 1;
    if (config_find(config, "disable_corrector.0"))
        unsupported(config, "unsupported key in the scheduler configuration", "disable_corrector.0",
                    "an empty list", e);
    config_refuse(config, "solver_p", e);
    if (predicts_picture || e->code != OK) return e->code;
    return unsupported(config, "unsupported UniPC variant", "predict_x0 false", "true", e);
}

/* Refuses clipping, thresholding and Runge-Kutta steps. */
static enum status refuse_unsupported(const struct config *config, const struct scheduler_class *cls,
                                      bool fix_legacy, struct error *e) {
    static const char *const variances[] = {"fixed_small", "fixed_small_log", NULL};
    bool clips = cls->reads & CLIPS, skips = !(cls->reads & READS_PRK) || fix_legacy;
    if (cls->reads & READS_CLIP) config_bool(config, "clip_sample", &clips, e);
    if (cls->reads & READS_PRK) config_bool(config, "skip_prk_steps", &skips, e);
    config_refuse(config, "thresholding", e);
    if (cls->reads & READS_VARIANCE) config_enum(config, "variance_type", variances, 0, e);
    if (e->code != OK) return e->code;
    if (clips && !fix_legacy)
        return unsupported(config, "unsupported scheduler option: clipping of predictions",
                           "clip_sample is true", "false", e);
    return skips ? OK
                 : unsupported(config, "unsupported scheduler option: Runge-Kutta steps",
                               "skip_prk_steps is false", "true", e);
}

/* Reads flow matching options. Refuses Karras and exponential sigmas, and beta sigmas of UniPC and
 * DPM-Solver++: diffusers applies no shift to the sigmas of these solvers. Refuses final_sigmas_type
 * "sigma_min", which makes NaN in diffusers. */
static enum status read_flow(const struct config *config, const struct scheduler_class *cls,
                             struct sampling *s, struct error *e) {
    static const char *const refused_keys[] = {"use_karras_sigmas", "use_exponential_sigmas", "invert_sigmas",
                                               "stochastic_sampling"};
    bool flows = !cls->schedule, beta = false;
    int timesteps = TRAINED_TIMESTEPS;
    s->schedule = cls->sampler->flow_schedule ? cls->sampler->flow_schedule : &schedule_flow;
    for (size_t i = 0; i < sizeof refused_keys / sizeof *refused_keys; i++)
        config_refuse(config, refused_keys[i], e);
    if (s->schedule == &schedule_flow)
        config_bool(config, "use_beta_sigmas", &beta, e);
    else
        config_refuse(config, "use_beta_sigmas", e);
    s->grid.sigma_spacing = beta ? SIGMAS_BETA : SIGMAS_OF_TIMESTEPS;
    config_int(config, "num_train_timesteps", TRAINED_TIMESTEPS, TRAINED_TIMESTEPS, &timesteps, e);
    config_bool(config, "use_flow_sigmas", &flows, e);
    if (!cls->schedule || e->code != OK) return e->code;
    if (!flows)
        return unsupported(config, "the scheduler configuration is not for flow matching",
                           "no use_flow_sigmas, or false", "true", e);
    config_expect(config, "final_sigmas_type", "zero", e);
    return config_find(config, "prediction_type")
               ? config_expect(config, "prediction_type", "flow_prediction", e)
               : unsupported(config, "the scheduler configuration is not for flow matching",
                             "no prediction_type", "\"flow_prediction\"", e);
}

enum status sampling_read(const struct config *config, struct sampling *sampling, struct error *e) {
    static const char *const predictions[] = {"epsilon", "v_prediction", NULL};
    const char *only = sampling->prediction->is_flow ? NULL : sampling->schedule->class_name;
    if (only) return config_expect(config, "_class_name", only, e);
    const struct scheduler_class *cls = find_class(config, sampling, e);
    if (!cls || check_keys(config, e) != OK) return e->code;
    sampling->sampler = cls->sampler;
    sampling->solver = (struct solver){.lcm_boundary_used = cls->sampler == &sampler_lcm};
    if (sampling->prediction->is_flow) {
        read_flow(config, cls, sampling, e);
    } else {
        sampling->schedule = cls->schedule;
        config_refuse(config, "use_flow_sigmas", e);
        bool v = config_enum(config, "prediction_type", predictions, 0, e);
        sampling->prediction = v ? &prediction_v : &prediction_eps;
        read_noise(config, cls, &sampling->noise, e);
        read_grid(config, cls, sampling->fixes_legacy_config, &sampling->grid, e);
    }
    if (cls->reads & READS_DPM) read_dpm(config, sampling, e);
    if (cls->reads & READS_DEIS) read_deis(config, &sampling->solver, e);
    if (cls->reads & READS_UNIPC) read_unipc(config, &sampling->solver, e);
    return refuse_unsupported(config, cls, sampling->fixes_legacy_config, e);
}

const char *sampling_class_name(const struct sampling *sampling) {
    if (sampling->schedule->class_name) return sampling->schedule->class_name;
    for (int i = 0; i < N_CLASSES; i++)
        if (class_handles(&classes[i], sampling->prediction) && classes[i].sampler == sampling->sampler &&
            (sampling->prediction->is_flow || classes[i].schedule == sampling->schedule))
            return classes[i].name;
    return NULL;
}
