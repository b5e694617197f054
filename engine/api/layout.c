/* Makes layouts of a job: inter-stage tensors, stages, lanes and visits. See layout.h. */
#include "engine/api/layout.h"

#include "engine/api/job.h"
#include "engine/api/preview.h"
#include "engine/api/stages.h"

#include <stdio.h>
#include <string.h>

struct text_places layout_place_texts(const struct job *job, int prompt) {
    const struct recipe *recipe = job->model->recipe;
    struct text_places p = {0};
    int32_t row = 0, column = 0, last_columns = 0;
    for (int i = 0; i < recipe->n_conditions; i++) {
        const struct condition *c = &recipe->condition[i];
        int32_t own = model_condition_columns(job->model, i);
        if (c->what == CONDITION_POOLED) {
            p.column[i] = p.pooled_columns;
            p.pooled_columns += own;
            continue;
        }
        int32_t n = job_text_rows(job, c->slot, prompt);
        if (!c->concat_columns) row = p.rows;
        column = c->concat_columns ? column + last_columns : 0;
        last_columns = own;
        p.row[i] = row;
        p.column[i] = column;
        if (c->padded_to > n) n = c->padded_to;
        if (row + n > p.rows) p.rows = row + n;
        bool is_there = job->model->component[c->slot].family;
        if (is_there && column + last_columns > p.columns) p.columns = column + last_columns;
    }
    int32_t read = model_component(job->model, FAMILY_DENOISER)->text_columns;
    if (p.rows && read > p.columns) p.columns = read;
    return p;
}

/* Makes prompt_embeds and pooled_projections. A text encoder writes directly into prompt_embeds or
 * pooled_projections if its output fills the whole tensor, else into a separate tensor. */
static void layout_texts(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    const struct recipe *recipe = job->model->recipe;
    for (int prompt = 0; prompt < job->n_prompts; prompt++) {
        struct text_places p = layout_place_texts(job, prompt);
        int32_t pooled = p.pooled_columns;
        if (p.rows) l->text[prompt] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){p.rows, p.columns}, ok);
        if (pooled) l->pooled[prompt] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, pooled}, ok);
        for (int i = 0; i < recipe->n_conditions; i++) {
            int slot = recipe->condition[i].slot;
            const struct component *c = &job->model->component[slot];
            if (prompt >= job->n_encoded_prompts || !c->family) continue;
            bool is_text = c->family->kind == FAMILY_TEXT;
            if (recipe->condition[i].what == CONDITION_POOLED) {
                bool whole = c->pooled_columns == pooled;
                l->encoder_pooled[slot][prompt] =
                    whole ? l->pooled[prompt]
                          : arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, c->pooled_columns}, ok);
            } else if (is_text) {
                int32_t own[2] = {job->tokens[slot][prompt].n_ids, c->text_columns};
                bool dropped = job->tokens[slot][prompt].drop_idx > 0;
                bool whole = own[0] == p.rows && own[1] == p.columns && !dropped;
                l->encoder_text[slot][prompt] =
                    whole ? l->text[prompt] : arena_tensor(arena, DTYPE_F32, 2, own, ok);
            }
        }
    }
}

static int32_t layout_chunk_frames(const struct frame_chunk *chunks, int n_chunks) {
    int32_t most = 1;
    for (int i = 0; i < n_chunks; i++)
        if (chunks[i].n_frames > most) most = chunks[i].n_frames;
    return most;
}

static int32_t layout_encoded_frames(const struct job *job, const struct encoded *encoded) {
    bool video = encoded->kind == ENCODED_FRAMES || encoded->kind == ENCODED_CONTROL;
    return video ? layout_chunk_frames(job->encoded_chunks, job->n_encoded_chunks) : 1;
}

/* Makes tensors for the vision encoder's output. If the denoiser reads the output, the rows of all pictures
 * are stacked in one tensor. */
static struct tensor layout_vision_tokens(const struct job *job, struct layout *l,
                                          const struct encoded *encoded, struct arena *arena, bool *ok) {
    int32_t columns = job->model->component[encoded->slot].text_columns;
    int32_t rows = encoded->columns * encoded->rows;
    int vision_frames = request_vision_frames(job->model);
    if (!vision_frames) return arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, columns}, ok);
    if (!l->image.rank)
        l->image = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){vision_frames * rows, columns}, ok);
    return tensor_slice(l->image, encoded->reference * rows, rows);
}

/* Inter-stage tensors of one encoded picture. All pictures share the memory of `pictures` and `moments`. */
static void layout_encoded(const struct job *job, struct layout *l, int i, struct tensor pictures,
                           struct tensor moments, struct arena *arena, bool *ok) {
    const struct encoded *encoded = &job->encoded[i];
    const struct component *c = model_decoder(job->model);
    struct encoded_tensors *t = &l->encoded[i];
    int32_t Y = encoded->size.height, X = encoded->size.width, factor = c->pixel_factor;
    int32_t latent[4] = {c->latent_channels, 1, Y / factor, X / factor};
    t->picture =
        tensor_make(pictures.data, DTYPE_F32, 4, (int32_t[]){layout_encoded_frames(job, encoded), Y, X, 3});
    if (encoded->kind == ENCODED_VISION)
        t->tokens = layout_vision_tokens(job, l, encoded, arena, ok);
    else
        t->moments =
            tensor_make(moments.data, DTYPE_F32, 3, (int32_t[]){latent[2], latent[3], 2 * latent[0]});
    if (encoded->kind == ENCODED_REFERENCE)
        l->reference[encoded->reference] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    if (encoded->kind == ENCODED_FIRST) l->clean_frame = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    if (job_resizes(job, encoded)) t->resized = arena_tensor(arena, DTYPE_U8, 3, (int32_t[]){Y, X, 3}, ok);
}

/* Memory for pictures and moments. Pictures are encoded one chunk at a time, and the host reads the moments
 * after each chunk; all chunks therefore share memory of the largest chunk's size. The decoder's frames reuse
 * this memory later. */
static void layout_picture_memory(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    const struct component *c = model_decoder(job->model);
    int32_t factor = c->pixel_factor;
    int32_t picture[4] = {layout_chunk_frames(job->chunks, job->n_chunks), job->Y * factor, job->X * factor,
                          3};
    int64_t pixels = job->request.no_decode ? 0 : (int64_t)picture[0] * picture[1] * picture[2];
    int64_t most = 0, latents = 0;
    for (int i = 0; i < job->n_encoded; i++) {
        struct picture_size size = job->encoded[i].size;
        int64_t n = (int64_t)size.height * size.width, frames = layout_encoded_frames(job, &job->encoded[i]);
        if (frames * n > most) most = frames * n;
        if (job->encoded[i].kind != ENCODED_VISION && n / factor / factor > latents)
            latents = n / factor / factor;
    }
    if (pixels > most) most = pixels;
    struct tensor all = {0}, moments = {0};
    if (most) all = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){(int32_t)most, 3}, ok);
    if (latents)
        moments =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){(int32_t)latents, 2 * c->latent_channels}, ok);
    if (pixels) {
        l->picture = tensor_make(all.data, DTYPE_F32, 4, picture);
        l->rgb = arena_tensor(arena, DTYPE_U8, 3, picture + 1, ok);
    }
    if (job->request.n_control) l->control_rgb = arena_tensor(arena, DTYPE_U8, 3, picture + 1, ok);
    for (int i = 0; i < job->n_encoded; i++) layout_encoded(job, l, i, all, moments, arena, ok);
}

static void layout_inpainting(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    int32_t latent[4] = {job->C, job->F, job->Y, job->X};
    if (!job_blends_mask(job)) return;
    l->mask = arena_tensor(arena, DTYPE_F32, 2, latent + 2, ok);
    for (int i = 0; i < job->batch; i++) {
        l->inpaint_latent[i] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
        l->inpaint_noise[i] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    }
}

/* True if all images of the batch share the concat channels: true if the channels contain no sampled latents.
 */
static bool layout_shares_concat(const struct job *job) {
    return job->model->recipe->concat == CONCAT_I2V || job->model->recipe->concat == CONCAT_CONTROL;
}

static void layout_tensors(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    int32_t latent[4] = {job->C, job->F, job->Y, job->X}, concat[4];
    memcpy(concat, latent, sizeof concat);
    concat[0] = job->decode_only ? 0 : model_component(job->model, FAMILY_DENOISER)->concat_channels;
    if (!job->decode_only) layout_texts(job, l, arena, ok);
    int32_t video[4] = {job->C, job->F - job->n_reference_frames, job->Y, job->X};
    for (int i = 0; i < job->batch; i++) {
        l->latent[i] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
        l->video[i] = tensor_make(l->latent[i].data, DTYPE_F32, 4, video);
    }
    const struct sampler *sampler = job->decode_only ? NULL : job->sampling.sampler;
    for (int i = 0; i < job->batch; i++) {
        l->input[i] = job->scales_input || job->n_clean_frames ? arena_tensor(arena, DTYPE_F32, 4, latent, ok)
                                                               : l->latent[i];
        for (int k = 0; sampler && k < sampler->history; k++)
            l->history[i][k] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    }
    if (sampler && sampler->draws_noise != NOISE_NEVER)
        l->noise = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    for (int i = 0; i < job->batch && concat[0]; i++)
        l->concat[i] =
            i && layout_shares_concat(job) ? *l->concat : arena_tensor(arena, DTYPE_F32, 4, concat, ok);
    layout_inpainting(job, l, arena, ok);
    for (int i = 0; i < l->images_per_group * job_branches(job); i++)
        l->prediction[i] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    preview_tensors(job, l, arena, ok);
    layout_picture_memory(job, l, arena, ok);
}

static struct stage *layout_add(const struct job *job, struct layout *l, const struct stage_kind *kind,
                                int slot, int span, int n_lanes, int evaluations) {
    int s = l->n_stages++, before = 0;
    for (int i = 0; i < s; i++) before += l->kind[i] == kind;
    const struct component *c = job_component(job, slot);
    struct stage *stage = &l->stages[s];
    l->kind[s] = kind;
    l->slot[s] = slot;
    l->span[s] = span;
    job_numbered(kind->name, before, stage->name);
    stage->component = c;
    stage->n_lanes = n_lanes;
    stage->n_groups = kind->denoises ? l->choice.groups : 1;
    stage->precision = kind->default_precision ? request_default_precision(job->device) : job->precision;
    stage->evaluations = evaluations;
    stage->n_model_blocks = c->n_blocks;
    stage->n_blocks = c->n_blocks + component_gathered_blocks(c, n_lanes);
    stage->hoists = kind == &stage_hoist;
    if (kind->denoises) stage->timesteps = job->timestep_inputs + job->spans[span].first_call;
    return stage;
}

int layout_find_encoded(const struct job *job, int slot, int n_chunks, int number) {
    for (int i = 0; i < job->n_encoded; i++)
        if (job->encoded[i].slot == slot && job->encoded[i].n_chunks == n_chunks && !number--) return i;
    return -1;
}

static void layout_add_encoded(const struct job *job, struct layout *l, const struct stage_kind *kind,
                               int slot, int n_chunks) {
    int n = 0;
    while (layout_find_encoded(job, slot, n_chunks, n) >= 0) n++;
    if (n) layout_add(job, l, kind, slot, 0, n, n * n_chunks)->n_chunks = n_chunks;
}

static void layout_list_stages(const struct job *job, struct layout *l) {
    const struct recipe *recipe = job->model->recipe;
    for (int slot = 0; slot < SLOTS_MAX && recipe->slot[slot].family && !job->decode_only; slot++) {
        enum family_kind kind = recipe->slot[slot].family->kind;
        if (kind == FAMILY_TEXT && job->prompt_cache_hits.n_misses[slot])
            layout_add(job, l, &stage_text, slot, 0, job->prompt_cache_hits.n_misses[slot], 1);
        if (kind == FAMILY_VISION) layout_add_encoded(job, l, &stage_vision, slot, 1);
    }
    int encoder = recipe_slot(recipe, FAMILY_ENCODER);
    layout_add_encoded(job, l, &stage_encode, encoder, 1);
    if (job->n_encoded_chunks > 1) layout_add_encoded(job, l, &stage_encode, encoder, job->n_encoded_chunks);
    for (int i = 0; i < job->n_spans; i++) {
        int lanes = l->images_per_group * job_span_branches(&job->spans[i]), calls = job->spans[i].n_calls;
        layout_add(job, l, &stage_hoist, job->spans[i].slot, i, lanes, 1);
        layout_add(job, l, &stage_denoise, job->spans[i].slot, i, lanes, calls * l->choice.groups);
    }
    int evaluations = job->batch * job->n_chunks;
    if (!job->request.no_decode)
        layout_add(job, l, &stage_decode, job->decoder_slot, 0, job->batch, evaluations)->n_chunks =
            job->n_chunks;
}

/* Fills in each stage's blocks and connects its lanes. A hoist stage shares the lanes and blocks of the
 * denoise stage after it until layout_split_hoisted. */
static enum status layout_fill_stages(const struct job *job, struct layout *l, struct error *e) {
    size_t n_blocks = 0, n_lanes = 0;
    for (int s = 0; s < l->n_stages; s++) {
        n_blocks += (size_t)l->stages[s].n_blocks;
        n_lanes += (size_t)(l->stages[s].n_lanes * l->stages[s].n_groups);
        if (l->stages[s].n_blocks > PLAN_BLOCKS_MAX)
            return error_set(e, UNSUPPORTED, "the model has too many blocks: %d", l->stages[s].n_blocks);
    }
    l->block_lists = job->sys->alloc(job->sys, LINE_HOST, n_blocks * sizeof *l->block_lists);
    l->lanes = job->sys->alloc(job->sys, LINE_HOST, n_lanes * sizeof *l->lanes);
    if (!l->block_lists || !l->lanes) return error_set(e, MEMORY, "no memory for %zu blocks", n_blocks);
    const struct block **list = l->block_lists;
    struct lane *lanes = l->lanes;
    for (int s = 0; s < l->n_stages; s++) {
        struct stage *stage = &l->stages[s];
        stage->blocks = list;
        stage->lanes = lanes;
        for (int i = 0; i < stage->n_model_blocks; i++) list[i] = &stage->component->blocks[i];
        for (int i = stage->n_model_blocks; i < stage->n_blocks; i++)
            list[i] = &job->gathered[l->slot[s]][i - stage->n_model_blocks];
        if (stage->hoists) continue;
        list += stage->n_blocks;
        lanes += stage->n_lanes * stage->n_groups;
        l->kind[s]->connect(job, l, s, stage->lanes);
    }
    return OK;
}

/* Splits the visits that the family listed for a denoise stage, moving visits before the first evaluation to
 * the hoist stage. Each stage keeps the blocks that it visits, in visit order, blocks with weights before
 * gathered rows. */
static void layout_split_hoisted(struct layout *l, struct stage *hoist, int first_visit) {
    struct stage *denoise = hoist + 1;
    const struct block *all[PLAN_BLOCKS_MAX], **list = hoist->blocks;
    int place[PLAN_BLOCKS_MAX], n_model_blocks = hoist->n_model_blocks;
    memcpy(all, hoist->blocks, (size_t)hoist->n_blocks * sizeof *all);
    memset(place, -1, sizeof place);
    for (struct stage *stage = hoist; stage <= denoise; list += stage++->n_blocks) {
        stage->blocks = list;
        stage->n_blocks = 0;
        for (int lasting = 1; lasting >= 0; lasting--) {
            for (int i = first_visit; i < l->visits.n_visits; i++) {
                const struct visit *visit = &l->visits.visits[i];
                bool here = (visit->evaluation < 0) == (stage == hoist);
                if (!here || (visit->block < n_model_blocks) != lasting || place[visit->block] >= 0) continue;
                place[visit->block] = stage->n_blocks;
                list[stage->n_blocks++] = all[visit->block];
            }
            if (lasting) stage->n_model_blocks = stage->n_blocks;
        }
    }
    for (int i = first_visit; i < l->visits.n_visits; i++) {
        struct visit *visit = &l->visits.visits[i];
        visit->block = place[visit->block];
        visit->stage = (int)((visit->evaluation < 0 ? hoist : denoise) - l->stages);
    }
}

static void layout_drop_unvisited(struct layout *l, struct stage *stage, int first_visit) {
    int place[PLAN_BLOCKS_MAX], n_blocks = 0, n_model_blocks = 0;
    memset(place, -1, sizeof place);
    for (int i = first_visit; i < l->visits.n_visits; i++) place[l->visits.visits[i].block] = 0;
    for (int i = 0; i < stage->n_blocks; i++) {
        if (place[i] < 0) continue;
        n_model_blocks += i < stage->n_model_blocks;
        place[i] = n_blocks;
        stage->blocks[n_blocks++] = stage->blocks[i];
    }
    stage->n_blocks = n_blocks;
    stage->n_model_blocks = n_model_blocks;
    for (int i = first_visit; i < l->visits.n_visits; i++)
        l->visits.visits[i].block = place[l->visits.visits[i].block];
}

static enum status layout_list_visits(struct layout *l, struct error *e) {
    for (int s = 0; s < l->n_stages && e->code == OK; s++) {
        struct stage *stage = &l->stages[s];
        int first = l->visits.n_visits;
        if (stage->hoists) continue;
        component_visits(stage->component, s, stage->lanes, stage->n_lanes, stage->evaluations, &l->visits,
                         e);
        if (e->code != OK) return e->code;
        s && l->stages[s - 1].hoists ? layout_split_hoisted(l, &l->stages[s - 1], first)
                                     : layout_drop_unvisited(l, stage, first);
    }
    return e->code;
}

enum status layout_open(const struct job *job, struct layout_choice choice, void *memory, struct layout *l,
                        struct error *e) {
    bool ok = true;
    *l = (struct layout){.choice = choice,
                         .images_per_group = (job->batch + choice.groups - 1) / choice.groups};
    l->interstage =
        memory ? (struct arena){.base = memory, .bytes = job->need->interstage_bytes} : arena_counting();
    l->visits.sys = job->sys;
    layout_tensors(job, l, &l->interstage, &ok);
    layout_list_stages(job, l);
    return layout_fill_stages(job, l, e) == OK ? layout_list_visits(l, e) : e->code;
}

void layout_close(struct sys *sys, struct layout *l) {
    if (l->visits.sys) visit_list_destroy(&l->visits);
    sys->release(sys, l->block_lists);
    sys->release(sys, l->lanes);
    *l = (struct layout){0};
}
