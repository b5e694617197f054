/* Files made in a folder of the test's own, opened under a hang guard: what the tests of wrong files share.
 * Each must give back all memory, and stay within 64 MiB of our allocator beyond its own size. */
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

/* A path under the test's folder; valid until the eighth call after. */
const char *malformed_path(const char *name);

void malformed_write(const char *name, const void *bytes, size_t n);
void malformed_write_text(const char *name, const char *text);
void malformed_make_folder(const char *name);

typedef enum status opener(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

int64_t malformed_size(const char *path);

/* Opened under the guard and closed again; what it took is checked. */
enum status malformed_open(opener *open, const char *path, struct error *e);

/* An error says the file, and one of its words is `word`. */
void malformed_expect(opener *open, const char *id, const char *name, enum status code, const char *word);

/* A growing text, freed with free(text.text). */
struct text {
    char *text;
    size_t bytes, room;
};

__attribute__((format(printf, 2, 3))) void text_add(struct text *t, const char *format, ...);
void text_fill(struct text *t, char c, size_t n);

/* cmocka's: the folder comes and goes. */
int malformed_set_up(void **state);
int malformed_tear_down(void **state);

#endif
