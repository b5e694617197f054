/* What test_store works on: a sys that watches, files of made-up tensors, and a family small enough to
 * follow.
 *
 * The watching sys counts and can fail any call at its n-th time, delays and shortens reads, poisons what is
 * discarded, and knows at every moment which memory is being read into and which is in use: a read into
 * memory that is in use or read into already, and memory given back under a read, are violations. Everything
 * it keeps is guarded by its own lock. */
#ifndef SLUICE_TEST_TOY_FAMILY_H
#define SLUICE_TEST_TOY_FAMILY_H

#include "engine/run/executor.h"
#include "kernels/ops.h"
#include "test/lib/seeded.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>

/* --- the watching sys --- */

enum call {
    CALL_ALLOC,
    CALL_MAP,
    CALL_RESERVE,
    CALL_COMMIT,
    CALL_THREAD,
    CALL_OPEN_DIRECT,
    CALL_READ,
    N_CALLS
};

enum { SPANS_MAX = 64, READS_MAX = 1 << 15 };

struct read_log {
    int file;
    int64_t offset, bytes;
};

struct watch {
    struct sys sys;     /* first: what the engine is given */
    struct sys machine; /* what it stands for */
    pthread_mutex_t lock;
    long calls[N_CALLS], fail_at[N_CALLS]; /* 0: never */
    long fail_more[N_CALLS];               /* so many behind it too */
    struct span {
        const char *from, *to;
        bool reading;
    } spans[SPANS_MAX];
    int n_spans;
    char violation[120]; /* the first */
    struct read_log reads[READS_MAX];
    int n_reads;
    uint64_t random;
    int delay_us; /* reads take up to this long */
    bool short_reads;
    int64_t pages_live, pages_peak; /* mapped and committed */
    int64_t reserved;               /* address space */
};

static bool watch_fails(struct watch *w, enum call call) {
    pthread_mutex_lock(&w->lock);
    long n = ++w->calls[call], at = w->fail_at[call];
    bool fails = at && n >= at && n <= at + w->fail_more[call];
    pthread_mutex_unlock(&w->lock);
    return fails;
}

static void watch_violated(struct watch *w, const char *what) {
    if (!w->violation[0]) snprintf(w->violation, sizeof w->violation, "%s", what);
}

static void span_add(struct watch *w, const void *from, size_t bytes, bool reading) {
    const char *at = from;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n_spans; i++)
        if (at < w->spans[i].to && at + bytes > w->spans[i].from && (reading || w->spans[i].reading))
            watch_violated(w, w->spans[i].reading && reading ? "two reads into one place"
                                                             : "a read into memory in use");
    w->spans[w->n_spans++] = (struct span){at, at + bytes, reading};
    pthread_mutex_unlock(&w->lock);
}

static void span_remove(struct watch *w, const void *from) {
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n_spans; i++)
        if (w->spans[i].from == from) {
            w->spans[i] = w->spans[--w->n_spans];
            break;
        }
    pthread_mutex_unlock(&w->lock);
}

/* Pages come (bytes above 0) or go. */
static void count_pages(struct watch *w, const void *memory, int64_t bytes) {
    const char *from = memory;
    pthread_mutex_lock(&w->lock);
    w->pages_live += bytes;
    if (w->pages_live > w->pages_peak) w->pages_peak = w->pages_live;
    if (bytes % PLAN_PAGE) watch_violated(w, "not whole pages");
    for (int i = 0; bytes < 0 && i < w->n_spans; i++)
        if (from < w->spans[i].to && from - bytes > w->spans[i].from)
            watch_violated(w, w->spans[i].reading ? "memory given back under a read"
                                                  : "memory given back in use");
    pthread_mutex_unlock(&w->lock);
}

static void *watch_alloc(struct sys *sys, enum memory_line line, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return watch_fails(w, CALL_ALLOC) ? NULL : w->machine.alloc(sys, line, bytes);
}

static void *watch_map(struct sys *sys, enum memory_line line, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    void *memory = watch_fails(w, CALL_MAP) ? NULL : w->machine.map(sys, line, bytes);
    if (memory) count_pages(w, memory, (int64_t)bytes);
    return memory;
}

static void watch_unmap(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    if (memory) count_pages(w, memory, -(int64_t)bytes);
    w->machine.unmap(sys, line, memory, bytes);
}

static void *watch_reserve(struct sys *sys, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    void *memory = watch_fails(w, CALL_RESERVE) ? NULL : w->machine.reserve(sys, bytes);
    pthread_mutex_lock(&w->lock);
    if (memory) w->reserved += (int64_t)bytes;
    pthread_mutex_unlock(&w->lock);
    return memory;
}

static void watch_unreserve(struct sys *sys, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    pthread_mutex_lock(&w->lock);
    if (memory) w->reserved -= (int64_t)bytes;
    pthread_mutex_unlock(&w->lock);
    w->machine.unreserve(sys, memory, bytes);
}

static int watch_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    int failed = watch_fails(w, CALL_COMMIT) ? -ENOMEM : w->machine.commit(sys, line, memory, bytes);
    if (!failed) count_pages(w, memory, (int64_t)bytes);
    return failed;
}

static void watch_decommit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    count_pages(w, memory, -(int64_t)bytes);
    w->machine.decommit(sys, line, memory, bytes);
}

static void watch_discard(struct sys *sys, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    const char *from = memory;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n_spans; i++)
        if (from < w->spans[i].to && from + bytes > w->spans[i].from)
            watch_violated(w, "memory discarded in use or under a read");
    pthread_mutex_unlock(&w->lock);
    memset(memory, 0xFF, bytes);
}

static int watch_open_direct(struct sys *sys, const char *path) {
    struct watch *w = (struct watch *)sys;
    return watch_fails(w, CALL_OPEN_DIRECT) ? -EINVAL : w->machine.open_direct(sys, path);
}

static int64_t watch_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct watch *w = (struct watch *)sys;
    bool direct = fcntl(file, F_GETFL) & O_DIRECT;
    if (direct && ((uintptr_t)to | bytes | (size_t)offset) % SYS_DIRECT_BLOCK)
        watch_violated(w, "a direct read that is not of whole blocks");
    if (watch_fails(w, CALL_READ)) return -EIO;
    span_add(w, to, bytes, true);
    pthread_mutex_lock(&w->lock);
    if (w->short_reads && bytes > 1 && !random_below(&w->random, 4)) bytes = 1 + bytes / 2;
    if (direct && bytes % SYS_DIRECT_BLOCK)
        bytes = bytes < SYS_DIRECT_BLOCK ? SYS_DIRECT_BLOCK : bytes / SYS_DIRECT_BLOCK * SYS_DIRECT_BLOCK;
    int delay = w->delay_us ? (int)random_below(&w->random, (uint64_t)w->delay_us) : 0;
    if (w->n_reads < READS_MAX) w->reads[w->n_reads++] = (struct read_log){file, offset, (int64_t)bytes};
    pthread_mutex_unlock(&w->lock);
    if (delay) usleep((useconds_t)delay);
    int64_t n = w->machine.read_at(sys, file, to, bytes, offset);
    span_remove(w, to);
    return n;
}

static int watch_thread_start(struct sys *sys, struct sys_thread **thread, void (*body)(void *),
                              void *argument) {
    struct watch *w = (struct watch *)sys;
    return watch_fails(w, CALL_THREAD) ? -EAGAIN : w->machine.thread_start(sys, thread, body, argument);
}

static void watch_init(struct watch *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    sys_init_machine(&w->machine);
    w->sys = w->machine;
    w->sys.alloc = watch_alloc;
    w->sys.map = watch_map;
    w->sys.unmap = watch_unmap;
    w->sys.reserve = watch_reserve;
    w->sys.unreserve = watch_unreserve;
    w->sys.commit = watch_commit;
    w->sys.decommit = watch_decommit;
    w->sys.discard = watch_discard;
    w->sys.open_direct = watch_open_direct;
    w->sys.read_at = watch_read_at;
    w->sys.thread_start = watch_thread_start;
    w->random = seed;
    pthread_mutex_init(&w->lock, NULL);
}

/* Forgets calls, faults and reads; what lives stays. */
static void watch_reset(struct watch *w) {
    pthread_mutex_lock(&w->lock);
    memset(w->calls, 0, sizeof w->calls);
    memset(w->fail_at, 0, sizeof w->fail_at);
    memset(w->fail_more, 0, sizeof w->fail_more);
    w->n_reads = 0;
    w->pages_peak = w->pages_live;
    pthread_mutex_unlock(&w->lock);
}

static int64_t watch_live(struct watch *w) {
    struct memory_use use = sys_memory_use(&w->sys);
    int64_t live = 0;
    for (int i = 0; i < N_MEMORY_LINES; i++) live += use.live_bytes[i];
    return live;
}

static struct watch watch;

static void assert_no_violation(void) {
    if (watch.violation[0]) fail_msg("%s", watch.violation);
}

static void assert_ok(const struct error *e) {
    char line[1200];
    if (e->code != OK) fail_msg("%s", error_line(e, line, sizeof line));
}

/* --- files --- */

enum { TOY_FILES = 2, TOY_ENTRIES_MAX = 160, TOY_NAME = 32 };

struct toy_files {
    struct sys *sys;
    char folder[40], path[TOY_FILES][64];
    unsigned char *contents[TOY_FILES];
    uint64_t bytes[TOY_FILES];
    struct tensor_index index;
    uint64_t random;
};

static void toy_files_begin(struct toy_files *f, struct sys *sys, uint64_t seed) {
    *f = (struct toy_files){.sys = sys, .random = seed, .index.sys = sys};
    /* In the build folder: what /tmp lies on may not allow direct reads. */
    strcpy(f->folder, access("build", W_OK) ? "/tmp/sluice_store_XXXXXX" : "build/sluice_store_XXXXXX");
    if (!mkdtemp(f->folder)) abort();
    f->index.entries = sys->alloc(sys, LINE_HOST, TOY_ENTRIES_MAX * sizeof *f->index.entries);
    f->index.names = sys->alloc(sys, LINE_HOST, TOY_ENTRIES_MAX * TOY_NAME);
    f->index.sources = sys->alloc(sys, LINE_HOST, TOY_FILES * sizeof *f->index.sources);
}

/* Numbers between -1 and 1 of this type, at an odd place of either file. */
static void toy_files_add(struct toy_files *f, const char *name, enum dtype dtype, int rank,
                          const int32_t *dim) {
    struct tensor shape = tensor_make(NULL, dtype, rank, dim);
    int file = (int)random_below(&f->random, TOY_FILES), n = f->index.n_entries++;
    uint64_t bytes = (uint64_t)tensor_bytes(&shape), at = f->bytes[file] + random_below(&f->random, 40);
    size_t element = (size_t)dtype_bits(dtype) / 8;
    f->contents[file] = realloc(f->contents[file], at + bytes);
    memset(f->contents[file] + f->bytes[file], 0x55, at - f->bytes[file]);
    for (uint64_t i = 0; i < bytes; i += element) {
        float value = (float)(int64_t)random_next(&f->random) * 0x1p-63f;
        memcpy(f->contents[file] + at + i, (char *)&value + 4 - element, element);
    }
    f->bytes[file] = at + bytes;
    char *stored = f->index.names + n * TOY_NAME;
    snprintf(stored, TOY_NAME, "%s", name);
    struct index_entry entry = {.name = stored,
                                .dtype = dtype,
                                .rank = rank,
                                .scale = 1,
                                .source = file,
                                .offset = at,
                                .bytes = bytes};
    for (int i = 0; i < rank; i++) entry.dim[i] = dim[i];
    int i = n;
    for (; i > 0 && strcmp(f->index.entries[i - 1].name, stored) > 0; i--)
        f->index.entries[i] = f->index.entries[i - 1];
    f->index.entries[i] = entry;
}

static void toy_files_end(struct toy_files *f) {
    struct error e = {0};
    for (int i = 0; i < TOY_FILES; i++) {
        snprintf(f->path[i], sizeof f->path[i], "%s/%d", f->folder, i);
        FILE *file = fopen(f->path[i], "wb");
        if (!file || (f->bytes[i] && fwrite(f->contents[i], f->bytes[i], 1, file) != 1) || fclose(file))
            abort();
        if (source_open(f->sys, f->path[i], &f->index.sources[f->index.n_sources++], &e) != OK) abort();
    }
}

/* The index may belong to a component, which destroys it. */
static void toy_files_remove(struct toy_files *f) {
    for (int i = 0; i < TOY_FILES; i++) {
        remove(f->path[i]);
        free(f->contents[i]);
    }
    rmdir(f->folder);
}

/* --- the family --- */

enum { TOY_D, TOY_F, TOY_T, TOY_LAYERS, TOY_ONE };

struct toy_state {
    struct tensor x, base;
};

struct toy_once {
    struct tensor row;
};

struct toy_mix {
    struct tensor norm, up, bias, down;
};

struct toy_scale {
    struct tensor norm;
};

static void toy_once_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct toy_state *s = scope->lane->state;
    op_broadcast_row(x, s->base, ((const struct toy_once *)weights)->row);
    op_glu(x, s->base, s->base, s->base, ACTIVATION_SILU);
}

static void toy_start_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    (void)weights;
    const struct toy_state *s = scope->lane->state;
    struct tensor row = context_tensor(x, DTYPE_F32, 2, (const int32_t[]){1, s->x.dim[1]});
    op_timestep(x, row, scope->timesteps[0]);
    op_broadcast_row(x, s->x, row);
    op_glu(x, s->x, s->x, scope->lane->latent, ACTIVATION_SILU);
}

static void toy_mix_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct toy_mix *w = weights;
    const struct toy_state *s = scope->lane->state;
    struct tensor normed = context_tensor(x, DTYPE_F32, 2, s->x.dim);
    struct tensor wide = context_tensor(x, DTYPE_F32, 2, (const int32_t[]){s->x.dim[0], w->up.dim[0]});
    op_rms_norm(x, normed, s->x, w->norm, 1e-5f, (struct modulation){0});
    op_linear(x, wide, normed, w->up, (struct epilogue){.bias = w->bias});
    op_linear(x, s->x, wide, w->down, (struct epilogue){.residual = s->x});
}

static void toy_scale_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct toy_state *s = scope->lane->state;
    op_rms_norm(x, s->x, s->x, ((const struct toy_scale *)weights)->norm, 1e-5f, (struct modulation){0});
}

static void toy_end_forward(struct context *x, const void *weights, const struct visit_scope *scope) {
    (void)weights;
    const struct toy_state *s = scope->lane->state;
    op_glu(x, scope->lane->prediction, s->x, s->base, ACTIVATION_SILU);
}

static const struct block_kind toy_kind_once = {
    .name = "once",
    .format = "once",
    .weights = (const struct weight_spec[]){{.offset = offsetof(struct toy_once, row),
                                             .names = {"row"},
                                             .rank = 2,
                                             .dim = {TOY_ONE, TOY_D},
                                             .spread = 1}},
    .n_weights = 1,
    .weights_bytes = sizeof(struct toy_once),
    .forward = toy_once_forward,
};
static const struct block_kind toy_kind_start = {
    .name = "start", .format = "start", .weights_bytes = 1, .forward = toy_start_forward};
static const struct block_kind toy_kind_mix = {
    .name = "mix",
    .format = "mix.%d",
    .weights = (const struct weight_spec[]){{.offset = offsetof(struct toy_mix, norm),
                                             .names = {"mix.%d.norm"},
                                             .rank = 1,
                                             .dim = {TOY_D},
                                             .spread = 0},
                                            {.offset = offsetof(struct toy_mix, up),
                                             .names = {"mix.%d.up"},
                                             .rank = 2,
                                             .dim = {TOY_F, TOY_D},
                                             .spread = 1},
                                            {.offset = offsetof(struct toy_mix, bias),
                                             .names = {"mix.%d.bias"},
                                             .rank = 1,
                                             .dim = {TOY_F},
                                             .optional = true,
                                             .spread = 1},
                                            {.offset = offsetof(struct toy_mix, down),
                                             .names = {"mix.%d.down"},
                                             .rank = 2,
                                             .dim = {TOY_D, TOY_F},
                                             .spread = 1}},
    .n_weights = 4,
    .weights_bytes = sizeof(struct toy_mix),
    .forward = toy_mix_forward,
};
static const struct block_kind toy_kind_scale = {
    .name = "scale",
    .format = "scale.%d",
    .weights = (const struct weight_spec[]){{.offset = offsetof(struct toy_scale, norm),
                                             .names = {"scale.%d.norm"},
                                             .rank = 1,
                                             .dim = {TOY_D},
                                             .spread = 0}},
    .n_weights = 1,
    .weights_bytes = sizeof(struct toy_scale),
    .forward = toy_scale_forward,
};
static const struct block_kind toy_kind_end = {
    .name = "end", .format = "end", .weights_bytes = 1, .forward = toy_end_forward};

static enum status toy_configure(struct component *c, const struct config *config, struct error *e) {
    (void)c, (void)config;
    return e->code; /* whoever makes the files sets the dimensions */
}

static int toy_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &toy_kind_once};
    refs[n++] = (struct block_ref){.kind = &toy_kind_start};
    for (int i = 0; i < c->dims[TOY_LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = i % 3 == 2 ? &toy_kind_scale : &toy_kind_mix, .number = i};
    refs[n++] = (struct block_ref){.kind = &toy_kind_end};
    return n;
}

static void toy_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    dims[TOY_F] = c->dims[TOY_F] * (1 + ref->number % 3);
}

static void toy_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                        struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct toy_state *s = lanes[i].state;
        s->x = arena_tensor(arena, DTYPE_F32, 2, (const int32_t[]){c->dims[TOY_T], c->dims[TOY_D]}, ok);
        s->base = arena_tensor(arena, DTYPE_F32, 2, (const int32_t[]){c->dims[TOY_T], c->dims[TOY_D]}, ok);
    }
}

static enum status toy_visits(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                              int evaluations, struct visit_list *list, struct error *e) {
    (void)lanes;
    visit_add(list, (struct visit){.stage = stage, .n_lanes = n_lanes, .evaluation = -1}, e);
    for (int i = 0; i < evaluations; i++)
        for (int b = 1; b < c->n_blocks; b++)
            visit_add(list,
                      (struct visit){.stage = stage,
                                     .block = b,
                                     .n_lanes = n_lanes,
                                     .evaluation = i,
                                     .ends_evaluation = b == c->n_blocks - 1},
                      e);
    return e->code;
}

static const struct family toy_family = {
    .name = "toy",
    .kind = FAMILY_DENOISER,
    .configure = toy_configure,
    .blocks = toy_blocks,
    .block_dims = toy_block_dims,
    .ignorable = (const char *const[]){NULL},
    .lane_state_bytes = sizeof(struct toy_state),
    .declare = toy_declare,
    .visits = toy_visits,
};

/* Adds what a layer of the family needs; every other one is bf16. */
static void toy_add_layer(struct toy_files *f, const int32_t *dims, int i) {
    char name[TOY_NAME];
    int32_t d = dims[TOY_D], wide = dims[TOY_F] * (1 + i % 3);
    enum dtype dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
    snprintf(name, sizeof name, i % 3 == 2 ? "scale.%d.norm" : "mix.%d.norm", i);
    toy_files_add(f, name, DTYPE_F32, 1, (const int32_t[]){d});
    if (i % 3 == 2) return;
    snprintf(name, sizeof name, "mix.%d.up", i);
    toy_files_add(f, name, dtype, 2, (const int32_t[]){wide, d});
    snprintf(name, sizeof name, "mix.%d.bias", i);
    if (i % 4) toy_files_add(f, name, dtype, 1, (const int32_t[]){wide});
    snprintf(name, sizeof name, "mix.%d.down", i);
    toy_files_add(f, name, dtype, 2, (const int32_t[]){d, wide});
}

/* Opens a component of D columns, F wide, T rows and so many layers; its files go to *f. */
static inline enum status toy_open(struct sys *sys, const int32_t *dims, uint64_t seed, struct toy_files *f,
                                   struct component *c, struct error *e) {
    toy_files_begin(f, sys, seed);
    toy_files_add(f, "row", DTYPE_F32, 2, (const int32_t[]){1, dims[TOY_D]});
    for (int i = 0; i < dims[TOY_LAYERS]; i++) toy_add_layer(f, dims, i);
    toy_files_end(f);
    *c = (struct component){.family = &toy_family, .sys = sys, .index = f->index};
    memcpy(c->dims, dims, 4 * sizeof *dims);
    c->dims[TOY_ONE] = 1;
    return component_bind(c, &(struct config){0}, e);
}

#endif
