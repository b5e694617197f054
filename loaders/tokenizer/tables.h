/* The tables of a tokenizer, which reading fills and encoding only reads. Steps from text to ids, in order:
 *
 *     added tokens in the raw text            added_tokens.c
 *     normalisation (NFC, ...)                normalize.c
 *     added tokens in the normalised text     added_tokens.c
 *     pre-tokenizer (split pattern)           split.c
 *     merges, or a unigram model              bpe.c, unigram.c
 *
 * Like the reference (Hugging Face tokenizers 0.23), each step processes every remaining piece as a text of
 * its own: a look-ahead at the end of a piece finds the end of the text. */
#ifndef SLUICE_LOADERS_TOKENIZER_TABLES_H
#define SLUICE_LOADERS_TOKENIZER_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "loaders/tokenizer/tokenizer.h"

enum {
    TOKENIZER_ID_MAX = (1 << 24) - 1,    /* larger ids mean a damaged file */
    TOKENIZER_TEXT_BYTES = 5 << 18,      /* bytes of one text to encode, including a template around it */
    TOKENIZER_ADDED_MAX = 65536,         /* number of added tokens */
    TOKENIZER_ADDED_BYTES = 256,         /* bytes of one added token; bounds the search per byte of text */
    TOKENIZER_PIECE_BYTES = 512,         /* bytes of one unigram piece; bounds the search per byte of text */
    TOKENIZER_SUFFIX_BYTES = 16,         /* bytes of an end-of-word suffix ("</w>") */
    TOKENIZER_PATTERN_BYTES = 64 * 1024, /* bytes of the split pattern as written */
};

struct span {
    const char *at;
    uint64_t bytes;
};

struct id_list {
    int32_t *ids;
    uint64_t n, capacity;
};

/* A BPE merge; its index in the table is its rank. */
struct merge {
    int32_t left, right, joined;
};

/* Hash table (left, right) -> rank with open addressing; a slot holds rank + 1, or 0 if empty. */
struct merge_table {
    struct merge *merges;
    uint32_t *slots;
    uint32_t n_merges, mask;
};

/* A whole token: offset and length of its bytes in one blob. BPE needs words only for ignore_merges. */
struct word {
    uint32_t offset, bytes;
    int32_t id;
};
struct word_table {
    char *blob;
    struct word *words;
    uint32_t *slots; /* hash slots as in merge_table */
    uint32_t n_words, mask;
};

struct added_token {
    struct span content; /* as in the file, followed by a NUL */
    struct span pattern; /* text to search for: content, or its normalised form */
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
};

/* Added tokens that are searched for together, sorted by pattern; patterns are unique. */
struct added_set {
    struct added_token **sorted;
    int n;
    bool starts[256]; /* true if some pattern starts with this byte */
};

/* SentencePiece's normalisation table, see charsmap.c; units NULL: no table. */
struct charsmap {
    uint32_t *units, n_units; /* a double-array trie */
    char *texts;              /* NUL-terminated texts */
    uint32_t n_texts;         /* total bytes of the texts */
};

/* A unigram model: a trie of pieces whose edges are hashed by node and byte; edges NULL: no unigram model. */
struct unigram {
    struct {
        uint32_t key, child; /* an edge: key = node << 8 | byte, and the child node (0: empty slot) */
    } * edges;
    uint32_t mask, n_nodes;
    int32_t *piece; /* id of the piece that ends at each trie node, or -1 */
    double *scores, unknown_score;
};

struct tokenizer {
    struct sys *sys;
    char *path; /* file of the split pattern, for messages */
    const char *kind;
    int size;
    bool nfc, one_space, lower; /* normalisation steps to apply, in the order of the fields */
    bool ignore_merges;
    bool fuse_unk;
    int32_t pad;                        /* padding id, see tokenizer_pad */
    int32_t unk;                        /* id for bytes without a token; -1: such bytes are dropped */
    int32_t byte_id[256], last_id[256]; /* token of a byte within a piece, and at its end; -1: none */
    struct merge_table merges;
    struct word_table words;
    struct added_token *added;
    int n_added;
    struct added_set raw, normalized;
    pcre2_general_context *memory; /* PCRE2's allocator, on top of sys */
    pcre2_code *split, *resplit;   /* resplit: second pattern applied to each piece; NULL: none */
    struct charsmap charsmap;
    struct unigram unigram; /* unigram model, used instead of the split pattern and merges */
    bool drop_gaps;         /* text between matches of split is dropped */
};

#endif
