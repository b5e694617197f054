/* Helpers of the tokenizer tests: files in a temporary folder, opening and encoding under the hang guard, and
 * comparison with reference ids. */
#ifndef SLUICE_TEST_TOKENIZER_FILES_H
#define SLUICE_TEST_TOKENIZER_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loaders/tokenizer/tokenizer.h"
#include "test/lib/hang_guard.h"

enum { OURS_MAX = 64 << 20, TEXT_MAX = 1 << 20 };

extern char tokenizer_folder[];
extern char tokenizer_json[64];

void tokenizer_put(const char *path, const char *text, size_t bytes);

extern struct sys tokenizer_sys;

void tokenizer_assert_nothing_left(void);
enum status tokenizer_open_path(const char *path, struct tokenizer **t, struct error *e);
void tokenizer_close_clean(struct tokenizer *t);

/* Encodes the text and expects the n given ids. */
void assert_ids(struct tokenizer *t, const char *text, size_t bytes, const int32_t *want, int n);

#define IDS(t, text, ...)                                                                                    \
    do {                                                                                                     \
        const int32_t want[] = {__VA_ARGS__};                                                                \
        assert_ids(t, text, sizeof(text) - 1, want, (int)(sizeof want / sizeof *want));                      \
    } while (0)

void expect_open_failure(const char *path, enum status code, const char *text_in_error);
void compare_cases(const char *model, const char *cases);

/* Fails each allocation of opening and encoding once; expects MEMORY and no leak. */
void expect_memory_failures(const char *path, const char *text);

/* Encodes each unit repeated up to 10^6 bytes. Ten times the text may take at most forty times as long. */
void expect_linear_time(struct tokenizer *t, const char *const *units);

/* Writes a file into the test's folder; text NULL removes it. */
void tokenizer_put_bytes(const char *name, const char *text, size_t bytes);
void tokenizer_put_file(const char *name, const char *text);
int tokenizer_make_folder(void **state);
int tokenizer_remove_folder(void **state);

#endif
