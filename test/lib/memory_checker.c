#include "test/lib/memory_checker.h"

#include "engine/run/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct fault_sys fault_sys;
struct memory_checker memory_checker;

static void memory_checker_report(const char *what) {
    if (!memory_checker.violation[0])
        snprintf(memory_checker.violation, sizeof memory_checker.violation, "%s", what);
}

static const struct span *span_that_overlaps(const char *from, size_t bytes, bool reading) {
    for (int i = 0; i < memory_checker.n_spans; i++) {
        const struct span *s = &memory_checker.spans[i];
        if (from < s->to && from + bytes > s->from && (reading || s->reading)) return s;
    }
    return NULL;
}

void checked_span_add(const void *from, size_t bytes, bool reading) {
    const char *at = from;
    pthread_mutex_lock(&memory_checker.lock);
    const struct span *other = span_that_overlaps(at, bytes, reading);
    if (other)
        memory_checker_report(other->reading && reading ? "two reads into the same memory"
                                                        : "a read into memory in use");
    if (memory_checker.n_spans == SPANS_MAX)
        memory_checker_report("more than SPANS_MAX spans");
    else
        memory_checker.spans[memory_checker.n_spans++] = (struct span){at, at + bytes, reading};
    pthread_mutex_unlock(&memory_checker.lock);
}

void checked_span_remove(const void *from) {
    pthread_mutex_lock(&memory_checker.lock);
    for (int i = 0; i < memory_checker.n_spans; i++)
        if (memory_checker.spans[i].from == from) {
            memory_checker.spans[i] = memory_checker.spans[--memory_checker.n_spans];
            break;
        }
    pthread_mutex_unlock(&memory_checker.lock);
}

int reads_in_flight(void) {
    int n = 0;
    pthread_mutex_lock(&memory_checker.lock);
    for (int i = 0; i < memory_checker.n_spans; i++) n += memory_checker.spans[i].reading;
    pthread_mutex_unlock(&memory_checker.lock);
    return n;
}

static void count_pages_mapped(size_t bytes) {
    pthread_mutex_lock(&memory_checker.lock);
    memory_checker.pages_live += (int64_t)bytes;
    if (memory_checker.pages_live > memory_checker.pages_peak)
        memory_checker.pages_peak = memory_checker.pages_live;
    if (bytes % PLAN_PAGE) memory_checker_report("not whole pages");
    pthread_mutex_unlock(&memory_checker.lock);
}

static void count_pages_unmapped(const void *memory, size_t bytes) {
    pthread_mutex_lock(&memory_checker.lock);
    memory_checker.pages_live -= (int64_t)bytes;
    if (bytes % PLAN_PAGE) memory_checker_report("not whole pages");
    const struct span *held = span_that_overlaps(memory, bytes, true);
    if (held)
        memory_checker_report(held->reading ? "memory freed during a read" : "memory freed while in use");
    pthread_mutex_unlock(&memory_checker.lock);
}

static void address_space(int64_t bytes) {
    pthread_mutex_lock(&memory_checker.lock);
    memory_checker.reserved += bytes;
    pthread_mutex_unlock(&memory_checker.lock);
}

/* Adds the beginning of a file read to the log; read_ended fills in the number of bytes. Returns NULL if the
 * log is full. */
static struct read_log *read_begins(int file, int64_t offset) {
    struct read_log *read = NULL;
    pthread_mutex_lock(&memory_checker.lock);
    if (memory_checker.n_reads < READS_MAX)
        *(read = &memory_checker.reads[memory_checker.n_reads++]) = (struct read_log){file, offset, 0};
    pthread_mutex_unlock(&memory_checker.lock);
    return read;
}

static void read_ended(struct read_log *read, int64_t bytes) {
    pthread_mutex_lock(&memory_checker.lock);
    if (read && bytes > 0) read->bytes = bytes;
    pthread_mutex_unlock(&memory_checker.lock);
}

static void *checked_map(struct sys *sys, enum memory_line line, size_t bytes) {
    void *memory = memory_checker.below.map(sys, line, bytes);
    if (memory) count_pages_mapped(bytes);
    return memory;
}

static void checked_unmap(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    if (memory) count_pages_unmapped(memory, bytes);
    memory_checker.below.unmap(sys, line, memory, bytes);
}

static void *checked_reserve(struct sys *sys, size_t bytes) {
    void *memory = memory_checker.below.reserve(sys, bytes);
    if (memory) address_space((int64_t)bytes);
    return memory;
}

static void checked_unreserve(struct sys *sys, void *memory, size_t bytes) {
    if (memory) address_space(-(int64_t)bytes);
    memory_checker.below.unreserve(sys, memory, bytes);
}

static int checked_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    int failed = memory_checker.below.commit(sys, line, memory, bytes);
    if (!failed) count_pages_mapped(bytes);
    return failed;
}

static void checked_decommit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    count_pages_unmapped(memory, bytes);
    memory_checker.below.decommit(sys, line, memory, bytes);
}

static void checked_discard(struct sys *sys, void *memory, size_t bytes) {
    pthread_mutex_lock(&memory_checker.lock);
    if (span_that_overlaps(memory, bytes, true))
        memory_checker_report("memory discarded while in use or during a read");
    pthread_mutex_unlock(&memory_checker.lock);
    memory_checker.below.discard(sys, memory, bytes);
}

static int64_t checked_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    bool direct = fcntl(file, F_GETFL) & O_DIRECT;
    if (direct && ((uintptr_t)to | bytes | (size_t)offset) % SYS_DIRECT_BLOCK) {
        pthread_mutex_lock(&memory_checker.lock);
        memory_checker_report("a direct read that is not of whole blocks");
        pthread_mutex_unlock(&memory_checker.lock);
        return -EINVAL;
    }
    checked_span_add(to, bytes, true);
    struct read_log *read = read_begins(file, offset);
    int64_t n = memory_checker.below.read_at(sys, file, to, bytes, offset);
    read_ended(read, n);
    checked_span_remove(to);
    return n;
}

void memory_checker_init(uint64_t seed) {
    fault_sys_init(&fault_sys, seed);
    memset(&memory_checker, 0, sizeof memory_checker);
    memory_checker.below = fault_sys.sys;
    fault_sys.sys.map = checked_map;
    fault_sys.sys.unmap = checked_unmap;
    fault_sys.sys.reserve = checked_reserve;
    fault_sys.sys.unreserve = checked_unreserve;
    fault_sys.sys.commit = checked_commit;
    fault_sys.sys.decommit = checked_decommit;
    fault_sys.sys.discard = checked_discard;
    fault_sys.sys.read_at = checked_read_at;
    pthread_mutex_init(&memory_checker.lock, NULL);
}

void memory_checker_restart(void) {
    fault_sys_restart(&fault_sys);
    pthread_mutex_lock(&memory_checker.lock);
    memory_checker.n_reads = 0;
    memory_checker.pages_peak = memory_checker.pages_live;
    pthread_mutex_unlock(&memory_checker.lock);
}

void assert_no_memory_violation(void) {
    if (memory_checker.violation[0]) fail_msg("%s", memory_checker.violation);
}
