/* Shared by the tests of malformed files: writes files into a temporary folder and opens them under the hang
 * guard. Each open must free all memory, and allocate at most 64 MiB more than the file's size. */
#ifndef SLUICE_TEST_MALFORMED_FILES_H
#define SLUICE_TEST_MALFORMED_FILES_H

#include "test/lib/seeded.h"

#include <sys/stat.h>
#include <unistd.h>

#include "loaders/loaders.h"
#include "test/lib/bytes.h"

enum { CUT_BYTES_MAX = 1024 };

/* Returns a path in the test's folder, valid for the next seven calls; name "": the folder itself. */
const char *malformed_path(const char *name);

void malformed_write(const char *name, const void *bytes, size_t n);

/* Writes a text file; text NULL removes the file. */
void malformed_write_text(const char *name, const char *text);
void malformed_make_folder(const char *name);

typedef enum status opener(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

int64_t malformed_size(const char *path);

/* Opens the file under the hang guard, closes the file, and checks the memory use. */
enum status malformed_open(opener *open, const char *path, struct error *e);

/* Expects an error with the given code whose text names the file and contains `word`. */
void malformed_expect(opener *open, const char *id, const char *name, enum status code, const char *word);

/* Opens a good file with a machine whose memory malformed_close then checks. The next call reuses the
 * machine. */
struct tensor_index malformed_index(opener *open, const char *path);
void malformed_close(struct tensor_index *index);

/* Reads a tensor's bytes. */
void malformed_read(const struct tensor_index *index, const struct index_entry *entry, void *to);

/* An operation that uses the system calls and the memory of `sys`, and frees its result. */
typedef enum status operation(struct sys *sys, struct error *e);

/* Runs the operation with each of its allocations, reads, writes and other calls failing in turn. Expects the
 * status code of that failure, no leaked memory and no file left open. Calls unharmed (NULL: none) after each
 * kind of failure. Returns the number of failed calls. */
int malformed_fail_calls(operation *run, void (*unharmed)(void));

/* The same for allocations only. */
int malformed_fail_allocations(operation *run);

/* cmocka fixtures: create and remove the folder. */
int malformed_set_up(void **state);
int malformed_tear_down(void **state);

#endif
