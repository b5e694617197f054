/* A struct sys for fault injection: it counts calls and peaks, delays and shortens reads, overwrites
 * discarded memory, and lets chosen calls fail. */
#ifndef SLUICE_TEST_FAULT_SYS_H
#define SLUICE_TEST_FAULT_SYS_H

#include "engine/base/sys.h"

#include <limits.h>
#include <stdatomic.h>

enum call {
    CALL_ALLOC,
    CALL_MAP,
    CALL_COMMIT,
    CALL_FREE_BYTES,
    CALL_READ,
    CALL_THREAD,
    CALL_OPEN_DIRECT,
    CALL_OPEN,
    CALL_IDENTIFY,
    CALL_CREATE,
    CALL_WRITE,
    CALL_FLUSH,
    CALL_RENAME,
    N_CALLS
};

/* How an injected fault makes a read or a write fail. Other calls have only one way to fail. */
enum fault { FAULT_ERROR, FAULT_SHORT, FAULT_INTERRUPTED, FAULT_END };

struct fault_sys {
    struct sys sys;     /* first member: the functions cast the engine's pointer back to struct fault_sys */
    struct sys machine; /* the real system calls; their memory use is counted in sys.use above */
    bool short_reads, interrupts, poison;
    int delay_us; /* longest random delay of a read in microseconds */
    atomic_ullong random;
    atomic_long count[N_CALLS];
    enum call fail;
    enum fault fault;
    atomic_long fail_at; /* number of the first failing call, from 1; 0: none */
    long fail_more;      /* number of calls after the first failing one that also fail */
    void (*on_read)(void *user, long n);
    void *on_read_user;
    /* Simulated free memory: plenty at the start of a run. Between two evaluations the value is free_bytes
     * with a chance of free_percent %, else plenty. */
    uint64_t free_bytes;
    int free_percent;
    long n_free;
    /* n_discards: number of discards of ring memory. n_groups: number of groups of discards without an
     * allocation in between; all discards inside one stage form one group. */
    atomic_long n_discards, n_groups;
    atomic_bool in_group;
};

/* Next random number of splitmix64 (Steele et al. 2014), with an atomic state. */
uint64_t random_next_atomic(atomic_ullong *state);

/* Returns a random length from 1 to `bytes`, chosen by r, for a short read; whole disk blocks if the file is
 * opened with O_DIRECT. */
size_t fault_sys_shorten(int file, size_t bytes, uint64_t r);

int64_t fault_sys_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset);

void fault_sys_init(struct fault_sys *w, uint64_t seed);

/* Restarts the counts and peaks; no call fails. */
void fault_sys_restart(struct fault_sys *w);

/* Restarts the counts. Call number `at` (0: none) fails, and so do the `more` calls after it (LONG_MAX: all).
 */
void fault_sys_fail(struct fault_sys *w, enum call call, long at, long more);

int64_t fault_sys_live_bytes(struct fault_sys *w);

#endif
