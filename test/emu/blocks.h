/* State of a running thread block: threads, fibers, barriers, shared memory. */
#ifndef SLUICE_EMU_BLOCKS_H
#define SLUICE_EMU_BLOCKS_H

#include "fibers.h"
#include "ptx_emulated.h"

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    SHARED_MOST = 99 << 10, /* largest shared memory per block on sm_86, sm_89 and sm_120 */
    SHARED_USUAL = 48 << 10,
    SHARED_SLOTS = WITH_TSAN ? 64 : 1, /* thread blocks that run before shared memory is reused */
    SHARED_SLOT = 128 << 10,
    ARRAYS = 32,
    ASYNC = 128,
    SETS = WITH_TSAN ? 2 : 1,
    OWN_FIBERS = WITH_TSAN ? 8 : 0 /* thread blocks per launch that have one fiber per thread */
};

struct async_copy {
    void *to;
    uint4 value;
    int group;
};

struct thread {
    emu_thread self; /* first member: a pointer to self is also a pointer to the thread */
    fiber *on;       /* fiber that runs the thread; NULL: not started */
    const char *what, *file;
    int line; /* source line where the thread waits */
    bool ended;
    int n_copies, group, first_copy;
};

struct meeting {
    uint32_t mask, here, phase;
    warp_operation *operation;
    const char *what, *file;
    int line;
    void *operands[32];
    char order[2];
};

/* Threads and fibers of a thread block. */
struct block_state {
    thread threads[THREADS];
    fiber fibers[THREADS];
    async_copy copies[THREADS][ASYNC]; /* pending cp.async copies: one ring buffer per thread */
    meeting meetings[WARPS][32];
    int n_meetings[WARPS]; /* number of used entries in meetings, the barriers of each warp */
    uint32_t ready[WARPS], ready_warps, alive[WARPS];
    int n_warps;
    int n, n_ended, n_here, rotation;
    uint32_t phase;
    char order[2];
    const char *file;
    int line;
    block_state *next_free;
};

struct shared_array {
    const void *site;
    void *memory;
    size_t bytes;
};

struct worker {
    emu_place where; /* index of the running thread block */
    const launch *now;
    block_state *sets[SETS], *block;
    thread *running;
    fiber main;
    uint64_t random, n_blocks;
    bool meets, own_fibers;
    char *shared; /* SHARED_SLOTS shared memories, one block each */
    size_t shared_used;
    shared_array arrays[ARRAYS];
    int n_arrays;
    /* addresses for TSan annotations: blocks of a launch start after `begin` and end before `end` */
    char begin, end;
    char fault_stack[64 << 10];
};

/* State of the stream's host thread that runs blocks; NULL on other threads. */
extern EMU_THREAD_LOCAL worker *own;

/* Frees the shared memory arrays of the thread block that `worker` runs (shared.cc). */
void shared_forget(worker *worker);

/* Counts the memory requests of the thread block that this host thread runs; called before the block's shared
 * memory is freed (accesses.cc). */
void accesses_of_block();

#endif
