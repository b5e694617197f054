/* Checks the memory accesses of store and executor on top of struct fault_sys: it tracks the memory that is
 * being read into and the memory that is in use. Violations: a read into memory that is in use or already
 * being read into; memory freed or discarded while in use or being read into; a direct read that does not
 * cover whole disk blocks. Pages are counted and reads logged.
 *
 * A single global instance, because fixtures are made one after another. A lock of the checker guards the
 * instance. */
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

/* The fault-injecting struct sys through which the engine uses the system. */
extern struct fault_sys fault_sys;

extern struct memory_checker {
    struct sys below; /* original functions of fault_sys.sys, which the checker wraps */
    pthread_mutex_t lock;
    struct span spans[SPANS_MAX];
    int n_spans;
    char violation[120]; /* the first violation */
    struct read_log reads[READS_MAX];
    int n_reads;
    int64_t pages_live, pages_peak; /* bytes mapped or committed */
    int64_t reserved;               /* bytes of reserved address space */
} memory_checker;

void memory_checker_init(uint64_t seed);

/* Clears counts, injected faults and the read log; records of live memory stay. */
void memory_checker_restart(void);

/* Marks memory as in use, or being read into, until checked_span_remove. */
void checked_span_add(const void *from, size_t bytes, bool reading);
void checked_span_remove(const void *from);

int reads_in_flight(void);

void assert_no_memory_violation(void);

#endif
