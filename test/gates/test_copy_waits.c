/* What a copy waits for: the release of what lay where it goes, and nothing later (I3). No clock: a device
 * memory writes down the event that each copy was given, and compares it with the least that would do, which
 * it works out byte by byte from what was used when. Builds without oneDNN. */
#include "test/lib/check.h"
#include "test/lib/store_fixture.h"

enum { ROOMS = 1 << 14 };

/* Memory that a visit used, until its release with this event. */
struct room {
    const char *from, *to;
    uint64_t event;
};

/* Copies are done when they are asked for; operators are as far as the test says. */
static struct waits {
    struct device device; /* first */
    pthread_mutex_t lock; /* guards everything below */
    struct room rooms[ROOMS];
    int n_rooms;
    uint64_t newest, passed; /* events: recorded; that the host has waited for */
    uint64_t fences;
    long early, late, handed_on; /* faults: see note_copy and note_given_back */
    long exact, could_be_early, could_be_late;
} waits;

/* An event that has passed holds nobody up. */
static uint64_t still(uint64_t event) {
    return event > waits.passed ? event : 0;
}

static uint64_t least_event(const char *from, const char *to) {
    uint64_t least = 0;
    for (int i = 0; i < waits.n_rooms; i++) {
        const struct room *r = &waits.rooms[i];
        if (r->from < to && from < r->to && r->event > least) least = r->event;
    }
    return still(least);
}

/* A plan that holds the copier back may make it wait for the newest release. */
static bool held_back(void) {
    bool held = false;
    for (int s = 0; s < store_fixture.plan.n_stages; s++) {
        const struct plan_stage *p = &store_fixture.plan.stage[s];
        held = held || p->depth || p->no_wrap || p->waits;
    }
    return held;
}

static void note_copy(const char *to, size_t bytes, uint64_t event) {
    uint64_t least = least_event(to, to + bytes);
    waits.early += still(event) < least;
    waits.late += held_back() ? event > waits.newest : still(event) > least;
    waits.exact += !held_back();
    waits.could_be_early += least > 0;
    waits.could_be_late += !held_back() && least < still(waits.newest);
}

/* Pages that another may have next: nobody may still be using them. */
static void note_given_back(const char *from, size_t bytes) {
    pthread_mutex_lock(&waits.lock);
    waits.handed_on += least_event(from, from + bytes) > 0;
    pthread_mutex_unlock(&waits.lock);
}

/* ---- the device ---- */

static void *waits_reserve(struct device *device, size_t bytes) {
    (void)device;
    return fault_sys.sys.reserve(&fault_sys.sys, bytes);
}

static int waits_commit(struct device *device, void *memory, size_t bytes) {
    (void)device;
    return fault_sys.sys.commit(&fault_sys.sys, LINE_DEVICE, memory, bytes);
}

static void waits_decommit(struct device *device, void *memory, size_t bytes) {
    (void)device;
    note_given_back(memory, bytes);
    fault_sys.sys.decommit(&fault_sys.sys, LINE_DEVICE, memory, bytes);
}

static void waits_unreserve(struct device *device, void *memory, size_t bytes) {
    (void)device;
    note_given_back(memory, bytes);
    fault_sys.sys.unreserve(&fault_sys.sys, memory, bytes);
}

/* At the release of the visit at hand. */
static uint64_t waits_record_event(struct device *device) {
    (void)device;
    pthread_mutex_lock(&waits.lock);
    uint64_t event = ++waits.newest;
    assert_true(waits.n_rooms + PACKED_PARTS <= ROOMS);
    for (int p = 0; p < PACKED_PARTS; p++) {
        const char *from = store_fixture.place.part[p];
        uint64_t bytes = packed_part_bytes(store_fixture.block, p);
        if (bytes) waits.rooms[waits.n_rooms++] = (struct room){from, from + bytes, event};
    }
    pthread_mutex_unlock(&waits.lock);
    return event;
}

static uint64_t waits_copy(struct device *device, void *to, const void *from, size_t bytes, uint64_t event) {
    (void)device;
    pthread_mutex_lock(&waits.lock);
    note_copy(to, bytes, event);
    memcpy(to, from, bytes);
    uint64_t fence = ++waits.fences;
    pthread_mutex_unlock(&waits.lock);
    return fence;
}

static double waits_await_copy(struct device *device, uint64_t fence) {
    (void)device, (void)fence;
    return 0;
}

static void waits_wait_copy(struct device *device, uint64_t fence) {
    (void)device, (void)fence;
}

static void waits_finish(struct device *device) {
    (void)device;
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
    (void)device;
}

static struct device *waits_device(struct error *e) {
    (void)e;
    return &waits.device;
}

/* ---- runs ---- */

/* A world on this device; most of them under plans that hold nothing back. */
static void waits_world(uint64_t seed) {
    store_fixture_make(seed);
    store_fixture.separate = store_fixture.need.separate = true;
    make_plan(below(3) == 0);
    bool free_plan = below(4) > 0;
    for (int s = 0; s < store_fixture.plan.n_stages && free_plan; s++) {
        struct plan_stage *p = &store_fixture.plan.stage[s];
        p->depth = p->no_wrap = p->waits = 0;
    }
    memory_checker_restart();
    waits.n_rooms = 0;
    waits.newest = waits.passed = waits.fences = 0;
}

static void report(const char *what) {
    printf("%s: %ld copies under plans that hold nothing back; %ld of all could have been early, %ld late\n",
           what, waits.exact, waits.could_be_early, waits.could_be_late);
    printf(
        "  %ld do not wait for the release of their room, %ld wait for more; %ld times memory was given back "
        "under a visit\n",
        waits.early, waits.late, waits.handed_on);
    assert_int_equal(waits.early, 0);
    assert_int_equal(waits.late, 0);
    assert_int_equal(waits.handed_on, 0);
}

static void begin_counting(void) {
    waits.early = waits.late = waits.handed_on = 0;
    waits.exact = waits.could_be_early = waits.could_be_late = 0;
}

/* Two runs of a session: the second may find residents and pools. */
static void test_least_events(void **state) {
    (void)state;
    begin_counting();
    for (uint64_t i = 0; i < (thorough() ? 600 : 120); i++) {
        waits_world(seed_base + 9000 + i);
        run_whole(false);
        memory_checker_restart();
        run_whole(store_fixture.plan.keep);
        store_fixture_remove();
    }
    report("whole runs");
    assert_true(waits.could_be_early > 1000 && waits.could_be_late > 1000);
}

/* Residents evicted in mid-run, rings that grow and move: what they leave is room for others. */
static void test_replanned(void **state) {
    (void)state;
    static struct plan reduced[2];
    begin_counting();
    int replanned = 0;
    for (uint64_t i = 0; i < (thorough() ? 600 : 120); i++) {
        struct error e = {0};
        waits_world(seed_base + 19000 + i);
        struct store *store = store_fixture_open(&e);
        int at = 0, seam = 0;
        for (int n = 0; n < 2 && (seam = seam_after(seam + 1)) >= 0; n++, replanned++) {
            drive_from(store, at, seam, &e);
            at = seam;
            reduced_plan(&reduced[n]);
            store_replan(store, &reduced[n], seam, &e);
            assert_ok(&e);
            store_fixture.plan = reduced[n];
            store_fixture.evicted = true;
        }
        drive_from(store, at, -1, &e);
        assert_ok(&e);
        store_close(store);
        store_fixture_remove();
    }
    report("replanned");
    assert_true(replanned > 50 && waits.could_be_early > 500 && waits.could_be_late > 500);
}

int main(void) {
    waits.device = (struct device){.name = "waits", .memory = &waits_memory, .destroy = waits_destroy};
    pthread_mutex_init(&waits.lock, NULL);
    store_fixture_device = waits_device;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_events),
        cmocka_unit_test(test_replanned),
    };
    return seeded_run(tests, sizeof tests / sizeof *tests);
}
