/* Shared by the tests of malformed files: writes files into a temporary folder and opens them under the hang
 * guard. Each open must free all memory, and allocate at most 64 MiB more than the file's size. */
#ifndef SLUICE_TEST_MALFORMED_FILES_H
#define SLUICE_TEST_MALFORMED_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loaders/loaders.h"

enum { CUT_BYTES_MAX = 1024 };

/* Returns a path in the test's folder, valid for the next seven calls. */
const char *malformed_path(const char *name);

void malformed_write(const char *name, const void *bytes, size_t n);
void malformed_write_text(const char *name, const char *text);
void malformed_make_folder(const char *name);

typedef enum status opener(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

int64_t malformed_size(const char *path);

/* Opens the file under the hang guard, closes the file, and checks the memory use. */
enum status malformed_open(opener *open, const char *path, struct error *e);

/* Expects an error with the given code whose text names the file and contains `word`. */
void malformed_expect(opener *open, const char *id, const char *name, enum status code, const char *word);

/* A growing text; free with free(text.text). */
struct text {
    char *text;
    size_t bytes, room;
};

__attribute__((format(printf, 2, 3))) void text_add(struct text *t, const char *format, ...);
void text_fill(struct text *t, char c, size_t n);

/* cmocka fixtures: create and remove the folder. */
int malformed_set_up(void **state);
int malformed_tear_down(void **state);

#endif
