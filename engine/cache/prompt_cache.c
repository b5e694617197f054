#include "engine/cache/prompt_cache.h"

#include "engine/cache/sha256.h"
#include "engine/open/paths.h"

#include <stdio.h>
#include <string.h>

uint64_t prompt_cache_entry_bytes(int64_t n_values) {
    return sizeof(struct prompt_cache_entry) + (uint64_t)n_values * sizeof(float);
}

/* Returns the address of the link (`first` or an entry's `next`) that points to the entry with this key; the
 * link is NULL if the key is not cached. */
static struct prompt_cache_entry **find_link(struct prompt_cache *c,
                                             const uint8_t key[PROMPT_CACHE_KEY_BYTES]) {
    struct prompt_cache_entry **at = &c->first;
    while (*at && memcmp((*at)->key, key, PROMPT_CACHE_KEY_BYTES) != 0) at = &(*at)->next;
    return at;
}

const struct prompt_cache_entry *prompt_cache_get(struct prompt_cache *c,
                                                  const uint8_t key[PROMPT_CACHE_KEY_BYTES]) {
    struct prompt_cache_entry **at = find_link(c, key), *found = *at;
    if (!found) return NULL;
    *at = found->next;
    found->next = c->first;
    c->first = found;
    return found;
}

void prompt_cache_evict(struct prompt_cache *c, uint64_t bytes) {
    while (c->bytes > bytes) {
        struct prompt_cache_entry **last = &c->first;
        while ((*last)->next) last = &(*last)->next;
        c->bytes -= prompt_cache_entry_bytes((*last)->n_values);
        c->sys->release(c->sys, *last);
        *last = NULL;
    }
}

float *prompt_cache_insert(struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                           int64_t n_values) {
    uint64_t bytes = prompt_cache_entry_bytes(n_values);
    if (bytes > c->limit_bytes || *find_link(c, key)) return NULL;
    prompt_cache_evict(c, c->limit_bytes - bytes);
    struct prompt_cache_entry *entry = c->sys->alloc(c->sys, LINE_HOST, bytes);
    if (!entry) return NULL;
    entry->n_values = n_values;
    entry->next = c->first;
    memcpy(entry->key, key, sizeof entry->key);
    c->first = entry;
    c->bytes += bytes;
    return entry->values;
}

#define PROMPT_CACHE_HASH_KEY "conditioning_sha256"

enum { TENSORS = 2, PIECE_BYTES = 16 << 10 };

static char *path_of(const struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES]) {
    char name[2 * PROMPT_CACHE_KEY_BYTES + sizeof ".safetensors"];
    for (int i = 0; i < PROMPT_CACHE_KEY_BYTES; i++) snprintf(name + 2 * i, 3, "%02x", key[i]);
    snprintf(name + 2 * PROMPT_CACHE_KEY_BYTES, sizeof ".safetensors", ".safetensors");
    return path_join(c->sys, c->folder, name);
}

/* Lists an encoder's existing outputs under their tensor names "text" and "pooled"; returns their number. */
static int list_tensors(const struct prompt_embeds *tensors, struct named_tensor named[TENSORS]) {
    int n = 0;
    if (tensors->text.rank) named[n++] = (struct named_tensor){"text", tensors->text};
    if (tensors->pooled.rank) named[n++] = (struct named_tensor){"pooled", tensors->pooled};
    return n;
}

/* True if the prompt cache file has exactly these tensors, and their bytes match the hash in its metadata.
 * The hashed bytes begin with the cache key, so that a renamed file does not match. */
static bool is_valid(const struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                     const struct prompt_embeds *shapes, const struct tensor_index *index) {
    struct named_tensor named[TENSORS];
    struct sha256_ctx sha;
    struct config config = {0};
    struct error e = {0};
    char found[SHA256_HEX], piece[PIECE_BYTES];
    int n = list_tensors(shapes, named);
    bool valid = index->n_entries == n && index->config;
    sha256_init(&sha);
    sha256_update(&sha, PROMPT_CACHE_KEY_BYTES, key);
    for (int i = 0; i < n && valid; i++) {
        const struct index_entry *entry = index_find(index, named[i].name);
        const struct tensor *shape = &named[i].tensor;
        valid = entry && entry->dtype == DTYPE_F32 && entry->rank == shape->rank &&
                !memcmp(entry->dim, shape->dim, (size_t)shape->rank * sizeof *shape->dim);
        for (uint64_t at = 0; valid && at < entry->bytes; at += PIECE_BYTES) {
            uint64_t bytes = entry->bytes - at < PIECE_BYTES ? entry->bytes - at : PIECE_BYTES;
            valid = source_read(&index->sources[entry->source], piece, bytes, entry->offset + at, &e) == OK;
            if (valid) sha256_update(&sha, bytes, (const uint8_t *)piece);
        }
    }
    sha256_end(&sha, found);
    valid = valid && config_parse(c->sys, c->folder, index->config, NULL, &config, &e) == OK &&
            !strcmp(config_string(&config, PROMPT_CACHE_HASH_KEY, ""), found);
    config_destroy(&config);
    return valid;
}

bool prompt_cache_file_open(const struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                            const struct prompt_embeds *shapes, struct tensor_index *index) {
    struct error e = {0};
    char *path = path_of(c, key);
    *index = (struct tensor_index){0};
    bool valid = path && safetensors_open(c->sys, path, index, &e) == OK && is_valid(c, key, shapes, index);
    c->sys->release(c->sys, path);
    if (!valid) {
        index_destroy(index);
        *index = (struct tensor_index){0};
    }
    return valid;
}

enum status prompt_cache_file_read(const struct tensor_index *index, const struct prompt_embeds *to,
                                   struct error *e) {
    struct named_tensor named[TENSORS];
    int n = list_tensors(to, named);
    for (int i = 0; i < n && e->code == OK; i++) {
        const struct index_entry *entry = index_find(index, named[i].name);
        source_read(&index->sources[entry->source], named[i].tensor.data, entry->bytes, entry->offset, e);
    }
    return e->code;
}

struct progress {
    const struct named_tensor *named;
    uint64_t done[TENSORS];
};

static enum status next_bytes(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    struct progress *p = user;
    memcpy(to, (const char *)p->named[i].tensor.data + p->done[i], bytes);
    p->done[i] += bytes;
    return e->code;
}

enum status prompt_cache_file_write(const struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                                    const struct prompt_embeds *tensors, struct error *e) {
    struct named_tensor named[TENSORS];
    int n = list_tensors(tensors, named);
    struct sha256_ctx sha;
    struct progress progress = {.named = named};
    char hash[SHA256_HEX], config[SHA256_HEX + 40];
    const struct safetensors_text metadata = {"config", config};
    const struct safetensors_content content = {named, n, &metadata, 1};
    char *path = path_of(c, key);
    if (!path) return error_set(e, MEMORY, "no memory for a path");
    sha256_init(&sha);
    sha256_update(&sha, PROMPT_CACHE_KEY_BYTES, key);
    for (int i = 0; i < n; i++)
        sha256_update(&sha, (size_t)tensor_bytes(&named[i].tensor), named[i].tensor.data);
    snprintf(config, sizeof config, "{\"" PROMPT_CACHE_HASH_KEY "\": \"%s\"}", sha256_end(&sha, hash));
    safetensors_write_content(c->sys, path, &content, &(struct tensor_maker){&progress, next_bytes}, e);
    c->sys->release(c->sys, path);
    return e->code;
}
