/* What the residency and fault tests share: a struct sys that watches, delays, poisons and fails; a rig of
 * model and session on it; runs whose hashes can be compared; plans as JSON, edited.
 *
 * Checks are counted and never end the program, so that one wrong run does not hide the next. */
#ifndef SLUICE_TEST_HARNESS_H
#define SLUICE_TEST_HARNESS_H

#include "engine/open/model.h"
#include "engine/api/session.h"
#include "engine/sluice_bench.h"
#include "test/lib/device.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int n_passed, n_failed;

__attribute__((format(printf, 2, 3))) static inline bool check(bool good, const char *format, ...) {
    if (good) {
        n_passed++;
        return true;
    }
    n_failed++;
    va_list args;
    va_start(args, format);
    fputs("FAILED ", stdout);
    vprintf(format, args);
    puts("");
    va_end(args);
    fflush(stdout);
    return false;
}

/* File descriptors of this process. */
static inline int count_open(void) {
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    while (folder && readdir(folder)) n++;
    if (folder) closedir(folder);
    return n;
}

/* ---- the table that watches ---- */

enum call {
    CALL_ALLOC,
    CALL_MAP,
    CALL_COMMIT,
    CALL_ROOM,
    CALL_READ,
    CALL_THREAD,
    CALL_OPEN_DIRECT,
    CALL_OPEN,
    CALL_IDENTIFY,
    CALL_CREATE,
    CALL_WRITE,
    CALL_FLUSH,
    CALL_RENAME,
    N_CALLS
};

/* How a read or a write fails; every other call has but one way. */
enum fault { FAULT_ERROR, FAULT_SHORT, FAULT_INTERRUPTED, FAULT_END };

struct watch {
    struct sys sys;     /* first: the engine hands its address back to the functions */
    struct sys machine; /* what really happens; counts in sys.use above */
    bool delays, short_reads, interrupts, poison;
    atomic_ullong random;
    atomic_long count[N_CALLS];
    enum call fail;
    enum fault fault;
    atomic_long fail_at; /* 0: never */
    bool fail_on;        /* and every later one */
    void (*on_read)(void *user, long n);
    void *on_read_user;
    /* What other programs leave: plenty, but so little when the run asks between two evaluations, with a
     * chance of so many percent. The first question is the run's own, before it begins. */
    uint64_t free_bytes;
    int free_percent;
    long n_free;
    /* Releases of ring slots since something was last allocated: a run of them is the inside of a stage. */
    atomic_long n_discards, n_groups;
    atomic_bool in_group;
};

static inline uint64_t draw(atomic_ullong *state) { /* splitmix64, Steele et al. 2014 */
    uint64_t z = atomic_fetch_add(state, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline bool fails(struct watch *w, enum call call) {
    long n = atomic_fetch_add(&w->count[call], 1) + 1, at = atomic_load(&w->fail_at);
    if (call == CALL_ALLOC || call == CALL_MAP || call == CALL_COMMIT) atomic_store(&w->in_group, false);
    return at && w->fail == call && (n == at || (w->fail_on && n > at));
}

static inline void *watch_alloc(struct sys *sys, enum memory_line line, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_ALLOC) ? NULL : w->machine.alloc(sys, line, bytes);
}

static inline void *watch_map(struct sys *sys, enum memory_line line, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_MAP) ? NULL : w->machine.map(sys, line, bytes);
}

static inline void *watch_reserve(struct sys *sys, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_MAP) ? NULL : w->machine.reserve(sys, bytes);
}

static inline int watch_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_COMMIT) ? -ENOMEM : w->machine.commit(sys, line, memory, bytes);
}

static inline bool watch_has_room(struct sys *sys, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return !fails(w, CALL_ROOM) && w->machine.has_room(sys, bytes);
}

static inline int watch_thread_start(struct sys *sys, struct sys_thread **thread, void (*body)(void *),
                                     void *argument) {
    struct watch *w = (struct watch *)sys;
    /* Readers start when what an earlier run kept has been given back: from here on the plan is a promise. */
    for (int i = 0; i < N_MEMORY_LINES && !atomic_load(&w->count[CALL_THREAD]); i++)
        sys->use.peak_bytes[i] = sys->use.live_bytes[i];
    return fails(w, CALL_THREAD) ? -EAGAIN : w->machine.thread_start(sys, thread, body, argument);
}

static inline int watch_open_direct(struct sys *sys, const char *path) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_OPEN_DIRECT) ? -EINVAL : w->machine.open_direct(sys, path);
}

/* Reads of a direct file are of whole blocks, short ones too. */
static inline size_t shorten(int file, size_t bytes, uint64_t r) {
    size_t unit = fcntl(file, F_GETFL) & O_DIRECT ? SYS_DIRECT_BLOCK : 1;
    return unit * (1 + (size_t)r % (bytes / unit));
}

static inline int64_t watch_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct watch *w = (struct watch *)sys;
    if (fails(w, CALL_READ)) {
        if (w->fault == FAULT_ERROR) return -EIO;
        if (w->fault == FAULT_INTERRUPTED) return -EINTR;
        if (w->fault == FAULT_END) return 0;
        bytes = shorten(file, bytes, bytes / 2);
    }
    if (w->on_read) w->on_read(w->on_read_user, atomic_load(&w->count[CALL_READ]));
    uint64_t r = draw(&w->random);
    if (w->delays && r % 4 == 0) {
        struct timespec pause = {0, (long)(r >> 8) % 600000};
        nanosleep(&pause, NULL);
    }
    if (w->interrupts && (r >> 50) % 3 == 0) return -EINTR;
    if (w->short_reads && (r >> 40) % 3 == 0 && bytes > 1) bytes = shorten(file, bytes, r >> 16);
    return w->machine.read_at(sys, file, to, bytes, offset);
}

static inline int watch_open(struct sys *sys, const char *path) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_OPEN) ? -EMFILE : w->machine.open(sys, path);
}

static inline int watch_identify(struct sys *sys, int file, struct file_identity *identity) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_IDENTIFY) ? -EIO : w->machine.identify(sys, file, identity);
}

static inline int watch_create(struct sys *sys, const char *path) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_CREATE) ? -EACCES : w->machine.create(sys, path);
}

static inline int64_t watch_write(struct sys *sys, int file, const void *from, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    if (fails(w, CALL_WRITE)) {
        if (w->fault == FAULT_ERROR) return -ENOSPC;
        if (w->fault == FAULT_INTERRUPTED) return -EINTR;
        if (w->fault == FAULT_END) return 0;
        bytes = 1 + bytes / 2;
    }
    return w->machine.write(sys, file, from, bytes);
}

/* Durability is the machine's; here it would only take time. */
static inline int watch_flush(struct sys *sys, int file) {
    struct watch *w = (struct watch *)sys;
    (void)file;
    return fails(w, CALL_FLUSH) ? -EIO : 0;
}

static inline int watch_rename(struct sys *sys, const char *from, const char *to) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_RENAME) ? -EACCES : w->machine.rename(sys, from, to);
}

/* Asked by the thread that runs. */
static inline uint64_t watch_free_bytes(struct sys *sys) {
    struct watch *w = (struct watch *)sys;
    bool little = w->n_free++ && (int)(draw(&w->random) % 100) < w->free_percent;
    return little ? w->free_bytes : (uint64_t)1 << 40;
}

/* A NaN in every float: whoever reads a released slot cannot miss it. */
static inline void watch_discard(struct sys *sys, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    if (w->poison) memset(memory, 0xff, bytes);
    atomic_fetch_add(&w->n_discards, 1);
    if (!atomic_exchange(&w->in_group, true)) atomic_fetch_add(&w->n_groups, 1);
}

static inline void watch_init(struct watch *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    sys_init_machine(&w->machine);
    w->sys = w->machine;
    w->sys.alloc = watch_alloc;
    w->sys.map = watch_map;
    w->sys.reserve = watch_reserve;
    w->sys.commit = watch_commit;
    w->sys.has_room = watch_has_room;
    w->sys.thread_start = watch_thread_start;
    w->sys.open_direct = watch_open_direct;
    w->sys.open = watch_open;
    w->sys.identify = watch_identify;
    w->sys.create = watch_create;
    w->sys.write = watch_write;
    w->sys.flush = watch_flush;
    w->sys.rename = watch_rename;
    w->sys.read_at = watch_read_at;
    w->sys.discard = watch_discard;
    w->sys.free_bytes = watch_free_bytes;
    w->poison = true;
    atomic_store(&w->random, seed);
}

/* Counts calls and peaks from here on, fails nothing. */
static inline void watch_restart(struct watch *w) {
    atomic_store(&w->fail_at, 0);
    w->n_free = 0;
    for (int i = 0; i < N_CALLS; i++) atomic_store(&w->count[i], 0);
    for (int i = 0; i < N_MEMORY_LINES; i++) w->sys.use.peak_bytes[i] = w->sys.use.live_bytes[i];
    atomic_store(&w->n_discards, 0);
    atomic_store(&w->n_groups, 0);
    atomic_store(&w->in_group, false);
}

static inline void watch_fail(struct watch *w, enum call call, long at, bool and_later) {
    watch_restart(w);
    w->fail = call;
    w->fault = FAULT_ERROR;
    w->fail_on = and_later;
    atomic_store(&w->fail_at, at);
}

/* ---- model and session ---- */

struct rig {
    struct watch watch;
    sluice_model *model;
    sluice_session *session;
};

static inline bool rig_open_session(struct rig *rig, struct sluice_session_options *options) {
    if (!options->device) options->device = test_device();
    struct sluice_error e;
    options->struct_size = sizeof *options;
    return check(!sluice_session_open(rig->model, options, &rig->session, &e), "session: %s", e.what);
}

static inline bool rig_open(struct rig *rig, const char *folder, int threads, uint64_t seed) {
    struct error e = {0};
    struct sluice_model_options from = {.struct_size = sizeof from, .model = folder};
    struct sluice_session_options options = {.threads = threads};
    memset(rig, 0, sizeof *rig);
    watch_init(&rig->watch, seed);
    if (!check(model_open(&rig->watch.sys, &from, &rig->model, &e) == OK, "%s: %s", folder, e.what))
        return false;
    return rig_open_session(rig, &options);
}

/* Kept residents are the only memory of size that may outlive a run. */
static inline void check_given_back(struct rig *rig, bool keep, const char *what) {
    for (int i = LINE_STORE; i < N_MEMORY_LINES; i++)
        check((keep && i == LINE_STORE) || rig->watch.sys.use.live_bytes[i] == 0,
              "%s: line %d still has %lld bytes", what, i, (long long)rig->watch.sys.use.live_bytes[i]);
}

static inline void rig_close(struct rig *rig) {
    sluice_session_close(rig->session);
    sluice_model_close(rig->model);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        check(rig->watch.sys.use.live_bytes[i] == 0, "line %d leaks %lld bytes", i,
              (long long)rig->watch.sys.use.live_bytes[i]);
    rig->session = NULL;
    rig->model = NULL;
}

/* ---- runs ---- */

enum { IMAGES = 8, HEX = 65 };

struct result {
    int code;
    struct sluice_error error;
    int n_latents, n_images;
    char latent[IMAGES][HEX], image[IMAGES][HEX];
    json_t *plan; /* the one that was used; may be NULL */
};

static inline int read_hashes(json_t *list, char (*to)[HEX]) {
    int n = (int)json_array_size(list);
    for (int i = 0; i < n && i < IMAGES; i++)
        snprintf(to[i], HEX, "%s", json_string_value(json_array_get(list, (size_t)i)));
    return n;
}

static inline void result_free(struct result *r) {
    json_decref(r->plan);
    r->plan = NULL;
}

/* Nothing is faster than its floor, of stages or steps. */
static inline void check_floors(json_t *list) {
    size_t i;
    json_t *work;
    json_array_foreach(list, i, work) {
        double floor = json_number_value(json_object_get(work, "floor_seconds"));
        double seconds = json_number_value(json_object_get(work, "seconds"));
        check(floor <= seconds, "%g s are less than the floor of %g", seconds, floor);
    }
}

/* latent: a file to decode; NULL: a run from the prompt. */
static inline struct result run_or_decode(struct rig *rig, const struct sluice_request *request,
                                          const char *latent) {
    struct result r = {0};
    char *text = NULL;
    r.code = latent ? sluice_decode(rig->session, request, latent, &r.error)
                    : sluice_run(rig->session, request, &r.error);
    sluice_report(rig->session, &text, NULL);
    json_t *report = text ? json_loads(text, 0, NULL) : NULL;
    sluice_free(text);
    r.n_latents = read_hashes(json_object_get(report, "latent_sha256"), r.latent);
    r.n_images = read_hashes(json_object_get(report, "image_sha256"), r.image);
    r.plan = json_incref(json_object_get(report, "plan"));
    check_floors(json_object_get(report, "stages"));
    check_floors(json_object_get(report, "steps"));
    json_decref(report);
    return r;
}

static inline struct result run(struct rig *rig, const struct sluice_request *request) {
    return run_or_decode(rig, request, NULL);
}

/* want: what the same request gave; first: image 0 of got is image `first` of want. */
static inline bool same_from(const struct result *want, int first, const struct result *got,
                             const char *what) {
    if (!check(got->code == SLUICE_OK, "%s: %s %s (%s) found %s", what, sluice_code_name(got->code),
               got->error.what, got->error.where, got->error.found))
        return false;
    bool same = got->n_latents + got->n_images > 0;
    for (int i = 0; i < got->n_latents; i++) same = same && !strcmp(want->latent[first + i], got->latent[i]);
    for (int i = 0; i < got->n_images; i++) same = same && !strcmp(want->image[first + i], got->image[i]);
    return check(same, "%s: other bits", what);
}

static inline bool same(const struct result *want, const struct result *got, const char *what) {
    return check(want->n_latents == got->n_latents, "%s: %d latents", what, got->n_latents) &&
           same_from(want, 0, got, what);
}

/* ---- plans ---- */

static inline json_t *query(struct rig *rig, const struct sluice_request *request, bool *fits) {
    char *text = NULL;
    struct sluice_error e = {0};
    bool yes = false;
    int code = sluice_plan_query(rig->session, request, NULL, &text, &yes, &e);
    check(code == SLUICE_OK, "plan: %s", e.what);
    if (fits) *fits = yes;
    json_t *plan = text ? json_loads(text, 0, NULL) : NULL;
    sluice_free(text);
    return plan;
}

static inline json_int_t number(json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static inline json_int_t ram(json_t *plan, const char *which) {
    return number(json_object_get(plan, which), "ram_bytes");
}

static inline json_t *stage_of(json_t *plan, const char *name) {
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        if (!strcmp(json_string_value(json_object_get(stage, "name")), name)) return stage;
    }
    return NULL;
}

static inline json_int_t streamed(json_t *plan, const char *name) {
    return number(stage_of(plan, name), "streamed_bytes_per_evaluation");
}

/* The largest budget below which nothing but the least and everything matters: more than any fixture needs.
 */
static const int64_t plenty = (int64_t)1 << 36;

static inline void bounds(struct rig *rig, struct sluice_request request, json_int_t *least,
                          json_int_t *all) {
    request.plan = NULL;
    request.max_ram_bytes = plenty;
    json_t *plan = query(rig, &request, NULL);
    *least = ram(plan, "least");
    *all = ram(plan, "peak");
    json_decref(plan);
}

/* Residents, ring and bounce buffers: what the plan has for them at its worst stage. */
static inline json_int_t planned_store(json_t *plan) {
    json_int_t most = 0, kept = 0;
    size_t i;
    json_t *stage, *stages = json_object_get(plan, "stages");
    bool keep = json_is_true(json_object_get(plan, "keep"));
    json_array_foreach(stages, i, stage) kept += number(stage, "resident_bytes");
    json_array_foreach(stages, i, stage) {
        json_int_t here = number(stage, "ring_bytes") + (keep ? kept : number(stage, "resident_bytes"));
        if (here > most) most = here;
    }
    return most + number(plan, "bounce_bytes");
}

/* ---- requests ---- */

/* A short prompt against another; any budget will do. */
static inline struct sluice_request request_fox(int width, int height, int steps, int batch,
                                                double cfg_scale) {
    return (struct sluice_request){.struct_size = sizeof(struct sluice_request),
                                   .prompt = "a red fox in the snow",
                                   .negative_prompt = "blurry, low contrast",
                                   .width = width,
                                   .height = height,
                                   .steps = steps,
                                   .batch = batch,
                                   .cfg_scale = cfg_scale,
                                   .seed = 42,
                                   .max_ram_bytes = plenty};
}

/* ---- fixtures ---- */

static char temporary[64];

static inline void temporary_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", temporary);
    if (temporary[0] && system(command)) puts("cannot remove the temporary folder");
}

static inline void temporary_make_in(const char *parent) {
    snprintf(temporary, sizeof temporary, "%s/sluice_test_XXXXXX", parent);
    if (!mkdtemp(temporary)) abort();
    atexit(temporary_remove);
}

static inline void temporary_make(void) {
    temporary_make_in("/tmp");
}

/* Weights outweigh activations in every stage at 48x32. */
static inline const char *wide_checkpoint(void) {
    static char folder[128];
    struct sluice_error e;
    snprintf(folder, sizeof folder, "%s/wide", temporary);
    int code = sluice_checkpoint_write(
        "zimage", folder,
        "heads=3,axis0=16,axis1=24,axis2=24,layers=7,refiners=1,hidden=160,text_heads=4,"
        "text_key_heads=2,text_head_dim=32,text_ff=416,text_layers=6,vocabulary=400,"
        "vae0=96,vae1=96,vae2=64,vae3=32,vae_groups=8,latent_channels=16,dtype=f32",
        11, NULL, NULL, &e);
    check(!code, "wide checkpoint: %s (%s) %s", e.what, e.where, e.found);
    return folder;
}

/* A copy of a model to spoil. */
static inline const char *copy_of(const char *folder, const char *name) {
    static char to[160];
    char command[512];
    snprintf(to, sizeof to, "%s/%s", temporary, name);
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", to, folder, to);
    check(system(command) == 0, "%s", command);
    return to;
}

static inline int finish(void) {
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}

#endif
