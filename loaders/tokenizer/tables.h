/* The tables of a tokenizer, which the readers (reading.h) fill, and the steps that encode a text with them:
 *
 *     added tokens in the raw text            added_tokens.c
 *     normalisation (NFC, ...)                normalize.c
 *     added tokens in the normalised text     added_tokens.c
 *     pre-tokenizer (split pattern)           split.c
 *     merges, or a unigram model              bpe.c, unigram.c
 *
 * SentencePiece BPE (Gemma) has no pre-tokenizer: its normalisation marks blanks as U+2581.
 *
 * Like the reference (Hugging Face tokenizers 0.23), each step processes every remaining piece as a text of
 * its own: a look-ahead at the end of a piece finds the end of the text. */
#ifndef SLUICE_LOADERS_TOKENIZER_TABLES_H
#define SLUICE_LOADERS_TOKENIZER_TABLES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "loaders/tokenizer/tokenizer.h"

enum {
    TOKENIZER_ID_MAX = (1 << 24) - 1, /* largest token id; larger ids mean a damaged file */
    TOKENIZER_TEXT_BYTES = 5 << 18,   /* largest text to encode in bytes, including its template */
    TOKENIZER_ADDED_MAX = 65536,      /* largest number of added tokens of a tokenizer */
    TOKENIZER_ADDED_BYTES = 256,      /* largest added token in bytes; bounds the search per byte of text */
    TOKENIZER_PIECE_BYTES = 512,      /* largest unigram piece in bytes; bounds the search per byte of text */
    TOKENIZER_SUFFIX_BYTES = 16,      /* largest end-of-word suffix ("</w>") in bytes */
    TOKENIZER_PATTERN_BYTES = 64 * 1024, /* largest split pattern in bytes, as written in the file */
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

/* A whole token: offset and length of its bytes in one blob. BPE needs words for ignore_merges and
 * by_character. */
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
    struct span content; /* text of the token as in the file, followed by a NUL */
    struct span pattern; /* text to search for: content, or its normalised form */
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
};

/* Added tokens that are searched for together, sorted by pattern; patterns are unique. */
struct added_set {
    struct added_token **sorted;
    int n;
    bool starts[256]; /* for each byte value: true if some pattern starts with it */
};

/* SentencePiece's normalisation table, see normalize.c; units NULL: no table. */
struct charsmap {
    uint32_t *units, n_units; /* a double-array trie */
    char *texts;              /* NUL-terminated texts */
    uint32_t n_texts;         /* total bytes of `texts` */
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
    char *path; /* path of the file with the split pattern, for messages */
    const char *kind;
    int size;
    bool nfc, one_space, lower; /* normalisation steps to apply, in the order of the fields */
    bool marks_blanks;          /* the only normalisation is: every blank becomes U+2581 */
    /* BPE merges characters of the whole text, without a split pattern; `words` has all tokens. A character
     * without a token becomes the tokens of its bytes (byte_id). */
    bool by_character;
    bool ignore_merges;
    bool fuse_unk;
    int32_t pad;                        /* id of the padding token, see tokenizer_pad */
    int32_t unk;                        /* id for bytes without a token; -1: such bytes are dropped */
    int32_t byte_id[256], last_id[256]; /* token of a byte within a piece, and at its end; -1: none */
    struct merge_table merges;
    struct word_table words;
    struct added_token *added;
    int n_added;
    struct added_set raw, normalized;
    pcre2_general_context *memory; /* PCRE2's allocator, which uses sys */
    pcre2_code *split, *resplit;   /* resplit: second pattern applied to each piece; NULL: none */
    struct charsmap charsmap;
    struct unigram unigram; /* unigram model, used instead of the split pattern and merges */
    bool drop_gaps;         /* text between matches of the split pattern is dropped */
};

static inline struct span span_of(const char *text) {
    return (struct span){text, strlen(text)};
}
/* Reads the code point at byte i of valid UTF-8; returns its length in bytes. */
static inline uint64_t code_at(struct span text, uint64_t i, int32_t *code) {
    return (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text.at + i,
                                      (utf8proc_ssize_t)(text.bytes - i), code);
}

/* Normalisation (normalize.c): applies the tokenizer's steps to valid UTF-8. *out is NULL if nothing changes;
 * otherwise *text points into it, and it is freed with sys->release. LIMIT if a normalisation table makes the
 * text many times longer. */
enum status text_normalize(const struct tokenizer *t, struct span *text, char **out, struct error *e);
/* Copies and checks a normalisation table (precompiled_charsmap). path: its file, for messages. BOUNDS, LIMIT
 * (1 MB). */
enum status charsmap_make(struct sys *sys, struct span blob, const char *path, struct charsmap *map,
                          struct error *e);
/* code_is_space: Unicode's White_Space. code_is_word: letters, marks, decimal digits, connectors, joiners,
 * circled or squared Latin capitals. As \s and \w in Rust, which Hugging Face tokenizers apply next to added
 * tokens. */
bool code_is_space(int32_t code);
bool code_is_word(int32_t code);

/* Added tokens (added_tokens.c).
 * Builds the sorted sets t->raw and t->normalized from t->added. DUP: equal contents. */
enum status added_sets_build(struct tokenizer *t, struct error *e);

struct added_search {
    const struct added_set *set;
    struct span text;
    uint64_t from;                 /* next position of the text to search */
    uint64_t taken;                /* end of the last match, including the white space that rstrip took */
    uint64_t white_from, white_to; /* range of white space after a match, to scan it only once */
    uint64_t start, end;           /* current match, including the white space that lstrip and rstrip take */
    int32_t id;
};
/* Finds the next match; false if there is none. If the last match's rstrip took white space with which the
 * new match begins, start lies before the last match's end. Hugging Face tokenizers fail on most such
 * texts. */
bool added_next(struct added_search *search);

/* Split patterns (split.c) of GPT-2's ByteLevel pre-tokenizer, of Qwen2, CLIP and Mistral's Tekken. */
extern const char gpt2_pattern[], qwen2_pattern[], clip_pattern[], tekken_pattern[];
/* Compiles a split pattern into *code (t->split or t->resplit); path and member: the pattern's origin, for
 * messages. UNSUPPORTED names constructs that cannot be translated exactly. */
enum status split_compile(struct tokenizer *t, pcre2_code **code, struct span pattern, const char *member,
                          struct error *e);

struct split {
    const struct tokenizer *t;
    const pcre2_code *code;
    bool drop_gaps;
    pcre2_match_data *data;
    pcre2_match_context *context;
    struct span text;
    uint64_t returned;   /* position in the text after the last returned piece */
    uint64_t from;       /* next position of the text to search */
    uint64_t start, end; /* range of the last match; its piece has not been returned yet if returned < end */
    bool matched;        /* the pattern has matched at least once in this text */
};
/* Returns the next piece, never empty; false after the last or on error. Without drop_gaps the pieces cover
 * the whole text. */
bool split_next(struct split *split, struct span *piece, struct error *e);

/* Byte-pair encoding (bpe.c). */
struct bpe_symbol {
    int32_t id, next, previous; /* links of a list; id -1: the symbol was merged into its left neighbour */
};
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap; /* priority queue of merges: rank << 32 | index of the left symbol */
    uint64_t n_heap, capacity;
};

/* Allocates a table for n merges, to be added in rank order. A repeated pair gets its last rank. */
enum status merge_table_make(struct sys *sys, struct merge_table *table, uint64_t n, struct error *e);
/* Adds the merge of the next rank to an allocated table. */
void merge_table_add(struct merge_table *table, struct merge merge);
/* Allocates a table for n words of blob_bytes bytes in total. */
enum status word_table_make(struct sys *sys, struct word_table *table, uint64_t n, uint64_t blob_bytes,
                            struct error *e);
void word_table_destroy(struct sys *sys, struct word_table *table);
/* The id of a whole-token word, or -1. */
int32_t word_table_find(const struct word_table *table, struct span text);
/* Adds a word whose bytes the caller has written at its offset in the blob. */
void word_table_add(struct word_table *table, struct word word);
/* Converts all words from GPT-2's byte alphabet to bytes, in place. Removes words with other characters,
 * which no text can contain. */
void word_table_to_bytes(struct word_table *table);

/* Appends an id to the list. The caller frees list->ids with sys->release. */
enum status id_list_push(struct sys *sys, struct id_list *list, int32_t id, struct error *e);
/* Encodes one piece of the split pattern: appends its ids to out. The caller frees the scratch. */
enum status bpe_piece(const struct tokenizer *t, struct bpe_scratch *scratch, struct span piece,
                      struct id_list *out, struct error *e);
/* GPT-2's bytes_to_unicode: maps a byte to the code point that represents the byte in token texts.
 * alphabet_to_byte is the inverse, -1 for other code points; these are all below TOKENIZER_ALPHABET_END. */
enum { TOKENIZER_ALPHABET_END = 324 };
int byte_to_alphabet(int byte);
int alphabet_to_byte(int code);

/* tokenizer_kind of Gemma's tokenizers. */
extern const char sentencepiece_bpe[];

/* Unigram models (unigram.c), which replace the split pattern and the merges: encodes normalised text without
 * added tokens, and appends the ids to the list. */
enum status unigram_text(const struct tokenizer *t, struct span text, struct id_list *out, struct error *e);

#endif
