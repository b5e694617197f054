#include "test/lib/store_fixture.h"

#include "test/lib/store_adapters.h"

#include "bench/dev/paced.h"

enum { READS = 4096, SIDE = 3 };

static const struct block_kind raw_kind = {
    .name = "raw",
    .format = "raw.%d",
    .weights =
        (const struct weight_spec[]){
            {.offset = 0, .names = {"raw.%d.0"}, .rank = 1, .dim = {0}, .init_scale = 1},
            {.offset = sizeof(struct tensor), .names = {"raw.%d.1?"}, .rank = 1, .dim = {1}, .init_scale = 1},
            {.offset = 2 * sizeof(struct tensor),
             .names = {"raw.%d.2?"},
             .rank = 1,
             .dim = {2},
             .init_scale = 1}},
    .n_weights = 3,
    .weights_bytes = sizeof(struct raw_weights),
};
/* Declares a weight that is the last of four temporal slices of a convolution kernel. */
#define SLICED(i, name)                                                                                      \
    {                                                                                                        \
        .offset = (i) * sizeof(struct tensor), .names = {name}, .rank = 4, .dim = {i, 3, 4, 4}, .slices = 4, \
        .init_scale = 1                                                                                      \
    }
static const struct weight_spec sliced_weights[] = {SLICED(0, "raw.%d.0"), SLICED(1, "raw.%d.1?"),
                                                    SLICED(2, "raw.%d.2?")};
static const struct block_kind sliced_kind = BLOCK_KIND("sliced", "sliced.%d", sliced_weights, raw_weights,
                                                        NULL, .update_rate = UPDATE_PER_EVALUATION);
static const struct block_kind empty_kind = {.name = "empty", .format = "empty", .weights_bytes = 1};

struct store_fixture store_fixture;
bool store_fixture_sliced;

static void make_weights(int s, int b, int parts) {
    for (int i = 0; i < parts; i++) {
        char name[SYNTHETIC_NAME];
        int32_t n = store_fixture.dims[s][b][i], sliced[] = {n, 1, SIDE, SIDE, SIDE};
        enum dtype dtype = below(2) ? DTYPE_BF16 : DTYPE_F32;
        snprintf(name, sizeof name, "raw.%d.%d", s * 100 + b, i);
        synthetic_files_add(&store_fixture.files, name, dtype, store_fixture_sliced ? 5 : 1,
                            store_fixture_sliced ? sliced : &n);
    }
}

static void make_sizes(int s, int n_blocks) {
    static const uint64_t scales[] = {8, 300, 20000};
    uint64_t scale = scales[below(3)] / (store_fixture_sliced ? 8 : 1);
    for (int b = 0; b < n_blocks; b++) {
        int parts = below(8) ? 1 + (int)below(3) : 0;
        store_fixture.dims[s][b][3] = 1;
        store_fixture.dims[s][b][4] = SIDE;
        for (int i = 0; i < 3; i++) store_fixture.dims[s][b][i] = i < parts ? 1 + (int32_t)below(scale) : 0;
        make_weights(s, b, parts);
    }
}

static void make_blocks(int s, int n_blocks) {
    struct error e = {0};
    struct stage_need *need = &store_fixture.need.stage[s];
    for (int b = 0; b < n_blocks; b++) {
        const struct block_kind *kind = store_fixture_sliced ? &sliced_kind : &raw_kind;
        if (!store_fixture.dims[s][b][0]) kind = &empty_kind;
        const struct block_ref ref = {.kind = kind, .number = s * 100 + b};
        block_bind(&fault_sys.sys, &ref, &store_fixture.files.index, store_fixture.dims[s][b],
                   &store_fixture.base[s][b], &e);
        store_fixture.list[s][b] = &store_fixture.blocks[s][b];
        need->block_repeats[b] = true;
    }
    assert_ok(&e);
    int n_model_blocks = below(2) ? n_blocks : (int)below((uint64_t)n_blocks + 1);
    store_fixture.stages[s] = (struct store_stage){store_fixture.list[s], n_blocks, n_model_blocks};
    need->n_blocks = n_blocks;
}

/* Makes random visits: each evaluation visits blocks in order, skips some, and visits some two or three times
 * in a row. */
static void make_visits(int s) {
    struct error e = {0};
    int evaluations = 1 + (int)below(4), n = store_fixture.stages[s].n_blocks;
    visit_add(&store_fixture.visits, (struct visit){.stage = s, .block = (int)below((uint64_t)n)}, &e);
    for (int i = 0; i < evaluations; i++)
        for (int b = 0; b < n; b++) {
            int times = below(4) ? 1 : (int)below(4);
            for (int t = 0; t < times; t++)
                visit_add(&store_fixture.visits, (struct visit){.stage = s, .block = b, .evaluation = i}, &e);
        }
    assert_ok(&e);
}

/* For a device with its own memory: chooses the streamed blocks that stay in the host pool, and the staging
 * size for all other streamed blocks. */
static void make_tiers(void) {
    uint64_t buffers = 1 + below(4), odds = below(5);
    for (int s = 0; s < store_fixture.plan.n_stages; s++) {
        struct plan_stage *p = &store_fixture.plan.stage[s];
        for (int b = 0; b < store_fixture.stages[s].n_blocks; b++)
            if (!plan_is_resident(p, b) && below(4) < odds) {
                plan_set_pooled(p, b, true);
                p->pool_bytes += store_fixture.blocks[s][b].bytes;
            }
        p->pool_bytes = align_up(p->pool_bytes, PLAN_PAGE);
        p->staging_bytes = buffers * PLAN_PAGE * (1 + below(4));
    }
}

void make_plan(bool keep) {
    store_fixture.plan = (struct plan){.n_stages = store_fixture.need.n_stages, .keep = keep};
    for (int s = 0; s < store_fixture.plan.n_stages; s++) {
        struct plan_stage *p = &store_fixture.plan.stage[s];
        uint64_t largest = 0, all = 0, odds = below(5);
        for (int b = 0; b < store_fixture.stages[s].n_blocks; b++) {
            uint64_t bytes = store_fixture.blocks[s][b].bytes;
            plan_set_resident(p, b, below(4) < odds);
            if (plan_is_resident(p, b)) continue;
            all += bytes;
            if (bytes > largest) largest = bytes;
        }
        largest = align_up(largest, PLAN_PAGE);
        all = align_up(all, PLAN_PAGE);
        uint64_t spare = (all - largest) / PLAN_PAGE;
        p->ring_bytes = largest + PLAN_PAGE * (below(3) ? below(spare + 1) : below(2) * spare);
        if (!below(4)) p->depth = 1 + (int32_t)below(3);
        p->no_wrap = !below(6);
        p->waits = !below(6);
    }
    if (store_fixture.direct)
        store_fixture.plan.bounce_bytes = (uint64_t)(store_fixture.readers + 1) * PLAN_PAGE * (1 + below(30));
    store_fixture.need.bounce_bytes = store_fixture.plan.bounce_bytes;
    if (store_fixture.separate) make_tiers();
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
}

void store_fixture_open_direct(uint64_t odds) {
    store_fixture.direct = true;
    for (int i = 0; i < store_fixture.files.index.n_sources; i++) {
        bool refuses = !below(odds);
        fault_sys_fail(&fault_sys, CALL_OPEN_DIRECT, refuses, 0);
        int failed = source_open_direct(&store_fixture.files.index.sources[i]);
        if (refuses) assert_int_equal(failed, -EINVAL);
        assert_int_equal(failed == 0, source_is_direct(&store_fixture.files.index.sources[i]));
    }
}

static void begin(uint64_t seed) {
    memory_checker_init(seed);
    memset(&store_fixture, 0, sizeof store_fixture);
    store_fixture.ticks_left = -1;
    store_fixture.visits.sys = store_fixture.residents.sys = &fault_sys.sys;
    synthetic_files_begin(&store_fixture.files, &fault_sys.sys, seed);
}

void store_fixture_make(uint64_t seed) {
    begin(seed);
    seeded_state = seed;
    store_fixture.readers = (int)below(5);
    store_fixture.separate = below(2);
    int n_stages = 1 + (int)below(STAGES), n_blocks[STAGES];
    for (int s = 0; s < n_stages; s++) make_sizes(s, n_blocks[s] = 1 + (int)below(BLOCKS));
    synthetic_files_end(&store_fixture.files);
    if (below(2)) store_fixture_open_direct(4);
    store_fixture.need.n_stages = n_stages;
    for (int s = 0; s < n_stages; s++) {
        make_blocks(s, n_blocks[s]);
        make_visits(s);
    }
    store_fixture.need.separate = store_fixture.separate;
    store_fixture_change_adapters(store_fixture_sliced ? 0 : 30 * below(3));
    make_plan(below(3) == 0);
    fault_sys.delay_us = below(3) ? 0 : 200;
    fault_sys.short_reads = below(2);
    memory_checker_restart();
}

void store_fixture_remove(void) {
    residents_destroy(&store_fixture.residents);
    if (store_fixture.residents.device)
        store_fixture.residents.device->destroy(store_fixture.residents.device);
    for (int s = 0; s < store_fixture.need.n_stages; s++)
        for (int b = 0; b < store_fixture.stages[s].n_blocks; b++)
            block_destroy(&fault_sys.sys, &store_fixture.base[s][b]);
    store_fixture_remove_adapters();
    visit_list_destroy(&store_fixture.visits);
    index_destroy(&store_fixture.files.index);
    synthetic_files_remove(&store_fixture.files);
    assert_no_memory_violation();
    assert_int_equal(fault_sys_live_bytes(&fault_sys), 0);
    assert_int_equal(memory_checker.pages_live, 0);
}

void one_block(int32_t elements, uint64_t ring_bytes) {
    begin(seed_base);
    store_fixture.readers = 3;
    store_fixture.dims[0][0][0] = elements;
    synthetic_files_add(&store_fixture.files, "raw.0.0", DTYPE_F32, 1, &elements);
    synthetic_files_end(&store_fixture.files);
    store_fixture.need.n_stages = 1;
    make_blocks(0, 1);
    store_fixture_change_adapters(0);
    struct error e = {0};
    visit_add(&store_fixture.visits, (struct visit){0}, &e);
    store_fixture.plan = (struct plan){.n_stages = 1};
    store_fixture.plan.stage[0].ring_bytes =
        align_up(store_fixture.blocks[0][0].bytes, PLAN_PAGE) + ring_bytes;
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
    memory_checker_restart();
}

static bool store_fixture_tick(void *user) {
    struct error *e = user;
    double now = fault_sys.sys.clock(&fault_sys.sys);
    if (store_fixture.silent_tick) return false;
    if (store_fixture.ticks_left > 0) store_fixture.ticks_left--;
    if (store_fixture.ticks_left != 0 && now - store_fixture.began < HANG_SECONDS) return true;
    error_set(e, store_fixture.ticks_left ? INTERNAL : CANCELLED,
              store_fixture.ticks_left ? "the store hangs" : "cancelled");
    return false;
}

static struct device *paced_device(struct error *e) {
    return paced_open(&fault_sys.sys, NULL, 0, e);
}

struct device *(*store_fixture_device)(struct error *e) = paced_device;

struct store *store_fixture_open(struct error *e) {
    struct store_options options = {
        .sys = &fault_sys.sys,
        .stages = store_fixture.stages,
        .visits = &store_fixture.visits,
        .need = &store_fixture.need,
        .plan = &store_fixture.plan,
        .residents = &store_fixture.residents,
        .readers = store_fixture.readers,
        .tick = store_fixture_tick,
        .tick_user = e,
    };
    struct store *store = NULL;
    store_fixture.began = fault_sys.sys.clock(&fault_sys.sys);
    store_fixture.stage = -1;
    if (store_fixture.separate && !store_fixture.residents.device)
        store_fixture.residents.device = store_fixture_device(e);
    if (e->code == OK) store_open(&options, &store, e);
    return store;
}

const unsigned char *source_contents(const struct byte_source *source, uint64_t at) {
    return store_fixture.files.contents[source - store_fixture.files.index.sources] + at;
}

void check_packed_bytes(const struct block *block, const struct packed_place *place, uint64_t from,
                        uint64_t to) {
    for (int i = 0; i < block->n_segments; i++) {
        const struct packed_segment *g = &block->segments[i];
        uint64_t first = g->packed_offset > from ? g->packed_offset : from,
                 last = g->packed_offset + g->bytes, n;
        if (last > to) last = to;
        for (; first < last; first += n) {
            uint64_t at = first - g->packed_offset;
            n = g->stride ? g->run - at % g->run : last - first;
            if (n > last - first) n = last - first;
            if (memcmp(packed_byte(block, place, first), source_contents(g->source, packed_file_byte(g, at)),
                       n))
                fail_msg("wrong bytes in %s, segment %d", block->name, i);
        }
    }
}

/* Marks bytes [0, to) of the packed block as in use for the memory checker; 0: none. */
static void checker_use(const struct block *block, const struct packed_place *place, uint64_t to) {
    uint64_t n_adapter = to < block->adapter_bytes ? to : block->adapter_bytes;
    for (int p = 0; p < PACKED_PARTS; p++)
        if (packed_part_bytes(block, p)) checked_span_remove(place->part[p]);
    if (n_adapter) checked_span_add(place->part[PACKED_ADAPTER], n_adapter, false);
    if (to > n_adapter) checked_span_add(place->part[PACKED_BASE], to - n_adapter, false);
}

/* Awaits a packed block in a few random steps, some backwards, and reads only the awaited bytes. */
static enum status use_packed(struct store *store, int visit, const struct packed_place *place,
                              struct error *e) {
    enum { STEPS = 4 };
    const struct visit *v = &store_fixture.visits.visits[visit];
    const struct block *block = store_fixture.list[v->stage][v->block];
    uint64_t done = 0;
    for (int p = 0; p < PACKED_PARTS; p++) {
        assert_int_equal((uintptr_t)place->part[p] % ARENA_ALIGN, 0);
        assert_true(place->part[p] || !packed_part_bytes(block, p));
    }
    for (int i = 0; i <= STEPS; i++) {
        uint64_t to = i < STEPS ? below(block->bytes + 1) : block->bytes;
        if (store_await(store, visit, to, e) != OK) break;
        if (to > done) checker_use(block, place, done = to);
        if (fault_sys.delay_us && !below(8)) usleep((useconds_t)below(200));
        check_packed_bytes(block, place, 0, to);
    }
    checker_use(block, place, 0);
    return e->code;
}

/* Returns the bytes that a stage's weights occupy: in memory of this run, or in memory kept from the previous
 * run. */
static int64_t held_bytes(const struct resident_memory *memory, bool begun, uint64_t planned) {
    uint64_t held = 0, all = 0;
    for (int p = 0; p < PACKED_PARTS; p++) {
        all += memory->part[p].bytes;
        if (begun || (store_fixture.plan.keep && memory->part[p].base)) held += memory->part[p].bytes;
    }
    assert_int_equal(all, planned);
    return (int64_t)held;
}

/* Checks the live memory when a stage starts: its ring, its residents, and weights of other stages kept from
 * the previous run. */
static void check_held(int stage) {
    if (store_fixture.evicted) return;
    int64_t held = (int64_t)store_fixture.plan.stage[stage].ring_bytes;
    int64_t bounce = (int64_t)store_fixture.plan.bounce_bytes;
    int64_t host = (int64_t)store_fixture.plan.stage[stage].staging_bytes;
    for (int s = 0; s < store_fixture.plan.n_stages; s++) {
        held += held_bytes(&store_fixture.residents.memory[s], s == stage,
                           store_fixture.plan.stage[s].resident_bytes);
        host +=
            held_bytes(&store_fixture.residents.pool[s], s == stage, store_fixture.plan.stage[s].pool_bytes);
    }
    struct memory_use use = sys_memory_use(&fault_sys.sys);
    assert_int_equal(use.live_bytes[LINE_STORE], bounce + (store_fixture.separate ? host : held));
    assert_int_equal(use.live_bytes[LINE_DEVICE], store_fixture.separate ? held : 0);
}

static enum status change_stage(struct store *store, int stage, struct error *e) {
    if (stage == store_fixture.stage) return OK;
    if (store_fixture.stage >= 0) store_end_stage(store, store_fixture.stage);
    store_fixture.stage = -1;
    if (store_begin_stage(store, stage, e) != OK) return e->code;
    store_fixture.stage = stage;
    check_held(stage);
    return OK;
}

/* Runs the visits from `at` to the end, or to `stop` exclusive; returns the index reached. The last stage
 * stays open. A failed visit may be released. */
static int drive_from(struct store *store, int at, int stop, struct error *e) {
    int i = at;
    for (; i < store_fixture.visits.n_visits && i != stop; i++) {
        struct packed_place place;
        if (change_stage(store, store_fixture.visits.visits[i].stage, e) != OK ||
            store_acquire(store, i, &place, e) != OK)
            return i;
        const struct visit *v = &store_fixture.visits.visits[i];
        store_fixture.place = place;
        store_fixture.block = store_fixture.list[v->stage][v->block];
        bool ok = use_packed(store, i, &place, e) == OK;
        if (ok || below(2)) store_release(store, i);
        if (!ok) return i;
    }
    return i;
}

int drive(struct store *store, int stop, struct error *e) {
    return drive_from(store, 0, stop, e);
}

/* Computes the expected reads in order, independently of the store: every fill of the visit list. */
static int expected_reads(bool second_run, struct read_log *reads) {
    bool there[STAGES][BLOCKS] = {{0}};
    bool keeps[PACKED_PARTS];
    int n = 0, last_stage = -1, last_block = -1;
    for (int i = 0; i < store_fixture.visits.n_visits; i++) {
        int s = store_fixture.visits.visits[i].stage, b = store_fixture.visits.visits[i].block;
        const struct block *block = store_fixture.list[s][b];
        bool resident = plan_is_resident(&store_fixture.plan.stage[s], b);
        if (!block->bytes) continue;
        bool stays = resident || plan_is_pooled(&store_fixture.plan.stage[s], b);
        bool fills = stays ? !there[s][b] : s != last_stage || b != last_block;
        for (int p = 0; p < PACKED_PARTS; p++)
            keeps[p] = second_run && stays && store_fixture_kept(s, b, !resident, p);
        if (!resident || !there[s][b]) last_stage = resident ? -1 : s, last_block = b;
        there[s][b] = true;
        for (int k = 0; fills && k < block->n_segments; k++) {
            const struct packed_segment *g = &block->segments[k];
            if (keeps[packed_part_of(block, g->packed_offset)]) continue;
            assert_true(n < READS);
            const struct byte_source *source = g->source;
            bool direct = store_fixture.direct && source_is_direct(source);
            reads[n++] = (struct read_log){direct ? source->direct : source->file, (int64_t)g->file_offset,
                                           (int64_t)g->bytes};
        }
    }
    return n;
}

static bool is_direct(int file) {
    for (int i = 0; i < store_fixture.files.index.n_sources; i++)
        if (file == store_fixture.files.index.sources[i].direct) return true;
    return false;
}

/* Checks invariant I5 of store.h: a single reader makes exactly the expected reads, in order. Direct reads
 * begin and end at block boundaries. */
static void check_order(const struct read_log *expected, int n) {
    int64_t done = 0;
    int at = 0;
    for (int i = 0; i < memory_checker.n_reads; i++) {
        const struct read_log *read = &memory_checker.reads[i];
        assert_true(at < n);
        int64_t from = expected[at].offset + done, end = expected[at].offset + expected[at].bytes;
        bool direct = is_direct(read->file);
        assert_int_equal(read->file, expected[at].file);
        assert_int_equal(read->offset, direct ? from / SYS_DIRECT_BLOCK * SYS_DIRECT_BLOCK : from);
        done += (direct && read->offset + read->bytes > end ? end : read->offset + read->bytes) - from;
        if (done == expected[at].bytes) at++, done = 0;
    }
    assert_int_equal(at, n);
}

/* Checks the number of bytes read, and the number of bytes read with direct I/O. */
static void check_reads(bool second_run, const struct store_counters *counters) {
    static struct read_log expected[READS];
    int n = expected_reads(second_run, expected);
    int64_t all = 0, direct = 0, moved = 0;
    for (int i = 0; i < n; i++) all += expected[i].bytes;
    for (int i = 0; i < n; i++) direct += is_direct(expected[i].file) ? expected[i].bytes : 0;
    for (int i = 0; i < memory_checker.n_reads; i++) moved += memory_checker.reads[i].bytes;
    if (!fault_sys.short_reads && !direct)
        assert_int_equal(moved, all); /* a short read is continued by a further read */
    /* The order of direct reads through staging is not checked, because their pieces overlap by a disk block.
     */
    if (store_fixture.readers <= 1 && !(store_fixture.separate && store_fixture.direct))
        check_order(expected, n);
    assert_int_equal(counters->bytes_read, all);
    assert_int_equal(counters->bytes_direct, direct);
}

int64_t keepable_bytes(int s) {
    return (int64_t)(store_fixture.plan.stage[s].resident_bytes + store_fixture.plan.stage[s].pool_bytes);
}

void run_whole(bool second_run) {
    struct error e = {0};
    int64_t most = memory_checker.pages_live,
            kept = 0; /* memory kept from the previous run stays until the new run lays out the stage */
    struct store *store = store_fixture_open(&e);
    assert_ok(&e);
    assert_int_equal(drive(store, -1, &e), e.code ? -1 : store_fixture.visits.n_visits);
    assert_ok(&e);
    struct store_counters counters = store_count(store);
    /* The reader may split reads of strided weights, so their reads are not compared. */
    if (!store_fixture_sliced) check_reads(second_run, &counters);
    if (!store_fixture.separate) assert_int_equal(counters.bytes_moved, counters.bytes_read);
    store_end_stage(store, store_fixture.stage);
    store_close(store);
    for (int s = 0; s < store_fixture.plan.n_stages; s++) kept += keepable_bytes(s);
    for (int s = 0; s < store_fixture.plan.n_stages; s++) {
        const struct plan_stage *p = &store_fixture.plan.stage[s];
        int64_t takes = (int64_t)(p->ring_bytes + p->staging_bytes + store_fixture.plan.bounce_bytes) +
                        (store_fixture.plan.keep ? kept : keepable_bytes(s));
        if (takes > most) most = takes;
    }
    if (second_run)
        most += (int64_t)plan_pages((uint64_t)most / 64) +
                2 * PLAN_PAGE; /* moving kept blocks takes extra pages */
    assert_true(memory_checker.pages_peak <= most);
    assert_no_memory_violation();
    for (int s = 0; s < STAGES; s++) store_fixture.same_adapters[s] = true; /* until adapters change */
    store_fixture.last_plan = store_fixture.plan;
}

int next_evaluation_start(int from) {
    for (int i = from; i < store_fixture.visits.n_visits; i++) {
        const struct visit *v = &store_fixture.visits.visits[i];
        if (i && v->evaluation > 0 && v[-1].stage == v->stage && v[-1].evaluation < v->evaluation) return i;
    }
    return -1;
}

void reduced_plan(struct plan *reduced) {
    *reduced = store_fixture.plan;
    for (int s = 0; s < reduced->n_stages; s++) {
        uint64_t largest = 0;
        for (int b = 0; b < store_fixture.stages[s].n_blocks; b++) {
            if (below(2)) plan_set_resident(&reduced->stage[s], b, false);
            if (!plan_is_resident(&reduced->stage[s], b) && store_fixture.blocks[s][b].bytes > largest)
                largest = store_fixture.blocks[s][b].bytes;
        }
        if (reduced->stage[s].ring_bytes < plan_pages(largest))
            reduced->stage[s].ring_bytes = plan_pages(largest);
        if (below(3)) reduced->stage[s].ring_bytes += PLAN_PAGE * below(8);
        if (store_fixture.separate)
            reduced->stage[s].staging_bytes = store_fixture.plan.stage[s].staging_bytes;
    }
    plan_evaluate(&store_fixture.need, reduced);
}

static bool holds_residents(void) {
    for (int i = 0; i < store_fixture.plan.n_stages * PACKED_PARTS; i++)
        if (store_fixture.residents.memory[i / PACKED_PARTS].part[i % PACKED_PARTS].base) return true;
    return false;
}

int drive_replanned(struct store *store, int *n_freed, struct error *e) {
    static struct plan reduced[2];
    int at = 0, seam = 0, n = 0;
    for (; n < 2 && (seam = next_evaluation_start(seam + 1)) >= 0; n++) {
        drive_from(store, at, seam, e);
        assert_ok(e);
        at = seam;
        reduced_plan(&reduced[n]);
        int64_t before = memory_checker.pages_live;
        bool held = holds_residents();
        store_replan(store, &reduced[n], seam, e);
        assert_ok(e);
        if (n_freed) *n_freed += memory_checker.pages_live < before && held;
        store_fixture.plan = reduced[n]; /* the checker compares later stages with the reduced plan */
        store_fixture.evicted = true;
    }
    drive_from(store, at, -1, e);
    assert_ok(e);
    return n;
}
