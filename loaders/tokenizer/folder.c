/* Reads tokenizer folders without tokenizer.json: vocab.json and merges.txt, or spiece.model, with their
 * companion files. vocab.json and merges.txt do not specify the pre-tokenizer: it follows from the class
 * named in tokenizer_config.json, else from CLIP's end-of-word tokens, which no other tokenizer has. */
#include "loaders/tokenizer/reading.h"
#include "loaders/alloc_array.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "loaders/loaders.h"

enum {
    F_VOCAB,
    F_CONFIG,
    F_ADDED,
    F_SPECIAL,
    N_DOCUMENTS,
    F_MERGES = N_DOCUMENTS,
    F_SPIECE,
    F_MODEL,
    N_FILES
};

/* JSON documents of a tokenizer folder; absent optional documents are NULL. */
struct folder {
    char path[N_FILES][4096];
    json_t *root[N_DOCUMENTS];
};

static bool has_word_ends(const json_t *vocab) {
    char token[] = "!</w>";
    for (char c = '!'; c <= '~'; c++) {
        token[0] = c;
        if (json_object_get(vocab, token)) return true;
    }
    return false;
}

static enum status find_class(struct reading *r, const struct folder *f, bool *clip, struct error *e) {
    const json_t *class = json_object_get(f->root[F_CONFIG], "tokenizer_class");
    *clip = reading_absent(class)
                ? has_word_ends(f->root[F_VOCAB])
                : reading_is_text(class, "CLIPTokenizer") || reading_is_text(class, "CLIPTokenizerFast");
    if (*clip || reading_absent(class) || reading_is_text(class, "Qwen2Tokenizer") ||
        reading_is_text(class, "Qwen2TokenizerFast"))
        return OK;
    return reading_unsupported(r, "tokenizer_class",
                               json_is_string(class) ? json_string_value(class) : reading_kind(class),
                               "Qwen2Tokenizer or CLIPTokenizer, or a tokenizer.json", e);
}

/* True also for a file that cannot be opened: without the file token ids would change, and reading the file
 * reports the reason. */
static bool file_exists(struct sys *sys, const char *path) {
    int file = sys->open(sys, path);
    if (file >= 0) sys->close(sys, file);
    return file != -ENOENT && file != -ENOTDIR;
}

/* Reads a folder's JSON documents; vocab.json is required unless there is a SentencePiece model. */
static enum status read_folder_files(struct sys *sys, struct folder *f, bool spiece, struct error *e) {
    for (int i = 0; i < N_DOCUMENTS; i++) {
        if (i == F_VOCAB ? spiece : !file_exists(sys, f->path[i])) continue;
        if (reading_json_file(sys, f->path[i], &f->root[i], e)) return e->code;
    }
    return OK;
}

static enum status read_folder_merges(struct reading *r, const char *path, struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    r->path = path;
    if (file_read_text(r->t->sys, path, TOKENIZER_FILE_BYTES, &text, &bytes, e)) return e->code;
    bpe_read_merges_text(r, (struct span){text, bytes}, e);
    r->t->sys->release(r->t->sys, text);
    return e->code;
}

static enum status read_folder_added(struct reading *r, const struct folder *f, struct error *e) {
    json_t *decoder = json_object_get(f->root[F_CONFIG], "added_tokens_decoder");
    r->path = f->path[decoder ? F_CONFIG : F_ADDED];
    if (decoder) return added_read_decoder(r, decoder, e);
    if (!f->root[F_ADDED]) return OK;
    return added_read_map(r, f->root[F_ADDED], f->root[F_CONFIG], f->root[F_SPECIAL], e);
}

static enum status read_clip_added(struct reading *r, const struct folder *f, struct error *e) {
    const char *eot = "<|endoftext|>";
    json_t *defaults = json_pack("{s:s, s:s, s:s, s:s}", "bos_token", "<|startoftext|>", "eos_token", eot,
                                 "unk_token", eot, "pad_token", eot);
    const struct named_tokens named = {f->root[F_CONFIG], f->root[F_SPECIAL], defaults, NULL};
    if (!defaults) error_set(e, MEMORY, "no memory for added tokens");
    if (!e->code) added_read_named(r, &named, e);
    json_decref(defaults);
    return e->code;
}

/* Sets the token for bytes without one: CLIP's end-of-text token unless the configuration names another. */
static enum status read_clip_unk(struct reading *r, const struct folder *f, struct error *e) {
    const json_t *unk = json_object_get(f->root[F_CONFIG], "unk_token");
    if (json_is_object(unk)) unk = json_object_get(unk, "content");
    if (!reading_absent(unk)) return bpe_read_unk(r, unk, e);
    r->t->unk = reading_vocab_id(r, (struct span){"<|endoftext|>", 13});
    return OK;
}

static enum status read_folder_parts(struct reading *r, const struct folder *f, struct error *e) {
    bool clip, prefix = false;
    r->path = f->path[F_CONFIG];
    if (find_class(r, f, &clip, e)) return e->code;
    if (reading_bool(r, f->root[F_CONFIG], "add_prefix_space", "add_prefix_space", &prefix, e))
        return e->code;
    if (prefix && !clip) return reading_unsupported(r, "add_prefix_space", "true", "false", e);
    if (clip ? pre_tokenizer_set_clip(r, e) : pre_tokenizer_set_qwen2(r, e)) return e->code;
    if (clip) r->t->kind = "CLIP BPE";
    r->path = f->path[F_VOCAB];
    r->vocab = f->root[F_VOCAB];
    if (bpe_read_vocab(r, clip ? (struct span){"</w>", 4} : (struct span){"", 0}, e)) return e->code;
    if (clip && read_clip_unk(r, f, e)) return e->code;
    if (read_folder_merges(r, f->path[F_MERGES], e)) return e->code;
    if (!clip) return read_folder_added(r, f, e);
    r->path = f->path[F_CONFIG];
    return read_clip_added(r, f, e);
}

static enum status count_extra(struct reading *r, const json_t *config, int *n, struct error *e) {
    const json_t *class = json_object_get(config, "tokenizer_class"),
                 *extra = json_object_get(config, "extra_ids");
    if (!reading_absent(class) && !reading_is_text(class, "T5Tokenizer") &&
        !reading_is_text(class, "T5TokenizerFast"))
        return reading_unsupported(r, "tokenizer_class",
                                   json_is_string(class) ? json_string_value(class) : reading_kind(class),
                                   "T5Tokenizer", e);
    *n = 100;
    if (reading_absent(extra)) return OK;
    *n = (int)json_integer_value(extra);
    if (json_is_integer(extra) && json_integer_value(extra) >= 0 && json_integer_value(extra) <= 1000)
        return OK;
    return reading_wrong_kind(r, "extra_ids", extra, "an integer from 0 to 1000", e);
}

enum status unigram_read_added(struct reading *r, const json_t *config, const json_t *special_map,
                               json_t *others, struct error *e) {
    json_t *defaults =
        json_pack("{s:s, s:s, s:s}", "eos_token", "</s>", "unk_token", "<unk>", "pad_token", "<pad>");
    const struct named_tokens named = {config, special_map, defaults, others};
    if (!defaults) error_set(e, MEMORY, "no memory for added tokens");
    if (!e->code) added_read_named(r, &named, e);
    json_decref(defaults);
    return e->code;
}

/* Reads a SentencePiece model from memory. config and special_map may be NULL. */
static enum status read_spiece(struct reading *r, struct span file, const json_t *config,
                               const json_t *special_map, struct error *e) {
    int n_extra = 0;
    if (count_extra(r, config, &n_extra, e)) return e->code;
    unsigned json_failures = failed_json_allocations();
    json_t *others = json_array();
    spiece_read(r, file, n_extra, others, e);
    if (!others || failed_json_allocations() != json_failures)
        error_set(e, MEMORY, "no memory for added tokens");
    if (!e->code) unigram_read_added(r, config, special_map, others, e);
    json_decref(others);
    return e->code;
}

static enum status read_spiece_file(struct reading *r, const json_t *config, const json_t *special_map,
                                    struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    if (file_read_text(r->t->sys, r->path, TOKENIZER_FILE_BYTES, &text, &bytes, e)) return e->code;
    read_spiece(r, (struct span){text, bytes}, config, special_map, e);
    r->t->sys->release(r->t->sys, text);
    return e->code;
}

enum status tokenizer_read_spiece(struct tokenizer *t, const char *path, const struct span *bytes,
                                  struct error *e) {
    struct reading r = {.t = t, .path = path};
    t->path = copy_text(t->sys, path, strlen(path), e);
    if (t->path) bytes ? read_spiece(&r, *bytes, NULL, NULL, e) : read_spiece_file(&r, NULL, NULL, e);
    return reading_finish(&r, e);
}

enum status tokenizer_read_folder(struct tokenizer *t, const char *folder, struct error *e) {
    static const char *const names[] = {
        "vocab.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
        "merges.txt", "spiece.model",          "tokenizer.model"};
    struct reading r = {.t = t, .path = folder};
    struct folder *f = alloc_array(t->sys, 1, sizeof *f, e);
    const char *spiece = NULL;
    if (!f) return e->code;
    for (int i = 0; i < N_FILES; i++) snprintf(f->path[i], sizeof f->path[i], "%s/%s", folder, names[i]);
    t->path = copy_text(t->sys, folder, strlen(folder), e);
    bool vocab = t->path && file_exists(t->sys, f->path[F_VOCAB]);
    for (int i = F_SPIECE; i <= F_MODEL && t->path && !vocab && !spiece; i++)
        if (file_exists(t->sys, f->path[i])) spiece = f->path[i];
    if (t->path && !vocab && !spiece) {
        reading_fail(&r, MISSING, "the folder", "contains no vocabulary", e);
        error_expected(e, "tokenizer.json, or vocab.json and merges.txt, or spiece.model");
    }
    if (spiece) r.path = spiece;
    if (!e->code && !read_folder_files(t->sys, f, spiece, e)) {
        if (spiece)
            read_spiece_file(&r, f->root[F_CONFIG], f->root[F_SPECIAL], e);
        else
            read_folder_parts(&r, f, e);
    }
    reading_finish(&r, e);
    for (int i = 0; i < N_DOCUMENTS; i++) json_decref(f->root[i]);
    t->sys->release(t->sys, f);
    return e->code;
}
