#include "engine/api/warnings.h"

#include "engine/base/text.h"
#include "engine/generate/running.h"
#include "engine/job/pictures.h"
#include "engine/machine/machine.h"
#include "engine/open/prompt_syntax.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void warn_of_component(const struct sluice_session_options *to, const struct component *c) {
    uint64_t bytes = index_bytes(&c->index), claimed = c->index.claimed_bytes;
    if (c->n_unknown)
        log_line(to, SLUICE_WARNING, "%d unknown tensors in the %s files are ignored (`inspect` lists them)",
                 c->n_unknown, c->family->name);
    if (claimed && claimed != bytes)
        log_line(to, SLUICE_WARNING,
                 "the shard index of the %s has total_size %llu, but its tensors have %llu bytes: "
                 "total_size is ignored",
                 c->family->name, (unsigned long long)claimed, (unsigned long long)bytes);
}

static void warn_of_prompt_weights(const struct sluice_session_options *to, const struct job *job) {
    const char *const texts[PROMPTS_MAX] = {job->request.prompt, job->request.negative_prompt};
    for (int i = 0; i < SLOTS_MAX; i++)
        if (job->model->recipe->slot[i].text.windows_max) return;
    for (int i = 0; i < job->settings.n_prompts; i++)
        if (texts[i] && emphasis_detect(texts[i]))
            log_line(
                to, SLUICE_WARNING,
                "the %s has (word:1.3) weights, but this model has no prompt weights: they are read as text",
                i ? "negative prompt" : "prompt");
}

/* Warns of --cfg-scale 0 and of a --cfg-scale without effect. Only an info line if the scale without effect
 * is the model's default. */
static void warn_of_guidance(const struct sluice_session_options *to, const struct job *job,
                             double requested) {
    if (job->settings.decode_only) return;
    if (job->request.cfg_scale == 0)
        log_line(to, SLUICE_WARNING,
                 "--cfg-scale 0 uses the negative prompt only; --cfg-scale 1 turns guidance off");
    if (job->request.cfg_scale == requested) return;
    log_line(to, requested == job->model->cfg_scale ? SLUICE_INFO : SLUICE_WARNING,
             "--cfg-scale %g has no effect: this model uses guidance only with a negative prompt "
             "(--negative-prompt \" \")",
             requested);
}

/* Warns of --cfg-norm and --cfg-until without effect, and of --cfg-until that leaves no guided step. */
static void warn_of_guidance_limits(const struct sluice_session_options *to, const struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct job_schedule *s = &job->schedule;
    bool limits = r->cfg_norm > 0, ends = r->cfg_until < 1;
    char begins[32], until[32];
    int n_guided = 0;
    if (job->settings.decode_only || (!limits && !ends)) return;
    for (int i = 0; i < s->n_spans; i++) n_guided += s->spans[i].n_guided_calls;
    const char *flags = !ends     ? "--cfg-norm has"
                        : !limits ? "--cfg-until has"
                                  : "--cfg-norm and --cfg-until have";
    if (job->settings.n_prompts == 1)
        log_line(to, SLUICE_WARNING, "%s no effect without guidance (--cfg-scale is 1)", flags);
    else if (!n_guided) {
        /* As many digits as tell the two numbers apart: a level of f32 may exceed its decimal by little. */
        int digits = 3;
        snprintf(until, sizeof until, "%g", r->cfg_until);
        do snprintf(begins, sizeof begins, "%.*g", digits, (double)schedule_level(job, &s->grid.step->at));
        while (!strcmp(begins, until) && digits++ < 9);
        log_line(to, SLUICE_WARNING, "--cfg-until %s turns guidance off: the first step begins at %s", until,
                 begins);
    } else if (ends && s->calls[s->n_calls - 1].guided)
        log_line(to, SLUICE_WARNING, "--cfg-until %g has no effect: the last step begins at %.3g",
                 r->cfg_until, (double)schedule_level(job, &s->grid.step[s->grid.n - 1].at));
}

/* Warns of an input image that has no influence because the first step begins with pure noise. */
static void warn_of_strength(const struct sluice_session_options *to, const struct job *job) {
    const struct sluice_request *r = &job->request;
    if (job->settings.decode_only || !r->init_image || r->mask || job->model->init != INIT_IMG2IMG ||
        job->schedule.grid.step[0].at.signal > 0)
        return;
    log_line(to, SLUICE_WARNING,
             "the input image has no influence: at --strength %g all %d steps run, from pure noise "
             "(use %sa smaller --strength)",
             r->strength, r->steps, r->strength < 1 ? "more steps or " : "");
}

/* Warns of control images without effect. */
static void warn_of_controls(const struct sluice_session_options *to, const struct job *job) {
    for (int i = 0; i < job->n_controls; i++) {
        const struct job_control *control = &job->controls[i];
        int n_used = 0;
        for (int step = 0; step < job->schedule.grid.n; step++) n_used += job_control_runs(job, i, step);
        if (control->strength == 0)
            log_line(to, SLUICE_WARNING, "control image %d has no effect: --control-strength is 0", i);
        else if (!n_used)
            log_line(to, SLUICE_WARNING,
                     "control image %d has no effect: none of the %d steps lies between --control-start %g "
                     "and --control-end %g",
                     i, job->schedule.grid.n, control->start, control->end);
    }
}

static void warn_of_slg(const struct sluice_session_options *to, const struct job *job) {
    const struct sluice_request *r = &job->request;
    int n = job->schedule.n_steps, n_in_interval = 0;
    if (job->settings.decode_only || !r->n_slg_layers || job_skips_layers(job)) return;
    for (int step = 0; step < job->schedule.grid.n; step++)
        n_in_interval += schedule_in_slg_interval(job, step);
    if (job->settings.n_prompts == 1)
        log_line(to, SLUICE_WARNING, "--slg-layers has no effect without guidance (--cfg-scale is 1)");
    else if (r->slg_scale == 0)
        log_line(to, SLUICE_WARNING, "--slg-layers has no effect: --slg-scale is 0");
    else if (n_in_interval)
        log_line(to, SLUICE_WARNING,
                 "--slg-layers has no effect: the steps between --slg-start and --slg-end have no guidance "
                 "(--cfg-until %g)",
                 r->cfg_until);
    else
        log_line(to, SLUICE_WARNING,
                 "--slg-layers has no effect: none of the %d steps (from 0) is between step %g (--slg-start "
                 "%g) and step %g (--slg-end %g)",
                 n, n * r->slg_start, r->slg_start, n * r->slg_end, r->slg_end);
}

/* Warns of videos without their sound: `decode` makes none, and files may lack the parts that decode it. */
static void warn_of_silence(const struct sluice_session_options *to, const struct job *job) {
    if (!job->model->recipe->sound.channels || job->request.no_audio || job->request.no_decode) return;
    if (job->settings.decode_only && job->request.frames > 1)
        log_line(to, SLUICE_WARNING, "the video has no sound: only a whole run decodes the sound");
    else if (!job->settings.decode_only && !job->second_pass && !job_decodes_sound(job))
        log_line(to, SLUICE_WARNING,
                 "the video has no sound: the model's files have no audio VAE or vocoder (--audio-vae, "
                 "--vocoder)");
}

/* Warns if the VAE differs from the published VAE to which the colour factors of --preview latent belong. */
static void warn_of_preview_colours(const struct sluice_session_options *to, const struct job *job) {
    const struct latent_colours *colours = job->model->recipe->colours;
    const struct component *decoder = model_component(job->model, FAMILY_DECODER);
    if (job->settings.preview != PREVIEW_LATENT || !decoder->family || colours->scale == 0) return;
    float scale = decoder->latent_format.scale[0];
    if (fabsf(scale - colours->scale) > 1e-4F)
        log_line(to, SLUICE_WARNING,
                 "preview colours may be wrong: they are those of the published VAE, and this VAE differs "
                 "(scaling factor %g, not %g); --preview vae is exact",
                 (double)scale, (double)colours->scale);
}

static void warn_of_truncation(const struct sluice_session_options *to, const struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++) {
        int slot = i / PROMPTS_MAX, prompt = i % PROMPTS_MAX;
        if (job->prompts.tokens[slot][prompt].cut)
            log_line(to, SLUICE_WARNING, "the %s is longer than %d tokens: it is cut off there for the %s",
                     prompt ? "negative prompt" : "prompt", job->prompts.tokens[slot][prompt].n_ids,
                     recipe->slot[slot].family->display_name);
    }
    for (int i = 0; i < MODEL_COMPONENTS; i++) {
        const struct component *c = &job->model->component[i];
        if (c->family && c->family->kind != FAMILY_ENCODER) warn_of_component(to, c);
    }
}

static void log_fitted_image(const struct sluice_session_options *to, const struct sluice_picture *picture,
                             const struct fitting *f) {
    char resized[64] = "", cut[64] = "";
    struct picture_size whole = f->part.whole, size = f->size;
    bool resizes = whole.width != f->from.width || whole.height != f->from.height;
    bool cropped = whole.width > size.width || whole.height > size.height;
    bool cuts = whole.width != size.width || whole.height != size.height;
    if (resizes) snprintf(resized, sizeof resized, "resized to %dx%d", whole.width, whole.height);
    if (cuts)
        snprintf(cut, sizeof cut, "%s%s to %dx%d", resizes ? " and " : "", cropped ? "cropped" : "padded",
                 size.width, size.height);
    log_line(to, SLUICE_INFO, "%s (%dx%d) is %s%s", picture->name ? picture->name : "an input image",
             f->from.width, f->from.height, resized, cut);
}

static void log_references(const struct sluice_session_options *to, const struct job *job) {
    for (int i = 0; i < job->pictures.n_encoded; i++) {
        const struct encoded *encoded = &job->pictures.encoded[i];
        const struct sluice_picture *picture = pictures_input(job, encoded);
        struct picture_size size = encoded->size;
        bool vision = encoded->kind == ENCODED_VISION;
        if (!vision && encoded->kind != ENCODED_REFERENCE) continue;
        if (size.width != picture->width || size.height != picture->height)
            log_line(to, SLUICE_INFO, "%s is %s: %dx%d instead of %dx%d",
                     picture->name ? picture->name : "a reference image",
                     vision ? "resized for the vision encoder" : "resized for the VAE", size.width,
                     size.height, picture->width, picture->height);
    }
}

/* Logs the system's limit on pinned host memory, and how many bytes of weights the limit leaves unpinned. */
static void log_pin_limit(const struct sluice_session_options *to, const struct job *job) {
    char limit[SIZE_TEXT_BYTES], windowed[SIZE_TEXT_BYTES];
    uint64_t most = 0;
    for (int i = 0; i < job->plan.n_stages; i++) {
        const struct plan_stage *p = &job->plan.stage[i];
        if (p->pool_bytes - p->pinned_bytes > most) most = p->pool_bytes - p->pinned_bytes;
    }
    if (!job->need->pin_limit_bytes) return;
    size_text(job->need->pin_limit_bytes, limit);
    if (most)
        log_line(to, SLUICE_INFO,
                 "the system limits pinned memory to %s: %s of weights in RAM go through a staging buffer",
                 limit, size_text(most, windowed));
    else
        log_line(to, SLUICE_INFO, "the system limits pinned memory to %s", limit);
}

/* Reports adapter tensors that match no weight, and how an ambiguous adapter was read. */
static void log_adapters(const struct sluice_session_options *to, const struct job *job) {
    for (int i = 0; i < job->context.adapters->n_files && !job->settings.decode_only; i++) {
        const struct loaded_adapter *file = job->context.adapters->file[i];
        for (int k = 0; k < file->match.n_notes; k++)
            log_line(to, file->match.n_unmatched ? SLUICE_WARNING : SLUICE_INFO, "%s: %s", file->name,
                     file->match.note[k]);
    }
}

void warn_session(const struct sluice_session_options *to, const struct sluice_model *model,
                  const struct device *device) {
    char why[512], lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES];
    if (!to->device && !device->memory && device_skipped(why, sizeof why))
        log_line(to, SLUICE_INFO, "running on the CPU, the GPU cannot be used: %s", why);
    if (device->note[0]) log_line(to, SLUICE_INFO, "%s", device->note);
    int n = model_notes(model, lines);
    for (int i = 0; i < n; i++) log_line(to, SLUICE_INFO, "%s", lines[i]);
}

static void log_tiny_decoder(const struct sluice_session_options *to, const struct job *job) {
    const struct component *tiny = job_tiny_decoder(job);
    if (tiny)
        log_line(to, SLUICE_INFO, "decoded with the %s (%s): the image differs slightly from the VAE's",
                 tiny->family->display_name, tiny->family->name);
}

void warn_plan(const struct sluice_session_options *to, const struct job *job) {
    log_tiny_decoder(to, job);
    log_adapters(to, job);
    warn_of_guidance_limits(to, job);
    warn_of_slg(to, job);
    warn_of_controls(to, job);
}

void warn_run(const struct sluice_session_options *to, const struct job *job, double requested_scale) {
    log_adapters(to, job);
    warn_of_truncation(to, job);
    warn_of_prompt_weights(to, job);
    warn_of_guidance(to, job, requested_scale);
    warn_of_guidance_limits(to, job);
    warn_of_strength(to, job);
    warn_of_slg(to, job);
    warn_of_controls(to, job);
    warn_of_silence(to, job);
    warn_of_preview_colours(to, job);
    const char *negative = job->model->recipe->text.default_negative;
    if (negative && job->settings.n_prompts > 1 && !job->settings.decode_only &&
        job->request.negative_prompt == negative)
        log_line(to, SLUICE_INFO,
                 "the negative prompt is this model's default; --negative-prompt \"\" turns it off");
    for (int i = 0; i < PICTURE_REFERENCES; i++)
        if (fit_changes(&job->pictures.fitting[i]))
            log_fitted_image(to, &job->pictures.input[i], &job->pictures.fitting[i]);
    for (int i = PICTURE_CONTROL; i < PICTURES_MAX; i++)
        if (job->pictures.fitted[i].width && fit_changes(&job->pictures.fitting[i]))
            log_fitted_image(to, &job->pictures.input[i], &job->pictures.fitting[i]);
    log_references(to, job);
    log_tiny_decoder(to, job);
    const struct device_memory *own = job->device->memory;
    char unused[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES];
    if (own && own->available && !job->request.max_vram_bytes && !job->request.plan)
        log_line(to, SLUICE_INFO, "device memory: %s free on %s, budget %s (set it with --max-vram)",
                 size_text(own->available(job->device) - own->used(job->device), unused), job->device->name,
                 size_text(job->plan.vram_budget_bytes, budget));
    log_pin_limit(to, job);
}
