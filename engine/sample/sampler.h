/* Samplers: how a sample moves from one noise level to the next. The table entry of a sampler gives
 * evaluations per step, number of history tensors, noise draws, and the update. Plain loops on the host.
 *
 * An update is a weighted sum of tensors; weights are computed in double from the step's noise levels. In
 * terms of sigma and sample / signal (flow matching: sigma and sample) the formulas are those of k-diffusion
 * (Karras et al. 2022). Solvers whose variable is log(signal / noise) work for any signal and noise. Sources:
 * diffusers 0.42, schedulers/; k-diffusion's sampling.py for samplers that diffusers lacks;
 * stable-diffusion.cpp and ComfyUI for ancestral samplers of flow models. */
#ifndef SLUICE_SAMPLE_SAMPLER_H
#define SLUICE_SAMPLE_SAMPLER_H

#include "engine/base/error.h"
#include "engine/sample/prediction.h"

#include <stdbool.h>

enum { SAMPLER_HISTORY_MAX = 4 };

/* Options of multistep solvers; scheduler_config.json may set them. */
struct solver {
    int order;                 /* solver_order of DPM-Solver++, DEIS and UniPC: 1 to 3 */
    bool heun;                 /* solver_type "heun" of second-order DPM-Solver++; else "midpoint" */
    bool no_lower_order_final; /* lower_order_final false: full order to the end */
    bool euler_at_final;
    bool bh1;               /* solver_type "bh1" of UniPC: B(h) = h, not e^h - 1 */
    bool lcm_boundary_used; /* LCM applies the boundary condition of the model's distillation */
};

/* Arguments of an update after one evaluation. All tensors have n values. */
struct sampler_update {
    const struct grid *grid;
    const struct prediction *prediction;
    const struct solver *solver;
    int step, evaluation;
    float *sample; /* on input the current sample, on output the sample for the next evaluation or step */
    float *output; /* guided prediction, converted to the form that the sampler expects; may be overwritten */
    /* The image's history tensors for this sampler; undefined before the first step. */
    float *const *history;
    const float *noise; /* standard normal random values; NULL: no noise is added */
    int64_t n;
};

enum sampler_noise { NOISE_NEVER, NOISE_AT_STEP_END, NOISE_EVERY_EVALUATION };

struct sampler {
    const char *name;  /* --sampler name, as in stable-diffusion.cpp */
    const char *alias; /* ComfyUI's name if different; or NULL */
    enum prediction_form form;
    int order;       /* default solver order of a multistep sampler; else unused */
    int evaluations; /* largest number of evaluations per step */
    int history;     /* number of history tensors per image */
    enum sampler_noise draws_noise;
    /* True: the sampler needs timesteps from 0 to 999, to read the training noise table. */
    bool needs_timesteps;
    /* Flow model schedule of the sampler's diffusers class, for recipes with grid_from_class (sampling.h).
     * NULL: schedule_flow. */
    const struct schedule *flow_schedule;
    /* Reasons for messages why the sampler does not support flow models, or zero terminal SNR; NULL:
     * supported. */
    const char *no_flow_reason, *no_zero_snr_reason;
    /* Changes the grid before img2img skips steps; adds at most GRID_EXTRA_STEPS. NULL: no change. */
    void (*adjust_grid)(struct grid *grid);
    /* Computes the noise level of evaluation 1 or a later evaluation of a step (the first is 0); false: the
     * step has no more evaluations. NULL: one evaluation per step. */
    bool (*evaluation_point)(const struct grid *grid, int step, int evaluation, struct grid_point *at);
    void (*update)(const struct sampler_update *u);
};

extern const struct sampler sampler_euler, sampler_euler_a, sampler_heun, sampler_dpm2, sampler_dpm2_a,
    sampler_lms, sampler_ipndm, sampler_pndm, sampler_ddim, sampler_dpmpp_2s_a, sampler_dpmpp_sde,
    sampler_dpmpp_2m, sampler_dpmpp_3m, sampler_dpmpp_2m_sde, sampler_deis, sampler_unipc, sampler_lcm,
    sampler_tcd;

extern const struct sampler *const samplers[]; /* all samplers, NULL-terminated */

/* Finds a sampler by name or alias. Fails with USAGE if there is none; the error lists all names. */
enum status sampler_find(const char *name, const struct sampler **sampler, struct error *e);

#endif
