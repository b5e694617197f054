/* A block that runs: its threads, what they run on, where they wait, and its shared memory. */
#ifndef SLUICE_EMU_BLOCKS_H
#define SLUICE_EMU_BLOCKS_H

#include "fibers.h"
#include "ptx_emulated.h"

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    SHARED_MOST = 99 << 10, /* what sm_86, 89 and 120 give a block */
    SHARED_USUAL = 48 << 10,
    SHARED_SLOTS = WITH_TSAN ? 64 : 1, /* blocks until shared memory is used again */
    SHARED_SLOT = 128 << 10,
    ARRAYS = 32,
    ASYNC = 128,
    SETS = WITH_TSAN ? 2 : 1,
    OWN_FIBERS = WITH_TSAN ? 8 : 0 /* so many blocks of each launch have a fiber for each thread anyway */
};

struct async_copy {
    void *to;
    uint4 value;
    int group;
};

struct thread {
    emu_thread self; /* first */
    fiber *on;       /* NULL: has not begun */
    const char *what, *file;
    int line; /* where it waits */
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

/* The threads of a block, and the fibers they run on. */
struct block_state {
    thread threads[THREADS];
    fiber fibers[THREADS];
    async_copy copies[THREADS][ASYNC]; /* a ring each */
    meeting meetings[WARPS][32];
    int n_meetings[WARPS]; /* of those, the ones that somebody waits at */
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
    emu_place where; /* of the block that runs */
    const launch *now;
    block_state *sets[SETS], *block;
    thread *running;
    fiber main;
    uint64_t random, n_blocks;
    bool meets, own_fibers;
    char *shared; /* SHARED_SLOTS of them */
    size_t shared_used;
    shared_array arrays[ARRAYS];
    int n_arrays;
    char begin, end; /* places of order: of the blocks of a launch */
    char fault_stack[64 << 10];
};

/* The stream whose thread this is; NULL on others. */
extern EMU_THREAD_LOCAL worker *own;

/* shared.cc: at the end of a block. */
void shared_forget(worker *worker);

#endif
