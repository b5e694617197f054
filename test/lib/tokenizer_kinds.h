/* What the tests of CLIP's and T5's tokenizers share: packed goldens and made-up tokenizers. */
#ifndef SLUICE_TEST_TOKENIZER_KINDS_H
#define SLUICE_TEST_TOKENIZER_KINDS_H

#include "engine/bench/synthetic_tokenizer.h"
#include "test/lib/tokenizer_files.h"

#include <zlib.h>

void expect_folder_failure(const char *name, const char *text, enum status code, const char *says);

/* A file of test/golden/tokens, or its packed form, into the test's folder. */
void tokenizer_unpack(const char *kind, const char *name);

/* Ids of test/golden/tokens/KIND, whose tokenizer is these files. */
void compare_packed(const char *kind, const char *const *files);

/* A made-up tokenizer without the file of that name (NULL: with all). */
struct tokenizer *open_synthetic(const char *kind, int n_ids, const char *without);
void expect_synthetic_failure(const char *kind, int n_ids, const char *says);

#endif
