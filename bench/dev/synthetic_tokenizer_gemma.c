/* A synthetic tokenizer of Gemma's kind (SentencePiece BPE) for models of random weights. tokenizer.json has
 * the special tokens, a token for each byte, the printable ASCII characters, and merges of them. */
#include "bench/dev/synthetic_tokenizer.h"
#include "loaders/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/random.h"

enum { GEMMA_IDS = 262144, BYTES = 256, PIECE_BYTES = 24 };

static const char *const special[] = {"<pad>", "<eos>", "<bos>", "<unk>"};
enum { N_SPECIAL = sizeof special / sizeof *special };

#define MARK "\xe2\x96\x81" /* U+2581, which replaces blanks */

struct gemma {
    char (*piece)[PIECE_BYTES]; /* pieces that can be merged */
    int n_pieces, n_ids, most;  /* most: largest number of ids */
    json_t *vocab, *merges;
};

static void add_id(struct gemma *g, const char *text) {
    json_put(g->vocab, text, json_integer(g->n_ids++));
}

/* Adds a piece unless it exists, is too long, or all ids are used; left NULL: a character. */
static void add_piece(struct gemma *g, const char *left, const char *right) {
    char text[2 * PIECE_BYTES];
    int bytes = snprintf(text, sizeof text, "%s%s", left ? left : "", right);
    if (g->n_ids == g->most || bytes >= PIECE_BYTES || json_object_get(g->vocab, text)) return;
    memcpy(g->piece[g->n_pieces++], text, (size_t)bytes + 1);
    add_id(g, text);
    if (left) json_push(g->merges, json_pack("[s, s]", left, right));
}

static void add_pieces(struct gemma *g) {
    uint64_t random = 3;                                        /* seed */
    static const char letters[] = "etaoinshrdlcumwfgypbvkjxqz"; /* by frequency in English */
    add_piece(g, NULL, MARK);
    for (char c = '!'; c <= '~'; c++) add_piece(g, NULL, (char[]){c, 0});
    for (const char *a = letters; *a; a++) add_piece(g, MARK, (char[]){*a, 0});
    for (const char *a = letters; *a; a++)
        for (const char *b = letters; *b; b++) add_piece(g, (char[]){*a, 0}, (char[]){*b, 0});
    while (g->n_ids < g->most) {
        const char *left = g->piece[random_below(&random, (uint64_t)g->n_pieces)];
        add_piece(g, left, g->piece[random_below(&random, (uint64_t)g->n_pieces)]);
    }
}

static char *gemma_document(const struct gemma *g) {
    json_t *added = json_array();
    for (int i = 0; i < N_SPECIAL; i++)
        json_push(added,
                  json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i, "content", special[i], "lstrip",
                            0, "normalized", 0, "rstrip", 0, "single_word", 0, "special", 1));
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:o, s:{s:s, s:{s:s}, s:s}, s:{s:s, s:{s:s}, s:s, s:b}, s:n, s:n, s:{s:s, s:n, s:s, "
        "s:n, s:n, s:b, s:b, s:b, s:O, s:O}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "type", "Replace",
        "pattern", "String", " ", "content", MARK, "pre_tokenizer", "type", "Split", "pattern", "String", " ",
        "behavior", "MergedWithPrevious", "invert", 0, "post_processor", "decoder", "model", "type", "BPE",
        "dropout", "unk_token", "<unk>", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1,
        "byte_fallback", 1, "ignore_merges", 0, "vocab", g->vocab, "merges", g->merges);
    return json_to_text(root, JSON_COMPACT, failed_json_allocations());
}

enum status make_gemma(struct sys *sys, int n_ids, struct synthetic_tokenizer *made, struct error *e) {
    struct gemma g = {.most = n_ids < GEMMA_IDS ? n_ids : GEMMA_IDS};
    if (n_ids < N_SPECIAL + BYTES) return vocabulary_too_small(n_ids, N_SPECIAL + BYTES, e);
    g.piece = sys->alloc(sys, LINE_HOST, (uint64_t)g.most * PIECE_BYTES);
    g.vocab = json_object();
    g.merges = json_array();
    if (g.piece && g.vocab && g.merges) {
        for (int i = 0; i < N_SPECIAL; i++) add_id(&g, special[i]);
        for (int byte = 0; byte < BYTES; byte++) {
            char text[8];
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
            add_id(&g, text);
        }
        add_pieces(&g);
        synthetic_tokenizer_add_file(made, "tokenizer.json", gemma_document(&g));
        synthetic_tokenizer_add_file(made, "tokenizer_config.json",
                                     strdup("{\"tokenizer_class\": \"GemmaTokenizer\", \"bos_token\": "
                                            "\"<bos>\", \"eos_token\": \"<eos>\", "
                                            "\"pad_token\": \"<pad>\", \"unk_token\": \"<unk>\"}\n"));
    }
    if (made->n_files < 2) error_set(e, MEMORY, "no memory for a tokenizer of %d ids", n_ids);
    sys->release(sys, g.piece);
    json_decref(g.vocab);
    json_decref(g.merges);
    return e->code;
}
