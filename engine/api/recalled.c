/* What need not be encoded: see recalled.h. */
#include "engine/api/recalled.h"

#include "engine/api/conditioning_file.h"
#include "engine/api/conditioning_key.h"

#include <string.h>

/* What the text encoder in that slot writes of a prompt, without data. */
static struct conditioning_tensors shapes_of(const struct job *job, int slot, int prompt) {
    const struct recipe *recipe = job->model->recipe;
    const struct component *c = &job->model->component[slot];
    struct conditioning_tensors t = {0};
    for (int i = 0; i < recipe->n_conditions; i++) {
        if (recipe->condition[i].slot != slot) continue;
        if (recipe->condition[i].what == CONDITION_POOLED)
            t.pooled = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){1, c->pooled_columns});
        else
            t.text = tensor_make(NULL, DTYPE_F32, 2,
                                 (int32_t[]){job->tokens[slot][prompt].n_ids, c->text_columns});
    }
    return t;
}

static struct conditioning_tensors tensors_of(const struct job *job, int slot, int prompt) {
    return (struct conditioning_tensors){job->layout.encoder_text[slot][prompt],
                                         job->layout.encoder_pooled[slot][prompt]};
}

static struct conditioning_place place_of(const struct job *job, int slot, int prompt) {
    return (struct conditioning_place){job->sys, job->place.conditionings->folder,
                                       job->recalled.key[slot][prompt]};
}

static size_t bytes_of(struct tensor t) {
    return t.rank ? (size_t)tensor_bytes(&t) : 0;
}

static int64_t values_of(struct conditioning_tensors t) {
    return (int64_t)((bytes_of(t.text) + bytes_of(t.pooled)) / sizeof(float));
}

/* ---- before the plan ---- */

/* Not where a plan alone is made of what nobody said, nor where pictures are part of what is read. */
static bool has_key(const struct job *job, int slot) {
    const struct conditionings *c = job->place.conditionings;
    bool pictured = job->model->recipe->slot[slot].text.pictured.pad && job->n_encoded;
    return c && (c->limit_bytes || c->folder) && job->request.prompt && !job->model->published && !pictured;
}

bool recalled_has(const struct job *job, int slot, int prompt) {
    return job->recalled.found[slot][prompt] || job->recalled.file[slot][prompt].n_sources;
}

static void find_prompt(struct job *job, int slot, int prompt) {
    struct recalled *r = &job->recalled;
    struct conditionings *c = job->place.conditionings;
    conditioning_key(job, slot, prompt, r->key[slot][prompt]);
    r->found[slot][prompt] = conditionings_find(c, r->key[slot][prompt]);
    if (r->found[slot][prompt] || !c->folder) return;
    struct conditioning_place place = place_of(job, slot, prompt);
    struct conditioning_tensors shapes = shapes_of(job, slot, prompt);
    conditioning_file_open(&place, &shapes, &r->file[slot][prompt]);
}

static void find_slot(struct job *job, int slot) {
    struct recalled *r = &job->recalled;
    r->has_key[slot] = has_key(job, slot);
    for (int i = 0; i < job->n_read; i++) {
        if (r->has_key[slot]) find_prompt(job, slot, i);
        if (!recalled_has(job, slot, i)) r->lacking[slot][r->n_lacking[slot]++] = i;
    }
}

/* What a vision encoder sees is part of every prompt, and is never kept by itself. */
static void find_seen(struct job *job, int slot) {
    const struct family *family = job->model->component[slot].family;
    struct recalled *r = &job->recalled;
    if (!family || family->kind != FAMILY_VISION) return;
    while (r->n_lacking[slot] < job->n_read) {
        r->lacking[slot][r->n_lacking[slot]] = r->n_lacking[slot];
        r->n_lacking[slot]++;
    }
}

/* Of what the session keeps of this job, and of what it would keep besides. */
static void count_bytes(const struct job *job, uint64_t *found, uint64_t *more) {
    const struct recalled *r = &job->recalled;
    for (int text = 0; text < job->n_texts; text++)
        for (int slot = job->text_slot[text], i = 0; i < job->n_read && r->has_key[slot]; i++) {
            uint64_t bytes = conditioning_bytes(values_of(shapes_of(job, slot, i)));
            if (r->found[slot][i])
                *found += bytes;
            else if (!recalled_has(job, slot, i))
                *more += bytes;
        }
}

/* What was found lies in front and so is the last to go: all of the job's is kept, or nothing besides. */
void recalled_find(struct job *job) {
    struct recalled *r = &job->recalled;
    struct conditionings *c = job->place.conditionings;
    uint64_t found = 0, more = 0;
    for (int i = 0; i < job->n_texts; i++) find_slot(job, job->text_slot[i]);
    for (int slot = 0; slot < SLOTS_MAX; slot++) find_seen(job, slot);
    if (!c) return;
    count_bytes(job, &found, &more);
    r->keeps = found + more <= c->limit_bytes;
    if (!r->keeps) more = 0;
    conditionings_shrink(c, c->limit_bytes - more);
    r->kept_bytes = c->bytes + more;
}

int recalled_count(const struct job *job) {
    int n = 0;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        n += recalled_has(job, i / PROMPTS_MAX, i % PROMPTS_MAX);
    return n;
}

uint64_t recalled_bytes(const struct job *job) {
    return job->recalled.kept_bytes;
}

void recalled_close(struct job *job) {
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        index_destroy(&job->recalled.file[i / PROMPTS_MAX][i % PROMPTS_MAX]);
}

/* ---- in the run ---- */

enum status recalled_copy(const struct job *job, int slot, int prompt, struct error *e) {
    const struct conditioning *found = job->recalled.found[slot][prompt];
    struct conditioning_tensors to = tensors_of(job, slot, prompt);
    size_t bytes = bytes_of(to.text);
    if (!found) return conditioning_file_read(&job->recalled.file[slot][prompt], &to, e);
    if (bytes) memcpy(to.text.data, found->values, bytes);
    if (to.pooled.rank) memcpy(to.pooled.data, (const char *)found->values + bytes, bytes_of(to.pooled));
    return OK;
}

void recalled_keep(const struct job *job, int slot, int prompt, struct error *e) {
    const struct recalled *r = &job->recalled;
    struct conditionings *c = job->place.conditionings;
    struct conditioning_tensors t = tensors_of(job, slot, prompt);
    size_t bytes = bytes_of(t.text);
    if (!r->has_key[slot]) return;
    struct conditioning_place place = place_of(job, slot, prompt);
    if (c->folder) conditioning_file_write(&place, &t, e);
    float *values = r->keeps ? conditionings_keep(c, r->key[slot][prompt], values_of(t)) : NULL;
    if (!values) return;
    if (bytes) memcpy(values, t.text.data, bytes);
    if (t.pooled.rank) memcpy((char *)values + bytes, t.pooled.data, bytes_of(t.pooled));
}
