/* Helpers of the tokenizer tests: opening and encoding under the hang guard, and comparison with reference
 * ids. Files lie in the folder of malformed_files.h. */
#ifndef SLUICE_TEST_TOKENIZER_FILES_H
#define SLUICE_TEST_TOKENIZER_FILES_H

#include "loaders/tokenizer/tokenizer.h"
#include "test/lib/hang_guard.h"
#include "test/lib/malformed_files.h"

enum { TEXT_MAX = 1 << 20 };

/* Counts the memory of the tokenizer that was opened last. */
extern struct sys tokenizer_sys;

enum status tokenizer_open_path(const char *path, struct tokenizer **t, struct error *e);

/* Opens a file of the test's folder, or the folder if name is "". Fails the test unless the tokenizer is of
 * the given kind (NULL: any). */
struct tokenizer *tokenizer_open_good(const char *name, const char *kind);

/* Expects an error with the given code whose text contains `word` and the test's folder. */
void expect_open_failure(const char *name, enum status code, const char *word);

/* Writes a file of the test's folder, then expects that the tokenizer in the folder fails to open. */
void expect_text_failure(const char *name, const char *text, enum status code, const char *word);

void tokenizer_close_clean(struct tokenizer *t);

/* Encodes the text and expects the n given ids. */
void assert_ids(struct tokenizer *t, const char *text, size_t bytes, const int32_t *want, int n);

#define IDS(t, text, ...)                                                                                    \
    do {                                                                                                     \
        const int32_t want[] = {__VA_ARGS__};                                                                \
        assert_ids(t, text, sizeof(text) - 1, want, (int)(sizeof want / sizeof *want));                      \
    } while (0)

/* Opens a tokenizer and compares its ids with those of the file `cases`. */
void compare_cases(const char *model, const char *cases);

/* Copies a file of test/golden/tokens/KIND, unpacked if necessary, into the test's folder. */
void tokenizer_unpack(const char *kind, const char *name);

/* Compares the tokenizer in the given files with the ids in test/golden/tokens/KIND. */
void compare_packed(const char *kind, const char *const *files);

/* Fails each allocation of opening and encoding once: the tokenizer in file `name`, or in the folder if name
 * is "".
 */
void expect_memory_failures(const char *name, const char *text);

/* Opens the file repeatedly; each time another of Jansson's allocations fails, and opening must return
 * MEMORY. A JSON member lost this way would silently change tokens. Call json_failures_set_up before the
 * first use of Jansson. */
void json_failures_set_up(void);
void expect_json_failures(const char *name);

/* Encodes each unit repeated up to 10^6 bytes. Ten times the text may take at most forty times as long. */
void expect_linear_time(struct tokenizer *t, const char *const *units);

/* Opens a synthetic tokenizer that lacks the file named by `without`; NULL: no file is missing. */
struct tokenizer *open_synthetic(const char *kind, int n_ids, const char *without);
void expect_synthetic_failure(const char *kind, int n_ids, const char *word);

/* GPT-2's bytes_to_unicode, written independently of the loader. */
int gpt2_character(int byte);

#endif
