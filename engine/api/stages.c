/* Kinds of stages: see stages.h. */
#include "engine/api/stages.h"

#include "engine/api/job.h"
#include "engine/api/turns.h"

#include <string.h>

static void stages_connect_text(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    int slot = l->slot[s];
    for (int i = 0; i < l->stages[s].n_lanes; i++) {
        int prompt = job->recalled.lacking[slot][i];
        const struct prompt_tokens *tokens = &job->tokens[slot][prompt];
        lanes[i] = (struct lane){.prompt = prompt,
                                 .tokens = tokens->ids,
                                 .n_tokens = tokens->n_ids,
                                 .window = tokens->window,
                                 .clip_skip = job->request.clip_skip,
                                 .pooled_row = tokens->pooled_row,
                                 .text = l->encoder_text[slot][prompt],
                                 .pooled = l->encoder_pooled[slot][prompt]};
        job_see(job, slot, prompt, lanes[i].seen);
        for (int k = 0, n = 0; k < job->n_encoded; k++)
            if (job->encoded[k].kind == ENCODED_VISION && lanes[i].seen[n].height)
                lanes[i].seen[n++].rows = l->encoded[k].tokens;
    }
}

/* Pictures of one slot, one after another: of a vision encoder or an autoencoder's encoder. */
static void stages_connect_encode(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    const struct stage *stage = &l->stages[s];
    for (int i = 0; i < stage->n_lanes; i++) {
        const struct encoded_tensors *t =
            &l->encoded[layout_find_encoded(job, l->slot[s], stage->n_chunks, i)];
        lanes[i] = (struct lane){
            .tiled = l->choice.tiled, .picture = t->picture, .moments = t->moments, .text = t->tokens};
    }
}

/* What the recipe's rule makes of the picture's size. */
static void stages_fill_numbers(const struct job *job, struct lane *lane) {
    enum { SIZES = 6, SCORE = 4 };
    static const float score[PROMPTS_MAX] = {6, 2.5F};
    float height = (float)job->request.height, width = (float)job->request.width;
    const float sizes[SIZES] = {height, width, 0, 0, height, width};
    enum numbers_rule rule = job->model->recipe->numbers;
    if (rule == NUMBERS_NONE) return;
    memcpy(lane->numbers, sizes, sizeof sizes);
    lane->n_numbers = SIZES;
    if (rule == NUMBERS_SIZES) return;
    lane->numbers[SCORE] = score[lane->prompt];
    lane->n_numbers = SCORE + 1;
}

/* Lanes of a branch are neighbours in their group: lane = branch * together + place. The branch behind the
 * prompts is skip-layer guidance's, of the first prompt. A group with fewer images than others has idle
 * lanes. */
static void stages_connect_denoise(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    const struct job_span *span = &job->spans[l->span[s]];
    int n_lanes = l->together * job_span_branches(span), groups = l->choice.groups;
    int hoisted = l->choice.hoisted >> l->span[s] & 1 ? span->n_calls : 0;
    for (int i = 0; i < groups * n_lanes; i++) {
        int group = i / n_lanes, branch = i % n_lanes / l->together, place = i % l->together, first, n;
        bool skips = branch == span->n_prompts;
        int prompt = skips ? 0 : branch;
        layout_images(l, job->batch, group, &first, &n);
        int image = place < n ? first + place : first;
        lanes[i] = (struct lane){.prompt = prompt,
                                 .text = l->text[prompt],
                                 .pooled = l->pooled[prompt],
                                 .latent = l->input[image],
                                 .concat = l->concat[image],
                                 .image = l->image,
                                 .given = job->given_frames,
                                 .prediction = l->prediction[i % n_lanes],
                                 .guidance = (float)job->request.guidance,
                                 .operand = job->device->operands.in[job->precision],
                                 .hoisted = hoisted,
                                 .idle = place >= n};
        if (skips) {
            lanes[i].left_out = job->request.slg_layers;
            lanes[i].n_left_out = job->request.n_slg_layers;
            lanes[i].evaluations.first = span->first_slg_call * groups;
            lanes[i].evaluations.n = span->n_slg_calls * groups;
        }
        memcpy(lanes[i].reference, l->reference, sizeof l->reference);
        stages_fill_numbers(job, &lanes[i]);
    }
}

static void stages_connect_decode(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    (void)s;
    for (int i = 0; i < job->batch; i++)
        lanes[i] = (struct lane){.tiled = l->choice.tiled, .latent = l->video[i], .picture = l->picture};
}

const struct stage_kind stage_text = {
    .name = "text", .of_texts = true, .connect = stages_connect_text, .stage_ended = turn_text_ended};

const struct stage_kind stage_vision = {.name = "vision",
                                        .of_texts = true,
                                        .connect = stages_connect_encode,
                                        .evaluation_begins = turn_picture_begins,
                                        .evaluation_ended = turn_picture_encoded,
                                        .stage_ended = turn_text_ended};

const struct stage_kind stage_encode = {.name = "encode",
                                        .first_precision = true,
                                        .whole_pictures = true,
                                        .connect = stages_connect_encode,
                                        .evaluation_begins = turn_picture_begins,
                                        .evaluation_ended = turn_picture_encoded,
                                        .stage_ended = turn_encode_ended};

const struct stage_kind stage_hoist = {.name = "hoist", .denoises = true, .connect = stages_connect_denoise};

const struct stage_kind stage_denoise = {.name = "denoise",
                                         .denoises = true,
                                         .connect = stages_connect_denoise,
                                         .evaluation_ended = turn_call_ended,
                                         .stage_ended = turn_denoise_ended};

const struct stage_kind stage_decode = {.name = "decode",
                                        .first_precision = true,
                                        .whole_pictures = true,
                                        .connect = stages_connect_decode,
                                        .evaluation_ended = turn_chunk_decoded};
