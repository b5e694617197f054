/* A struct sys that watches, delays, poisons and fails. */
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

/* How a read or a write fails; every other call has but one way. */
enum fault { FAULT_ERROR, FAULT_SHORT, FAULT_INTERRUPTED, FAULT_END };

struct fault_sys {
    struct sys sys;     /* first: the engine hands its address back to the functions */
    struct sys machine; /* what really happens; counts in sys.use above */
    bool short_reads, interrupts, poison;
    int delay_us; /* a read takes up to so long, each another time */
    atomic_ullong random;
    atomic_long count[N_CALLS];
    enum call fail;
    enum fault fault;
    atomic_long fail_at; /* 0: never */
    long fail_more;      /* and so many behind it */
    void (*on_read)(void *user, long n);
    void *on_read_user;
    /* What other programs leave: plenty, but so little when the run asks between two evaluations, with a
     * chance of so many percent. The first question is the run's own, before it begins. */
    uint64_t free_bytes;
    int free_percent;
    long n_free;
    /* Releases of ring slots since something was last allocated: a run of them is the inside of a stage. */
    atomic_long n_discards, n_groups;
    atomic_bool in_group;
};

/* splitmix64, Steele et al. 2014 */
uint64_t random_next_atomic(atomic_ullong *state);

/* A part of these bytes by chance r: of a direct file whole blocks. */
size_t fault_sys_shorten(int file, size_t bytes, uint64_t r);

int64_t fault_sys_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset);

void fault_sys_init(struct fault_sys *w, uint64_t seed);

/* Counts calls and peaks from here on, fails nothing. */
void fault_sys_restart(struct fault_sys *w);

/* Counts from here on too; the at-th call fails, none if that is 0, and so many behind it: LONG_MAX is all.
 */
void fault_sys_fail(struct fault_sys *w, enum call call, long at, long more);

/* Bytes that live, of all lines. */
int64_t fault_sys_live_bytes(struct fault_sys *w);

#endif
