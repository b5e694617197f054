#include "test/lib/malformed_files.h"

#include "test/lib/assert_ok.h"
#include "test/lib/check.h"
#include "test/lib/fault_sys.h"
#include "test/lib/hang_guard.h"

#include <dirent.h>

static char folder[] = "/tmp/sluice_files_XXXXXX";

const char *malformed_path(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], *name ? "%s/%s" : "%s", folder, name);
    return path;
}

void malformed_write(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(malformed_path(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

void malformed_write_text(const char *name, const char *text) {
    if (text)
        malformed_write(name, text, strlen(text));
    else
        unlink(malformed_path(name));
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

static struct sys index_sys;

struct tensor_index malformed_index(opener *open, const char *path) {
    struct tensor_index index;
    struct error e = {0};
    sys_init_machine(&index_sys);
    open(&index_sys, path, &index, &e);
    assert_ok(&e);
    return index;
}

void malformed_close(struct tensor_index *index) {
    index_destroy(index);
    assert_int_equal(sys_memory_use(&index_sys).live_bytes[LINE_HOST], 0);
}

void malformed_read(const struct tensor_index *index, const struct index_entry *entry, void *to) {
    struct error e = {0};
    source_read(&index->sources[entry->source], to, entry->bytes, entry->offset, &e);
    assert_ok(&e);
}

static const struct {
    enum call call;
    enum fault fault;
    enum status once, other; /* statuses that an operation may return when the call fails */
} faults[] = {
    {CALL_ALLOC, FAULT_ERROR, MEMORY, MEMORY},  {CALL_MAP, FAULT_ERROR, MEMORY, MEMORY},
    {CALL_COMMIT, FAULT_ERROR, MEMORY, MEMORY}, {CALL_READ, FAULT_ERROR, IO, IO},
    {CALL_READ, FAULT_SHORT, OK, OK},           {CALL_READ, FAULT_INTERRUPTED, OK, OK},
    {CALL_READ, FAULT_END, TRUNC, TRUNC},       {CALL_OPEN, FAULT_ERROR, IO, IO},
    {CALL_IDENTIFY, FAULT_ERROR, IO, CHANGED},  {CALL_CREATE, FAULT_ERROR, OUTPUT, OUTPUT},
    {CALL_WRITE, FAULT_ERROR, OUTPUT, OUTPUT},  {CALL_WRITE, FAULT_SHORT, OK, OK},
    {CALL_WRITE, FAULT_INTERRUPTED, OK, OK},    {CALL_WRITE, FAULT_END, OUTPUT, OUTPUT},
    {CALL_FLUSH, FAULT_ERROR, OUTPUT, OUTPUT},  {CALL_RENAME, FAULT_ERROR, OUTPUT, OUTPUT},
};

/* Fails the n-th call of a kind, for n up to the number of calls. */
static int fail_each(operation *run, size_t k) {
    for (int at = 1;; at++) {
        static struct fault_sys w;
        struct error e = {0};
        fault_sys_init(&w, 1);
        fault_sys_fail(&w, faults[k].call, at, 0);
        w.fault = faults[k].fault;
        int n_open = count_open_files();
        enum status code = run(&w.sys, &e);
        bool reached = atomic_load(&w.count[faults[k].call]) >= at;
        if (!(reached ? code == faults[k].once || code == faults[k].other : code == OK))
            fail_msg("call kind %d, fault %d, call %d: %s, %s", (int)faults[k].call, (int)faults[k].fault, at,
                     status_name(code), e.what);
        assert_int_equal(code, e.code);
        assert_int_equal(w.sys.use.live_bytes[LINE_HOST], 0);
        assert_int_equal(count_open_files(), n_open);
        if (!reached) return at - 1;
    }
}

int malformed_fail_calls(operation *run, void (*unharmed)(void)) {
    int n = 0;
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        n += fail_each(run, k);
        if (unharmed) unharmed();
    }
    return n;
}

int malformed_fail_allocations(operation *run) {
    return fail_each(run, 0);
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
    return mkdtemp(folder) ? 0 : -1;
}

int malformed_tear_down(void **state) {
    return remove_one(folder);
}
