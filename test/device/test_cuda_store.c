/* The weight store on the CUDA device, on a GPU or under the emulator: copies by reader threads, the events
 * that copies wait for, and operators that read the copied weights. The host does not wait between a visit
 * and the end of its stage, so only events order the work. A missing event gives wrong values, and a data
 * race under ThreadSanitizer. SEED in the environment changes all random cases; ONLY is a pattern of test
 * names. */
#include "test/lib/store_adapters.h"

#include "kernels/cuda/cuda.h"
#include "test/device/emulated.h"
#include "test/lib/cmocka_tests.h"

#ifdef __SANITIZE_THREAD__
enum { WORLDS = 6 };
#elif defined(__SANITIZE_ADDRESS__)
enum { WORLDS = 12 };
#else
enum { WORLDS = 40 };
#endif
enum { F32_WEIGHTS_MAX = 4096, WORKSPACE = 1 << 16 };

struct f32_weight {
    const struct block *block;
    int weight;
    const float *values;
};

static struct results {
    char *memory, *workspace; /* memory and workspace point into mapped host memory */
    uint64_t used, bytes;
    struct f32_weight list[F32_WEIGHTS_MAX];
    int n;
    long compared;
} results;

static struct device *open_cuda(struct error *e) {
    struct device *device = cuda_open(&fault_sys.sys, 0, e);
    if (device && device->memory->preallocate) device->memory->preallocate(device, 0, e);
    return device;
}

static struct device *device(void) {
    return store_fixture.residents.device;
}

static const struct tensor *part_of(const struct raw_weights *weights, int i) {
    return weights->part[i].rank ? &weights->part[i] : NULL;
}

/* Converts every weight of the visit to f32 as soon as the weight's bytes have arrived. */
static void compute_visit(struct store *store, int visit, struct packed_place place, struct error *e) {
    const struct visit *v = &store_fixture.visits.visits[visit];
    const struct block *block = store_fixture.list[v->stage][v->block];
    struct raw_weights weights = {0};
    struct context x = {.device = device(),
                        .precision = PRECISION_BF16,
                        .workspace = results.workspace,
                        .workspace_bytes = WORKSPACE,
                        .error = e};
    if (!block->bytes) return;
    block_point(block, place, &weights);
    for (int i = 0; i < 3 && part_of(&weights, i); i++) {
        struct tensor from = weights.part[i], to = tensor_make(NULL, DTYPE_F32, 1, from.dim);
        if (store_await(store, visit, from.weight_end, e) != OK) return;
        to.data = results.memory + results.used;
        results.used += align_up((uint64_t)tensor_bytes(&to), ARENA_ALIGN);
        assert_true(results.used <= results.bytes && results.n < F32_WEIGHTS_MAX);
        op_copy(&x, to, from);
        results.list[results.n++] = (struct f32_weight){block, i, to.data};
    }
    store_await(store, visit, block->bytes, e);
}

/* Compares the converted weights with the model files. */
static void compare(void) {
    struct error e = {0};
    double stalled = 0;
    device()->memory->wait(device(), &stalled, &e);
    assert_ok(&e);
    assert_true(stalled >= 0);
    for (int k = 0; k < results.n; k++) {
        const struct f32_weight *w = &results.list[k];
        struct raw_weights weights = {0};
        static char packed[1 << 20];
        assert_true(w->block->bytes <= sizeof packed);
        for (int i = 0; i < w->block->n_segments; i++) {
            const struct packed_segment *g = &w->block->segments[i];
            memcpy(packed + g->packed_offset, source_contents(g->source, g->file_offset), g->bytes);
        }
        block_point(w->block, packed_contiguous(w->block, packed), &weights);
        const struct tensor *t = &weights.part[w->weight];
        for (int64_t i = 0; i < tensor_elements(t); i++) {
            uint32_t bits = 0;
            size_t size = (size_t)dtype_bits(t->dtype) / 8;
            memcpy((char *)&bits + sizeof bits - size, (char *)t->data + i * (int64_t)size, size);
            if (memcmp(&bits, &w->values[i], sizeof bits))
                fail_msg("wrong bytes in %s, weight %d, value %lld", w->block->name, w->weight, (long long)i);
        }
        results.compared += tensor_elements(t);
    }
    results.used = 0;
    results.n = 0;
}

static void leave_stage(struct store *store) {
    if (store_fixture.stage < 0) return;
    compare();
    store_end_stage(store, store_fixture.stage);
    store_fixture.stage = -1;
}

static void compute_from(struct store *store, int at, int stop, struct error *e) {
    for (int i = at; i < store_fixture.visits.n_visits && i != stop; i++) {
        struct packed_place place;
        int stage = store_fixture.visits.visits[i].stage;
        if (stage != store_fixture.stage) {
            leave_stage(store);
            assert_int_equal(store_begin_stage(store, stage, e), OK);
            store_fixture.stage = stage;
        }
        store_acquire(store, i, &place, e);
        assert_ok(e);
        compute_visit(store, i, place, e);
        assert_ok(e);
        store_release(store, i);
    }
}

/* Allocates f32 space for every weight value of every visit. */
static void open_results(void) {
    results.bytes = ARENA_ALIGN;
    for (int i = 0; i < store_fixture.visits.n_visits; i++) {
        const int32_t *dims =
            store_fixture.dims[store_fixture.visits.visits[i].stage][store_fixture.visits.visits[i].block];
        for (int k = 0; k < 3; k++) results.bytes += align_up(sizeof(float) * (uint64_t)dims[k], ARENA_ALIGN);
    }
    results.memory = device()->memory->alloc_mapped(device(), results.bytes);
    results.workspace = device()->memory->alloc_mapped(device(), WORKSPACE);
    assert_true(results.memory && results.workspace);
}

static void close_results(void) {
    device()->memory->free_mapped(device(), results.memory, results.bytes);
    device()->memory->free_mapped(device(), results.workspace, WORKSPACE);
}

/* Opens the store of the model and space for its results. */
static struct store *open_store(void) {
    struct error e = {0};
    struct store *store = store_fixture_open(&e);
    assert_ok(&e);
    open_results();
    return store;
}

static void close_store(struct store *store) {
    store_close(store);
    close_results();
}

/* Builds random models from `seed` on until device memory is separate from RAM; returns the next seed. */
static uint64_t next_device_model(uint64_t seed) {
    for (store_fixture_make(++seed); !store_fixture.separate; store_fixture_make(++seed))
        store_fixture_remove();
    return seed;
}

/* Several runs of a session: their weights have the right values, also after adapters change and after fewer
 * blocks stay resident in device memory. */
TEST(copies_precede_operators) {
    uint64_t seed = seed_base;
    for (int i = 0; i < WORLDS; i++) {
        seed = next_device_model(seed);
        if (below(2)) make_plan(true);
        for (int run = 0; run < 4; run++) {
            struct error e = {0};
            if (run == 2) store_fixture_change_adapters(30);
            if (run == 3) store_fixture_keep_fewer();
            struct store *store = store_fixture_open(&e);
            assert_ok(&e);
            if (run == 0) open_results();
            compute_from(store, 0, -1, &e);
            leave_stage(store);
            store_close(store);
        }
        close_results();
        store_fixture_remove();
    }
    long pageable = emulated_pageable_copies();
    if (pageable) fail_msg("%ld copies from memory that is not pinned", pageable);
    printf("  %ld values compared\n", results.compared);
    assert_true(results.compared > 10000);
}

/* Resident blocks are evicted between two evaluations while copies for the next evaluation are in flight. */
TEST(eviction_keeps_values) {
    uint64_t seed = seed_base + 5000;
    int replanned = 0;
    for (int i = 0; i < WORLDS; i++) {
        static struct plan reduced;
        struct error e = {0};
        seed = next_device_model(seed);
        struct store *store = open_store();
        int seam = next_evaluation_start(1);
        compute_from(store, 0, seam, &e);
        if (seam >= 0) {
            reduced_plan(&reduced);
            assert_int_equal(store_replan(store, &reduced, seam, &e), OK);
            compute_from(store, seam, -1, &e);
            replanned++;
        }
        leave_stage(store);
        close_store(store);
        store_fixture_remove();
    }
    assert_true(replanned > WORLDS / 3);
}

TEST(close_during_copies) {
    uint64_t seed = seed_base + 9000;
    for (int i = 0; i < WORLDS; i++) {
        struct error e = {0};
        seed = next_device_model(seed);
        struct store *store = open_store();
        compute_from(store, 0, (int)below((uint64_t)store_fixture.visits.n_visits), &e);
        double stalled = 0;
        if (below(2)) device()->memory->wait(device(), &stalled, &e);
        if (below(2)) leave_stage(store);
        device()->memory->finish(device());
        results.used = 0;
        results.n = 0;
        close_store(store);
        store_fixture_remove();
    }
}

/* Runs while at most `limit` bytes of host memory can be pinned; known: the plan was made with this limit. */
static struct store_counters run_limited(int64_t limit, bool known) {
    struct error e = {0};
    if (known) plan_limit_pins(&store_fixture.need, (uint64_t)limit);
    if (known) plan_evaluate(&store_fixture.need, &store_fixture.plan);
    struct store *store = open_store();
    emulated_pinnable(limit);
    compute_from(store, 0, -1, &e);
    leave_stage(store);
    struct store_counters counters = store_count(store);
    close_store(store);
    emulated_pinnable(-1);
    return counters;
}

/* With a known pin limit, unpinned pool blocks pass through staging and no copy reads unpinned memory.
 * With an unknown limit, or if not even staging can be pinned, copies read unpinned memory. Such copies are
 * counted and give right values. */
TEST(pin_limit_uses_staging) {
    uint64_t seed = seed_base + 13000;
    int64_t windowed = 0, unpinned = 0;
    if (!emulated()) skip();
    for (int i = 0; i < 3 * WORLDS; i++) {
        seed = next_device_model(seed);
        int64_t staging = 0, pools = 0; /* bytes: maximum over the stages; sum over the stages */
        for (int s = 0; s < store_fixture.plan.n_stages; s++) {
            const struct plan_stage *stage = &store_fixture.plan.stage[s];
            staging = (int64_t)stage->staging_bytes > staging ? (int64_t)stage->staging_bytes : staging;
            pools += (int64_t)stage->pool_bytes;
        }
        int64_t limit = staging + (int64_t)below((uint64_t)pools / PLAN_PAGE + 1) * PLAN_PAGE;
        bool known = i % 3;
        if (i % 3 == 2) limit = (int64_t)below(2) * staging / 2 / PLAN_PAGE * PLAN_PAGE;
        long pageable = emulated_pageable_copies();
        struct store_counters counters = run_limited(limit, known);
        pageable = emulated_pageable_copies() - pageable;
        assert_int_equal(pageable > 0, counters.bytes_unpinned > 0);
        if (i % 3 == 1) assert_int_equal(counters.bytes_unpinned, 0);
        windowed += counters.bytes_windowed;
        unpinned += counters.bytes_unpinned;
        store_fixture_remove();
    }
    printf("  unpinned pool bytes: %lld copied through staging, %lld directly\n", (long long)windowed,
           (long long)unpinned);
    assert_true(windowed > 100000 && unpinned > 100000);
}

/* A pin call that fails affects only its own chunk of host memory. */
TEST(failed_pin_loses_one_chunk) {
    enum { CHUNKS = 5 };
    struct error e = {0};
    struct sys sys;
    uint64_t ends;
    if (!emulated()) skip();
    sys_init_machine(&sys);
    struct device *gpu = cuda_open(&sys, 0, &e);
    assert_ok(&e);
    /* address space is only reserved: the emulator never accesses it */
    char *memory = sys.reserve(&sys, CHUNKS * (size_t)PINS_CHUNK);
    struct pins pins = {0};
    pins_begin(&pins, gpu, memory, CHUNKS * (uint64_t)PINS_CHUNK - PLAN_PAGE);
    for (uint64_t i = 0; i < CHUNKS; i++) {
        uint64_t at = i * PINS_CHUNK + 17, end = (i + 1) * PINS_CHUNK - (i == CHUNKS - 1 ? PLAN_PAGE : 0);
        if (i == 2) emulated_fail(EMULATED_PIN, 1);
        assert_int_equal(pins_state(&pins, at, &ends), PIN_NOT_YET);
        assert_true(pins_claim(&pins, at));
        assert_false(pins_claim(&pins, at));
        pins_pin(&pins, at);
        assert_int_equal(pins_state(&pins, at, &ends), i == 2 ? PIN_REFUSED : PIN_DONE);
        assert_false(pins_claim(&pins, at)); /* each chunk of host memory is claimed only once */
        assert_int_equal(ends, end);
        assert_int_equal(pins_refuse(&pins), i >= 2);
    }
    uint64_t last_byte = CHUNKS * (uint64_t)PINS_CHUNK - 1;
    assert_int_equal(pins_state(&pins, last_byte, &ends), PIN_REFUSED);
    assert_false(pins_claim(&pins, last_byte));
    assert_int_equal(emu_read_counts().registered_bytes, (CHUNKS - 1) * (uint64_t)PINS_CHUNK - PLAN_PAGE);
    pins_end(&pins);
    assert_int_equal(emu_read_counts().registered_bytes, 0);
    sys.unreserve(&sys, memory, CHUNKS * (size_t)PINS_CHUNK);
    gpu->destroy(gpu);
}

/* pinnable() measures the pin limit to within 64 KiB and leaves nothing pinned. */
TEST(pinnable_measures_limit) {
    static const int64_t limits[] = {0, 4 << 10, 1 << 20, 100 << 20, (int64_t)1 << 30};
    const uint64_t wanted = (uint64_t)3 << 29;
    struct sys sys;
    if (!emulated()) skip();
    sys_init_machine(&sys);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct error e = {0};
        struct device *gpu = cuda_open(&sys, 0, &e);
        assert_ok(&e);
        emulated_pinnable(limits[i]);
        uint64_t found = gpu->memory->pinnable(gpu, wanted);
        assert_true(found <= (uint64_t)limits[i] || found == 1);
        assert_true(found + (64 << 10) > (uint64_t)limits[i]);
        /* the second call of pinnable() returns the cached limit */
        assert_int_equal(gpu->memory->pinnable(gpu, (uint64_t)1 << 40), found);
        emulated_pinnable(-1);
        assert_int_equal(emu_read_counts().registered_bytes, 0);
        gpu->destroy(gpu);
        gpu = cuda_open(&sys, 0, &e);
        assert_int_equal(gpu->memory->pinnable(gpu, wanted), wanted);
        assert_int_equal(gpu->memory->pinnable(gpu, (uint64_t)1 << 40), (uint64_t)1 << 40);
        gpu->destroy(gpu);
    }
}

int main(void) {
    store_fixture_device = open_cuda;
    return run_seeded_tests();
}
