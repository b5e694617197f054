/* Invariant I3: a copy to the device waits for the release of the bytes that it overwrites, and for no later
 * event. The test device records the event that each copy waits for, and compares it with the earliest
 * sufficient event, computed from the recorded uses of each byte. Uses no clock. Builds without oneDNN. */
#include "test/lib/check.h"
#include "test/lib/store_fixture.h"

enum { USES_MAX = 1 << 14 };

/* A range of device memory that a visit used; `event` was recorded when the visit released the range. */
struct use {
    const char *from, *to;
    uint64_t event;
};

/* The test device. It copies at once, and the test decides which operators have finished. */
static struct waits {
    struct device device; /* first member, because struct device * is cast to struct waits * */
    pthread_mutex_t lock;
    struct use uses[USES_MAX];
    int n_uses;
    /* newest: the last recorded event. passed: the last event that the host has waited for. */
    uint64_t newest, passed;
    uint64_t fences;
    /* error counts: copies that wait for an event too early or too late, memory freed while in use */
    long early, late, freed_in_use;
    long could_be_early, could_be_late; /* copies that could have waited too early or too late */
} waits;

/* Returns the event, or 0 if the device has already passed the event, so that the event delays no copy. */
static uint64_t pending(uint64_t event) {
    return event > waits.passed ? event : 0;
}

static uint64_t earliest_event(const char *from, const char *to) {
    uint64_t least = 0;
    for (int i = 0; i < waits.n_uses; i++) {
        const struct use *r = &waits.uses[i];
        if (r->from < to && from < r->to && r->event > least) least = r->event;
    }
    return pending(least);
}

/* Returns whether a plan setting (depth, no_wrap, waits) may make copies wait longer than necessary. */
static bool copier_is_restricted(void) {
    bool held = false;
    for (int s = 0; s < store_fixture.plan.n_stages; s++) {
        const struct plan_stage *p = &store_fixture.plan.stage[s];
        held = held || p->depth || p->no_wrap || p->waits;
    }
    return held;
}

static void note_copy(const char *to, size_t bytes, uint64_t event) {
    uint64_t least = earliest_event(to, to + bytes);
    waits.early += pending(event) < least;
    waits.late += copier_is_restricted() ? event > waits.newest : pending(event) > least;
    waits.could_be_early += least > 0;
    waits.could_be_late += !copier_is_restricted() && least < pending(waits.newest);
}

/* Counts an error if memory is freed while a visit still uses the memory. */
static void note_freed(const char *from, size_t bytes) {
    pthread_mutex_lock(&waits.lock);
    waits.freed_in_use += earliest_event(from, from + bytes) > 0;
    pthread_mutex_unlock(&waits.lock);
}

static void *waits_reserve(struct device *device, size_t bytes) {
    return fault_sys.sys.reserve(&fault_sys.sys, bytes);
}

static int waits_commit(struct device *device, void *memory, size_t bytes) {
    return fault_sys.sys.commit(&fault_sys.sys, LINE_DEVICE, memory, bytes);
}

static void waits_decommit(struct device *device, void *memory, size_t bytes) {
    note_freed(memory, bytes);
    fault_sys.sys.decommit(&fault_sys.sys, LINE_DEVICE, memory, bytes);
}

static void waits_unreserve(struct device *device, void *memory, size_t bytes) {
    note_freed(memory, bytes);
    fault_sys.sys.unreserve(&fault_sys.sys, memory, bytes);
}

static uint64_t waits_record_event(struct device *device) {
    pthread_mutex_lock(&waits.lock);
    uint64_t event = ++waits.newest;
    assert_true(waits.n_uses + PACKED_PARTS <= USES_MAX);
    for (int p = 0; p < PACKED_PARTS; p++) {
        const char *from = store_fixture.place.part[p];
        uint64_t bytes = packed_part_bytes(store_fixture.block, p);
        if (bytes) waits.uses[waits.n_uses++] = (struct use){from, from + bytes, event};
    }
    pthread_mutex_unlock(&waits.lock);
    return event;
}

static uint64_t waits_copy(struct device *device, void *to, const void *from, size_t bytes, uint64_t event) {
    pthread_mutex_lock(&waits.lock);
    note_copy(to, bytes, event);
    memcpy(to, from, bytes);
    uint64_t fence = ++waits.fences;
    pthread_mutex_unlock(&waits.lock);
    return fence;
}

static double waits_await_copy(struct device *device, uint64_t fence) {
    return 0;
}

static void waits_wait_copy(struct device *device, uint64_t fence) {
}

static void waits_finish(struct device *device) {
    pthread_mutex_lock(&waits.lock);
    waits.passed = waits.newest;
    pthread_mutex_unlock(&waits.lock);
}

static const struct device_memory waits_memory = {
    .reserve = waits_reserve,
    .commit = waits_commit,
    .decommit = waits_decommit,
    .unreserve = waits_unreserve,
    .record_event = waits_record_event,
    .copy = waits_copy,
    .await_copy = waits_await_copy,
    .wait_copy = waits_wait_copy,
    .finish = waits_finish,
};

static void waits_destroy(struct device *device) {
}

static struct device *waits_device(struct error *e) {
    return &waits.device;
}

/* Builds a random model on the test device. Two of three plans do not restrict how far copies run ahead. */
static void waits_model(uint64_t seed) {
    store_fixture_make(seed);
    store_fixture.separate = store_fixture.need.separate = true;
    make_plan(below(3) == 0);
    bool free_plan = below(4) > 0;
    for (int s = 0; s < store_fixture.plan.n_stages && free_plan; s++) {
        struct plan_stage *p = &store_fixture.plan.stage[s];
        p->depth = p->no_wrap = p->waits = 0;
    }
    memory_checker_restart();
    waits.n_uses = 0;
    waits.newest = waits.passed = waits.fences = 0;
}

static void begin_counting(void) {
    waits.early = waits.late = waits.freed_in_use = waits.could_be_early = waits.could_be_late = 0;
}

static void check_counts(long least) {
    assert_int_equal(waits.early, 0);
    assert_int_equal(waits.late, 0);
    assert_int_equal(waits.freed_in_use, 0);
    assert_true(waits.could_be_early > least && waits.could_be_late > least);
}

/* Runs one session twice; the second run may reuse residents and host memory pools. */
TEST(copies_wait_for_destination_only) {
    begin_counting();
    for (uint64_t i = 0; i < (thorough() ? 600 : 120); i++) {
        waits_model(seed_base + 9000 + i);
        run_whole(false);
        memory_checker_restart();
        run_whole(store_fixture.plan.keep);
        store_fixture_remove();
    }
    check_counts(1000);
}

/* Evicting residents during a run enlarges and moves rings, so other blocks reuse freed device memory. */
TEST(eviction_keeps_copy_waits_minimal) {
    begin_counting();
    int replanned = 0;
    for (uint64_t i = 0; i < (thorough() ? 600 : 120); i++) {
        struct error e = {0};
        waits_model(seed_base + 19000 + i);
        struct store *store = store_fixture_open(&e);
        replanned += drive_replanned(store, NULL, &e);
        store_close(store);
        store_fixture_remove();
    }
    check_counts(500);
    assert_true(replanned > 50);
}

int main(void) {
    waits.device = (struct device){.name = "waits", .memory = &waits_memory, .destroy = waits_destroy};
    pthread_mutex_init(&waits.lock, NULL);
    store_fixture_device = waits_device;
    return run_seeded_tests();
}
