/* Reads tokenizer folders without tokenizer.json: vocab.json and merges.txt, or spiece.model, with their
 * companion files. vocab.json and merges.txt do not specify the pre-tokenizer: it follows from the class
 * named in tokenizer_config.json, else from CLIP's end-of-word tokens, which no other tokenizer has. */
#include "loaders/tokenizer/reading.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

/* True also for a file that exists but cannot be opened: ignoring the file would change token ids, and
 * reading it reports the reason. */
static bool file_exists(struct sys *sys, const char *path) {
    int file = sys->open(sys, path);
    if (file >= 0) sys->close(sys, file);
    return file != -ENOENT && file != -ENOTDIR;
}

/* Reads the next BPE merge of merges.txt; false at the end. Only "\n" and "\r\n" end lines. Skips empty
 * lines and version lines. There are no other comments: "# #" merges two hashes. */
static bool next_merge(struct span *rest, struct span *line) {
    while (rest->bytes) {
        const char *end = memchr(rest->at, '\n', rest->bytes);
        uint64_t bytes = end ? (uint64_t)(end - rest->at) : rest->bytes;
        *line = (struct span){rest->at, bytes};
        rest->at += bytes + (end != NULL);
        rest->bytes -= bytes + (end != NULL);
        if (line->bytes && line->at[line->bytes - 1] == '\r') line->bytes--;
        if (line->bytes && !(line->bytes >= 8 && !memcmp(line->at, "#version", 8))) return true;
    }
    return false;
}

static enum status read_merges(struct reading *r, const char *path, struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0, n = 0, rank = 0;
    r->path = path;
    if (file_read_text(r->t->sys, path, TOKENIZER_FILE_BYTES, &text, &bytes, e)) return e->code;
    struct span rest = {text, bytes}, line;
    uint64_t valid = utf8_valid_bytes(text, bytes);
    if (valid < bytes) {
        error_set(e, UTF8,
                  "tokenizer: the merge rules are not UTF-8" WHERE "%s, byte %" PRIu64 FOUND "byte 0x%02x",
                  r->path, valid, (unsigned char)text[valid]);
    } else {
        while (next_merge(&rest, &line)) n++;
        merge_table_make(r->t->sys, &r->t->merges, n, e);
        rest = (struct span){text, bytes};
        while (!e->code && next_merge(&rest, &line)) bpe_add_merge_text(r, rank++, line, e);
    }
    r->t->sys->release(r->t->sys, text);
    return e->code;
}

/* Reads the tokens that CLIP adds, with CLIPTokenizer's defaults. */
static enum status read_clip_added(struct reading *r, const struct folder *f, struct error *e) {
    const char *eot = "<|endoftext|>";
    json_t *defaults = json_pack("{s:s, s:s, s:s, s:s}", "bos_token", "<|startoftext|>", "eos_token", eot,
                                 "unk_token", eot, "pad_token", eot);
    const struct named_tokens named = {f->root[F_CONFIG], f->root[F_SPECIAL], defaults, NULL};
    r->path = f->path[F_CONFIG];
    if (!defaults) error_set(e, MEMORY, "no memory for added tokens");
    if (!e->code) added_read_named(r, &named, e);
    json_decref(defaults);
    return e->code;
}

/* Reads a folder with vocab.json and merges.txt. */
static enum status read_bpe_folder(struct reading *r, const struct folder *f, struct error *e) {
    const json_t *config = f->root[F_CONFIG], *class = json_object_get(config, "tokenizer_class");
    bool prefix = false;
    bool clip = reading_is_text(class, "CLIPTokenizer") || reading_is_text(class, "CLIPTokenizerFast");
    char end[] = "!</w>"; /* CLIP's tokens for a single character at the end of a word */
    for (; reading_absent(class) && !clip && *end <= '~'; ++*end)
        clip = json_object_get(f->root[F_VOCAB], end);
    r->path = f->path[F_CONFIG];
    if (!clip && !reading_absent(class) && !reading_is_text(class, "Qwen2Tokenizer") &&
        !reading_is_text(class, "Qwen2TokenizerFast"))
        return reading_unsupported(r, "tokenizer_class", reading_shown(class),
                                   "Qwen2Tokenizer or CLIPTokenizer, or a tokenizer.json", e);
    if (reading_bool(r, config, "add_prefix_space", "add_prefix_space", &prefix, e)) return e->code;
    if (prefix && !clip) return reading_unsupported(r, "add_prefix_space", "true", "false", e);
    r->t->nfc = true;
    if (clip) {
        /* Source: transformers 5.23, CLIPTokenizer. ByteLevel splits the pieces again by GPT-2's pattern,
         * which only affects the texts of special tokens. */
        r->t->kind = "CLIP BPE";
        r->t->one_space = r->t->lower = r->t->drop_gaps = true;
        split_compile(r->t, &r->t->split, span_of(clip_pattern), "pre_tokenizer", e);
        if (!e->code) split_compile(r->t, &r->t->resplit, span_of(gpt2_pattern), "pre_tokenizer", e);
    } else {
        split_compile(r->t, &r->t->split, span_of(qwen2_pattern), "pre_tokenizer", e);
    }
    r->path = f->path[F_VOCAB];
    r->vocab = f->root[F_VOCAB];
    if (e->code || bpe_read_vocab(r, span_of(clip ? "</w>" : ""), e)) return e->code;
    if (clip) { /* unk token, for bytes without a token: end-of-text unless the configuration names one */
        const json_t *unk = json_object_get(config, "unk_token");
        if (json_is_object(unk)) unk = json_object_get(unk, "content");
        if (reading_absent(unk))
            r->t->unk = reading_vocab_id(r, span_of("<|endoftext|>"));
        else if (bpe_read_unk(r, unk, e))
            return e->code;
    }
    if (read_merges(r, f->path[F_MERGES], e)) return e->code;
    if (clip) return read_clip_added(r, f, e);
    json_t *decoder = json_object_get(config, "added_tokens_decoder");
    r->path = f->path[decoder ? F_CONFIG : F_ADDED];
    if (decoder) return added_read_decoder(r, decoder, e);
    return f->root[F_ADDED] ? added_read_map(r, f->root[F_ADDED], config, f->root[F_SPECIAL], e) : OK;
}

enum status tokenizer_read_folder(struct reading *r, struct error *e) {
    static const char *const names[] = {
        "vocab.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",
        "merges.txt", "spiece.model",          "tokenizer.model"};
    struct sys *sys = r->t->sys;
    struct folder *f = sys_new(sys, 1, sizeof *f, "the documents of a tokenizer", e);
    const char *spiece = NULL;
    if (!f) return e->code;
    for (int i = 0; i < N_FILES; i++) snprintf(f->path[i], sizeof f->path[i], "%s/%s", r->path, names[i]);
    bool vocab = file_exists(sys, f->path[F_VOCAB]);
    for (int i = F_SPIECE; i <= F_MODEL && !vocab && !spiece; i++)
        if (file_exists(sys, f->path[i])) spiece = f->path[i];
    if (!vocab && !spiece) {
        reading_fail(e, MISSING, r,
                     "the folder contains no vocabulary" EXPECTED
                     "tokenizer.json, or vocab.json and merges.txt, or spiece.model");
    }
    for (int i = 0; i < N_DOCUMENTS && !e->code; i++)
        if (i == F_VOCAB ? vocab : file_exists(sys, f->path[i]))
            reading_json_file(sys, f->path[i], &f->root[i], e);
    if (spiece) r->path = spiece;
    if (!e->code && spiece)
        tokenizer_read_spiece(r, NULL, f->root[F_CONFIG], f->root[F_SPECIAL], e);
    else if (!e->code)
        read_bpe_folder(r, f, e);
    for (int i = 0; i < N_DOCUMENTS; i++) json_decref(f->root[i]);
    r->vocab = NULL; /* borrowed from vocab.json */
    sys->release(sys, f);
    return e->code;
}
