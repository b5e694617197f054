/* A temporary folder for the program, removed at exit. */
#ifndef SLUICE_TEST_TEMPORARY_FOLDER_H
#define SLUICE_TEST_TEMPORARY_FOLDER_H

#include <stddef.h>

extern char temporary[64];

void temporary_make_in(const char *parent);

void temporary_make(void);

/* Returns the path temporary/NAME, valid until 16 further calls. */
const char *temporary_path(const char *name);

/* Copies a model folder to temporary/NAME, to be damaged. Returns the path, valid until the next call. */
const char *copy_model_folder(const char *folder, const char *name);

/* Returns the number of entries of a folder. */
int count_files(const char *folder);

/* Runs a command, which must succeed. */
__attribute__((format(printf, 1, 2))) void shell(const char *format, ...);

/* Returns a file's bytes and a 0 after them, which the caller frees; NULL if the file cannot be read. */
char *read_file(const char *path, size_t *bytes);

/* Writes a file whose folder exists. */
void write_file(const char *path, const void *bytes, size_t n);

/* Writes a text to a path below a folder; makes the folders on this path. */
void write_text_below(const char *folder, const char *path, const char *text);

#endif
