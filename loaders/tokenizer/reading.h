/* State and functions of the readers of all tokenizer formats. The state is freed when reading ends. */
#ifndef SLUICE_LOADERS_TOKENIZER_READING_H
#define SLUICE_LOADERS_TOKENIZER_READING_H

#include "loaders/json.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer/tables.h"

struct reading {
    struct tokenizer *t;
    const char *path;    /* file being read */
    json_t *vocab;       /* JSON object token -> id, borrowed; NULL: tokens are in t->words */
    uint8_t *taken;      /* used ids, one bit per id */
    uint64_t longest;    /* bytes of the longest token */
    char *joined;        /* buffer of longest + 1 bytes, for looking up merged tokens */
    double *scores;      /* scores of a unigram model's pieces */
    uint32_t text_bytes; /* total bytes of the pieces added so far */
};

/* The readers fill the empty tokenizer r->t. tokenizer_read_json: tokenizer.json or tekken.json; stored: the
 * file's content, or NULL to read r->path. tokenizer_read_tekken: the content of a tekken.json.
 * tokenizer_read_folder: vocab.json and merges.txt, or spiece.model, in the folder r->path.
 * tokenizer_read_gguf: GGUF metadata. */
enum status tokenizer_read_json(struct reading *r, const struct span *stored, struct error *e);
enum status tokenizer_read_tekken(struct reading *r, struct span file, struct error *e);
/* True for the content of a tekken.json: an object with a member "config", which tokenizer.json lacks. The
 * text after that member may be damaged. */
bool tekken_is(const char *path, struct span file);
enum status tokenizer_read_folder(struct reading *r, struct error *e);
enum status tokenizer_read_gguf(struct reading *r, struct error *e);
/* Reads a spiece.model. bytes: the file's content, or NULL to read r->path. config, special_map: JSON
 * documents of the file's folder, or NULL. BOUNDS and TYPE for invalid protobuf. */
enum status tokenizer_read_spiece(struct reading *r, const struct span *bytes, const json_t *config,
                                  const json_t *special_map, struct error *e);

/* Sets an error "tokenizer: WHAT" with the path of the file. what: printf format, may end in FOUND and
 * EXPECTED parts (error_set). */
#define reading_fail(e, code, r, what, ...)                                                                  \
    error_set(e, code, "tokenizer: " what WHERE "%s", ##__VA_ARGS__, (r)->path)
enum status reading_wrong_kind(const struct reading *r, const char *object, const json_t *value,
                               const char *expected, struct error *e);
enum status reading_unsupported(const struct reading *r, const char *object, const char *found,
                                const char *expected, struct error *e);
/* Name of a value's JSON type for messages, such as "an object"; "nothing" for NULL. */
const char *reading_kind(const json_t *value);
/* A value for messages: the text of a string, the JSON type of any other value. */
const char *reading_shown(const json_t *value);
/* True if a JSON member is missing or null. */
bool reading_absent(const json_t *value);
/* Reads a boolean member. *out is unchanged if the member is absent or null. */
enum status reading_bool(const struct reading *r, const json_t *object, const char *key, const char *name,
                         bool *out, struct error *e);
/* The "type" of an object such as a normalizer; NULL with META if invalid. */
const char *reading_type(const struct reading *r, const json_t *object, const char *name, struct error *e);
/* True if the string, or the "content" of a token object, equals text. */
bool reading_is_text(const json_t *value, const char *text);
/* Fails with META unless a token's id is an integer from 0 to TOKENIZER_ID_MAX. */
enum status reading_check_id(const struct reading *r, const char *token, const json_t *value,
                             struct error *e);
/* Allocates the bit set of used ids. */
enum status reading_start_ids(struct reading *r, struct error *e);
/* Marks an id as used. False if it was used already. */
bool reading_take_id(struct reading *r, int64_t id);
enum status reading_json_file(struct sys *sys, const char *path, json_t **root, struct error *e);
/* The id of a token in the vocabulary; -1: none. */
int32_t reading_vocab_id(const struct reading *r, struct span text);
static inline struct span string_span(const json_t *string) {
    return (struct span){json_string_value(string), json_string_length(string)};
}

enum { TOKENIZER_FILE_BYTES = 256000000, JSON_DEPTH = 64 };

/* Reads the BPE vocabulary r->vocab. Sets the used ids, and the ids of single bytes within a word and at its
 * end (with end-of-word suffix). */
enum status bpe_read_vocab(struct reading *r, struct span suffix, struct error *e);
/* As bpe_read_vocab, for a vocabulary that is already in t->words. The used ids and r->longest must be
 * set. */
enum status bpe_finish_vocab(struct reading *r, struct span suffix, struct error *e);
/* Add the merge of two tokens, or of the text "left right", with this rank to the allocated table. */
enum status bpe_add_merge(struct reading *r, uint64_t rank, struct span left, struct span right,
                          struct error *e);
enum status bpe_add_merge_text(struct reading *r, uint64_t rank, struct span text, struct error *e);
/* Finds the tokens of single bytes, <0x00> to <0xFF>, of a BPE by characters. META: one is missing. */
enum status bpe_find_byte_tokens(struct reading *r, struct error *e);
/* Makes a BPE by characters from the pieces that pieces_make and pieces_add have read. */
enum status bpe_pieces_finish(struct reading *r, struct error *e);
/* Reads unk_token (or null), which stands for bytes without a token. A name outside the vocabulary is an
 * error only if such bytes exist. */
enum status bpe_read_unk(struct reading *r, const json_t *unk, struct error *e);

/* added_read_list reads tokenizer.json's added_tokens; added_read_decoder tokenizer_config.json's
 * added_tokens_decoder; added_read_map added_tokens.json, with special tokens named in the configurations. */
enum status added_read_list(struct reading *r, const json_t *list, struct error *e);
/* Appends an element to a list of added tokens, with transformers' flags for control tokens (special) or user
 * tokens. */
void added_list_token(json_t *list, int64_t id, struct span text, bool special);
/* As added_read_list, for a list that the caller has built. failures_before: failed_json_allocations() before
 * the list was built; a higher number now fails with MEMORY, as elements may be missing. Frees the list. */
enum status added_read_new_list(struct reading *r, json_t *list, unsigned failures_before, struct error *e);
enum status added_read_decoder(struct reading *r, json_t *decoder, struct error *e);
enum status added_read_map(struct reading *r, json_t *map, const json_t *config, const json_t *special_map,
                           struct error *e);
/* Added tokens of CLIP and T5 folders without tokenizer.json. Sources: the added_tokens_decoder of config;
 * `others`, derived from the vocabulary (elements as in added_tokens); and tokens named by config,
 * special_map or defaults (bos_token, ...). All but defaults may be NULL. */
struct named_tokens {
    const json_t *config, *special_map, *defaults;
    json_t *others;
};
enum status added_read_named(struct reading *r, const struct named_tokens *named, struct error *e);

/* pieces_make allocates n pieces of text_bytes in total in t->words; pieces_add adds them in id order (META,
 * LIMIT, DUP, UTF8); pieces_finish builds a unigram model, bpe_pieces_finish a BPE. */
enum status pieces_make(struct reading *r, uint64_t n, uint64_t text_bytes, struct error *e);
enum status pieces_add(struct reading *r, struct span text, double score, struct error *e);
enum status pieces_finish(struct reading *r, int64_t unk, struct error *e);
/* Adds T5's <extra_id_99> to <extra_id_0>, both as pieces and as added tokens in the list. */
enum status pieces_add_extra(struct reading *r, int n, json_t *list, struct error *e);

/* Reads the added tokens of T5Tokenizer: `others`, and tokens named in config and special_map. config and
 * special_map may be NULL. */
enum status unigram_read_added(struct reading *r, const json_t *config, const json_t *special_map,
                               json_t *others, struct error *e);

#endif
