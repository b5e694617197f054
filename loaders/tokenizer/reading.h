/* A tokenizer's files being read: what the readers of its kinds share. Nothing of it is kept. */
#ifndef SLUICE_LOADERS_TOKENIZER_READING_H
#define SLUICE_LOADERS_TOKENIZER_READING_H

#include "loaders/json.h"
#include "loaders/tokenizer/tables.h"

/* One tokenizer being read. */
struct reading {
    struct tokenizer *t;
    const char *path; /* of the file being read */
    json_t *vocab;  /* borrowed from its document: token -> id; NULL where t->words has them while reading */
    uint8_t *taken; /* one bit per id */
    uint64_t longest;    /* bytes of the longest token's text */
    char *joined;        /* longest + 1 bytes, to look merges up */
    double *scores;      /* of a unigram model's pieces */
    uint32_t text_bytes; /* that they have so far */
};

/* ---- tokenizer_json.c, folder.c, gguf.c ---- */

/* Fills an empty tokenizer from tokenizer.json, or from vocab.json, merges.txt and their neighbours in a
 * folder. What was filled before an error is freed by tokenizer_close. */
enum status tokenizer_read_json(struct tokenizer *t, const char *path, struct error *e);
enum status tokenizer_read_folder(struct tokenizer *t, const char *folder, struct error *e);
/* The same from a spiece.model alone, or from the bytes of one that path has; NULL: the file itself. */
enum status tokenizer_read_spiece(struct tokenizer *t, const char *path, const struct span *bytes,
                                  struct error *e);
/* The same from a GGUF file's metadata; gguf.c. */
enum status tokenizer_read_gguf(struct tokenizer *t, const char *path, struct error *e);

/* ---- reading.c ---- */

/* "OBJECT PROBLEM", with the file's path. */
enum status reading_fail(const struct reading *r, enum status code, const char *object, const char *problem,
                         struct error *e);
enum status reading_wrong_kind(const struct reading *r, const char *object, const json_t *value,
                               const char *expected, struct error *e);
enum status reading_unsupported(const struct reading *r, const char *object, const char *found,
                                const char *expected, struct error *e);
/* "an object", ...; "nothing" for NULL. */
const char *reading_kind(const json_t *value);
/* NULL or null. */
bool reading_absent(const json_t *value);
/* A boolean member; *out stays when it is absent or null. */
enum status reading_bool(const struct reading *r, const json_t *object, const char *key, const char *name,
                         bool *out, struct error *e);
/* The type of a component such as a normalizer, or NULL with META. */
const char *reading_type(const struct reading *r, const json_t *object, const char *name, struct error *e);
/* Is this string, or the content of this description of a token, that text? */
bool reading_is_text(const json_t *value, const char *text);
/* META unless value is an integer from 0 to TOKENIZER_ID_MAX. */
enum status reading_check_id(const struct reading *r, const char *token, const json_t *value,
                             struct error *e);
/* Makes room for the marks of ids; freed with the rest of the reading. */
enum status reading_start_ids(struct reading *r, struct error *e);
/* Marks an id as taken. False if it was. */
bool reading_take_id(struct reading *r, int64_t id);
/* Parses a file; its text is gone before the document is used. */
enum status reading_json_file(struct sys *sys, const char *path, json_t **root, struct error *e);
/* After the last part: sorts the added tokens and frees what was only needed to read. */
enum status reading_finish(struct reading *r, struct error *e);

enum { TOKENIZER_FILE_BYTES = 256000000 };

/* The id of a token of the vocabulary, or -1. */
int32_t reading_vocab_id(const struct reading *r, struct span text);
static inline struct span string_span(const json_t *string) {
    return (struct span){json_string_value(string), json_string_length(string)};
}

/* ---- pre_tokenizer.c ---- */

/* normalizer and pre_tokenizer of a BPE's tokenizer.json into t's steps. */
enum status pre_tokenizer_read(struct reading *r, const json_t *root, struct error *e);
/* The steps of a folder without tokenizer.json, which its class implies. */
enum status pre_tokenizer_set_qwen2(struct reading *r, struct error *e);
enum status pre_tokenizer_set_clip(struct reading *r, struct error *e);

/* ---- tokenizer_json.c ---- */

/* The vocabulary r->vocab: its bytes, those at a piece's end (with suffix) too, and its marks of ids. */
enum status bpe_read_vocab(struct reading *r, struct span suffix, struct error *e);
/* The same from t->words: ids are marked and r->longest is set. */
enum status bpe_finish_vocab(struct reading *r, struct span suffix, struct error *e);
/* The merge of that rank, "left right", into the table that has room for it. */
enum status bpe_add_merge(struct reading *r, uint64_t rank, struct span text, struct error *e);
/* The token, a string or null, of bytes that have none. One outside the vocabulary only matters if there are
 * such bytes. */
enum status bpe_read_unk(struct reading *r, const json_t *unk, struct error *e);
/* The lines of merges.txt. */
enum status bpe_read_merges_text(struct reading *r, struct span text, struct error *e);

/* ---- added_tokens_read.c ---- */

/* tokenizer.json's added_tokens; tokenizer_config.json's added_tokens_decoder; added_tokens.json, of which
 * the configurations tell which are special. */
enum status added_read_list(struct reading *r, const json_t *list, struct error *e);
/* Appends an element of such a list: what the reference makes of tokens of control and of users. */
void added_list_token(json_t *list, int64_t id, struct span text, bool special);
enum status added_read_decoder(struct reading *r, json_t *decoder, struct error *e);
enum status added_read_map(struct reading *r, json_t *map, const json_t *config, const json_t *special_map,
                           struct error *e);
/* The added tokens of CLIP's and T5's folders without tokenizer.json: config's added_tokens_decoder, others
 * that follow from the vocabulary (elements as in added_tokens), and those that config, special_map or
 * defaults name (bos_token, ...). All but defaults may be NULL. */
struct named_tokens {
    const json_t *config, *special_map, *defaults;
    json_t *others;
};
enum status added_read_named(struct reading *r, const struct named_tokens *named, struct error *e);

/* ---- pieces.c ---- */

/* Room for n pieces of together text_bytes in t->words; then each is added in the order of its id (META,
 * LIMIT, DUP, UTF8); finish makes the model. */
enum status pieces_make(struct reading *r, uint64_t n, uint64_t text_bytes, struct error *e);
enum status pieces_add(struct reading *r, struct span text, double score, struct error *e);
enum status pieces_finish(struct reading *r, int64_t unk, struct error *e);
/* <extra_id_99> to <extra_id_0>, which T5's class puts behind the file's pieces: pieces, and added tokens in
 * the list. */
enum status pieces_add_extra(struct reading *r, int n, json_t *list, struct error *e);

/* ---- sentencepiece.c, unigram_json.c ---- */

/* The model, of r->path, and n_extra of T5's <extra_id_N> behind it. specials gets the added tokens that
 * follow from its pieces, as elements of added_tokens. BOUNDS and TYPE for what is no protobuf. */
enum status spiece_read(struct reading *r, struct span file, int n_extra, json_t *specials, struct error *e);
enum status unigram_read_json(struct reading *r, const json_t *root, struct error *e);
/* The added tokens of T5's class: others, and those that it names. config and special_map may be NULL. */
enum status unigram_read_added(struct reading *r, const json_t *config, const json_t *special_map,
                               json_t *others, struct error *e);

#endif
