/* Failing disks and files that change during a run, at a weight of each stage, with and without direct I/O:
 * exit code 3 and the file's name, never wrong pixels. After a failing disk the session's next run is right.
 * A changed file stays CHANGED for sessions that have it open, even if it is restored; a newly opened model
 * gives the right result. Changes that leave the bytes alone (links, names, permissions) do not end a run. */
#include "test/lib/rig.h"
#include "test/lib/random_models.h"

#include <fcntl.h>
#include <errno.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STAGES = 4, LONGEST_SECONDS = 600 };

static const struct {
    const char *name;
    enum family_kind kind;
    int visits; /* number of visits of each block of the stage in a streaming run */
} stages[STAGES] = {{"text", FAMILY_TEXT, 1},
                    {"hoist", FAMILY_DENOISER, 1},
                    {"denoise", FAMILY_DENOISER, 2},
                    {"decode", FAMILY_DECODER, 1}};

static const char *intact;
static struct result want; /* expected result, from the undamaged model */

struct disk_fault {
    const char *name;
    int code;
    int64_t answer; /* result of each failing read of the faulty byte; 1: the result of the real read */
    bool halves;    /* reads of the faulty byte return half of the requested bytes */
    void (*change)(const char *path);
};

static struct faulty_byte {
    const struct byte_source *source;
    int64_t byte;
    atomic_long n_reads; /* number of reads of the faulty byte so far */
    long at;             /* number of the read of the byte at which the fault begins */
    const struct disk_fault *fault;
} faulty_byte;

static int64_t faulty_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    const struct disk_fault *t = faulty_byte.fault;
    bool here = faulty_byte.source &&
                (file == faulty_byte.source->file || file == faulty_byte.source->direct) &&
                offset <= faulty_byte.byte && faulty_byte.byte < offset + (int64_t)bytes;
    long n = here ? atomic_fetch_add(&faulty_byte.n_reads, 1) + 1 : 0;
    if (!t || !n || n < faulty_byte.at) return fault_sys_read_at(sys, file, to, bytes, offset);
    if (t->change && n == faulty_byte.at) t->change(faulty_byte.source->path);
    if (t->halves) bytes = fault_sys_shorten(file, bytes, bytes / 2);
    return t->answer < 1 ? t->answer : fault_sys_read_at(sys, file, to, bytes, offset);
}

/* Chooses the middle byte of the largest segment of the stage's largest block. No direct read of another
 * block covers this byte. */
static void choose_byte(struct rig *rig, int stage, json_t *plan) {
    const struct component *c = model_component(rig->model, stages[stage].kind);
    const struct packed_segment *largest = NULL;
    json_t *block;
    for (size_t i = 0; (block = block_at(stage_of(plan, stages[stage].name), i)); i++)
        for (int b = 0; b < c->n_blocks; b++) {
            if (strcmp(c->blocks[b].name, word(block, "name"))) continue;
            for (int k = 0; k < c->blocks[b].n_segments; k++)
                if (!largest || c->blocks[b].segments[k].bytes > largest->bytes)
                    largest = &c->blocks[b].segments[k];
        }
    faulty_byte = (struct faulty_byte){0};
    if (!check(largest && largest->bytes > 2 * SYS_DIRECT_BLOCK, "no large block in %s", stages[stage].name))
        return;
    faulty_byte.source = largest->source;
    faulty_byte.byte = (int64_t)(largest->file_offset + largest->bytes / 2);
}

static bool open_with_fault(struct rig *rig, const char *folder) {
    if (!rig_open(rig, folder, 1, 3)) return false;
    rig->fault_sys.sys.read_at = faulty_read_at;
    return true;
}

/* Returns a request. keep: all blocks are resident and stay in memory between runs; else the request has the
 * minimum budget. */
static struct sluice_request request_at(struct rig *rig, int stage, bool direct, bool keep) {
    struct sluice_request request = request_fox(48, 32, 2, 1, 2);
    json_int_t least, all;
    request.direct_io = direct ? "on" : "off";
    bounds(rig, request, &least, &all);
    if (!keep) request.max_ram_bytes = least;
    choose_byte(rig, stage, query(rig, &request, NULL));
    faulty_byte.at = keep ? 1 : stages[stage].visits;
    return request;
}

static struct result run_with_fault(struct rig *rig, const struct sluice_request *request,
                                    const struct disk_fault *fault, const char *what) {
    atomic_store(&faulty_byte.n_reads, 0);
    faulty_byte.fault = fault;
    struct result r = run(rig, request);
    faulty_byte.fault = NULL;
    check(atomic_load(&faulty_byte.n_reads) >= faulty_byte.at, "%s: the byte was read only %ld times", what,
          atomic_load(&faulty_byte.n_reads));
    return r;
}

static void check_refused(const struct result *r, int code, const char *what) {
    check(r->code == code && r->error.exit_code == 3, "%s: %s, exit %d: %s", what, sluice_code_name(r->code),
          r->error.exit_code, r->error.what);
    check(strstr(r->error.where, faulty_byte.source->path) != NULL,
          "%s: the error does not name the file: %s", what, r->error.where);
}

static const struct disk_fault disks[] = {
    {"errs", SLUICE_IO, -EIO, false, NULL},
    {"ends early", SLUICE_TRUNC, 0, false, NULL},
    {"reads short", SLUICE_OK, 1, true, NULL},
};

static void test_failing_disk(int stage, bool direct, bool keep) {
    struct rig rig;
    struct sluice_session_options options = {.threads = 1};
    if (!open_with_fault(&rig, intact)) return;
    struct sluice_request request = request_at(&rig, stage, direct, keep);
    for (size_t i = 0; i < sizeof disks / sizeof *disks && faulty_byte.source; i++) {
        const char *what = format_text("the disk %s in %s%s%s", disks[i].name, stages[stage].name,
                                       direct ? ", direct" : "", keep ? ", kept" : "");
        /* a new session has no weights in memory, so it reads all of them */
        if (!rig_open_session(&rig, options)) break;
        struct result r = run_with_fault(&rig, &request, &disks[i], what);
        disks[i].code ? check_refused(&r, disks[i].code, what) : (void)same(&want, &r, what);
        check_memory_released(&rig, keep, what);
        run_equal(&rig, &request, &want, what);
    }
    rig_close(&rig);
}

static void cut(const char *path) {
    check(truncate(path, 20000) == 0, "truncate");
}

static void grow(const char *path) {
    shell("echo >>'%s'", path);
}

static void rewrite(const char *path) {
    FILE *f = fopen(path, "r+b");
    if (!check(f, "open")) return;
    int first = fgetc(f);
    rewind(f);
    check(fputc(first ^ 1, f) == (first ^ 1) && fclose(f) == 0, "write");
}

static void touch(const char *path) {
    check(utimensat(AT_FDCWD, path, NULL, 0) == 0, "touch");
}

static void replace_by(const char *path, const char *by) {
    shell("cp '%s' '%s.new' && mv '%s.new' '%s'", by, path, path, path);
}

/* Replaces a file by a copy. Processes that opened the old file still read the old file. */
static void replace(const char *path) {
    replace_by(path, path);
}

static void add_link(const char *path) {
    shell("ln '%s' '%s.linked' && rm '%s.linked'", path, path, path);
}

static void move(const char *path) {
    shell("mv '%s' '%s.moved'", path, path);
}

static void protect(const char *path) {
    check(chmod(path, 0400) == 0, "chmod");
}

static void put_back(const char *folder) {
    const char *original = format_text("%s%s", intact, faulty_byte.source->path + strlen(folder));
    replace_by(faulty_byte.source->path, original);
}

static const struct disk_fault changes[] = {
    {"cut", SLUICE_CHANGED, 1, false, cut},           {"grown", SLUICE_CHANGED, 1, false, grow},
    {"rewritten", SLUICE_CHANGED, 1, false, rewrite}, {"touched", SLUICE_CHANGED, 1, false, touch},
    {"replaced", SLUICE_OK, 1, false, replace},       {"linked", SLUICE_OK, 1, false, add_link},
    {"renamed", SLUICE_OK, 1, false, move},           {"protected", SLUICE_OK, 1, false, protect},
};

static void check_changed(const struct disk_fault *change, const struct result *r, const char *what) {
    change->code ? check_refused(r, change->code, what) : (void)same(&want, r, what);
}

/* early: the file changes between opening the model and the run; else during the run. */
static void test_changing_file(const struct disk_fault *change, int stage, bool direct, bool early) {
    static const struct disk_fault none = {"", SLUICE_OK, 1, false, NULL};
    struct rig rig;
    const char *folder = copy_model_folder(intact, "changing");
    const char *what = format_text("%s in %s%s%s", change->name, stages[stage].name, direct ? ", direct" : "",
                                   early ? ", early" : "");
    if (!open_with_fault(&rig, folder)) return;
    struct sluice_request request = request_at(&rig, stage, direct, false);
    if (early) change->change(faulty_byte.source->path);
    if (early) faulty_byte.at = 0;
    struct result r = run_with_fault(&rig, &request, early ? &none : change, what);
    check_changed(change, &r, what);
    check_memory_released(&rig, false, what);
    put_back(folder);
    r = run(&rig, &request);
    check_changed(change, &r, what);
    faulty_byte = (struct faulty_byte){0};
    rig_close(&rig);
    if (!rig_open(&rig, folder, 1, 3)) return;
    run_equal(&rig, &request, &want, what);
    rig_close(&rig);
}

int main(void) {
    struct rig rig;
    struct sluice_request request = request_fox(48, 32, 2, 1, 2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(LONGEST_SECONDS);
    temporary_make_in("build"); /* build/, because /tmp may not allow direct I/O */
    intact = wide_checkpoint();
    if (!rig_open(&rig, intact, 1, 3)) return finish();
    want = run(&rig, &request);
    rig_close(&rig);
    for (int stage = 0; stage < STAGES; stage++)
        for (int direct = 0; direct < 2; direct++) {
            if (!thorough() && direct != stage % 2) continue;
            test_failing_disk(stage, direct, false);
            test_failing_disk(stage, direct, true);
            for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
                test_changing_file(&changes[i], stage, direct, false);
                if (stage == 0) test_changing_file(&changes[i], stage, direct, true);
            }
        }
    return finish();
}
