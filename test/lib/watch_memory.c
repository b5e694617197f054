#include "test/lib/watch_memory.h"

#include "engine/run/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct watch watch;
struct watched watched;

/* ---- what is counted, under the lock ---- */

static void watched_violated(const char *what) {
    if (!watched.violation[0]) snprintf(watched.violation, sizeof watched.violation, "%s", what);
}

static const struct span *span_that_overlaps(const char *from, size_t bytes, bool reading) {
    for (int i = 0; i < watched.n_spans; i++) {
        const struct span *s = &watched.spans[i];
        if (from < s->to && from + bytes > s->from && (reading || s->reading)) return s;
    }
    return NULL;
}

void span_add(const void *from, size_t bytes, bool reading) {
    const char *at = from;
    pthread_mutex_lock(&watched.lock);
    const struct span *other = span_that_overlaps(at, bytes, reading);
    if (other)
        watched_violated(other->reading && reading ? "two reads into one place"
                                                   : "a read into memory in use");
    if (watched.n_spans == SPANS_MAX)
        watched_violated("more spans than there is room for");
    else
        watched.spans[watched.n_spans++] = (struct span){at, at + bytes, reading};
    pthread_mutex_unlock(&watched.lock);
}

void span_remove(const void *from) {
    pthread_mutex_lock(&watched.lock);
    for (int i = 0; i < watched.n_spans; i++)
        if (watched.spans[i].from == from) {
            watched.spans[i] = watched.spans[--watched.n_spans];
            break;
        }
    pthread_mutex_unlock(&watched.lock);
}

int reads_under_way(void) {
    int n = 0;
    pthread_mutex_lock(&watched.lock);
    for (int i = 0; i < watched.n_spans; i++) n += watched.spans[i].reading;
    pthread_mutex_unlock(&watched.lock);
    return n;
}

static void pages_come(size_t bytes) {
    pthread_mutex_lock(&watched.lock);
    watched.pages_live += (int64_t)bytes;
    if (watched.pages_live > watched.pages_peak) watched.pages_peak = watched.pages_live;
    if (bytes % PLAN_PAGE) watched_violated("not whole pages");
    pthread_mutex_unlock(&watched.lock);
}

static void pages_go(const void *memory, size_t bytes) {
    pthread_mutex_lock(&watched.lock);
    watched.pages_live -= (int64_t)bytes;
    if (bytes % PLAN_PAGE) watched_violated("not whole pages");
    const struct span *held = span_that_overlaps(memory, bytes, true);
    if (held) watched_violated(held->reading ? "memory given back under a read" : "memory given back in use");
    pthread_mutex_unlock(&watched.lock);
}

static void address_space(int64_t bytes) {
    pthread_mutex_lock(&watched.lock);
    watched.reserved += bytes;
    pthread_mutex_unlock(&watched.lock);
}

/* Logged when it begins, by what it gives when it has ended. NULL: the log is full. */
static struct read_log *read_begins(int file, int64_t offset) {
    struct read_log *read = NULL;
    pthread_mutex_lock(&watched.lock);
    if (watched.n_reads < READS_MAX)
        *(read = &watched.reads[watched.n_reads++]) = (struct read_log){file, offset, 0};
    pthread_mutex_unlock(&watched.lock);
    return read;
}

static void read_ended(struct read_log *read, int64_t bytes) {
    pthread_mutex_lock(&watched.lock);
    if (read && bytes > 0) read->bytes = bytes;
    pthread_mutex_unlock(&watched.lock);
}

/* ---- the table's functions ---- */

static void *watched_map(struct sys *sys, enum memory_line line, size_t bytes) {
    void *memory = watched.below.map(sys, line, bytes);
    if (memory) pages_come(bytes);
    return memory;
}

static void watched_unmap(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    if (memory) pages_go(memory, bytes);
    watched.below.unmap(sys, line, memory, bytes);
}

static void *watched_reserve(struct sys *sys, size_t bytes) {
    void *memory = watched.below.reserve(sys, bytes);
    if (memory) address_space((int64_t)bytes);
    return memory;
}

static void watched_unreserve(struct sys *sys, void *memory, size_t bytes) {
    if (memory) address_space(-(int64_t)bytes);
    watched.below.unreserve(sys, memory, bytes);
}

static int watched_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    int failed = watched.below.commit(sys, line, memory, bytes);
    if (!failed) pages_come(bytes);
    return failed;
}

static void watched_decommit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    pages_go(memory, bytes);
    watched.below.decommit(sys, line, memory, bytes);
}

static void watched_discard(struct sys *sys, void *memory, size_t bytes) {
    pthread_mutex_lock(&watched.lock);
    if (span_that_overlaps(memory, bytes, true)) watched_violated("memory discarded in use or under a read");
    pthread_mutex_unlock(&watched.lock);
    watched.below.discard(sys, memory, bytes);
}

static int64_t watched_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    bool direct = fcntl(file, F_GETFL) & O_DIRECT;
    if (direct && ((uintptr_t)to | bytes | (size_t)offset) % SYS_DIRECT_BLOCK) {
        pthread_mutex_lock(&watched.lock);
        watched_violated("a direct read that is not of whole blocks");
        pthread_mutex_unlock(&watched.lock);
        return -EINVAL;
    }
    span_add(to, bytes, true);
    struct read_log *read = read_begins(file, offset);
    int64_t n = watched.below.read_at(sys, file, to, bytes, offset);
    read_ended(read, n);
    span_remove(to);
    return n;
}

void watched_init(uint64_t seed) {
    watch_init(&watch, seed);
    memset(&watched, 0, sizeof watched);
    watched.below = watch.sys;
    watch.sys.map = watched_map;
    watch.sys.unmap = watched_unmap;
    watch.sys.reserve = watched_reserve;
    watch.sys.unreserve = watched_unreserve;
    watch.sys.commit = watched_commit;
    watch.sys.decommit = watched_decommit;
    watch.sys.discard = watched_discard;
    watch.sys.read_at = watched_read_at;
    pthread_mutex_init(&watched.lock, NULL);
}

void watched_restart(void) {
    watch_restart(&watch);
    pthread_mutex_lock(&watched.lock);
    watched.n_reads = 0;
    watched.pages_peak = watched.pages_live;
    pthread_mutex_unlock(&watched.lock);
}

void assert_no_violation(void) {
    if (watched.violation[0]) fail_msg("%s", watched.violation);
}
