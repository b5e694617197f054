/* Tokenizers: opening, and encoding a text. See tokenizer.h; tables.h lists the steps. */
#include "loaders/tokenizer/reading.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/text.h"
#include "loaders/gguf/gguf.h"

/* Encoding state of one text, with all its allocations. */
struct encoding {
    const struct tokenizer *t;
    pcre2_match_data *data, *redata; /* match data for split and resplit */
    pcre2_match_context *context;
    struct bpe_scratch scratch;
    struct id_list out;
};

/* True for one character, ASCII letters only or ASCII signs only: GPT-2's pattern, the only pattern for a
 * second split (resplit), leaves such pieces whole. This saves a pattern match for nearly every piece. */
static bool is_whole(struct span piece) {
    uint64_t letters = 0, signs = 0, continued = 0;
    for (uint64_t i = 0; i < piece.bytes; i++) {
        unsigned char c = (unsigned char)piece.at[i];
        bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';
        letters += letter;
        signs += !letter && c > ' ' && c < 0x7F && !(c >= '0' && c <= '9');
        continued += (c & 0xC0) == 0x80;
    }
    return letters == piece.bytes || signs == piece.bytes || continued + 1 == piece.bytes;
}

static enum status encode_plain(struct encoding *c, struct span text, struct error *e) {
    const struct tokenizer *t = c->t;
    struct split split = {.t = t,
                          .code = t->split,
                          .drop_gaps = t->drop_gaps,
                          .data = c->data,
                          .context = c->context,
                          .text = text};
    struct span piece, part;
    if (t->unigram.edges) return unigram_text(t, text, &c->out, e);
    while (!e->code && split_next(&split, &piece, e)) {
        if (!t->resplit || is_whole(piece)) {
            bpe_piece(t, &c->scratch, piece, &c->out, e);
            continue;
        }
        struct split again = {
            .t = t, .code = t->resplit, .data = c->redata, .context = c->context, .text = piece};
        while (!e->code && split_next(&again, &part, e)) bpe_piece(t, &c->scratch, part, &c->out, e);
    }
    return e->code;
}

/* Splits the text at added tokens and passes the text between the tokens to the next step. */
typedef enum status (*next_step)(struct encoding *c, struct span text, struct error *e);

static enum status encode_between_added(struct encoding *c, const struct added_set *set, struct span text,
                                        next_step next, struct error *e) {
    struct added_search search = {.set = set, .text = text};
    uint64_t taken = 0;
    while (added_next(&search)) {
        if (taken < search.start && next(c, (struct span){text.at + taken, search.start - taken}, e))
            return e->code;
        if (id_list_push(c->t->sys, &c->out, search.id, e)) return e->code;
        taken = search.end;
    }
    return taken < text.bytes ? next(c, (struct span){text.at + taken, text.bytes - taken}, e) : OK;
}

static enum status encode_normalized(struct encoding *c, struct span text, struct error *e) {
    char *normal = NULL;
    if (text_normalize(c->t, &text, &normal, e)) return e->code;
    encode_between_added(c, &c->t->normalized, text, encode_plain, e);
    c->t->sys->release(c->t->sys, normal);
    return e->code;
}

enum status tokenizer_check_text(const char *name, const char *text, uint64_t bytes, uint64_t most,
                                 struct error *e) {
    if (bytes > most) {
        error_set(e, LIMIT,
                  "the %s is too long" FOUND "%" PRIu64 " bytes" EXPECTED "at most %" PRIu64 " bytes", name,
                  bytes, most);
        return error_is_usage(e);
    }
    uint64_t valid = utf8_valid_bytes(text, bytes);
    if (valid == bytes) return OK;
    error_set(e, UTF8,
              "the %s is not UTF-8" WHERE "byte %" PRIu64 " of the %s" FOUND "byte 0x%02x" EXPECTED
              "valid UTF-8",
              name, valid, name, (unsigned char)text[valid]);
    return error_is_usage(e);
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, uint64_t bytes, int32_t **ids,
                             int *n_ids, struct error *e) {
    struct encoding c = {.t = t};
    *ids = NULL;
    *n_ids = 0;
    if (tokenizer_check_text("text", text, bytes, TOKENIZER_TEXT_BYTES, e)) return e->code;
    /* Allocates the list of ids even if the text has no ids, so that NULL means failure. */
    c.out.ids = sys_new(t->sys, 64, sizeof *c.out.ids, "token ids", e);
    c.out.capacity = 64;
    if (e->code) goto out;
    if (!t->unigram.edges) {
        c.data = pcre2_match_data_create_from_pattern(t->split, t->memory);
        if (t->resplit) c.redata = pcre2_match_data_create_from_pattern(t->resplit, t->memory);
        c.context = pcre2_match_context_create(t->memory);
        if (!c.data || !c.context || (t->resplit && !c.redata)) {
            error_set(e, MEMORY, "no memory to split a text");
            goto out;
        }
        /* Real patterns take a few steps per byte; the limit stops hostile patterns that backtrack without
         * end. Backtracking memory counts under LINE_HOST. */
        pcre2_set_match_limit(c.context, (uint32_t)(10000 + 16 * bytes));
        pcre2_set_heap_limit(c.context, 64 * 1024);
    }
    encode_between_added(&c, &t->raw, (struct span){text, bytes}, encode_normalized, e);
out:
    pcre2_match_data_free(c.data);
    pcre2_match_data_free(c.redata);
    pcre2_match_context_free(c.context);
    t->sys->release(t->sys, c.scratch.symbols);
    t->sys->release(t->sys, c.scratch.heap);
    if (e->code) {
        t->sys->release(t->sys, c.out.ids);
        return e->code;
    }
    *ids = c.out.ids;
    *n_ids = (int)c.out.n;
    return OK;
}

int tokenizer_size(const struct tokenizer *t) {
    return t->size;
}

const char *tokenizer_kind(const struct tokenizer *t) {
    return t->kind;
}

int tokenizer_special(const struct tokenizer *t, const char *text) {
    for (int i = 0; i < t->n_added; i++)
        if (!strcmp(t->added[i].content.at, text)) return t->added[i].id;
    return -1;
}

int tokenizer_pad(const struct tokenizer *t) {
    return t->pad;
}

void tokenizer_set_pad(struct tokenizer *t, int id) {
    t->pad = id;
}

/* Returns the file's size, or negative errno. *regular: false for a folder. */
static int64_t file_bytes(struct sys *sys, const char *path, bool *regular) {
    struct file_identity identity = {0};
    int file = sys->open(sys, path);
    *regular = false;
    if (file < 0) return file;
    int failed = sys->identify(sys, file, &identity);
    sys->close(sys, file);
    *regular = !failed && identity.regular;
    return failed ? failed : identity.bytes;
}

static bool is_absent(int64_t bytes) {
    return bytes == -ENOENT || bytes == -ENOTDIR;
}

/* Finds tokenizer.json in a folder, or path itself if it is a file. Returns true also for a file that cannot
 * be opened, because reading it reports the reason. */
static bool find_json(struct sys *sys, const char *path, char *json, int json_bytes) {
    bool regular;
    int64_t bytes = file_bytes(sys, path, &regular);
    if (regular || (bytes < 0 && !is_absent(bytes))) {
        snprintf(json, (size_t)json_bytes, "%s", path);
        return true;
    }
    snprintf(json, (size_t)json_bytes, "%s/tokenizer.json", path);
    return !is_absent(file_bytes(sys, json, &regular));
}

enum { PATH_BYTES = 4096 };

/* Opens a tokenizer file or folder; spiece: content of a spiece.model, or NULL. */
static enum status open_any(struct sys *sys, const char *path, const struct span *spiece,
                            struct tokenizer **tokenizer, struct error *e) {
    char json[PATH_BYTES];
    *tokenizer = NULL;
    struct tokenizer *t = sys_new(sys, 1, sizeof *t, "a tokenizer", e);
    if (!t) return e->code;
    t->sys = sys;
    t->unk = t->pad = -1;
    t->kind = "BPE";
    struct reading r = {.t = t, .path = path};
    bool model = spiece || ends_with(path, ".model"), gguf = !model && gguf_is(sys, path);
    bool is_json = !model && !gguf && find_json(sys, path, json, sizeof json);
    if (is_json) r.path = json;
    t->path = copy_text(sys, r.path, strlen(r.path), e);
    if (e->code)
        goto out;
    else if (model)
        tokenizer_read_spiece(&r, spiece, NULL, NULL, e);
    else if (gguf)
        tokenizer_read_gguf(&r, e);
    else if (is_json)
        tokenizer_read_json(&r, e);
    else
        tokenizer_read_folder(&r, e);
    if (!e->code) added_sets_build(t, e);
out:
    sys->release(sys, r.taken);
    sys->release(sys, r.joined);
    sys->release(sys, r.scores);
    if (t->unigram.edges) word_table_destroy(sys, &t->words);
    sys->trim(sys);
    if (e->code)
        tokenizer_close(t);
    else
        *tokenizer = t;
    return e->code;
}

enum status tokenizer_open(struct sys *sys, const char *path, struct tokenizer **tokenizer, struct error *e) {
    *tokenizer = NULL;
    if (strlen(path) > PATH_BYTES - 64) return error_set(e, USAGE, "the path of the tokenizer is too long");
    return open_any(sys, path, NULL, tokenizer, e);
}

enum status tokenizer_open_spiece(struct sys *sys, const char *path, const void *bytes, uint64_t n,
                                  struct tokenizer **tokenizer, struct error *e) {
    const struct span file = {bytes, n};
    return open_any(sys, path, &file, tokenizer, e);
}

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    struct sys *sys = t->sys;
    for (int i = 0; i < t->n_added; i++) {
        if (t->added[i].pattern.at != t->added[i].content.at)
            sys->release(sys, (char *)t->added[i].pattern.at);
        sys->release(sys, (char *)t->added[i].content.at);
    }
    void *const parts[] = {t->added,         t->raw.sorted,    t->normalized.sorted, t->merges.merges,
                           t->merges.slots,  t->path,          t->charsmap.units,    t->charsmap.texts,
                           t->unigram.edges, t->unigram.piece, t->unigram.scores};
    word_table_destroy(sys, &t->words);
    pcre2_code_free(t->split);
    pcre2_code_free(t->resplit);
    pcre2_general_context_free(t->memory);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) sys->release(sys, parts[i]);
    sys->release(sys, t);
}

/* Bytes of heap per byte of a tokenizer file. Jansson needs most for short tokens without white space.
 * Measured (Jansson 2.14, glibc 2.36, x86-64, November 2026) with 151,643 tokens and 151,387 merges: 11.8
 * with merges as pairs without white space (5.9 MB), 6.3 with merges as pairs, indented as in released files
 * (12.0 MB), 7.3 with merges as texts (5.3 MB). With 32,100 unigram pieces: 12.3 plus 2.2 MB as JSON without
 * white space (0.6 MB), 3 as spiece.model (0.6 MB). With CLIP's 49,408 tokens and merges: 3.5 (2.5 MB). 16
 * leaves a margin for shorter tokens; TOKENIZER_HEAP_BYTES covers the bit set of ids and small files. A file
 * of empty arrays would need more, but is not a tokenizer. */
enum { HEAP_PER_BYTE = 16 };

uint64_t tokenizer_open_bytes(struct sys *sys, const char *path) {
    static const char *const names[] = {"vocab.json",        "merges.txt",   "tokenizer_config.json",
                                        "added_tokens.json", "spiece.model", "special_tokens_map.json",
                                        "tokenizer.model"};
    char name[PATH_BYTES];
    uint64_t sum = 0;
    bool regular;
    if (strlen(path) > PATH_BYTES - 64) return 0;
    /* The loader allocates and counts the GGUF header; only the added tokens use Jansson's memory. */
    if (gguf_is(sys, path)) return TOKENIZER_HEAP_BYTES;
    bool json = find_json(sys, path, name, sizeof name);
    for (size_t i = 0; i < (json ? 1 : sizeof names / sizeof *names); i++) {
        if (!json) snprintf(name, sizeof name, "%s/%s", path, names[i]);
        int64_t bytes = file_bytes(sys, name, &regular);
        if (bytes > 0 && !add_u64(sum, (uint64_t)bytes, &sum)) return UINT64_MAX;
    }
    return multiply_u64(sum, HEAP_PER_BYTE, &sum) && add_u64(sum, TOKENIZER_HEAP_BYTES, &sum) ? sum
                                                                                              : UINT64_MAX;
}
