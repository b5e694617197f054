/* What need not be encoded: see recalled.h. */
#include "engine/api/recalled.h"

#include "engine/api/conditioning_key.h"

#include <string.h>

/* What the text encoder in that slot writes of a prompt. */
static int64_t values_of(const struct job *job, int slot, int prompt) {
    const struct recipe *recipe = job->model->recipe;
    const struct component *c = &job->model->component[slot];
    int64_t n = 0;
    for (int i = 0; i < recipe->n_conditions; i++) {
        if (recipe->condition[i].slot != slot) continue;
        bool pooled = recipe->condition[i].what == CONDITION_POOLED;
        n += pooled ? c->pooled_columns : (int64_t)job->tokens[slot][prompt].n_ids * c->text_columns;
    }
    return n;
}

/* Not where a plan alone is made of what nobody said, nor where pictures are part of what is read. */
static bool may_recall(const struct job *job, int slot) {
    bool pictured = job->model->recipe->slot[slot].text.pictured.pad && job->n_encoded;
    return job->place.conditionings && job->place.conditionings->limit_bytes && job->request.prompt &&
           !job->model->published && !pictured;
}

static void find_slot(struct job *job, int slot) {
    struct recalled *r = &job->recalled;
    r->keeps[slot] = may_recall(job, slot);
    for (int i = 0; i < job->n_read; i++) {
        if (r->keeps[slot]) {
            conditioning_key(job, slot, i, r->key[slot][i]);
            r->found[slot][i] = conditionings_find(job->place.conditionings, r->key[slot][i]);
        }
        if (!r->found[slot][i]) r->lacking[slot][r->n_lacking[slot]++] = i;
    }
}

/* Of what is found, and of what would be kept besides. */
static void count_bytes(const struct job *job, uint64_t *found, uint64_t *more) {
    const struct recalled *r = &job->recalled;
    for (int text = 0; text < job->n_texts; text++)
        for (int slot = job->text_slot[text], i = 0; i < job->n_read && r->keeps[slot]; i++)
            *(r->found[slot][i] ? found : more) += conditioning_bytes(values_of(job, slot, i));
}

/* What was found lies in front and so is the last to go: all of the job's is kept, or nothing besides. */
void recalled_find(struct job *job) {
    struct recalled *r = &job->recalled;
    struct conditionings *c = job->place.conditionings;
    uint64_t found = 0, more = 0;
    for (int i = 0; i < job->n_texts; i++) find_slot(job, job->text_slot[i]);
    if (!c) return;
    count_bytes(job, &found, &more);
    if (found + more > c->limit_bytes) {
        memset(r->keeps, 0, sizeof r->keeps);
        more = 0;
    }
    conditionings_shrink(c, c->limit_bytes - more);
    r->kept_bytes = c->bytes + more;
}

uint64_t recalled_bytes(const struct job *job) {
    return job->recalled.kept_bytes;
}

static size_t bytes_of(struct tensor t) {
    return t.rank ? (size_t)tensor_bytes(&t) : 0;
}

bool recalled_copy(const struct job *job, int slot, int prompt) {
    const struct conditioning *found = job->recalled.found[slot][prompt];
    if (!found) return false;
    struct tensor text = job->layout.encoder_text[slot][prompt],
                  pooled = job->layout.encoder_pooled[slot][prompt];
    size_t bytes = bytes_of(text);
    if (bytes) memcpy(text.data, found->values, bytes);
    if (pooled.rank) memcpy(pooled.data, (const char *)found->values + bytes, bytes_of(pooled));
    return true;
}

void recalled_keep(const struct job *job, int slot, int prompt) {
    const struct recalled *r = &job->recalled;
    struct tensor text = job->layout.encoder_text[slot][prompt],
                  pooled = job->layout.encoder_pooled[slot][prompt];
    size_t bytes = bytes_of(text);
    if (!r->keeps[slot]) return;
    float *values = conditionings_keep(job->place.conditionings, r->key[slot][prompt],
                                       (int64_t)((bytes + bytes_of(pooled)) / sizeof(float)));
    if (!values) return;
    if (bytes) memcpy(values, text.data, bytes);
    if (pooled.rank) memcpy((char *)values + bytes, pooled.data, bytes_of(pooled));
}
