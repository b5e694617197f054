#include "test/lib/malformed_files.h"

#include "test/lib/hang_guard.h"

#include <dirent.h>

static char folder[] = "/tmp/sluice_files_XXXXXX";

const char *malformed_path(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void malformed_write(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(malformed_path(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

void malformed_write_text(const char *name, const char *text) {
    malformed_write(name, text, strlen(text));
}

void malformed_make_folder(const char *name) {
    assert_int_equal(mkdir(malformed_path(name), 0777), 0);
}

int64_t malformed_size(const char *path) {
    struct stat s;
    return stat(path, &s) ? 0 : s.st_size;
}

enum status malformed_open(opener *open, const char *path, struct error *e) {
    struct sys sys;
    struct tensor_index index;
    sys_init_machine(&sys);
    *e = (struct error){0};
    hang_guard(HANG_SECONDS, WAIT_SECONDS);
    enum status code = open(&sys, path, &index, e);
    hang_guard(0, 0);
    assert_int_equal(code, e->code);
    struct memory_use use = sys_memory_use(&sys);
    assert_true(use.peak_bytes[LINE_HOST] <= malformed_size(path) + (64 << 20));
    if (code == OK) assert_true(use.live_bytes[LINE_HOST] == (int64_t)index.host_bytes);
    index_destroy(&index);
    assert_int_equal(sys_memory_use(&sys).live_bytes[LINE_HOST], 0);
    return code;
}

void malformed_expect(opener *open, const char *id, const char *name, enum status code, const char *word) {
    struct error e;
    char line[1024];
    malformed_open(open, malformed_path(name), &e);
    error_line(&e, line, sizeof line);
    if (e.code != code || (word && !strstr(line, word)) || (code != OK && !strstr(line, folder)))
        fail_msg("%s: %s (expected %s, '%s'): %s", id, status_name(e.code), status_name(code),
                 word ? word : "", line);
}

void text_add(struct text *t, const char *format, ...) {
    if (t->room - t->bytes < 4096) t->text = realloc(t->text, t->room = 2 * t->room + 8192);
    assert_non_null(t->text);
    va_list args;
    va_start(args, format);
    t->bytes += (size_t)vsnprintf(t->text + t->bytes, t->room - t->bytes, format, args);
    va_end(args);
}

void text_fill(struct text *t, char c, size_t n) {
    if (t->room - t->bytes <= n) t->text = realloc(t->text, t->room = 2 * t->room + n + 1);
    assert_non_null(t->text);
    memset(t->text + t->bytes, c, n);
    t->text[t->bytes += n] = 0;
}

static int remove_one(const char *path) {
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

int malformed_set_up(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

int malformed_tear_down(void **state) {
    (void)state;
    return remove_one(folder);
}
