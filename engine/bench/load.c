/* `sluice bench load`: measures how fast a model's blocks are read as in a stage: through the store, its
 * readers and a ring for two blocks, without computing. For comparison, one thread reads the same files like
 * dd: in order, 16 MiB at a time, into one buffer. Reading through the store and like dd alternate; medians
 * are reported.
 *
 * Measures three modes: from the page cache; through the page cache after dropping its contents; bypassing
 * the page cache, if the files can be opened with O_DIRECT. */
#include "engine/bench/bench.h"
#include "engine/open/model.h"
#include "engine/open/component_search.h"
#include "engine/run/store.h"
#include "loaders/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { DD_PIECE = 16 << 20, ROUNDS = 3 };
/* Limit of bytes to read: the page cache must hold all bytes, and reading more would only repeat the
 * measurement. */
static const uint64_t most_bytes = (uint64_t)4 << 30;

enum way { WAY_CACHED, WAY_COLD, WAY_DIRECT, N_WAYS };

static const char *const way_names[N_WAYS] = {"kept", "dropped", "bypassed"};

struct load {
    struct bench *bench;
    struct sluice_model *model;
    double header_seconds, open_seconds;
    const struct block **blocks; /* blocks of all stages, in order */
    struct store_stage stages[SLOTS_MAX];
    int n_stages;
    uint64_t bytes; /* total bytes of `blocks` */
    struct visit_list visits;
    struct run_need *need;
    struct plan *plan;
    char *buffer; /* read buffer of the dd comparison */
};

/* Opens only the headers of all files and measures the time. */
static enum status open_headers(struct load *l, const struct sluice_model_options *from, struct error *e) {
    struct sys *sys = &l->bench->sys;
    struct component_files files = {0};
    const struct recipe *guess;
    double began = sys->clock(sys);
    if (component_files_locate(sys, from, &files, e) == OK)
        component_files_open(sys, from, &files, &guess, e);
    component_files_destroy(sys, &files);
    l->header_seconds = sys->clock(sys) - began;
    return e->code;
}

/* Measures opening the whole model, then only the model's headers, now from the page cache. The difference is
 * the time to load the tokenizer. */
static enum status open_model(struct load *l, struct error *e) {
    struct sys *sys = &l->bench->sys;
    double began = sys->clock(sys);
    if (model_open(sys, l->bench->options.model, &l->model, e) != OK) return e->code;
    l->open_seconds = sys->clock(sys) - began;
    struct sluice_model_options from;
    copy_sized(&from, sizeof from, l->bench->options.model);
    return open_headers(l, &from, e);
}

/* Adds blocks of a component in visit order, up to `most` bytes in total. */
static void load_add_stage(struct load *l, const struct component *c, uint64_t most, struct error *e) {
    int s = l->n_stages, first = l->visits.n_visits, n = 0;
    uint64_t largest = 0;
    for (; n < c->n_blocks && l->bytes < most; n++) {
        const struct block *block = &c->blocks[n];
        if (visit_add(&l->visits, (struct visit){.stage = s, .block = n}, e) != OK) return;
        l->blocks[first + n] = block;
        l->need->stage[s].block_bytes[n] = block->bytes;
        l->bytes += block->bytes;
        if (block->bytes > largest) largest = block->bytes;
    }
    if (!n) return;
    l->need->stage[s].n_blocks = n;
    l->plan->stage[s].ring_bytes = align_up(2 * largest, PLAN_PAGE);
    l->stages[s] = (struct store_stage){l->blocks + first, n, n};
    l->n_stages = l->need->n_stages = l->plan->n_stages = s + 1;
}

static enum status list_blocks(struct load *l, struct error *e) {
    struct sys *sys = &l->bench->sys;
    uint64_t unused = sys->free_bytes(sys), n = 0, most = most_bytes;
    if (unused && unused / 2 < most) most = unused / 2;
    for (int i = 0; i < SLOTS_MAX; i++) n += (uint64_t)l->model->component[i].n_blocks;
    l->visits.sys = sys;
    l->blocks = sys->alloc(sys, LINE_HOST, (n + 1) * sizeof *l->blocks);
    l->need = sys->alloc(sys, LINE_HOST, sizeof *l->need);
    l->plan = sys->alloc(sys, LINE_HOST, sizeof *l->plan);
    l->buffer = sys->map(sys, LINE_STORE, DD_PIECE);
    if (!l->blocks || !l->need || !l->plan || !l->buffer)
        return error_set(e, MEMORY, "no memory for a buffer of 16 MiB");
    for (int i = 0; i < SLOTS_MAX && e->code == OK; i++) load_add_stage(l, &l->model->component[i], most, e);
    return e->code;
}

static enum status
each_source(struct load *l, enum status (*call)(struct load *, struct byte_source *, void *, struct error *),
            void *argument, struct error *e) {
    for (int i = 0; i < l->n_stages; i++) {
        const struct tensor_index *index = l->stages[i].blocks[0]->index;
        for (int k = 0; k < index->n_sources && e->code == OK; k++) call(l, &index->sources[k], argument, e);
    }
    return e->code;
}

struct dd {
    enum way way;
    uint64_t left;
};

static enum status dd_file(struct load *l, struct byte_source *source, void *argument, struct error *e) {
    struct sys *sys = &l->bench->sys;
    struct dd *dd = argument;
    int file = dd->way == WAY_DIRECT ? source->direct : source->file;
    for (int64_t at = 0; dd->left;) {
        int64_t n = sys->read_at(sys, file, l->buffer, DD_PIECE, at);
        if (n == -EINTR) continue;
        if (n == 0) break;
        if (n < 0) {
            return error_set(e, IO, "cannot read file" WHERE "%s" FOUND "%s", source->path,
                             strerror((int)-n));
        }
        at += n;
        dd->left -= (uint64_t)n < dd->left ? (uint64_t)n : dd->left;
    }
    return OK;
}

static enum status read_like_dd(struct load *l, enum way way, double *rate, struct error *e) {
    struct sys *sys = &l->bench->sys;
    struct dd dd = {way, l->bytes};
    double began = sys->clock(sys);
    each_source(l, dd_file, &dd, e);
    *rate = (double)(l->bytes - dd.left) / (sys->clock(sys) - began);
    return e->code;
}

static enum status visit_all(struct load *l, struct store *store, struct error *e) {
    int stage = -1;
    for (int i = 0; i < l->visits.n_visits && e->code == OK; i++) {
        const struct visit *visit = &l->visits.visits[i];
        struct packed_place place;
        if (visit->stage != stage) {
            if (stage >= 0) store_end_stage(store, stage);
            if (store_begin_stage(store, stage = visit->stage, e) != OK) break;
        }
        if (store_acquire(store, i, &place, e) == OK) store_await(store, i, l->blocks[i]->bytes, e);
        store_release(store, i);
    }
    if (stage >= 0) store_end_stage(store, stage);
    return e->code;
}

static enum status read_with_store(struct load *l, enum way way, double *rate, struct error *e) {
    struct sys *sys = &l->bench->sys;
    struct residents none = {.sys = sys};
    struct store *store = NULL;
    l->plan->bounce_bytes = way == WAY_DIRECT ? PLAN_BOUNCE : 0;
    struct store_options options = {.sys = sys,
                                    .stages = l->stages,
                                    .visits = &l->visits,
                                    .need = l->need,
                                    .plan = l->plan,
                                    .residents = &none,
                                    .readers = plan_readers(false, l->plan->bounce_bytes)};
    double began = sys->clock(sys);
    if (store_open(&options, &store, e) == OK) visit_all(l, store, e);
    *rate = (double)l->bytes / (sys->clock(sys) - began);
    store_close(store);
    residents_destroy(&none);
    return e->code;
}

static enum status drop(struct load *l, struct byte_source *source, void *unused, struct error *e) {
    (void)l, (void)unused;
    posix_fadvise(source->file, 0, 0, POSIX_FADV_DONTNEED);
    return e->code;
}

static enum status load_open_direct(struct load *l, struct byte_source *source, void *all, struct error *e) {
    (void)l;
    if (source_open_direct(source)) *(bool *)all = false;
    return e->code;
}

static void load_add_row(struct load *l, enum way way, double *readers, double *dd) {
    double rate = bench_median(readers, ROUNDS), other = bench_median(dd, ROUNDS);
    json_push(l->bench->rows,
              json_pack("{s:s, s:s, s:I, s:i, s:f, s:f, s:f}", "path", "load", "page_cache", way_names[way],
                        "bytes", (json_int_t)l->bytes, "threads", plan_readers(false, l->plan->bounce_bytes),
                        "gbytes_per_second", rate / 1e9, "dd_gbytes_per_second", other / 1e9, "share",
                        rate / other));
}

static enum status measure_way(struct load *l, enum way way, struct error *e) {
    double readers[ROUNDS], dd[ROUNDS];
    bool direct = true;
    if (way == WAY_DIRECT) each_source(l, load_open_direct, &direct, e);
    if (!direct) return OK;
    if (way == WAY_CACHED) read_like_dd(l, way, &dd[0], e), read_with_store(l, way, &readers[0], e);
    for (int i = 0; i < ROUNDS && e->code == OK; i++) {
        if (bench_go_on(l->bench, ((double)way + (double)i / ROUNDS) / N_WAYS,
                        "reading with the store's readers and like dd", e) != OK)
            break;
        if (way == WAY_COLD) each_source(l, drop, NULL, e);
        read_like_dd(l, way, &dd[i], e);
        if (way == WAY_COLD) each_source(l, drop, NULL, e);
        read_with_store(l, way, &readers[i], e);
    }
    if (e->code == OK) load_add_row(l, way, readers, dd);
    return e->code;
}

static void close_all(struct load *l) {
    struct sys *sys = &l->bench->sys;
    if (l->buffer) sys->unmap(sys, LINE_STORE, l->buffer, DD_PIECE);
    sys->release(sys, l->plan);
    sys->release(sys, l->need);
    sys->release(sys, l->blocks);
    visit_list_destroy(&l->visits);
    model_close(l->model);
}

int sluice_bench_load(const struct sluice_bench_options *options, char **json, struct sluice_error *error) {
    struct error e = {0};
    struct bench bench;
    struct load l = {.bench = &bench};
    if (bench_start(&bench, options, &e) == OK && open_model(&l, &e) == OK) list_blocks(&l, &e);
    for (int way = 0; way < N_WAYS && e.code == OK; way++) measure_way(&l, (enum way)way, &e);
    json_t *rest = e.code == OK ? json_pack("{s:f, s:f}", "header_seconds", l.header_seconds, "open_seconds",
                                            l.open_seconds)
                                : NULL;
    json_count_failure(!rest);
    l.visits.sys = &bench.sys;
    close_all(&l);
    return bench_finish(&bench, rest, 0, json, NULL, &e, error);
}
