/* Samplers: how a sample moves from one point of a grid to the next. One row a sampler; the rest
 * of the engine knows no more of it than the row says: evaluations of a step, past tensors that are kept (and
 * so planned), noise that is drawn, the update. Plain loops on the host.
 *
 * An update is a sum of tensors, each with a factor that follows from the step's points; factors are computed
 * in double. With sigma and x' = x / signal where noise is added, sigma and x of flow matching, the formulas
 * are those of k-diffusion (Karras et al. 2022); solvers in the logarithm of signal / noise are written for
 * any signal and noise. Sources: diffusers 0.42, schedulers/, each by its row; k-diffusion's sampling.py
 * where diffusers lacks it; the flow forms of ancestral samplers are stable-diffusion.cpp's and ComfyUI's. */
#ifndef SLUICE_SAMPLE_SAMPLER_H
#define SLUICE_SAMPLE_SAMPLER_H

#include "engine/base/error.h"
#include "engine/sample/prediction.h"

#include <stdbool.h>

enum { SAMPLER_EVALUATIONS_MAX = 2, SAMPLER_HISTORY_MAX = 4 };

/* What some rows of samplers read; scheduler_config.json may say it. */
struct solver {
    int order;             /* of DPM-Solver++, DEIS and UniPC: 1 to 3 */
    bool heun;             /* DPM-Solver++'s second order by Heun's formula, not the midpoint's */
    bool same_order_final; /* orders do not fall towards the end of runs of under 15 steps */
    bool euler_at_final;
    bool bh1;         /* UniPC's B(h) = h, not e^h - 1 */
    bool at_boundary; /* LCM: what is left of the sample near timestep 0 stays, as it was distilled with */
};

/* What an update after one evaluation is given. All tensors have n values. */
struct sampler_update {
    const struct grid *grid;
    const struct prediction *prediction;
    const struct solver *solver;
    int step, evaluation;
    float *sample;         /* moves to where the next evaluation, or the next step, reads it */
    float *output;         /* the denoiser's, guided, in the sampler's form; may be overwritten */
    float *const *history; /* the sampler's own tensors of this image; what they hold before the first step
                              nobody may read */
    const float *noise;    /* standard normals, where the row draws them; NULL where the sample ends without
                              noise */
    int64_t n;
};

enum sampler_draws { DRAWS_NOTHING, DRAWS_AT_ENDS, DRAWS_ALWAYS };

struct sampler {
    const char *name;  /* that people choose it by: stable-diffusion.cpp's, where it has one */
    const char *alias; /* ComfyUI's; or NULL */
    enum prediction_form form;
    int order;       /* of a solver, where nothing else is said */
    int evaluations; /* of a step, at most */
    int history;     /* tensors kept for each image */
    /* Noise: once a step, when it ends; or after every evaluation. Never where a step ends without any. */
    enum sampler_draws draws;
    bool counts_timesteps; /* it reads trained levels by timesteps from 0 to 999 */
    /* The grid that its class has of flow matching, for models of which each class has its own (sampling.h);
     * NULL: Euler's. */
    const struct schedule *flow;
    /* Why it cannot be used where signal and noise are mixed, or from a point without any signal; or NULL. */
    const char *lacks_mixing, *lacks_bare_noise;
    /* What it makes of a grid before any step is left out: writes at most GRID_STEPS_MORE. May be NULL. */
    void (*arrange)(struct grid *grid);
    /* Where evaluation 1 and on of a step stands; false: this step has no more. NULL with one evaluation,
     * which stands at the step's own point. */
    bool (*stands)(const struct grid *grid, int step, int evaluation, struct grid_point *at);
    void (*update)(const struct sampler_update *u);
};

extern const struct sampler sampler_euler, sampler_euler_a, sampler_heun, sampler_dpm2, sampler_dpm2_a,
    sampler_lms, sampler_ipndm, sampler_pndm, sampler_ddim, sampler_dpmpp_2s_a, sampler_dpmpp_sde,
    sampler_dpmpp_2m, sampler_dpmpp_3m, sampler_dpmpp_2m_sde, sampler_deis, sampler_unipc, sampler_lcm,
    sampler_tcd;

extern const struct sampler *const samplers[]; /* NULL-terminated */

/* USAGE, with all names, if there is no such sampler. */
enum status sampler_find(const char *name, const struct sampler **sampler, struct error *e);

#endif
