/* Files made in a folder of the test's own, opened under a hang guard: what the tests of wrong files share.
 * Each must give back all memory, and stay within 64 MiB of our allocator beyond its own size. */
#ifndef SLUICE_TEST_HOSTILE_FILES_H
#define SLUICE_TEST_HOSTILE_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "loaders/loaders.h"

/* Processor seconds that a file may take: others may be busy on the machine. A wait without end is a minute.
 */
#ifdef __SANITIZE_ADDRESS__
enum { HANG_SECONDS = 20 };
#else
enum { HANG_SECONDS = 2 };
#endif
enum { WAIT_SECONDS = 60, CUT_BYTES_MAX = 1024 };

static inline void guard(int processor_seconds, int seconds) {
    struct itimerval timer = {.it_value.tv_sec = processor_seconds};
    setitimer(ITIMER_PROF, &timer, NULL);
    alarm((unsigned)seconds);
}

static char folder[] = "/tmp/sluice_files_XXXXXX";

/* A path under the test's folder; valid until the eighth call after. */
static inline const char *under(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void put(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(under(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline void put_text(const char *name, const char *text) {
    put(name, text, strlen(text));
}

static inline void make_folder(const char *name) {
    assert_int_equal(mkdir(under(name), 0777), 0);
}

typedef enum status opener(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

static inline int64_t size_of(const char *path) {
    struct stat s;
    return stat(path, &s) ? 0 : s.st_size;
}

static inline enum status open_once(opener *open, const char *path, struct error *e) {
    struct sys sys;
    struct tensor_index index;
    sys_init_machine(&sys);
    *e = (struct error){0};
    guard(HANG_SECONDS, WAIT_SECONDS);
    enum status code = open(&sys, path, &index, e);
    guard(0, 0);
    assert_int_equal(code, e->code);
    struct memory_use use = sys_memory_use(&sys);
    assert_true(use.peak_bytes[LINE_HOST] <= size_of(path) + (64 << 20));
    if (code == OK) assert_true(use.live_bytes[LINE_HOST] == (int64_t)index.host_bytes);
    index_destroy(&index);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
    return code;
}

/* An error says the file, and one of its words is `word`. */
static inline void expect(opener *open, const char *id, const char *name, enum status code,
                          const char *word) {
    struct error e;
    char line[1024];
    open_once(open, under(name), &e);
    error_line(&e, line, sizeof line);
    if (e.code != code || (word && !strstr(line, word)) || (code != OK && !strstr(line, folder)))
        fail_msg("%s: %s (expected %s, '%s'): %s", id, status_name(e.code), status_name(code),
                 word ? word : "", line);
}

/* A growing text, freed with free(text.text). */
struct text {
    char *text;
    size_t bytes, room;
};

static inline void add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline void add(struct text *t, const char *format, ...) {
    if (t->room - t->bytes < 4096) t->text = realloc(t->text, t->room = 2 * t->room + 8192);
    assert_non_null(t->text);
    va_list args;
    va_start(args, format);
    t->bytes += (size_t)vsnprintf(t->text + t->bytes, t->room - t->bytes, format, args);
    va_end(args);
}

static inline void fill(struct text *t, char c, size_t n) {
    if (t->room - t->bytes <= n) t->text = realloc(t->text, t->room = 2 * t->room + n + 1);
    assert_non_null(t->text);
    memset(t->text + t->bytes, c, n);
    t->text[t->bytes += n] = 0;
}

static inline int remove_one(const char *path) {
    DIR *files = opendir(path);
    if (!files) return unlink(path);
    for (struct dirent *file; (file = readdir(files));) {
        char child[600];
        if (!strcmp(file->d_name, ".") || !strcmp(file->d_name, "..")) continue;
        assert_true(snprintf(child, sizeof child, "%s/%s", path, file->d_name) < (int)sizeof child);
        remove_one(child);
    }
    closedir(files);
    return rmdir(path);
}

static inline int set_up(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static inline int tear_down(void **state) {
    (void)state;
    return remove_one(folder);
}

#endif
