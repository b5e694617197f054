/* What the tokenizer's files share: the kept tables, and the steps from text to ids.
 *
 * tokenizer_file.c fills a struct tokenizer from files; everything else only reads it. The steps, in order:
 *   added tokens that want the raw text   tokenizer_added.c
 *   NFC                                   tokenizer_nfc.c
 *   added tokens that want normalised text
 *   the split pattern                     tokenizer_split.c
 *   merges                                tokenizer_bpe.c
 * Each step sees only the pieces that the one before left as text, as if each were a text of its own: a
 * look-ahead at a piece's end sees the end of the text. That is how the reference (Hugging Face tokenizers
 * 0.23) does it. */
#ifndef SLUICE_LOADERS_TOKENIZER_INTERNAL_H
#define SLUICE_LOADERS_TOKENIZER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "loaders/memory.h"
#include "loaders/tokenizer/tokenizer.h"

enum {
    TOKENIZER_ID_MAX = (1 << 24) - 1,    /* ids above are damage: the largest vocabularies have 2^18 */
    TOKENIZER_TEXT_BYTES = 1 << 20,      /* of one text to encode */
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

/* SentencePiece's normalisation: see tokenizer_charsmap.c. No units: none. */
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

/* ---- tokenizer_file.c ---- */

/* Fills an empty tokenizer from tokenizer.json, or from vocab.json, merges.txt and their neighbours in a
 * folder. What was filled before an error is freed by tokenizer_close. */
enum status tokenizer_read_json(struct tokenizer *t, const char *path, struct error *e);
enum status tokenizer_read_folder(struct tokenizer *t, const char *folder, struct error *e);
/* The same from a spiece.model alone. */
enum status tokenizer_read_spiece(struct tokenizer *t, const char *path, struct error *e);
/* The same from a GGUF file's metadata; tokenizer_gguf.c. */
enum status tokenizer_read_gguf(struct tokenizer *t, const char *path, struct error *e);

/* The places of the byte-level alphabet (GPT-2's bytes_to_unicode): the code point that stands for a byte,
 * and the byte that a code point stands for, or -1. */
int byte_to_alphabet(int byte);
int alphabet_to_byte(int code);

/* The split patterns of GPT-2's ByteLevel pre-tokenizer, of Qwen2 and of CLIP. */
extern const char gpt2_pattern[], qwen2_pattern[], clip_pattern[];

/* ---- tokenizer_nfc.c ---- */

/* Normalises valid UTF-8 to NFC. *out is NULL when the text is NFC already, else freed with sys->release. */
enum status text_to_nfc(struct sys *sys, struct span text, char **out, uint64_t *out_bytes, struct error *e);
/* Unicode's White_Space and word characters (\s and \w of Rust's regex, which the reference asks about an
 * added token's neighbours). */
bool code_is_space(int32_t code);
bool code_is_word(int32_t code);

/* ---- tokenizer_normal.c ---- */

/* Normalises as t says. *out is NULL when that changes nothing, else where text then points; freed with
 * sys->release. */
enum status text_normalize(const struct tokenizer *t, struct span *text, char **out, struct error *e);

/* ---- tokenizer_charsmap.c ---- */

/* A checked copy of a table; path is where it is from. BOUNDS, LIMIT (1 MB). */
enum status charsmap_make(struct sys *sys, struct span blob, const char *path, struct charsmap *map,
                          struct error *e);
void charsmap_destroy(struct sys *sys, struct charsmap *map);
/* As text_normalize. LIMIT for a table that makes a text many times as long. */
enum status charsmap_apply(struct sys *sys, const struct charsmap *map, struct span *text, char **out,
                           struct error *e);

/* ---- tokenizer_unigram.c ---- */

/* The model of t->words, whose texts have so many bytes together. It takes scores, which end with it. */
enum status unigram_make(struct tokenizer *t, double *scores, uint64_t text_bytes, struct error *e);
void unigram_destroy(struct sys *sys, struct unigram *unigram);
/* Appends the ids of normalised text without added tokens. */
enum status unigram_text(const struct tokenizer *t, struct span text, struct id_list *out, struct error *e);

/* ---- tokenizer_added.c ---- */

/* Sorts t->added into its two sets. DUP for a content that occurs twice. */
enum status added_sets_build(struct tokenizer *t, struct error *e);
/* A walk over one text's added tokens. */
struct added_search {
    const struct added_set *set;
    struct span text;
    uint64_t from;  /* look here next */
    uint64_t taken; /* end of the last match with the white space it took */
    uint64_t white_from,
        white_to;        /* white space found so far to the right of a match: it is not looked at twice */
    uint64_t start, end; /* the match, with the white space that it takes */
    int32_t id;
};
/* The next match, or false. start lies before the last match's end if that took white space with which this
 * one, without lstrip, begins; the reference fails on most such texts. */
bool added_next(struct added_search *search);

/* ---- tokenizer_split.c ---- */

/* Compiles pattern, which path names in member, into *code (t->split or t->resplit). UNSUPPORTED names what
 * this cannot do exactly. */
enum status split_compile(struct tokenizer *t, pcre2_code **code, struct span pattern, const char *member,
                          struct error *e);

/* A walk over one text's pieces. */
struct split {
    const struct tokenizer *t;
    const pcre2_code *code;
    bool drop_gaps;
    pcre2_match_data *data;
    pcre2_match_context *context;
    struct span text;
    uint64_t given;      /* pieces given out end here */
    uint64_t from;       /* search here next */
    uint64_t start, end; /* the last match; its piece is still to be given out if given < end */
    bool matched;        /* there was one */
};
/* The next piece, or false after the last one or after an error. Pieces are never empty and, without
 * drop_gaps, cover the text. */
bool split_next(struct split *split, struct span *piece, struct error *e);

/* ---- tokenizer_bpe.c ---- */

/* Room for one piece's merges, reused from piece to piece. */
struct bpe_symbol {
    int32_t id, next, previous; /* id -1: merged into its left neighbour */
};
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap; /* rank << 32 | place of the left symbol */
    uint64_t n_heap, capacity;
};

/* Makes room for n merges; later merge_table_add in rank order. A pair that comes again gets its last rank.
 */
enum status merge_table_make(struct sys *sys, struct merge_table *table, uint64_t n, struct error *e);
void merge_table_add(struct merge_table *table, struct merge merge);
/* Makes room for n words of together blob_bytes. */
enum status word_table_make(struct sys *sys, struct word_table *table, uint64_t n, uint64_t blob_bytes,
                            struct error *e);
void word_table_destroy(struct sys *sys, struct word_table *table);
/* The id of that word, or -1. */
int32_t word_table_find(const struct word_table *table, struct span text);
/* Adds the word whose bytes the caller wrote at offset in the blob. */
void word_table_add(struct word_table *table, struct word word);

enum status id_list_push(struct sys *sys, struct id_list *list, int32_t id, struct error *e);
/* Appends one piece's ids. */
enum status bpe_piece(const struct tokenizer *t, struct bpe_scratch *scratch, struct span piece,
                      struct id_list *out, struct error *e);

#endif
