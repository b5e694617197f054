/* Shared by the tests of CLIP and T5 tokenizers: packed reference files and synthetic tokenizers. */
#ifndef SLUICE_TEST_TOKENIZER_KINDS_H
#define SLUICE_TEST_TOKENIZER_KINDS_H

#include "bench/dev/synthetic_tokenizer.h"
#include "test/lib/tokenizer_files.h"

#include <zlib.h>

void expect_folder_failure(const char *name, const char *text, enum status code, const char *text_in_error);

/* Copies a file of test/golden/tokens, unpacked if necessary, into the test's folder. */
void tokenizer_unpack(const char *kind, const char *name);

/* Opens the tokenizer in the given files and compares its token ids with the ids in test/golden/tokens/KIND.
 */
void compare_packed(const char *kind, const char *const *files);

/* Opens a synthetic tokenizer that lacks the file named by `without`; NULL: no file is missing. */
struct tokenizer *open_synthetic(const char *kind, int n_ids, const char *without);
void expect_synthetic_failure(const char *kind, int n_ids, const char *text_in_error);

#endif
