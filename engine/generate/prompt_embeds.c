#include "engine/generate/prompt_embeds.h"

#include "engine/generate/dump.h"
#include "engine/generate/running.h"
#include "engine/job/layout.h"
#include "engine/job/prompts.h"

#include <string.h>

/* Copies one text encoder's output rows to their columns of the prompt's combined embedding. */
static void copy_rows(struct tensor to, int32_t row, int32_t column, struct tensor from) {
    for (int32_t i = 0; i < from.dim[0]; i++)
        memcpy((float *)to.data + (int64_t)(row + i) * to.dim[1] + column, tensor_slice(from, i, 1).data,
               (size_t)from.dim[1] * sizeof(float));
}

/* Adds the rows of `from` to those of `to`, from `row` on. */
static void add_rows(struct tensor to, int row, struct tensor from) {
    float *sum = (float *)to.data + (int64_t)row * to.dim[1];
    for (int64_t i = 0, n = tensor_elements(&from); i < n; i++) sum[i] += ((const float *)from.data)[i];
}

static void scale(struct tensor t, float factor) {
    for (int64_t i = 0, n = t.rank ? tensor_elements(&t) : 0; i < n; i++) ((float *)t.data)[i] *= factor;
}

/* Scales the positive prompt as FluxPriorReduxPipeline of diffusers, which adds up text and image embeddings
 * over all images and multiplies the sum by the strength. So the text counts once for each image. The rows of
 * the images are already sums. */
static void scale_redux(const struct job *job) {
    const struct layout *l = &job->layout;
    const struct recipe *recipe = job->model->recipe;
    int n = job->request.n_redux_images, i = 0;
    while (!recipe->text.condition[i].of_redux) i++;
    int first = prompts_place_texts(job, 0).row[i];
    scale(tensor_slice(l->text[0], 0, first), (float)n);
    scale(l->pooled[0], (float)n);
    scale(l->text[0], (float)job->request.redux_strength);
    scale(l->pooled[0], (float)job->request.redux_strength);
}

static double mean_of(const float *values, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)values[i];
    return sum / (double)n;
}

/* Prompt weighting: multiplies each token's row by its weight and restores the mean of each window, as
 * AUTOMATIC1111's web UI does (stable-diffusion-webui 1.10, modules/sd_emphasis.py, EmphasisOriginal). */
static void apply_emphasis(const struct prompt_tokens *tokens, struct tensor text) {
    int64_t columns = text.dim[1], n = tokens->window * columns;
    for (int first = 0; first < tokens->n_ids && tokens->weights; first += tokens->window) {
        float *rows = (float *)text.data + first * columns;
        double before = mean_of(rows, n);
        for (int64_t i = 0; i < n; i++) rows[i] *= tokens->weights[first + i / columns];
        double after = mean_of(rows, n);
        float restored = after == 0 ? 1 : (float)(before / after);
        for (int64_t i = 0; i < n; i++) rows[i] *= restored;
    }
}

/* Copies the output of the text encoder in this slot into the combined prompt_embeds and pooled row. Does
 * nothing if the encoder wrote directly into these tensors. */
static void place_prompt_embeds(const struct job *job, int slot, int prompt) {
    const struct layout *l = &job->layout;
    const struct recipe *recipe = job->model->recipe;
    const struct text_places p = prompts_place_texts(job, prompt);
    for (int i = 0; i < recipe->text.n_conditions; i++) {
        const struct condition *c = &recipe->text.condition[i];
        struct tensor encoded = l->encoder_text[c->slot][prompt], row = l->encoder_pooled[c->slot][prompt];
        int32_t dropped = job->prompts.tokens[c->slot][prompt].drop_idx, at = p.row[i];
        if (c->what == CONDITION_POOLED) {
            if (c->slot == slot && row.data != l->pooled[prompt].data)
                copy_rows(l->pooled[prompt], 0, p.column[i], row);
            continue;
        }
        if (c->slot != slot || encoded.data == l->text[prompt].data) continue;
        int32_t n = encoded.rank ? encoded.dim[0] - dropped : 0;
        for (int k = 0, parts = condition_parts(c); k < parts && n; k++) {
            int32_t columns = encoded.dim[1] / parts;
            copy_rows(l->text[prompt], at + k * n, p.column[i],
                      tensor_slice_columns(tensor_slice(encoded, dropped, n), k * columns, columns));
        }
        for (int k = 0; k < job->pictures.n_encoded; k++) {
            if (job->pictures.encoded[k].slot != slot || (c->of_redux && prompt)) continue;
            if (c->of_redux) {
                add_rows(l->text[prompt], at, l->encoded[k].tokens);
                continue;
            }
            copy_rows(l->text[prompt], at, p.column[i], l->encoded[k].tokens);
            at += l->encoded[k].tokens.dim[0];
        }
    }
}

/* After the last text or vision stage (stage -1: all prompts came from the prompt cache): scales the positive
 * prompt of Redux, dumps the complete prompt embeddings and logs the estimated time. */
static enum status finish_prompt_embeds(struct running *r, int stage, struct error *e) {
    static const char *const texts[PROMPTS_MAX] = {"cond", "uncond"}, *const pooled[PROMPTS_MAX] = {
                                                                          "pooled", "pooled_uncond"};
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    const char *folder = job->request.dump;
    if (l->kind[stage + 1]->encodes_prompts || e->code != OK) return e->code;
    if (job->request.n_redux_images) scale_redux(job);
    for (int i = 0; i < job->settings.n_prompts && folder && e->code == OK; i++) {
        if (l->text[i].rank) dump_save(job->sys, folder, texts[i], l->text[i], e);
        if (l->pooled[i].rank && e->code == OK) dump_save(job->sys, folder, pooled[i], l->pooled[i], e);
    }
    if (e->code == OK) progress_log_estimate(r);
    return e->code;
}

enum status prompt_embeds_stage_ended(struct running *r, int stage, struct error *e) {
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    int slot = l->slot[stage];
    for (int k = 0; k < job->prompts.hits.n_misses[slot] && e->code == OK; k++) {
        int i = job->prompts.hits.misses[slot][k];
        struct tensor text = l->encoder_text[slot][i], pooled = l->encoder_pooled[slot][i];
        struct error failed = {0};
        char line[1024];
        if (text.rank) apply_emphasis(&job->prompts.tokens[slot][i], text);
        if (text.rank) check_finite(text, "the prompt embedding", l->stages[stage].name, -1, e);
        if (pooled.rank && e->code == OK)
            check_finite(pooled, "the prompt embedding", l->stages[stage].name, -1, e);
        if (e->code != OK) break;
        /* If the prompt cache cannot store an embedding, a warning is logged and the next run encodes the
         * prompt again. */
        prompts_store(job, slot, i, &failed);
        if (failed.code != OK)
            log_line(r->options, SLUICE_WARNING, "cannot save a prompt's embeddings in the prompt cache: %s",
                     error_line(&failed, line, sizeof line));
        place_prompt_embeds(job, slot, i);
    }
    return finish_prompt_embeds(r, stage, e);
}

enum status prompt_embeds_from_cache(struct running *r, struct error *e) {
    const struct job *job = r->job;
    bool hit = false;
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < PROMPTS_MAX; i++) {
            if (!prompts_hit(job, slot, i)) continue;
            if (prompts_copy_cached(job, slot, i, e) != OK) return e->code;
            place_prompt_embeds(job, slot, i);
            hit = true;
        }
    return hit ? finish_prompt_embeds(r, -1, e) : OK;
}
