/* What store and executor do with memory, on top of the watching table: which of it is being read into and
 * which is in use, at every moment. A read into memory that is in use or read into already, memory given back
 * or discarded under either, and a direct read that is not of whole blocks, are violations. Besides, pages
 * are counted and reads logged.
 *
 * There is one of it: worlds and toys are made one after another. Guarded by its own lock. */
#ifndef SLUICE_TEST_MEMORY_CHECKER_H
#define SLUICE_TEST_MEMORY_CHECKER_H

#include "test/lib/fault_sys.h"

#include <pthread.h>

enum { SPANS_MAX = 64, READS_MAX = 1 << 15 };

struct span {
    const char *from, *to;
    bool reading;
};

struct read_log {
    int file;
    int64_t offset, bytes;
};

/* The table: what the engine is given, and what fails. */
extern struct fault_sys fault_sys;

extern struct memory_checker {
    struct sys below; /* watch.sys as fault_sys_init leaves it */
    pthread_mutex_t lock;
    struct span spans[SPANS_MAX];
    int n_spans;
    char violation[120]; /* the first */
    struct read_log reads[READS_MAX];
    int n_reads;
    int64_t pages_live, pages_peak; /* mapped and committed */
    int64_t reserved;               /* address space */
} memory_checker;

void memory_checker_init(uint64_t seed);

/* Forgets calls, faults and reads; what lives stays. */
void memory_checker_restart(void);

/* Memory that is in use, or being read into, until it is removed. */
void checked_span_add(const void *from, size_t bytes, bool reading);
void checked_span_remove(const void *from);

int reads_under_way(void);

void assert_no_memory_violation(void);

#endif
