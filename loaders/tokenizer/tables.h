/* What a tokenizer keeps, and the steps from text to ids.
 *
 * tokenizer_json.c fills a struct tokenizer from files; everything else only reads it. The steps, in order:
 *   added tokens that want the raw text   added_tokens.c
 *   NFC                                   nfc.c
 *   added tokens that want normalised text
 *   the split pattern                     split.c
 *   merges                                bpe.c
 * Each step sees only the pieces that the one before left as text, as if each were a text of its own: a
 * look-ahead at a piece's end sees the end of the text. That is how the reference (Hugging Face tokenizers
 * 0.23) does it. */
#ifndef SLUICE_LOADERS_TOKENIZER_TABLES_H
#define SLUICE_LOADERS_TOKENIZER_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "loaders/tokenizer/tokenizer.h"

enum {
    TOKENIZER_ID_MAX = (1 << 24) - 1,    /* ids above are damage: the largest vocabularies have 2^18 */
    TOKENIZER_TEXT_BYTES = 5 << 18,      /* of one text to encode, a template around it included */
    TOKENIZER_ADDED_MAX = 65536,         /* added tokens */
    TOKENIZER_ADDED_BYTES = 256,         /* of one added token: bounds the matcher's work per byte of text */
    TOKENIZER_PIECE_BYTES = 512,         /* of a unigram model's piece: as above */
    TOKENIZER_SUFFIX_BYTES = 16,         /* of what ends a word ("</w>") */
    TOKENIZER_PATTERN_BYTES = 64 * 1024, /* of the split pattern as written */
};

struct span {
    const char *at;
    uint64_t bytes;
};

/* ids and their growth. */
struct id_list {
    int32_t *ids;
    uint64_t n, capacity;
};

/* A merge's place is its rank. */
struct merge {
    int32_t left, right, joined;
};

/* (left, right) -> rank: open addressing, 0 is empty, else rank + 1. */
struct merge_table {
    struct merge *merges;
    uint32_t *slots;
    uint32_t n_merges, mask;
};

/* Whole tokens by their bytes, kept only for files with ignore_merges: offsets into one blob. */
struct word {
    uint32_t offset, bytes;
    int32_t id;
};
struct word_table {
    char *blob;
    struct word *words;
    uint32_t *slots; /* as in merge_table */
    uint32_t n_words, mask;
};

struct added_token {
    struct span content; /* as the file has it; followed by a NUL */
    struct span pattern; /* what is looked for: content, or its NFC for a token that wants normalised text */
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
};

/* Tokens that are looked for together, sorted by pattern; patterns are unique. */
struct added_set {
    struct added_token **sorted;
    int n;
    bool starts[256]; /* some pattern starts with this byte */
};

/* SentencePiece's normalisation: see charsmap.c. No units: none. */
struct charsmap {
    uint32_t *units, n_units; /* a double array trie */
    char *texts;              /* each ends with a NUL */
    uint32_t n_texts;         /* bytes */
};

/* A unigram model: its pieces as a trie whose edges are hashed by node and byte. No edges: none. */
struct unigram {
    struct {
        uint32_t key, child; /* node << 8 | byte; 0: empty */
    } * edges;
    uint32_t mask, n_nodes;
    int32_t *piece; /* that ends at a node, or -1 */
    double *scores, unknown_score;
};

struct tokenizer {
    struct sys *sys;
    char *path; /* of the file that the pattern came from, for messages */
    const char *kind;
    int size;
    bool nfc, one_space, lower; /* normalisation: in this order */
    bool ignore_merges;
    bool fuse_unk;
    int32_t pad;                        /* see tokenizer_pad */
    int32_t unk;                        /* id for bytes without one, or -1: such bytes are dropped */
    int32_t byte_id[256], last_id[256]; /* within a piece, at its end; -1: none */
    struct merge_table merges;
    struct word_table words;
    struct added_token *added;
    int n_added;
    struct added_set raw, normalized;
    pcre2_general_context *memory; /* PCRE2's allocations, through sys */
    pcre2_code *split, *resplit;   /* resplit, or NULL: splits each piece of split once more */
    struct charsmap charsmap;
    struct unigram unigram; /* instead of split and merges */
    bool drop_gaps;         /* of split: what it does not match is no piece */
};

#endif
