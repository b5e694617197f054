#include "engine/api/prompt_cache_file.h"

#include "engine/api/report.h"
#include "engine/open/paths.h"

#include <stdio.h>
#include <string.h>

#define PROMPT_CACHE_HASH_KEY "conditioning_sha256"

enum { TENSORS = 2, PIECE_BYTES = 16 << 10 };

static char *path_of(const struct prompt_cache_location *place) {
    enum { NAME_BYTES = 2 * PROMPT_CACHE_KEY_BYTES + sizeof ".safetensors" };
    char name[NAME_BYTES];
    for (int i = 0; i < PROMPT_CACHE_KEY_BYTES; i++) snprintf(name + 2 * i, 3, "%02x", place->key[i]);
    snprintf(name + 2 * PROMPT_CACHE_KEY_BYTES, sizeof ".safetensors", ".safetensors");
    return path_join(place->sys, place->folder, name);
}

/* Lists the tensors "text" and "pooled" if the encoder has them; returns their number. */
static int list_tensors(const struct prompt_embeds *tensors, struct named_tensor named[TENSORS]) {
    int n = 0;
    if (tensors->text.rank) named[n++] = (struct named_tensor){"text", tensors->text};
    if (tensors->pooled.rank) named[n++] = (struct named_tensor){"pooled", tensors->pooled};
    return n;
}

/* The hash begins with the key, so that a renamed file does not match. */
static void begin_hash(const struct prompt_cache_location *place, struct sha256_ctx *sha) {
    sha256_init(sha);
    sha256_update(sha, PROMPT_CACHE_KEY_BYTES, place->key);
}

static bool has_shape(const struct index_entry *entry, struct tensor shape) {
    return entry && entry->dtype == DTYPE_F32 && entry->rank == shape.rank &&
           !memcmp(entry->dim, shape.dim, (size_t)shape.rank * sizeof *shape.dim);
}

static enum status hash_entry(const struct tensor_index *index, const struct index_entry *entry,
                              struct sha256_ctx *sha, struct error *e) {
    char piece[PIECE_BYTES];
    for (uint64_t at = 0; at < entry->bytes && e->code == OK; at += PIECE_BYTES) {
        uint64_t n = entry->bytes - at < PIECE_BYTES ? entry->bytes - at : PIECE_BYTES;
        if (source_read(&index->sources[entry->source], piece, n, entry->offset + at, e) == OK)
            sha256_update(sha, n, (const uint8_t *)piece);
    }
    return e->code;
}

/* True if the file has exactly the given tensors, and their bytes match the hash in the file's metadata. */
static bool is_valid(const struct prompt_cache_location *place, const struct prompt_embeds *shapes,
                     const struct tensor_index *index) {
    struct named_tensor named[TENSORS];
    struct sha256_ctx sha;
    struct config config = {0};
    struct error e = {0};
    char found[SHA256_HEX];
    int n = list_tensors(shapes, named);
    bool valid = index->n_entries == n && index->config;
    begin_hash(place, &sha);
    for (int i = 0; i < n && valid; i++) {
        const struct index_entry *entry = index_find(index, named[i].name);
        valid = has_shape(entry, named[i].tensor) && hash_entry(index, entry, &sha, &e) == OK;
    }
    sha256_end(&sha, found);
    valid = valid && config_parse(place->sys, place->folder, index->config, NULL, &config, &e) == OK &&
            !strcmp(config_string(&config, PROMPT_CACHE_HASH_KEY, ""), found);
    config_destroy(&config);
    return valid;
}

bool prompt_cache_file_open(const struct prompt_cache_location *place, const struct prompt_embeds *shapes,
                            struct tensor_index *index) {
    struct error e = {0};
    char *path = path_of(place);
    *index = (struct tensor_index){0};
    bool valid =
        path && safetensors_open(place->sys, path, index, &e) == OK && is_valid(place, shapes, index);
    place->sys->release(place->sys, path);
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

enum status prompt_cache_file_write(const struct prompt_cache_location *place,
                                    const struct prompt_embeds *tensors, struct error *e) {
    struct named_tensor named[TENSORS];
    int n = list_tensors(tensors, named);
    struct sha256_ctx sha;
    struct progress progress = {.named = named};
    char hash[SHA256_HEX], config[SHA256_HEX + 40];
    const struct safetensors_text metadata = {"config", config};
    const struct safetensors_content content = {named, n, &metadata, 1};
    char *path = path_of(place);
    if (!path) return error_set(e, MEMORY, "no memory for a path");
    begin_hash(place, &sha);
    for (int i = 0; i < n; i++)
        sha256_update(&sha, (size_t)tensor_bytes(&named[i].tensor), named[i].tensor.data);
    snprintf(config, sizeof config, "{\"" PROMPT_CACHE_HASH_KEY "\": \"%s\"}", sha256_end(&sha, hash));
    safetensors_write_content(place->sys, path, &content, &(struct tensor_maker){&progress, next_bytes}, e);
    place->sys->release(place->sys, path);
    return e->code;
}
