#include "engine/cache/prompt_cache_key.h"

#include <nettle/sha2.h>
#include <string.h>

/* SLUICE_SOURCES: hash of the sources, set by the Makefile. Part of the key, because other builds may round
 * differently. */
#ifndef SLUICE_SOURCES
#define SLUICE_SOURCES SLUICE_VERSION
#endif

_Static_assert((int)PROMPT_CACHE_KEY_BYTES == (int)SHA256_DIGEST_SIZE, "a key is a hash");

static void add(struct sha256_ctx *sha, const void *bytes, size_t n) {
    sha256_update(sha, n, bytes);
}

static void add_number(struct sha256_ctx *sha, int64_t number) {
    add(sha, &number, sizeof number);
}

/* Adds a text to the hash, with its terminating NUL, so that text and following bytes cannot be confused. */
static void add_text(struct sha256_ctx *sha, const char *text) {
    add(sha, text, strlen(text) + 1);
}

/* Hashes the identity of a file: inode, size and modification time, not the path. */
static void add_source(struct sha256_ctx *sha, const struct byte_source *source) {
    add_number(sha, (int64_t)source->identity.inode);
    add_number(sha, source->identity.bytes);
    add_number(sha, source->identity.modified_ns);
    add_number(sha, source->identity.changed_ns);
}

static void add_entry(struct sha256_ctx *sha, const struct tensor_index *index,
                      const struct index_entry *entry) {
    add_text(sha, index_name(index, entry));
    add_number(sha, entry->dtype);
    add_number(sha, entry->rank);
    for (int i = 0; i < entry->rank; i++) add_number(sha, entry->dim[i]);
    add(sha, &entry->scale, sizeof entry->scale);
    add_number(sha, entry->source);
    add_number(sha, (int64_t)entry->offset);
    add_number(sha, entry->scales.n);
    for (int i = 0; i < entry->scales.n; i++) {
        const struct scale_section *section = &entry->scales.section[i];
        add_number(sha, section->source);
        add_number(sha, (int64_t)section->offset);
        add_number(sha, (int64_t)section->bytes);
    }
}

static void add_component(struct sha256_ctx *sha, const struct component *c) {
    add_text(sha, c->family->name);
    add(sha, c->dims, sizeof c->dims);
    add(sha, c->settings, sizeof c->settings);
    for (int i = 0; i < HIDDEN_STATES_MAX; i++) add_number(sha, c->reads.hidden.layers[i]);
    add_number(sha, c->reads.hidden.final_norm);
    add_number(sha, c->reads.hidden.all);
    add_number(sha, c->reads.projected);
    add_number(sha, c->text_columns);
    add_number(sha, c->pooled_columns);
    for (int i = 0; i < c->index.n_sources; i++) add_source(sha, &c->index.sources[i]);
    for (int i = 0; i < c->index.n_entries; i++)
        if (index_contains(&c->index, &c->index.entries[i])) add_entry(sha, &c->index, &c->index.entries[i]);
}

/* Adds adapters to the key in the request's order, because float sums depend on the order. Scales are hashed
 * separately, because they may come from adapter_config.json. */
static void add_adapters(struct sha256_ctx *sha, const struct session_adapters *a, int slot) {
    for (int i = 0; a && i < a->n_files; i++) {
        const struct adapter_part *part = &a->file[i]->match.part[slot];
        if (!adapter_file_applies(a->file[i], slot)) continue;
        add_source(sha, adapter_source(a->file[i]->adapter));
        add(sha, &a->file[i]->lora.strength, sizeof a->file[i]->lora.strength);
        for (int k = 0; k < part->n_weights; k++)
            add(sha, &part->weights[k].scale, sizeof part->weights[k].scale);
        for (int k = 0; k < part->n_vectors; k++)
            add(sha, &part->vectors[k].scale, sizeof part->vectors[k].scale);
    }
}

/* Adds the encoder, its adapters and the prompt's tokens. */
static void add_encoder(struct sha256_ctx *sha, const struct prompt_cache_input *input) {
    const struct prompt_tokens *tokens = input->tokens;
    size_t n = (size_t)tokens->n_ids;
    add_component(sha, input->component);
    add_adapters(sha, input->adapters, input->slot);
    add_number(sha, tokens->n_ids);
    if (tokens->ids) add(sha, tokens->ids, n * sizeof *tokens->ids);
    add_number(sha, tokens->weights != NULL);
    if (tokens->weights) add(sha, tokens->weights, n * sizeof *tokens->weights);
    add_number(sha, tokens->first_key);
    add_number(sha, tokens->n_keys);
    add_number(sha, tokens->window);
    add_number(sha, tokens->pooled_row);
}

void prompt_cache_key(const struct prompt_cache_input *input, uint8_t key[PROMPT_CACHE_KEY_BYTES]) {
    struct sha256_ctx sha;
    sha256_init(&sha);
    add_text(&sha, SLUICE_SOURCES);
    add_text(&sha, input->fingerprint);
    add_encoder(&sha, input);
    for (const struct prompt_cache_input *i = input->source; i; i = i->source) add_encoder(&sha, i);
    add_number(&sha, input->clip_skip);
    add_number(&sha, input->precision);
    add_number(&sha, input->weights);
    sha256_digest(&sha, PROMPT_CACHE_KEY_BYTES, key);
}
