/* Faults: every n-th allocation, mapping, commit, read and thread start fails, once and from then on; weights
 * hold NaN; runs are cancelled. A failure is a documented code, never a crash, a hang, a leak or other bits
 * in the next run of the same session. FAULTS=N tries N calls of a kind in place of a seeded few. Disks and
 * files that change: test_disk.c. */
#include "test/harness.h"

enum { TRIES = 10, LONGEST_SECONDS = 900 };

static const char *const call_names[N_CALLS] = {"alloc", "map",          "commit",
                                                "read",  "thread_start", "open_direct"};

static bool direct; /* requests read past the page cache */

/* keep: everything resident, which stays; else most of it streams. */
static struct sluice_request request_for(struct rig *rig, bool keep) {
    struct sluice_request request = request_fox(32, 48, 2, 1, 2);
    request.direct_io = direct ? "on" : "off";
    json_int_t least, all;
    bounds(rig, request, &least, &all);
    if (!keep) request.max_ram_bytes = least + (all - least) / 4;
    return request;
}

static bool documented(enum call call, int code) {
    if (call == CALL_READ) return code == SLUICE_IO;
    if (call == CALL_THREAD) return code == SLUICE_DEVICE || code == SLUICE_MEMORY;
    return code == SLUICE_MEMORY || code == SLUICE_DEVICE;
}

/* What only informs (the line that predicts minutes) may do without its memory; then the bits must be right.
 */
static void fail_one(struct rig *rig, const struct sluice_request *request, const struct result *want,
                     enum call call, long at, bool and_later) {
    char what[64];
    bool keep = request->max_ram_bytes == plenty;
    snprintf(what, sizeof what, "%s %ld%s%s", call_names[call], at, and_later ? " on" : "",
             keep ? ", kept" : "");
    watch_fail(&rig->watch, call, at, and_later);
    struct result r = run(rig, request);
    watch_restart(&rig->watch);
    if (r.code == SLUICE_OK)
        same(want, &r, what);
    else
        check(documented(call, r.code) && r.error.what[0] && r.error.exit_code, "%s: %s, exit %d: %s", what,
              sluice_code_name(r.code), r.error.exit_code, r.error.what);
    check_given_back(rig, keep, what);
    result_free(&r);
    r = run(rig, request);
    same(want, &r, what);
    result_free(&r);
}

static int tries(void) {
    const char *text = getenv("FAULTS");
    return text ? atoi(text) : TRIES;
}

static void fail_kind(const char *folder, enum call call, bool keep) {
    struct rig rig;
    atomic_ullong random = 31 + (unsigned)call;
    if (!rig_open(&rig, folder, 1, 3)) return;
    struct sluice_request request = request_for(&rig, keep);
    watch_restart(&rig.watch);
    struct result want = run(&rig, &request);
    long n = atomic_load(&rig.watch.count[call]);
    check(want.code == SLUICE_OK && (n > 0 || (keep && call == CALL_COMMIT)), "%s: %ld calls",
          call_names[call], n);
    int seeded = tries();
    for (int i = 0; i < seeded && i < n; i++) {
        long at = n <= seeded ? i + 1 : i < 2 ? i + 1 : i == 2 ? n : 1 + (long)(draw(&random) % (uint64_t)n);
        for (int on = 0; on < 2; on++) {
            if (keep) { /* a session that keeps nothing yet: else there is nothing left to fail */
                struct sluice_request empty = request_for(&rig, false);
                struct result r = run(&rig, &empty);
                result_free(&r);
            }
            fail_one(&rig, &request, &want, call, at, on);
        }
    }
    printf("%-14s %s%s %ld calls in a run\n", call_names[call], keep ? "kept    " : "streamed",
           direct ? ", direct" : "", n);
    result_free(&want);
    rig_close(&rig);
}

/* Opening: a model or an error, and nothing left behind. */
static int open_once(struct watch *w, const char *folder) {
    struct error e = {0};
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    struct sluice_session_options options = {.struct_size = sizeof options, .threads = 1};
    struct sluice_model *model = NULL;
    sluice_session *session = NULL;
    struct sluice_error public = {0};
    int code = (int)model_open(&w->sys, &from, &model, &e);
    if (!code) code = sluice_session_open(model, &options, &session, &public);
    sluice_session_close(session);
    model_close(model);
    return code;
}

static void fail_opening(const char *folder, enum call call) {
    struct watch w;
    atomic_ullong random = 5;
    watch_init(&w, 1);
    check(open_once(&w, folder) == OK, "the model opens");
    long n = atomic_load(&w.count[call]);
    for (int i = 0; i < 3 * tries() && i < n; i++) {
        long at = i < 4 ? i + 1 : 1 + (long)(draw(&random) % (uint64_t)n);
        watch_fail(&w, call, at, i & 1);
        int code = open_once(&w, folder);
        check(documented(call, code) || code == SLUICE_OK, "opening, %s %ld: %s", call_names[call], at,
              sluice_code_name(code));
        for (int line = 0; line < N_MEMORY_LINES; line++)
            check(!w.sys.use.live_bytes[line], "opening, %s %ld: line %d leaks", call_names[call], at, line);
        watch_restart(&w);
    }
    printf("opening        %s %ld calls\n", call_names[call], n);
}

/* ---- NaN ---- */

/* Byte of a tensor's first element in a safetensors file, or -1. */
static long tensor_offset(FILE *f, const char *tensor) {
    unsigned char head[8];
    uint64_t bytes = 0;
    long offset = -1;
    if (fread(head, 1, 8, f) != 8) return -1;
    for (int i = 7; i >= 0; i--) bytes = bytes << 8 | head[i];
    char *text = malloc(bytes);
    json_t *header = text && fread(text, 1, bytes, f) == bytes ? json_loadb(text, bytes, 0, NULL) : NULL;
    json_t *range = json_object_get(json_object_get(header, tensor), "data_offsets");
    if (range) offset = (long)(8 + bytes) + (long)json_integer_value(json_array_get(range, 0));
    json_decref(header);
    free(text);
    return offset;
}

static void nan_in(const char *wide, const char *part, const char *tensor, const char *stage) {
    static const unsigned char nan_bytes[4] = {0, 0, 0xc0, 0x7f};
    struct rig rig;
    char path[256];
    const char *folder = copy_of(wide, "nan");
    snprintf(path, sizeof path, "%s/%s", folder, part);
    FILE *f = fopen(path, "r+b");
    long at = f ? tensor_offset(f, tensor) : -1;
    if (!check(at > 0, "there is no %s in %s", tensor, part)) return;
    fseek(f, at, SEEK_SET);
    fwrite(nan_bytes, 1, sizeof nan_bytes, f);
    fclose(f);
    if (!rig_open(&rig, folder, 1, 3)) return;
    struct sluice_request request = request_for(&rig, false);
    struct result r = run(&rig, &request);
    check(r.code == SLUICE_NONFINITE && r.error.exit_code == 7 && strstr(r.error.where, stage),
          "NaN in %s: %s, %s (%s)", tensor, sluice_code_name(r.code), r.error.what, r.error.where);
    check_given_back(&rig, false, tensor);
    result_free(&r);
    rig_close(&rig);
}

/* ---- cancelling ---- */

struct canceller {
    sluice_session *session;
    int at_progress;
    long at_read; /* a reader thread cancels */
    int seen;
};

static void cancel_in_progress(void *user, const struct sluice_progress *progress) {
    struct canceller *c = user;
    (void)progress;
    if (++c->seen == c->at_progress) sluice_cancel(c->session);
}

static void cancel_in_read(void *user, long n) {
    struct canceller *c = user;
    if (n == c->at_read) sluice_cancel(c->session);
}

/* Delays keep reads in flight when the run ends. */
static void cancelling(const char *folder, bool keep) {
    static struct rig rig;
    struct canceller c = {0};
    struct sluice_session_options options = {.threads = 1, .on_progress = cancel_in_progress, .user = &c};
    if (!rig_open(&rig, folder, 1, 3)) return;
    struct sluice_request request = request_for(&rig, keep);
    struct result want = run(&rig, &request);
    sluice_session_close(rig.session);
    if (!rig_open_session(&rig, &options)) return;
    rig.watch.delays = true;
    for (int i = 0; i < 12; i++) {
        c = (struct canceller){
            .session = rig.session, .at_progress = i < 3 ? i + 1 : 0, .at_read = i < 3 ? 0 : 1 + 9 * (i - 3)};
        sluice_session_close(rig.session);
        if (!rig_open_session(&rig, &options)) return;
        c.session = rig.session;
        rig.watch.on_read = cancel_in_read;
        rig.watch.on_read_user = &c;
        watch_restart(&rig.watch);
        struct result r = run(&rig, &request);
        check(r.code == SLUICE_CANCELLED && r.error.exit_code == 130, "cancel %d: %s", i,
              sluice_code_name(r.code));
        check_given_back(&rig, keep, "cancel");
        result_free(&r);
        rig.watch.on_read = NULL;
        c = (struct canceller){.session = rig.session};
        r = run(&rig, &request);
        same(&want, &r, "after a cancelled run");
        result_free(&r);
    }
    result_free(&want);
    rig_close(&rig);
}

int main(void) {
    static const char small[] = "test/golden/zimage_a/model";
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(LONGEST_SECONDS); /* a hang is a failure */
    temporary_make();
    const char *wide = wide_checkpoint();
    for (int call = 0; call < CALL_OPEN_DIRECT; call++) { /* that one: test_direct */
        fail_kind(small, (enum call)call, false);
        fail_kind(small, (enum call)call, true);
    }
    direct = true;
    fail_kind(small, CALL_MAP, false);
    fail_kind(small, CALL_READ, false);
    fail_kind(small, CALL_READ, true);
    cancelling(wide, false);
    direct = false;
    fail_opening(small, CALL_ALLOC);
    fail_opening(small, CALL_READ);
    nan_in(wide, "text_encoder/model.safetensors", "model.layers.1.mlp.down_proj.weight", "text");
    nan_in(wide, "transformer/diffusion_pytorch_model.safetensors", "layers.0.feed_forward.w2.weight",
           "denoise");
    nan_in(wide, "vae/diffusion_pytorch_model.safetensors", "decoder.conv_in.weight", "decode");
    cancelling(wide, false);
    cancelling(wide, true);
    return finish();
}
