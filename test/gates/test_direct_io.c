/* Direct I/O (O_DIRECT): reads at every alignment, with short, interrupted and failing reads and changed
 * files; file systems that reject O_DIRECT; the automatic choice; whole runs, counted in plan and report. */
#include "test/lib/rig.h"
#include "engine/job/planner.h"
#include "test/lib/random_models.h"

#include <errno.h>
#include <unistd.h>

enum { FILE_BYTES = 5 * SYS_DIRECT_BLOCK + 1234, BOUNCE_MAX = 4 * SYS_DIRECT_BLOCK };

static unsigned char contents[FILE_BYTES];
static _Alignas(SYS_DIRECT_BLOCK) unsigned char got[FILE_BYTES + SYS_DIRECT_BLOCK + 1];
static _Alignas(SYS_DIRECT_BLOCK) char bounce_memory[BOUNCE_MAX];

/* Writes a new file of `contents`. */
static const char *write_contents(const char *name) {
    const char *path = temporary_path(name);
    atomic_ullong random = 17;
    for (int i = 0; i < FILE_BYTES; i++) contents[i] = (unsigned char)random_next_atomic(&random);
    remove(path);
    write_file(path, contents, sizeof contents);
    return path;
}

/* A file of `contents`, open on a simulated system. */
struct opened {
    struct fault_sys sys;
    struct byte_source source;
    const char *path;
};

static bool open_file(struct opened *f, const char *name) {
    struct error e = {0};
    fault_sys_init(&f->sys, 5);
    f->path = write_contents(name);
    return check(source_open(&f->sys.sys, f->path, &f->source, &e) == OK, "open: %s", e.what);
}

static bool open_direct(struct opened *f, const char *name) {
    if (!open_file(f, name)) return false;
    int refused = source_open_direct(&f->source);
    return check(refused == 0, "cannot open a file in %s for direct I/O: %s", temporary, strerror(-refused));
}

/* Reads the given byte range into a buffer aligned like the file offset, then into a misaligned buffer. */
static void read_once(const struct byte_source *source, uint64_t bounce_bytes, uint64_t offset,
                      uint64_t bytes) {
    struct bounce bounce = {bounce_memory, bounce_bytes};
    for (int aligned = 0; aligned < 2; aligned++) {
        struct error e = {0};
        unsigned char *to = got + (offset + !aligned) % SYS_DIRECT_BLOCK;
        memset(to, 0xa5, bytes + 1);
        enum status status = source_read_direct(source, &bounce, to, bytes, offset, &e);
        check(status == OK && !memcmp(to, contents + offset, bytes) && to[bytes] == 0xa5,
              "%llu bytes at offset %llu through a bounce buffer of %llu: %s", (unsigned long long)bytes,
              (unsigned long long)offset, (unsigned long long)bounce_bytes, e.what);
    }
}

static const uint64_t edges[] = {0, 1, 2, 511, 512, 513, 4094, 4095, 4096, 4097};
enum { EDGES = sizeof edges / sizeof *edges };

static void every_edge(const struct byte_source *source, uint64_t bounce_bytes) {
    for (int i = 0; i < EDGES; i++)
        for (int k = 0; k < EDGES; k++) {
            read_once(source, bounce_bytes, edges[i], edges[k]);
            read_once(source, bounce_bytes, FILE_BYTES - edges[i] - edges[k], edges[k]);
            read_once(source, bounce_bytes, edges[i], FILE_BYTES - edges[i] - edges[k]);
        }
}

static void test_every_alignment_reads_right_bytes(void) {
    struct opened f;
    if (!open_direct(&f, "aligned")) return;
    for (int mode = 0; mode < 3; mode++) {
        f.sys.short_reads = mode == 1;
        f.sys.interrupts = mode == 2;
        for (uint64_t blocks = 1; blocks <= 4; blocks *= 2) every_edge(&f.source, blocks * SYS_DIRECT_BLOCK);
    }
    f.sys.short_reads = f.sys.interrupts = false;
    for (uint64_t at = 0; at <= 4097; at++) read_once(&f.source, SYS_DIRECT_BLOCK, at, 4097 - at);
    check(source_open_direct(&f.source) == 0 && atomic_load(&f.sys.count[CALL_OPEN_DIRECT]) == 1,
          "an already direct source is opened a second time");
    source_close(&f.source);
    source_close(&f.source);
}

static enum status read_wrong(const struct byte_source *source, uint64_t offset, uint64_t bytes,
                              struct error *e) {
    struct bounce bounce = {bounce_memory, BOUNCE_MAX};
    return source_read_direct(source, &bounce, got, bytes, offset, e);
}

/* Direct and buffered reads past the end of a file fail with the same error code. */
static void test_read_past_end_fails_alike(void) {
    struct opened f;
    if (!open_direct(&f, "short")) return;
    for (uint64_t at = FILE_BYTES - 3000; at < FILE_BYTES + 9000; at += 1500) {
        struct error direct = {0}, buffered = {0};
        uint64_t bytes = at < FILE_BYTES ? FILE_BYTES - at + 1 : 1;
        read_wrong(&f.source, at, bytes, &direct);
        source_read(&f.source, got, bytes, at, &buffered);
        check(direct.code == TRUNC && buffered.code == TRUNC,
              "read past the end at %llu: codes %d (direct), %d (buffered)", (unsigned long long)at,
              (int)direct.code, (int)buffered.code);
    }
    source_close(&f.source);
}

static void test_failing_read_is_reported(void) {
    struct opened f;
    if (!open_direct(&f, "failing")) return;
    for (long n = 1; n <= 2; n++) {
        struct error e = {0};
        fault_sys_fail(&f.sys, CALL_READ, n, 0);
        check(read_wrong(&f.source, 1, FILE_BYTES - 1, &e) == IO && strstr(e.where, "failing") &&
                  !strcmp(e.found, strerror(EIO)),
              "failing read %ld: %s %s", n, e.where, e.found);
    }
    source_close(&f.source);
}

static void test_changed_file_is_detected(void) {
    for (int cut = 0; cut < 2; cut++) {
        struct opened f;
        struct error e = {0};
        if (!open_direct(&f, "changing")) return;
        FILE *file = fopen(f.path, "r+b");
        if (cut)
            check(ftruncate(fileno(file), 100) == 0, "truncate");
        else
            fputc(contents[0] ^ 1, file);
        fclose(file);
        check(read_wrong(&f.source, 0, 200, &e) == CHANGED, "%s file: %s", cut ? "truncated" : "rewritten",
              e.what);
        source_close(&f.source);
    }
}

/* Reads become buffered where O_DIRECT fails at open or at the first read, or the file was replaced. */
static void test_refused_direct_io_falls_back(void) {
    for (int how = 0; how < 3; how++) {
        struct opened f;
        struct error e = {0};
        if (!open_file(&f, "refused")) return;
        if (how == 0) fault_sys_fail(&f.sys, CALL_OPEN_DIRECT, 1, 0);
        if (how == 1) fault_sys_fail(&f.sys, CALL_READ, 1, 0);
        if (how == 2) write_contents("refused");
        int refused = source_open_direct(&f.source), expected[] = {-EINVAL, -EIO, -ESTALE};
        check(refused == expected[how] && !source_is_direct(&f.source), "refusal %d: %d", how, refused);
        enum status status = source_read(&f.source, got, FILE_BYTES, 0, &e);
        check(status == OK && !memcmp(got, contents, FILE_BYTES), "after refusal %d: %s", how, e.what);
        source_close(&f.source);
    }
}

static void test_automatic_choice(void) {
    const uint64_t G = (uint64_t)1 << 30;
    check(!candidates_read_direct(NULL, 12 * G, 16 * G), "direct I/O at exactly three quarters of memory");
    check(candidates_read_direct(NULL, 12 * G + 1, 16 * G), "no direct I/O above three quarters of memory");
    check(candidates_read_direct("auto", 20 * G, 16 * G) && !candidates_read_direct("auto", G, 16 * G),
          "auto");
    check(!candidates_read_direct("auto", G, 0), "direct I/O with unknown memory size");
    check(candidates_read_direct("on", 0, 16 * G) && !candidates_read_direct("off", 20 * G, 16 * G),
          "on, off");
}

static char last_line[512];

static void store_warning(void *user, int level, const char *line) {
    if (level == SLUICE_WARNING) snprintf(last_line, sizeof last_line, "%s", line);
}

/* Returns a request without a RAM budget (max_ram_bytes is 0): the caller or a plan sets the budget. */
static struct sluice_request request_small(const char *direct_io) {
    struct sluice_request request = request_fox(48, 32, 2, 1, 1);
    request.direct_io = direct_io;
    request.max_ram_bytes = 0;
    return request;
}

static bool open_rig(struct rig *rig, const char *folder) {
    last_line[0] = 0;
    return rig_open(rig, folder, 1, 3) &&
           rig_open_session(rig, (struct sluice_session_options){.threads = 1, .on_log = store_warning});
}

static struct result run_with(struct rig *rig, const char *direct_io, bool least, const struct result *want) {
    struct sluice_request request = request_small(direct_io);
    json_int_t low, all;
    bounds(rig, request, &low, &all);
    request.max_ram_bytes = least ? low : all;
    struct result r = run(rig, &request);
    if (want) same(want, &r, direct_io);
    json_int_t moved = rig_stages_sum(rig, "bytes_moved"), direct = rig_stages_sum(rig, "bytes_direct");
    if (!want) check(moved > 0 && direct == 0, "off: %lld of %lld bytes read directly", direct, moved);
    if (want && !last_line[0])
        check(moved > 0 && direct == moved, "%s: %lld of %lld bytes read directly", direct_io, direct, moved);
    return r;
}

/* Runs one session with direct I/O off, then on: with the minimum budget and with all blocks resident. */
static void test_direct_io_keeps_bits(const char *folder) {
    struct rig rig;
    if (!open_rig(&rig, folder)) return;
    struct result want = run_with(&rig, "off", true, NULL);
    struct result least = run_with(&rig, "on", true, &want);
    run_with(&rig, "on", false, &want);
    check(number(want.plan, "bounce_bytes") == 0 && number(least.plan, "bounce_bytes") == PLAN_BOUNCE,
          "bounce_bytes of the plan");
    check(ram(least.plan, "least") - ram(want.plan, "least") == PLAN_BOUNCE,
          "the minimum budget grew by %lld bytes", ram(least.plan, "least") - ram(want.plan, "least"));
    check(!last_line[0], "unexpected warning: %s", last_line);
    rig_close(&rig);
}

/* One file rejects O_DIRECT: other files are read directly, and one warning names the file. */
static void test_refusing_file_warns_once(const char *folder) {
    for (int n = 1; n <= 4; n++) {
        struct rig rig;
        if (!open_rig(&rig, folder)) return;
        struct result want = run_with(&rig, "off", true, NULL);
        fault_sys_fail(&rig.fault_sys, CALL_OPEN_DIRECT, n < 4 ? n : 1, n < 4 ? 0 : LONG_MAX);
        run_with(&rig, "on", true, &want);
        check(!strncmp(last_line, "reading through the page cache: ", 32) && strstr(last_line, folder) &&
                  strstr(last_line, strerror(EINVAL)),
              "refusal %d: wrong warning: %s", n, last_line);
        json_int_t direct = rig_stages_sum(&rig, "bytes_direct"), moved = rig_stages_sum(&rig, "bytes_moved");
        check(n < 4 ? direct > 0 && direct < moved : direct == 0, "refusal %d: %lld bytes read directly", n,
              direct);
        rig_close(&rig);
    }
}

/* A plan file's direct I/O setting applies unless the request has one; invalid values are rejected. */
static void test_plan_file_sets_direct_io(const char *folder) {
    struct rig rig;
    if (!open_rig(&rig, folder)) return;
    struct sluice_request request = request_small("on");
    request.max_ram_bytes = plenty;
    json_t *plan = query(&rig, &request, NULL);
    const char *text = plan_text(&rig, plan);
    for (int i = 0; i < 3; i++) {
        static const char *const asked[] = {NULL, "auto", "off"};
        struct sluice_request again = request_small(asked[i]);
        again.plan = text;
        json_t *read = query(&rig, &again, NULL);
        check(number(read, "bounce_bytes") == (i < 2 ? PLAN_BOUNCE : 0),
              "bounce_bytes after reading the plan back: %lld", number(read, "bounce_bytes"));
        check(i == 2 || !strcmp(word(plan, "hash"), word(read, "hash")),
              "the plan that was read back has another hash");
    }
    json_t *wrong[] = {json_integer(-1), json_integer((json_int_t)1 << 40), json_string("much")};
    for (int i = 0; i < 3; i++) {
        struct sluice_request bad = request_small(NULL);
        json_object_set_new(plan, "bounce_bytes", wrong[i]);
        bad.plan = plan_text(&rig, plan);
        run_refused(&rig, &bad, "META", 3, "bounce_bytes");
    }
    request = request_small("maybe");
    run_refused(&rig, &request, "USAGE", 2, "--direct-io");
    rig_close(&rig);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(600);                 /* SIGALRM ends a hanging test after 10 minutes */
    temporary_make_in("build"); /* uses build/, because the file system of /tmp may not support O_DIRECT */
    test_every_alignment_reads_right_bytes();
    test_read_past_end_fails_alike();
    test_failing_read_is_reported();
    test_changed_file_is_detected();
    test_refused_direct_io_falls_back();
    test_automatic_choice();
    const char *wide = wide_checkpoint();
    test_direct_io_keeps_bits(wide);
    test_refusing_file_warns_once(wide);
    test_plan_file_sets_direct_io(wide);
    return finish();
}
