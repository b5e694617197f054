#include "engine/api/prompt_cache_hits.h"

#include "engine/api/prompt_cache_file.h"
#include "engine/api/prompt_cache_key.h"

#include <string.h>

/* Shapes, without data, of the embeddings that the encoder in the given slot writes for a prompt. */
static struct prompt_embeds embed_shapes(const struct job *job, int slot, int prompt) {
    const struct recipe *recipe = job->model->recipe;
    const struct component *c = &job->model->component[slot];
    struct prompt_embeds t = {0};
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

static struct prompt_embeds embed_tensors(const struct job *job, int slot, int prompt) {
    return (struct prompt_embeds){job->layout.encoder_text[slot][prompt],
                                  job->layout.encoder_pooled[slot][prompt]};
}

static struct prompt_cache_location file_location(const struct job *job, int slot, int prompt) {
    return (struct prompt_cache_location){job->sys, job->context.prompt_cache->folder,
                                          job->prompt_cache_hits.key[slot][prompt]};
}

static size_t tensor_bytes_or_0(struct tensor t) {
    return t.rank ? (size_t)tensor_bytes(&t) : 0;
}

static int64_t n_values_of(struct prompt_embeds t) {
    return (int64_t)((tensor_bytes_or_0(t.text) + tensor_bytes_or_0(t.pooled)) / sizeof(float));
}

/* True unless the job plans without prompt or files, or the prompt contains pictures. */
static bool cacheable(const struct job *job, int slot) {
    const struct prompt_cache *c = job->context.prompt_cache;
    bool pictured = job->model->recipe->slot[slot].text.image_prompt.pad && job->n_encoded;
    return c && (c->limit_bytes || c->folder) && job->request.prompt && !job->model->published && !pictured;
}

bool prompt_cache_hit(const struct job *job, int slot, int prompt) {
    return job->prompt_cache_hits.entry[slot][prompt] || job->prompt_cache_hits.file[slot][prompt].n_sources;
}

static void look_up_prompt(struct job *job, int slot, int prompt) {
    struct prompt_cache_hits *r = &job->prompt_cache_hits;
    struct prompt_cache *c = job->context.prompt_cache;
    prompt_cache_key(job, slot, prompt, r->key[slot][prompt]);
    r->entry[slot][prompt] = prompt_cache_get(c, r->key[slot][prompt]);
    if (r->entry[slot][prompt] || !c->folder) return;
    struct prompt_cache_location place = file_location(job, slot, prompt);
    struct prompt_embeds shapes = embed_shapes(job, slot, prompt);
    prompt_cache_file_open(&place, &shapes, &r->file[slot][prompt]);
}

static void look_up_slot(struct job *job, int slot) {
    struct prompt_cache_hits *r = &job->prompt_cache_hits;
    r->cacheable[slot] = cacheable(job, slot);
    for (int i = 0; i < job->n_encoded_prompts; i++) {
        if (r->cacheable[slot]) look_up_prompt(job, slot, i);
        if (!prompt_cache_hit(job, slot, i)) r->misses[slot][r->n_misses[slot]++] = i;
    }
}

/* A vision encoder runs for every prompt; vision encoder outputs are not cached. */
static void add_vision_misses(struct job *job, int slot) {
    const struct family *family = job->model->component[slot].family;
    struct prompt_cache_hits *r = &job->prompt_cache_hits;
    if (!family || family->kind != FAMILY_VISION) return;
    while (r->n_misses[slot] < job->n_encoded_prompts) {
        r->misses[slot][r->n_misses[slot]] = r->n_misses[slot];
        r->n_misses[slot]++;
    }
}

/* Sums the bytes of the job's cache entries that are in memory, and of the entries that would be added. */
static void sum_entry_bytes(const struct job *job, uint64_t *cached, uint64_t *added) {
    const struct prompt_cache_hits *r = &job->prompt_cache_hits;
    for (int text = 0; text < job->n_texts; text++)
        for (int slot = job->text_slot[text], i = 0; i < job->n_encoded_prompts && r->cacheable[slot]; i++) {
            uint64_t bytes = prompt_cache_entry_bytes(n_values_of(embed_shapes(job, slot, i)));
            if (r->entry[slot][i])
                *cached += bytes;
            else if (!prompt_cache_hit(job, slot, i))
                *added += bytes;
        }
}

/* Looking up a hit moves the entry to the front of the list, so hits are evicted last. New entries are added
 * only if all entries of the job fit the memory limit. */
void prompt_cache_find_hits(struct job *job) {
    struct prompt_cache_hits *r = &job->prompt_cache_hits;
    struct prompt_cache *c = job->context.prompt_cache;
    uint64_t cached = 0, added = 0;
    for (int i = 0; i < job->n_texts; i++) look_up_slot(job, job->text_slot[i]);
    for (int slot = 0; slot < SLOTS_MAX; slot++) add_vision_misses(job, slot);
    if (!c) return;
    sum_entry_bytes(job, &cached, &added);
    r->misses_fit = cached + added <= c->limit_bytes;
    if (!r->misses_fit) added = 0;
    prompt_cache_evict(c, c->limit_bytes - added);
    r->peak_bytes = c->bytes + added;
}

int prompt_cache_count_hits(const struct job *job) {
    int n = 0;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        n += prompt_cache_hit(job, i / PROMPTS_MAX, i % PROMPTS_MAX);
    return n;
}

uint64_t prompt_cache_peak_bytes(const struct job *job) {
    return job->prompt_cache_hits.peak_bytes;
}

void prompt_cache_close_hits(struct job *job) {
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        index_destroy(&job->prompt_cache_hits.file[i / PROMPTS_MAX][i % PROMPTS_MAX]);
}

enum status prompt_cache_copy(const struct job *job, int slot, int prompt, struct error *e) {
    const struct prompt_cache_entry *entry = job->prompt_cache_hits.entry[slot][prompt];
    struct prompt_embeds to = embed_tensors(job, slot, prompt);
    size_t bytes = tensor_bytes_or_0(to.text);
    if (!entry) return prompt_cache_file_read(&job->prompt_cache_hits.file[slot][prompt], &to, e);
    if (bytes) memcpy(to.text.data, entry->values, bytes);
    if (to.pooled.rank)
        memcpy(to.pooled.data, (const char *)entry->values + bytes, tensor_bytes_or_0(to.pooled));
    return OK;
}

void prompt_cache_store(const struct job *job, int slot, int prompt, struct error *e) {
    const struct prompt_cache_hits *r = &job->prompt_cache_hits;
    struct prompt_cache *c = job->context.prompt_cache;
    struct prompt_embeds t = embed_tensors(job, slot, prompt);
    size_t bytes = tensor_bytes_or_0(t.text);
    if (!r->cacheable[slot]) return;
    struct prompt_cache_location place = file_location(job, slot, prompt);
    if (c->folder) prompt_cache_file_write(&place, &t, e);
    float *values = r->misses_fit ? prompt_cache_insert(c, r->key[slot][prompt], n_values_of(t)) : NULL;
    if (!values) return;
    if (bytes) memcpy(values, t.text.data, bytes);
    if (t.pooled.rank) memcpy((char *)values + bytes, t.pooled.data, tensor_bytes_or_0(t.pooled));
}
