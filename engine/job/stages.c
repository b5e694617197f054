#include "engine/job/stages.h"

#include "engine/job/prompts.h"

#include <string.h>

static void connect_text(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    int slot = l->slot[s];
    for (int i = 0; i < l->stages[s].n_lanes; i++) {
        int prompt = job->prompts.hits.misses[slot][i];
        const struct prompt_tokens *tokens = &job->prompts.tokens[slot][prompt];
        lanes[i] = (struct lane){.prompt = prompt,
                                 .tokens = tokens->ids,
                                 .n_tokens = tokens->n_ids,
                                 .window = tokens->window,
                                 .clip_skip = job->request.clip_skip,
                                 .pooled_row = tokens->pooled_row,
                                 .text = l->encoder_text[slot][prompt],
                                 .pooled = l->encoder_pooled[slot][prompt]};
        prompts_list_vision_spans(job, slot, prompt, lanes[i].vision_spans);
        for (int k = 0, n = 0; k < job->pictures.n_encoded; k++)
            if (job->pictures.encoded[k].kind == ENCODED_VISION && lanes[i].vision_spans[n].height)
                lanes[i].vision_spans[n++].rows = l->encoded[k].tokens;
    }
}

/* Connects the lanes of a vision encoder or VAE encoder, one per input picture. */
static void connect_encode(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    const struct stage *stage = &l->stages[s];
    for (int i = 0; i < stage->n_lanes; i++) {
        const struct encoded_tensors *t = &l->encoded[job_find_encoded(job, l->slot[s], stage->n_chunks, i)];
        lanes[i] = (struct lane){
            .tiled = l->choice.tiled, .picture = t->picture, .moments = t->moments, .text = t->tokens};
    }
}

/* Fills in SDXL's add_time_ids: original size, crop, then target size or aesthetic score. */
static void fill_time_ids(const struct job *job, struct lane *lane) {
    enum { SIZES = 6, SCORE = 4 };
    static const float score[PROMPTS_MAX] = {6, 2.5F};
    float height = (float)job->request.height, width = (float)job->request.width;
    const float sizes[SIZES] = {height, width, 0, 0, height, width};
    enum add_time_ids_rule rule = job->model->recipe->denoising.add_time_ids;
    if (rule == ADD_TIME_IDS_NONE) return;
    memcpy(lane->add_time_ids, sizes, sizeof sizes);
    lane->n_add_time_ids = SIZES;
    if (rule == ADD_TIME_IDS_SIZES) return;
    lane->add_time_ids[SCORE] = score[lane->prompt];
    lane->n_add_time_ids = SCORE + 1;
}

/* Lanes of a group of images: the lane index is branch * images_per_group + image. Branches: conditional,
 * unconditional, then skip-layer guidance of the conditional prompt. Groups smaller than the largest have
 * padding lanes. */
static void connect_denoise(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    const struct job_span *span = &job->schedule.spans[l->span[s]];
    int n_lanes = l->images_per_group * job_span_branches(span), groups = l->choice.groups;
    int hoisted = l->choice.hoisted >> l->span[s] & 1 ? span->n_calls : 0;
    for (int i = 0; i < groups * n_lanes; i++) {
        int group = i / n_lanes, branch = i % n_lanes / l->images_per_group, place = i % l->images_per_group,
            first, n;
        bool skips = branch == span->n_prompts;
        int prompt = skips ? 0 : branch;
        layout_images(l, job->latents.batch, group, &first, &n);
        int image = place < n ? first + place : first;
        lanes[i] = (struct lane){.prompt = prompt,
                                 .text = l->text[prompt],
                                 .pooled = l->pooled[prompt],
                                 .latent = l->input[image],
                                 .concat = l->concat[image],
                                 .image = l->image,
                                 .n_clean_frames = job->latents.n_clean_frames,
                                 .prediction = l->prediction[i % n_lanes],
                                 .guidance = (float)job->request.guidance,
                                 .operand = job->device->operands.in[job->settings.precision],
                                 .hoisted = hoisted,
                                 .padding = place >= n};
        if (skips) {
            lanes[i].skip_layers = job->request.slg_layers;
            lanes[i].n_skip_layers = job->request.n_slg_layers;
            lanes[i].evaluations.first = span->first_slg_call * groups;
            lanes[i].evaluations.n = span->n_slg_calls * groups;
        }
        memcpy(lanes[i].reference, l->reference, sizeof l->reference);
        fill_time_ids(job, &lanes[i]);
    }
}

static void connect_decode(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    (void)s;
    for (int i = 0; i < job->latents.batch; i++)
        lanes[i] = (struct lane){.tiled = l->choice.tiled, .latent = l->video[i], .picture = l->picture};
}

const struct stage_kind stage_text = {.name = "text", .encodes_prompts = true, .connect = connect_text};

const struct stage_kind stage_vision = {.name = "vision", .encodes_prompts = true, .connect = connect_encode};

const struct stage_kind stage_encode = {
    .name = "encode", .default_precision = true, .full_frames = true, .connect = connect_encode};

const struct stage_kind stage_hoist = {.name = "hoist", .denoises = true, .connect = connect_denoise};

const struct stage_kind stage_denoise = {.name = "denoise", .denoises = true, .connect = connect_denoise};

const struct stage_kind stage_decode = {
    .name = "decode", .default_precision = true, .full_frames = true, .connect = connect_decode};
