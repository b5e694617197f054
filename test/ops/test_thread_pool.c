/* Thread pool: each item runs once, no member runs two items at a time, a call does not wait for threads that
 * have not started, no work continues after the call. Members write unsynchronised memory, so ThreadSanitizer
 * finds races. */
#include "test/lib/seeded.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/thread_pool.h"

enum { ITEMS_MAX = 3000, MEMBERS_MAX = 9 };

static struct sys machine;
static struct error problem;

struct counted {
    int *times;
    atomic_bool *inside;
    atomic_int *wrong;
    int64_t n;
    int members, slow; /* members: number of pool threads; slow: every slow-th item yields to other threads */
};

static void count_items(const void *context, int64_t first, int64_t end, int member) {
    const struct counted *c = context;
    if (member < 0 || member >= c->members || member >= c->n || atomic_exchange(&c->inside[member], true))
        atomic_fetch_add(c->wrong, 1);
    for (int64_t i = first; i < end; i++) {
        c->times[i]++;
        if (c->slow && i % c->slow == 0) sched_yield();
    }
    atomic_store(&c->inside[member], false);
}

static void run_counted(struct thread_pool *thread_pool, int64_t n, int slow) {
    static int times[ITEMS_MAX];
    static atomic_bool inside[MEMBERS_MAX];
    atomic_int wrong = 0;
    memset(times, 0, sizeof times);
    struct counted c = {times, inside, &wrong, n, thread_pool_members(thread_pool), slow};
    thread_pool_run(thread_pool, n, count_items, &c);
    assert_int_equal(atomic_load(&wrong), 0);
    for (int64_t i = 0; i < ITEMS_MAX; i++) assert_int_equal(times[i], i < n);
}

TEST(every_item_once) {
    static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 1001, ITEMS_MAX};
    for (int members = 1; members <= MEMBERS_MAX; members += members < 3 ? 1 : 3) {
        struct thread_pool *thread_pool = thread_pool_open(&machine, members, &problem);
        run_counted(thread_pool, 100, 0); /* no thread of the pool has started yet */
        assert_int_equal(thread_pool_start(thread_pool, &problem), OK);
        for (int round = 0; round < 300; round++) run_counted(thread_pool, counts[round % 8], round % 4);
        thread_pool_close(thread_pool);
    }
    assert_int_equal(sys_memory_use(&machine).live_bytes[LINE_HOST], 0);
}

static int start_none(struct sys *sys, struct sys_thread **thread, void (*body)(void *), void *argument) {
    *thread = NULL;
    return 0;
}

static int start_two(struct sys *sys, struct sys_thread **thread, void (*body)(void *), void *argument) {
    static int n;
    return n++ % 3 == 2 ? -11 : machine.thread_start(sys, thread, body, argument);
}

TEST(missing_threads_are_not_awaited) {
    struct sys sys = machine;
    sys.thread_start = start_none;
    struct thread_pool *thread_pool = thread_pool_open(&sys, 4, &problem);
    assert_int_equal(thread_pool_start(thread_pool, &problem), OK);
    for (int i = 0; i < 10; i++) run_counted(thread_pool, 1000, 0);
    thread_pool_close(thread_pool);
}

TEST(failed_starts_are_retried) {
    struct sys sys = machine;
    sys.thread_start = start_two;
    struct thread_pool *thread_pool = thread_pool_open(&sys, 8, &problem);
    assert_int_equal(thread_pool_start(thread_pool, &problem), MEMORY);
    assert_non_null(strstr(problem.what, "thread 4 of 8"));
    assert_non_null(strstr(problem.expected, "-t 3"));
    run_counted(thread_pool, 1000, 3);
    int tries = 1; /* later calls start the missing threads; two of three starts succeed */
    do problem = (struct error){0};
    while (thread_pool_start(thread_pool, &problem) != OK && ++tries < 9);
    assert_int_equal(tries, 3);
    run_counted(thread_pool, 1000, 8);
    thread_pool_close(thread_pool);
    problem = (struct error){0};
}

int main(void) {
    sys_init_machine(&machine);
    return run_all_tests(NULL, NULL);
}
