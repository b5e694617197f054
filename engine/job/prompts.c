#include "engine/job/prompts.h"

#include "engine/cache/prompt_cache_key.h"
#include "engine/job/request.h"
#include "engine/open/paths.h"

#include <string.h>

enum status prompts_extract_lora_tags(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    const char **const texts[PROMPTS_MAX] = {&r->prompt, &r->negative_prompt};
    static const char *const names[PROMPTS_MAX] = {"prompt", "negative prompt"};
    if (job->settings.decode_only || !r->lora_dir) return OK;
    if (!path_is_folder(r->lora_dir))
        return error_set(e, MISSING,
                         "the folder of --lora-dir does not exist" WHERE "%s" EXPECTED
                         "the folder that holds the LoRA files of <lora:NAME> tags",
                         r->lora_dir);
    for (int i = 0; i < PROMPTS_MAX && e->code == OK; i++) {
        if (!*texts[i] || lora_tags_read(job->sys, names[i], *texts[i], &job->prompts.tags[i], e) != OK)
            continue;
        if (job->prompts.tags[i].text) *texts[i] = job->prompts.tags[i].text;
    }
    return e->code;
}

void prompts_list_vision_spans(const struct job *job, int slot, int prompt,
                               struct vision_span vision_spans[LANE_REFERENCES_MAX]) {
    if (!job->model->recipe->slot[slot].text.image_prompt.pad) return;
    for (int i = 0, n = 0; i < job->pictures.n_encoded; i++) {
        const struct encoded *encoded = &job->pictures.encoded[i];
        if (encoded->kind != ENCODED_VISION) continue;
        vision_spans[n] = (struct vision_span){.first = job->prompts.tokens[slot][prompt].picture[n],
                                               .height = encoded->rows,
                                               .width = encoded->columns};
        n++;
    }
}

/* ---- tokens ---- */

/* Fills in a prompt of the maximum length, for plans without a prompt or tokenizer: only the number of tokens
 * matters. Placeholder tokens before each picture replace the template text. With template_apart the template
 * has exactly one token before and one token after each picture. */
static enum status encode_longest(const struct job *job, const struct text_recipe *recipe,
                                  const struct tokenizer *tokenizer, const int32_t *vision_tokens,
                                  int n_pictures, struct prompt_tokens *tokens, struct error *e) {
    enum { PICTURE_TEMPLATE_TOKENS = 8 };
    int longest;
    if (prompt_longest(job->sys, recipe, tokenizer, &longest, e) != OK) return e->code;
    int before = recipe->template_apart ? 1 : PICTURE_TEMPLATE_TOKENS, after = recipe->template_apart ? 1 : 0;
    tokens->drop_idx = n_pictures ? recipe->image_prompt.drop_idx : recipe->drop_idx;
    tokens->n_ids = tokens->drop_idx;
    for (int i = 0; i < n_pictures; i++) {
        tokens->picture[i] = tokens->n_ids + before;
        tokens->n_ids = tokens->picture[i] + vision_tokens[i] + after;
    }
    tokens->n_ids += (recipe->tokens_planned ? recipe->tokens_planned : longest) - recipe->drop_idx;
    tokens->ids = sys_new(job->sys, (size_t)tokens->n_ids, sizeof *tokens->ids, "tokens", e);
    return e->code;
}

/* Tokenises one prompt for the text encoder in this slot. */
static enum status encode_prompt(const struct job *job, int slot, const char *prompt,
                                 struct prompt_tokens *tokens, struct error *e) {
    const struct text_recipe *recipe = &job->model->recipe->slot[slot].text;
    const struct tokenizer *tokenizer = job->model->tokenizer[slot];
    bool weighs = !choice_is(job->request.prompt_weights, "off");
    int32_t vision_tokens[LANE_REFERENCES_MAX]; /* number of tokens of each picture in the prompt */
    int n_pictures = 0;
    for (int i = 0; i < job->pictures.n_encoded && recipe->image_prompt.pad; i++)
        if (job->pictures.encoded[i].kind == ENCODED_VISION)
            vision_tokens[n_pictures++] = job->pictures.encoded[i].columns * job->pictures.encoded[i].rows;
    if (!prompt || job->model->published)
        return encode_longest(job, recipe, tokenizer, vision_tokens, n_pictures, tokens, e);
    if (!n_pictures)
        return prompt_encode(job->sys, recipe, tokenizer, prompt, strlen(prompt), weighs, tokens, e);
    return prompt_encode_pictured(job->sys, recipe, tokenizer, prompt, strlen(prompt), vision_tokens,
                                  n_pictures, tokens, e);
}

/* Tokenises all prompts. A text encoder without a tokenizer reads another encoder's output (LTX-2's
 * projection and connectors); it writes tokens_max rows or, if that is 0, as many rows as it reads. A prompt
 * that needs no encoder, or whose text encoder is absent, gets the token count of the longest prompt: its
 * embedding is that many rows of zeros. */
static enum status encode_all(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    const char *negative = r->negative_prompt ? r->negative_prompt : "";
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct family *family = job->model->component[slot].family;
        const struct text_recipe *recipe = &job->model->recipe->slot[slot].text;
        bool is_text = family && family->kind == FAMILY_TEXT;
        int source = recipe_source_slot(job->model->recipe, slot); /* an earlier slot */
        int n_encoded = is_text ? job->settings.n_encoded_prompts : 0;
        if (!is_text && (!recipe->tokenizer || family)) continue;
        for (int i = 0; i < n_encoded && e->code == OK; i++)
            if (recipe->tokenizer)
                encode_prompt(job, slot, i ? negative : r->prompt, &job->prompts.tokens[slot][i], e);
            else
                job->prompts.tokens[slot][i].n_ids =
                    recipe->tokens_max ? recipe->tokens_max : job->prompts.tokens[source][i].n_ids;
        for (int i = n_encoded; i < job->settings.n_prompts; i++)
            job->prompts.tokens[slot][i] =
                (struct prompt_tokens){.n_ids = recipe->tokens_max, .drop_idx = recipe->drop_idx};
    }
    return e->code;
}

/* ---- prompt cache ---- */

/* Shapes, without data, of the embeddings that the encoder in the given slot writes for a prompt. */
static struct prompt_embeds embed_shapes(const struct job *job, int slot, int prompt) {
    const struct recipe *recipe = job->model->recipe;
    const struct component *c = &job->model->component[slot];
    struct prompt_embeds t = {0};
    for (int i = 0; i < recipe->text.n_conditions; i++) {
        if (recipe->text.condition[i].slot != slot) continue;
        if (recipe->text.condition[i].what == CONDITION_POOLED)
            t.pooled = tensor_make(NULL, DTYPE_F32, 2, (int32_t[]){1, c->pooled_columns});
        else
            t.text = tensor_make(NULL, DTYPE_F32, 2,
                                 (int32_t[]){job->prompts.tokens[slot][prompt].n_ids, c->text_columns});
    }
    return t;
}

static struct prompt_embeds embed_tensors(const struct job *job, int slot, int prompt) {
    return (struct prompt_embeds){job->layout.encoder_text[slot][prompt],
                                  job->layout.encoder_pooled[slot][prompt]};
}

static size_t tensor_bytes_or_0(struct tensor t) {
    return t.rank ? (size_t)tensor_bytes(&t) : 0;
}

static int64_t n_values_of(struct prompt_embeds t) {
    return (int64_t)((tensor_bytes_or_0(t.text) + tensor_bytes_or_0(t.pooled)) / sizeof(float));
}

bool prompts_hit(const struct job *job, int slot, int prompt) {
    return job->prompts.hits.entry[slot][prompt] || job->prompts.hits.file[slot][prompt].n_sources;
}

/* Looks up every prompt of the text encoder in this slot, and lists the misses. Nothing is cached if the job
 * plans without prompt or files, or if the prompt contains pictures. */
static void look_up_slot(struct job *job, int slot) {
    struct prompt_cache_hits *hits = &job->prompts.hits;
    struct prompt_cache *c = job->context.prompt_cache;
    bool pictured = job->model->recipe->slot[slot].text.image_prompt.pad && job->pictures.n_encoded;
    hits->cacheable[slot] =
        c && (c->limit_bytes || c->folder) && job->request.prompt && !job->model->published && !pictured;
    for (int i = 0; i < job->settings.n_encoded_prompts; i++) {
        uint8_t *key = hits->key[slot][i];
        if (hits->cacheable[slot]) {
            /* The encoder, the encoder whose output it reads, and so on. */
            struct prompt_cache_input inputs[SLOTS_MAX + 1];
            int n = 0;
            for (int from = slot; from < SLOTS_MAX; from = recipe_source_slot(job->model->recipe, from)) {
                if (n) inputs[n - 1].source = &inputs[n];
                inputs[n++] = (struct prompt_cache_input){.fingerprint = c->fingerprint,
                                                          .component = &job->model->component[from],
                                                          .adapters = job->context.adapters,
                                                          .slot = from,
                                                          .tokens = &job->prompts.tokens[from][i],
                                                          .clip_skip = job->request.clip_skip,
                                                          .precision = job->settings.text_precision,
                                                          .weights = job->settings.weights.type};
            }
            prompt_cache_key(&inputs[0], key);
            hits->entry[slot][i] = prompt_cache_get(c, key);
        }
        if (hits->cacheable[slot] && !hits->entry[slot][i] && c->folder) {
            struct prompt_embeds shapes = embed_shapes(job, slot, i);
            prompt_cache_file_open(c, key, &shapes, &hits->file[slot][i]);
        }
        bool zero = !i && job->settings.zero_prompt;
        if (!zero && !prompts_hit(job, slot, i)) hits->misses[slot][hits->n_misses[slot]++] = i;
    }
}

/* Sums the bytes of the job's cache entries that are in memory, and of the entries that would be added. */
static void sum_entry_bytes(const struct job *job, uint64_t *cached, uint64_t *added) {
    const struct prompt_cache_hits *r = &job->prompts.hits;
    for (int text = 0; text < job->prompts.n_texts; text++)
        for (int slot = job->prompts.text_slot[text], i = 0;
             i < job->settings.n_encoded_prompts && r->cacheable[slot]; i++) {
            uint64_t bytes = prompt_cache_entry_bytes(n_values_of(embed_shapes(job, slot, i)));
            if (r->entry[slot][i])
                *cached += bytes;
            else if (!prompts_hit(job, slot, i))
                *added += bytes;
        }
}

/* Lists the prompts for a text encoder that feeds another one, the reader: the reader's prompt cache misses.
 * Only the reader's output is cached. Prompts without tokens are skipped; the reader then has no source. */
static void list_source_misses(struct job *job, int slot, int reader) {
    struct prompt_cache_hits *hits = &job->prompts.hits;
    for (int i = 0; i < hits->n_misses[reader]; i++) {
        int prompt = hits->misses[reader][i];
        if (job->prompts.tokens[slot][prompt].n_ids) hits->misses[slot][hits->n_misses[slot]++] = prompt;
    }
}

/* Looking up a hit moves the entry to the front of the list, so hits are evicted last. New entries are added
 * only if all entries of the job fit the memory limit. */
static void find_hits(struct job *job) {
    struct prompt_cache_hits *hits = &job->prompts.hits;
    struct prompt_cache *c = job->context.prompt_cache;
    uint64_t cached = 0, added = 0;
    /* Backwards: a reader comes after its source, which needs the reader's misses. */
    for (int i = job->prompts.n_texts - 1; i >= 0; i--) {
        int slot = job->prompts.text_slot[i], reader = recipe_reader_slot(job->model->recipe, slot);
        if (reader < SLOTS_MAX)
            list_source_misses(job, slot, reader);
        else
            look_up_slot(job, slot);
    }
    /* A vision encoder runs for every prompt; vision encoder outputs are not cached. */
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        const struct family *family = job->model->component[slot].family;
        if (!family || family->kind != FAMILY_VISION) continue;
        for (int i = hits->n_misses[slot]; i < job->settings.n_encoded_prompts; i++)
            hits->misses[slot][hits->n_misses[slot]++] = i;
    }
    if (!c) return;
    sum_entry_bytes(job, &cached, &added);
    hits->misses_fit = cached + added <= c->limit_bytes;
    if (!hits->misses_fit) added = 0;
    prompt_cache_evict(c, c->limit_bytes - added);
    hits->peak_bytes = c->bytes + added;
}

int prompts_count_hits(const struct job *job) {
    int n = 0;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++) n += prompts_hit(job, i / PROMPTS_MAX, i % PROMPTS_MAX);
    return n;
}

enum status prompts_copy_cached(const struct job *job, int slot, int prompt, struct error *e) {
    const struct prompt_cache_entry *entry = job->prompts.hits.entry[slot][prompt];
    struct prompt_embeds to = embed_tensors(job, slot, prompt);
    size_t bytes = tensor_bytes_or_0(to.text);
    if (!entry) return prompt_cache_file_read(&job->prompts.hits.file[slot][prompt], &to, e);
    if (bytes) memcpy(to.text.data, entry->values, bytes);
    if (to.pooled.rank)
        memcpy(to.pooled.data, (const char *)entry->values + bytes, tensor_bytes_or_0(to.pooled));
    return OK;
}

void prompts_store(const struct job *job, int slot, int prompt, struct error *e) {
    const struct prompt_cache_hits *hits = &job->prompts.hits;
    struct prompt_cache *c = job->context.prompt_cache;
    struct prompt_embeds t = embed_tensors(job, slot, prompt);
    size_t bytes = tensor_bytes_or_0(t.text);
    if (!hits->cacheable[slot]) return;
    if (c->folder) prompt_cache_file_write(c, hits->key[slot][prompt], &t, e);
    float *values = hits->misses_fit ? prompt_cache_insert(c, hits->key[slot][prompt], n_values_of(t)) : NULL;
    if (!values) return;
    if (bytes) memcpy(values, t.text.data, bytes);
    if (t.pooled.rank) memcpy((char *)values + bytes, t.pooled.data, tensor_bytes_or_0(t.pooled));
}

/* ---- embedding rows ---- */

/* Collects the embedding rows that this request reads: for text encoders one block per table and prompt, for
 * other components one block per table. */
static enum status gather_rows(struct job *job, int slot, struct error *e) {
    const struct component *c = &job->model->component[slot];
    bool text = c->family->kind == FAMILY_TEXT;
    int n_lanes = text ? job->prompts.hits.n_misses[slot] : 1;
    struct lane lane = {
        .latent = tensor_make(NULL, DTYPE_F32, 4,
                              (int32_t[]){job->latents.C, job->latents.F, job->latents.Y, job->latents.X})};
    struct block *rows = sys_new(job->sys, GATHERED_MAX, sizeof *rows, "embedding rows", e);
    job->prompts.gathered[slot] = rows;
    if (!rows) return e->code;
    for (int table = 0; table < c->n_tables; table++)
        for (int i = 0; i < n_lanes && e->code == OK; i++) {
            int prompt = text ? job->prompts.hits.misses[slot][i] : 0;
            if (text) {
                lane.tokens = job->prompts.tokens[slot][prompt].ids;
                lane.n_tokens = job->prompts.tokens[slot][prompt].n_ids;
                prompts_list_vision_spans(job, slot, prompt, lane.vision_spans);
            }
            component_gather_rows(c, table, &lane, &rows[table * n_lanes + i], e);
        }
    return e->code;
}

enum status prompts_encode(struct job *job, struct error *e) {
    /* A second pass reads the first pass's embeddings. */
    if (!job->context.first_pass && encode_all(job, e) == OK) find_hits(job);
    for (int i = 0; i < MODEL_COMPONENTS && e->code == OK; i++)
        if (job->model->component[i].n_tables) gather_rows(job, i, e);
    return e->code;
}

void prompts_close(struct job *job) {
    struct sys *sys = job->sys;
    for (int i = 0; i < PROMPTS_MAX; i++) lora_tags_destroy(sys, &job->prompts.tags[i]);
    for (int i = 0; i < MODEL_COMPONENTS; i++) {
        for (int k = 0; k < GATHERED_MAX && job->prompts.gathered[i]; k++)
            block_destroy(sys, &job->prompts.gathered[i][k]);
        sys->release(sys, job->prompts.gathered[i]);
    }
    for (int i = 0; i < SLOTS_MAX; i++) {
        for (int k = 0; k < PROMPTS_MAX; k++) {
            prompt_destroy(sys, &job->prompts.tokens[i][k]);
            index_destroy(&job->prompts.hits.file[i][k]);
        }
    }
}

/* ---- places in prompt_embeds ---- */

struct text_places prompts_place_texts(const struct job *job, int prompt) {
    const struct recipe *recipe = job->model->recipe;
    struct text_places p = {0};
    int32_t row = 0, column = 0, last_columns = 0;
    for (int i = 0; i < recipe->text.n_conditions; i++) {
        const struct condition *c = &recipe->text.condition[i];
        int32_t own = model_condition_columns(job->model, i);
        if (c->what == CONDITION_POOLED) {
            p.column[i] = p.pooled_columns;
            p.pooled_columns += own;
            continue;
        }
        /* Rows of prompt_embeds from this encoder: one per token and part of a text encoder's output, or per
         * vision token of all pictures. Images of Redux have the rows of one image, their sum, and only in
         * the positive prompt. */
        const struct prompt_tokens *tokens = &job->prompts.tokens[c->slot][prompt];
        bool is_text = recipe->slot[c->slot].family->kind == FAMILY_TEXT;
        int32_t n = is_text ? (tokens->n_ids - tokens->drop_idx) * condition_parts(c) : 0;
        for (int k = 0; k < job->pictures.n_encoded && !is_text && !c->of_redux; k++)
            if (job->pictures.encoded[k].slot == c->slot)
                n += job->pictures.encoded[k].columns * job->pictures.encoded[k].rows;
        int redux = c->of_redux && !prompt ? job_find_encoded(job, c->slot, 1, 0) : -1;
        if (redux >= 0) n = job->pictures.encoded[redux].columns * job->pictures.encoded[redux].rows;
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
