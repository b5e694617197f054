/* Remarks: see remarks.h. */
#include "engine/api/remarks.h"

#include "engine/api/devices.h"
#include "engine/base/text.h"
#include "engine/open/emphasis.h"

#include <math.h>
#include <stdio.h>

static void warn_of_component(struct sluice_session *s, const struct component *c) {
    uint64_t bytes = index_bytes(&c->index), claimed = c->index.claimed_bytes;
    if (c->n_unknown)
        session_say(s, SLUICE_WARNING, "%d unknown tensors in the %s are not used; `inspect` lists them",
                    c->n_unknown, c->family->name);
    if (claimed && claimed != bytes)
        session_say(
            s, SLUICE_WARNING,
            "the shard index of the %s says total_size %llu, its tensors have %llu bytes: the tensors count",
            c->family->name, (unsigned long long)claimed, (unsigned long long)bytes);
}

static void warn_of_marks(struct sluice_session *s, const struct job *job) {
    const char *const texts[PROMPTS_MAX] = {job->request.prompt, job->request.negative_prompt};
    for (int i = 0; i < SLOTS_MAX; i++)
        if (job->model->recipe->slot[i].text.windows_max) return;
    for (int i = 0; i < job->n_prompts; i++)
        if (texts[i] && emphasis_is_in(texts[i]))
            session_say(s, SLUICE_WARNING,
                        "the %s: (word:1.3) weighs nothing with this model, its letters are read as text",
                        i ? "negative prompt" : "prompt");
}

/* asked: the caller's scale. What is the model's default nobody has asked for. */
static void warn_of_guidance(struct sluice_session *s, const struct job *job, double asked) {
    if (job->decode_only) return;
    if (job->request.cfg_scale == 0)
        session_say(s, SLUICE_WARNING,
                    "--cfg-scale 0 draws the negative prompt alone; without guidance it is 1");
    if (job->request.cfg_scale == asked) return;
    session_say(s, asked == job->model->cfg_scale ? SLUICE_INFO : SLUICE_WARNING,
                "without a negative prompt (--negative-prompt \" \") this model draws without guidance: "
                "--cfg-scale %g changes nothing",
                asked);
}

static void warn_of_skipped(struct sluice_session *s, const struct job *job) {
    const struct sluice_request *r = &job->request;
    if (job->decode_only || !r->n_slg_layers || job_branches(job) > job->n_prompts) return;
    if (job->n_prompts == 1)
        session_say(s, SLUICE_WARNING, "--slg-layers does nothing without guidance (--cfg-scale is 1)");
    else if (r->slg_scale == 0)
        session_say(s, SLUICE_WARNING, "--slg-layers does nothing: --slg-scale is 0");
    else
        session_say(
            s, SLUICE_WARNING,
            "--slg-layers does nothing: of %d steps, counted from 0, none is between %g (--slg-start) "
            "and %g (--slg-end)",
            job->n_steps, job->n_steps * r->slg_start, job->n_steps * r->slg_end);
}

/* An autoencoder of one's own has as many channels, and other colours. */
static void warn_of_colours(struct sluice_session *s, const struct job *job) {
    const struct latent_colours *colours = job->model->recipe->colours;
    const struct component *decoder = model_component(job->model, FAMILY_DECODER);
    if (job->preview != PREVIEW_LATENT || !decoder->family || colours->scale == 0) return;
    float scale = decoder->latent_format.scale[0];
    if (fabsf(scale - colours->scale) > 1e-4F)
        session_say(s, SLUICE_WARNING,
                    "colours of previews are the published autoencoder's; this one is another (scale %g, not "
                    "%g): --preview vae shows its own",
                    (double)scale, (double)colours->scale);
}

/* Said where it is read: by nobody without guidance. */
static void note_negative(struct sluice_session *s, const struct job *job) {
    const char *own = job->model->recipe->negative;
    if (own && job->n_prompts > 1 && !job->decode_only && job->request.negative_prompt == own)
        session_say(s, SLUICE_INFO,
                    "the negative prompt is the one that this model's authors use (--negative-prompt \"\" is "
                    "none): %s",
                    own);
}

static void warn_of_cuts(struct sluice_session *s, const struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++) {
        int slot = i / PROMPTS_MAX, prompt = i % PROMPTS_MAX;
        if (job->tokens[slot][prompt].cut)
            session_say(s, SLUICE_WARNING, "the %s is longer than %d tokens: the %s does not see its end",
                        prompt ? "negative prompt" : "prompt", job->tokens[slot][prompt].n_ids,
                        recipe->slot[slot].family->word);
    }
    for (int i = 0; i < SLOTS_MAX; i++) {
        const struct component *c = &s->model->component[i];
        if (c->family && c->family->kind != FAMILY_ENCODER) /* the decoder's tensors are its own */
            warn_of_component(s, c);
    }
}

/* A picture of another size than what is drawn. */
static void say_fitted(struct sluice_session *s, const struct sluice_picture *given,
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
    session_say(s, SLUICE_INFO, "%s (%dx%d) is %s%s", given->name ? given->name : "a picture", f->from.width,
                f->from.height, resized, cut);
}

/* References of other sizes than the model reads. */
static void say_references(struct sluice_session *s, const struct job *job) {
    for (int i = 0; i < job->n_encoded; i++) {
        const struct encoded *encoded = &job->encoded[i];
        const struct sluice_picture *given = job_given(job, encoded);
        struct picture_size size = encoded->size;
        bool sees = encoded->kind == ENCODED_VISION;
        if (!sees && encoded->kind != ENCODED_REFERENCE) continue;
        if (size.width != given->width || size.height != given->height)
            session_say(s, SLUICE_INFO, "%s is %s at %dx%d instead of %dx%d",
                        given->name ? given->name : "a reference", sees ? "seen" : "read", size.width,
                        size.height, given->width, given->height);
    }
}

/* What a budget that nobody gave came to. */
static void say_budget(struct sluice_session *s, const struct job *job) {
    const struct device_memory *own = s->device->memory;
    if (!own || !own->available || job->request.max_vram_bytes || job->request.plan) return;
    char unused[SIZE_TEXT_BYTES], budget[SIZE_TEXT_BYTES];
    session_say(s, SLUICE_INFO, "device memory: %s free on %s, a budget of %s",
                size_text(own->available(s->device) - own->used(s->device), unused), s->device->name,
                size_text(job->plan.vram_budget_bytes, budget));
}

/* What a plan makes of a system that lets less be pinned than it would use. */
static void say_pins(struct sluice_session *s, const struct job *job) {
    char limit[SIZE_TEXT_BYTES], windowed[SIZE_TEXT_BYTES];
    uint64_t most = 0;
    for (int i = 0; i < job->plan.n_stages; i++) {
        const struct plan_stage *p = &job->plan.stage[i];
        if (p->pool_bytes - p->pinned_bytes > most) most = p->pool_bytes - p->pinned_bytes;
    }
    if (!job->need->pin_limit_bytes) return;
    size_text(job->need->pin_limit_bytes, limit);
    if (most)
        session_say(s, SLUICE_INFO,
                    "the system lets %s of host memory be pinned: %s of weights there pass through staging",
                    limit, size_text(most, windowed));
    else
        session_say(s, SLUICE_INFO, "the system lets %s of host memory be pinned", limit);
}

static void say_passed_over(struct sluice_session *s) {
    char why[512];
    if (!s->options.device && !s->device->memory && device_passed_over(why, sizeof why))
        session_say(s, SLUICE_INFO, "on the CPU: %s", why);
}

static void say_assumptions(struct sluice_session *s) {
    if (s->device->note[0]) session_say(s, SLUICE_INFO, "%s", s->device->note);
    char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES];
    int n = model_notes(s->model, lines);
    for (int i = 0; i < n; i++) session_say(s, SLUICE_INFO, "%s", lines[i]);
}

/* What of an adapter fits nothing, and how it was taken. */
static void say_adapters(struct sluice_session *s, const struct job *job) {
    for (int i = 0; i < s->adapted.n_files && !job->decode_only; i++) {
        const struct adapted_file *file = s->adapted.file[i];
        for (int k = 0; k < file->match.n_notes; k++)
            session_say(s, file->match.n_unmatched ? SLUICE_WARNING : SLUICE_INFO, "%s: %s", file->name,
                        file->match.note[k]);
    }
}

void remarks_of_session(struct sluice_session *s) {
    say_passed_over(s);
    say_assumptions(s);
}

/* The same seed looks otherwise with it. */
static void say_decoder(struct sluice_session *s, const struct job *job) {
    const struct component *tiny = job_tiny_decoder(job);
    if (tiny)
        session_say(s, SLUICE_INFO,
                    "decoded with the %s (%s): another picture than the autoencoder's, near to it",
                    tiny->family->word, tiny->family->name);
}

void remarks_of_plan(struct sluice_session *s, const struct job *job) {
    say_decoder(s, job);
    say_adapters(s, job);
    warn_of_skipped(s, job);
}

void remarks_of_run(struct sluice_session *s, const struct job *job, double asked) {
    say_adapters(s, job);
    warn_of_cuts(s, job);
    warn_of_marks(s, job);
    warn_of_guidance(s, job, asked);
    warn_of_skipped(s, job);
    warn_of_colours(s, job);
    note_negative(s, job);
    for (int i = 0; i < PICTURE_REFERENCES; i++)
        if (fit_changes(&job->fitting[i])) say_fitted(s, &job->given[i], &job->fitting[i]);
    say_references(s, job);
    say_decoder(s, job);
    say_budget(s, job);
    say_pins(s, job);
}
