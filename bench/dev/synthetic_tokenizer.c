/* A synthetic tokenizer of Qwen's kind (byte-level BPE), and code shared by all kinds. */
#include "bench/dev/synthetic_tokenizer.h"
#include "loaders/tokenizer/tables.h"
#include "loaders/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/random.h"

enum { BYTES = 256, SYMBOLS_MAX = 12, TOKEN_BYTES = 2 * SYMBOLS_MAX + 1 };

/* clang-format off */
/* Added tokens in id order: Qwen3's, then those of Mistral's templates. The first N_SPECIAL are special. */
static const char *const added[] = {
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
};
/* clang-format on */
enum { N_ADDED = sizeof added / sizeof *added, N_SPECIAL = 14, QWEN_MERGES = 151387 };

struct making {
    char (*token)[TOKEN_BYTES]; /* tokens of the tokenizer so far, in byte-level BPE's alphabet */
    int n_tokens, n_merges;
    uint64_t random;
    json_t *vocab, *merges;
    char *merge_lines, *end; /* text of merges.txt */
};

int symbol_write(int byte, char *out) {
    int code = byte_to_alphabet(byte);
    if (code < 0x80) return out[0] = (char)code, 1;
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
}

static bool bench_tokenizer_add_token(struct making *m, const char *text) {
    strcpy(m->token[m->n_tokens], text);
    return !json_object_set_new(m->vocab, text, json_integer(m->n_tokens++));
}

/* Adds a BPE merge of two tokens. False: no memory. A pair that cannot become a new token is skipped without
 * error. */
static bool bench_tokenizer_add_merge(struct making *m, const char *left, const char *right) {
    char joined[2 * TOKEN_BYTES], pair[2 * TOKEN_BYTES];
    int bytes = snprintf(joined, sizeof joined, "%s%s", left, right);
    if (bytes >= TOKEN_BYTES || json_object_get(m->vocab, joined)) return true;
    snprintf(pair, sizeof pair, "%s %s", left, right);
    m->end += sprintf(m->end, "%s\n", pair);
    return bench_tokenizer_add_token(m, joined) && !json_array_append_new(m->merges, json_string(pair));
}

static bool fits_another(const struct making *m) {
    return m->n_tokens < BYTES + m->n_merges;
}

/* Merges pairs of letters and starts of words first, so that ordinary text is merged, then random pairs. */
static bool bench_tokenizer_add_merges(struct making *m) {
    static const char letters[] = "etaoinshrdlcumwfgypbvkjxqz";
    char space[3] = {0};
    bool ok = true;
    symbol_write(' ', space);
    for (const char *a = letters; *a && ok && fits_another(m); a++)
        ok = bench_tokenizer_add_merge(m, space, (char[]){*a, 0});
    for (const char *a = letters; *a && ok; a++)
        for (const char *b = letters; *b && ok && fits_another(m); b++)
            ok = bench_tokenizer_add_merge(m, (char[]){*a, 0}, (char[]){*b, 0});
    while (ok && fits_another(m)) {
        bool wild = random_below(&m->random, 8) == 0; /* also merges single bytes, as in UTF-8 text */
        uint64_t from = wild ? 0 : BYTES, n = (uint64_t)m->n_tokens - from;
        const char *left = m->token[from + random_below(&m->random, n)];
        ok = bench_tokenizer_add_merge(m, left, m->token[from + random_below(&m->random, n)]);
    }
    return ok;
}

static json_t *describe_added(int i, int id, bool with_id) {
    json_t *token = json_pack("{s:s, s:b, s:b, s:b, s:b, s:b}", "content", added[i], "lstrip", 0,
                              "normalized", 0, "rstrip", 0, "single_word", 0, "special", i < N_SPECIAL);
    if (token && with_id) json_put(token, "id", json_integer(id));
    return token;
}

static char *bench_tokenizer_dump_tokenizer(const struct making *m) {
    json_t *tokens = json_array();
    for (int i = 0; i < N_ADDED; i++) json_push(tokens, describe_added(i, m->n_tokens + i, true));
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 0, "use_regex", 0);
    json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", qwen2_pattern,
                              "behavior", "Isolated", "invert", 0);
    json_t *root = json_pack("{s:s, s:n, s:n, s:o, s:{s:s}, s:{s:s, s:[o, O]}, s:O, s:o, s:{s:s, s:n, s:n, "
                             "s:s, s:s, s:b, s:b, s:O, s:O}}",
                             "version", "1.0", "truncation", "padding", "added_tokens", tokens, "normalizer",
                             "type", "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers", split,
                             level, "post_processor", level, "decoder", level, "model", "type", "BPE",
                             "dropout", "unk_token", "continuing_subword_prefix", "", "end_of_word_suffix",
                             "", "fuse_unk", 0, "byte_fallback", 0, "vocab", m->vocab, "merges", m->merges);
    char *text = json_to_text(root, JSON_COMPACT, failed_json_allocations());
    return text;
}

/* Qwen3's chat template (Jinja), reduced to user messages. */
static const char chat_template[] =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and "
    "enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}";

static char *bench_tokenizer_dump_config(const struct making *m) {
    json_t *tokens = json_object();
    char id[16];
    for (int i = 0; i < N_ADDED; i++) {
        snprintf(id, sizeof id, "%d", m->n_tokens + i);
        json_put(tokens, id, describe_added(i, 0, false));
    }
    json_t *root = json_pack("{s:b, s:o, s:n, s:s, s:b, s:s, s:s, s:i, s:s, s:s, s:n}", "add_prefix_space", 0,
                             "added_tokens_decoder", tokens, "bos_token", "chat_template", chat_template,
                             "clean_up_tokenization_spaces", 0, "eos_token", "<|im_end|>", "errors",
                             "replace", "model_max_length", 131072, "pad_token", "<|endoftext|>",
                             "tokenizer_class", "Qwen2Tokenizer", "unk_token");
    char *text = json_to_text(root, JSON_INDENT(2), failed_json_allocations());
    return text;
}

static bool make_tables(struct making *m) {
    bool ok = true;
    m->end += sprintf(m->end, "#version: 0.2\n");
    for (int byte = 0; byte < BYTES && ok; byte++) {
        char symbol[3] = {0};
        symbol_write(byte, symbol);
        ok = bench_tokenizer_add_token(m, symbol);
    }
    return ok && bench_tokenizer_add_merges(m);
}

void synthetic_tokenizer_add_file(struct synthetic_tokenizer *made, const char *name, char *text) {
    if (text) made->files[made->n_files++] = (struct synthetic_file){name, text, strlen(text)};
}

enum status vocabulary_too_small(int n_ids, int least, struct error *e) {
    return error_set(e, USAGE,
                     "a vocabulary of %d tokens is too small for this tokenizer" EXPECTED "%d or more", n_ids,
                     least);
}

static enum status make_qwen(struct sys *sys, int n_ids, struct synthetic_tokenizer *made, struct error *e) {
    struct making m = {.n_merges = n_ids - BYTES - N_ADDED, .random = 3};
    if (m.n_merges > QWEN_MERGES) m.n_merges = QWEN_MERGES;
    if (m.n_merges < 0) return vocabulary_too_small(n_ids, BYTES + N_ADDED, e);
    uint64_t n = (uint64_t)(BYTES + m.n_merges);
    m.vocab = json_object();
    m.merges = json_array();
    m.token = sys->alloc(sys, LINE_HOST, n * TOKEN_BYTES);
    m.merge_lines = m.end = malloc((n + 1) * 2 * TOKEN_BYTES);
    if (m.token && m.merge_lines && make_tables(&m)) {
        synthetic_tokenizer_add_file(made, "tokenizer.json", bench_tokenizer_dump_tokenizer(&m));
        synthetic_tokenizer_add_file(
            made, "vocab.json", json_to_text(json_incref(m.vocab), JSON_COMPACT, failed_json_allocations()));
        synthetic_tokenizer_add_file(made, "tokenizer_config.json", bench_tokenizer_dump_config(&m));
        synthetic_tokenizer_add_file(made, "merges.txt", m.merge_lines);
        m.merge_lines = NULL;
    }
    if (made->n_files < 4) error_set(e, MEMORY, "no memory for a tokenizer of %d ids", n_ids);
    free(m.merge_lines);
    sys->release(sys, m.token);
    json_decref(m.vocab);
    json_decref(m.merges);
    return e->code;
}

enum status synthetic_tokenizer_make(struct sys *sys, const char *kind, int n_ids,
                                     struct synthetic_tokenizer *made, struct error *e) {
    unsigned json_failures = failed_json_allocations();
    *made = (struct synthetic_tokenizer){0};
    if (!strcmp(kind, "BPE"))
        make_qwen(sys, n_ids, made, e);
    else if (!strcmp(kind, "CLIP BPE") || !strcmp(kind, "OpenCLIP BPE"))
        make_clip(sys, n_ids, !strcmp(kind, "OpenCLIP BPE"), made, e);
    else if (!strcmp(kind, "SentencePiece BPE"))
        make_gemma(sys, n_ids, made, e);
    else if (!strcmp(kind, "unigram"))
        make_unigram(n_ids, made, e);
    else
        error_set(e, USAGE, "unknown tokenizer kind \"%s\"", kind);
    if (!e->code && failed_json_allocations() != json_failures)
        error_set(e, MEMORY, "no memory for a tokenizer of %d ids", n_ids);
    if (e->code) synthetic_tokenizer_destroy(made);
    return e->code;
}

void synthetic_tokenizer_destroy(struct synthetic_tokenizer *made) {
    for (int i = 0; i < made->n_files; i++) free(made->files[i].text);
    *made = (struct synthetic_tokenizer){0};
}
