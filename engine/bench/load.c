/* `sluice bench load`: measures how fast a model's blocks are read as in a stage: through the store, its
 * readers and a ring for two blocks, without computing. For comparison, one thread reads the same files like
 * dd: in order, 16 MiB at a time, into one buffer. Reading through the store and like dd alternate; medians
 * are reported.
 *
 * Measures three modes: from the page cache; through the page cache after dropping its contents; bypassing
 * the page cache, if the files can be opened with O_DIRECT. */
#include "engine/bench/bench.h"
#include "engine/open/component_search.h"
#include "engine/open/model.h"
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
    const struct block **blocks; /* blocks of all stages, in visit order */
    struct store_stage stages[SLOTS_MAX];
    int n_stages;
    uint64_t bytes;
    struct visit_list visits;
    struct run_need *need;
    struct plan *plan;
    char *buffer; /* buffer for reading files like dd */
};

/* Measures opening the whole model, then only the headers of all files, now from the page cache. The
 * difference is the time to load the tokenizer. */
static enum status open_model(struct load *l, struct error *e) {
    struct sys *sys = &l->bench->sys;
    struct component_files files = {0};
    struct sluice_model_options from;
    const struct recipe *guess;
    double began = sys->clock(sys);
    if (model_open(sys, l->bench->options.model, &l->model, e) != OK) return e->code;
    l->open_seconds = sys->clock(sys) - began;
    copy_sized(&from, sizeof from, l->bench->options.model);
    began = sys->clock(sys);
    if (component_files_locate(sys, &from, &files, e) == OK)
        component_files_open(sys, &from, &files, &guess, e);
    component_files_destroy(sys, &files);
    l->header_seconds = sys->clock(sys) - began;
    return e->code;
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
    l->blocks = sys_new(sys, n, sizeof *l->blocks, "a list of blocks", e);
    l->need = sys_new(sys, 1, sizeof *l->need, "the memory of blocks", e);
    l->plan = sys_new(sys, 1, sizeof *l->plan, "a plan", e);
    l->buffer = sys->map(sys, LINE_STORE, DD_PIECE);
    if (!l->buffer) error_set(e, MEMORY, "no memory for a buffer of 16 MiB");
    for (int i = 0; i < SLOTS_MAX && e->code == OK; i++) load_add_stage(l, &l->model->component[i], most, e);
    return e->code;
}

/* Reads the files like dd until as many bytes as the blocks have are read. */
static enum status read_like_dd(struct load *l, enum way way, double *rate, struct error *e) {
    struct sys *sys = &l->bench->sys;
    uint64_t left = l->bytes;
    double began = sys->clock(sys);
    for (int i = 0; i < l->n_stages; i++) {
        const struct tensor_index *index = l->stages[i].blocks[0]->index;
        for (int k = 0; k < index->n_sources; k++) {
            const struct byte_source *source = &index->sources[k];
            int file = way == WAY_DIRECT ? source->direct : source->file;
            for (int64_t at = 0; left;) {
                int64_t n = sys->read_at(sys, file, l->buffer, DD_PIECE, at);
                if (n == -EINTR) continue;
                if (n == 0) break;
                if (n < 0) {
                    return error_set(e, IO, "cannot read file" WHERE "%s" FOUND "%s", source->path,
                                     strerror((int)-n));
                }
                at += n;
                left -= (uint64_t)n < left ? (uint64_t)n : left;
            }
        }
    }
    *rate = (double)(l->bytes - left) / (sys->clock(sys) - began);
    return OK;
}

/* Reads all blocks through the store, in visit order. */
static enum status read_with_store(struct load *l, enum way way, double *rate, struct error *e) {
    struct sys *sys = &l->bench->sys;
    struct residents none = {.sys = sys};
    struct store *store = NULL;
    int stage = -1;
    l->plan->bounce_bytes = way == WAY_DIRECT ? PLAN_BOUNCE : 0;
    struct store_options options = {.sys = sys,
                                    .stages = l->stages,
                                    .visits = &l->visits,
                                    .need = l->need,
                                    .plan = l->plan,
                                    .residents = &none,
                                    .readers = plan_readers(false, l->plan->bounce_bytes)};
    double began = sys->clock(sys);
    store_open(&options, &store, e);
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
    *rate = (double)l->bytes / (sys->clock(sys) - began);
    store_close(store);
    residents_destroy(&none);
    return e->code;
}

/* Drops the files' contents from the page cache (WAY_COLD) or opens them for direct reads (WAY_DIRECT). False
 * if a file refuses direct reads. */
static bool prepare_files(struct load *l, enum way way) {
    bool direct = true;
    for (int i = 0; i < l->n_stages; i++) {
        const struct tensor_index *index = l->stages[i].blocks[0]->index;
        for (int k = 0; k < index->n_sources; k++) {
            if (way == WAY_COLD) posix_fadvise(index->sources[k].file, 0, 0, POSIX_FADV_DONTNEED);
            if (way == WAY_DIRECT && source_open_direct(&index->sources[k])) direct = false;
        }
    }
    return direct;
}

/* noinline: the caller checks the stack before this function's large stack frame is needed. */
__attribute__((noinline)) static enum status measure_way(struct load *l, enum way way, struct error *e) {
    double readers[ROUNDS], dd[ROUNDS];
    if (way == WAY_DIRECT && !prepare_files(l, way)) return OK;
    if (way == WAY_CACHED) read_like_dd(l, way, &dd[0], e), read_with_store(l, way, &readers[0], e);
    for (int i = 0; i < ROUNDS && e->code == OK; i++) {
        if (bench_go_on(l->bench, ((double)way + (double)i / ROUNDS) / N_WAYS,
                        "reading with the store's readers and like dd", e) != OK)
            return e->code;
        if (way == WAY_COLD) prepare_files(l, way);
        read_like_dd(l, way, &dd[i], e);
        if (way == WAY_COLD) prepare_files(l, way);
        read_with_store(l, way, &readers[i], e);
    }
    if (e->code != OK) return e->code;
    double rate = bench_median(readers, ROUNDS), other = bench_median(dd, ROUNDS);
    json_push(l->bench->rows,
              json_pack("{s:s, s:s, s:I, s:i, s:f, s:f, s:f}", "path", "load", "page_cache", way_names[way],
                        "bytes", (json_int_t)l->bytes, "threads", plan_readers(false, l->plan->bounce_bytes),
                        "gbytes_per_second", rate / 1e9, "dd_gbytes_per_second", other / 1e9, "share",
                        rate / other));
    return OK;
}

int sluice_bench_load(const struct sluice_bench_options *options, char **json, struct sluice_error *error) {
    struct error e = {0};
    struct bench bench;
    struct load l = {.bench = &bench};
    struct sys *sys = &bench.sys;
    json_t *rest = NULL;
    if (bench_start(&bench, options, &e) == OK && open_model(&l, &e) == OK) list_blocks(&l, &e);
    for (int way = 0; way < N_WAYS && e.code == OK; way++) measure_way(&l, (enum way)way, &e);
    if (e.code == OK)
        rest = json_pack("{s:f, s:f}", "header_seconds", l.header_seconds, "open_seconds", l.open_seconds);
    json_count_failure(!rest);
    if (l.buffer) sys->unmap(sys, LINE_STORE, l.buffer, DD_PIECE);
    sys->release(sys, l.plan);
    sys->release(sys, l.need);
    sys->release(sys, l.blocks);
    l.visits.sys = sys;
    visit_list_destroy(&l.visits);
    model_close(l.model);
    return bench_finish(&bench, rest, 0, json, NULL, &e, error);
}
