#include "test/lib/fault_sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

uint64_t random_next_atomic(atomic_ullong *state) {
    uint64_t z = atomic_fetch_add(state, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool fails(struct fault_sys *w, enum call call) {
    long n = atomic_fetch_add(&w->count[call], 1) + 1, at = atomic_load(&w->fail_at);
    if (call == CALL_ALLOC || call == CALL_MAP || call == CALL_COMMIT) atomic_store(&w->in_group, false);
    return at && w->fail == call && n >= at && n - at <= w->fail_more;
}

static void *faulty_alloc(struct sys *sys, enum memory_line line, size_t bytes) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_ALLOC) ? NULL : w->machine.alloc(sys, line, bytes);
}

static void *faulty_map(struct sys *sys, enum memory_line line, size_t bytes) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_MAP) ? NULL : w->machine.map(sys, line, bytes);
}

static void *faulty_reserve(struct sys *sys, size_t bytes) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_MAP) ? NULL : w->machine.reserve(sys, bytes);
}

static int faulty_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_COMMIT) ? -ENOMEM : w->machine.commit(sys, line, memory, bytes);
}

static bool faulty_can_allocate(struct sys *sys, size_t bytes) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return !fails(w, CALL_FREE_BYTES) && w->machine.can_allocate(sys, bytes);
}

static void reset_peaks(struct sys *sys) {
    struct memory_use use = sys_memory_use(sys);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        __atomic_store_n(&sys->use.peak_bytes[i], use.live_bytes[i], __ATOMIC_RELAXED);
}

static int faulty_thread_start(struct sys *sys, struct sys_thread **thread, void (*body)(void *),
                               void *argument) {
    struct fault_sys *w = (struct fault_sys *)sys;
    /* The store starts its readers after the memory of earlier runs is freed: peaks are measured from the
     * first thread on, and must fit the plan. */
    if (!atomic_load(&w->count[CALL_THREAD])) reset_peaks(sys);
    return fails(w, CALL_THREAD) ? -EAGAIN : w->machine.thread_start(sys, thread, body, argument);
}

static int faulty_open_direct(struct sys *sys, const char *path) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_OPEN_DIRECT) ? -EINVAL : w->machine.open_direct(sys, path);
}

size_t fault_sys_shorten(int file, size_t bytes, uint64_t r) {
    size_t unit = fcntl(file, F_GETFL) & O_DIRECT ? SYS_DIRECT_BLOCK : 1;
    return unit * (1 + (size_t)r % (bytes / unit));
}

int64_t fault_sys_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct fault_sys *w = (struct fault_sys *)sys;
    if (fails(w, CALL_READ)) {
        if (w->fault == FAULT_ERROR) return -EIO;
        if (w->fault == FAULT_INTERRUPTED) return -EINTR;
        if (w->fault == FAULT_END) return 0;
        bytes = fault_sys_shorten(file, bytes, bytes / 2);
    }
    if (w->on_read) w->on_read(w->on_read_user, atomic_load(&w->count[CALL_READ]));
    uint64_t r = random_next_atomic(&w->random);
    if (w->delay_us) {
        struct timespec pause = {0, (long)((r >> 8) % (1000 * (uint64_t)w->delay_us))};
        nanosleep(&pause, NULL);
    }
    if (w->interrupts && (r >> 50) % 3 == 0) return -EINTR;
    if (w->short_reads && (r >> 40) % 3 == 0 && bytes > 1) bytes = fault_sys_shorten(file, bytes, r >> 16);
    return w->machine.read_at(sys, file, to, bytes, offset);
}

static int faulty_open(struct sys *sys, const char *path) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_OPEN) ? -EMFILE : w->machine.open(sys, path);
}

static int faulty_identify(struct sys *sys, int file, struct file_identity *identity) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_IDENTIFY) ? -EIO : w->machine.identify(sys, file, identity);
}

static int faulty_create(struct sys *sys, const char *path) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_CREATE) ? -EACCES : w->machine.create(sys, path);
}

static int faulty_create_unnamed(struct sys *sys, const char *folder) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_CREATE) ? -EACCES : w->machine.create_unnamed(sys, folder);
}

static int faulty_link(struct sys *sys, int file, const char *path) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_RENAME) ? -EACCES : w->machine.link(sys, file, path);
}

static int64_t faulty_write(struct sys *sys, int file, const void *from, size_t bytes) {
    struct fault_sys *w = (struct fault_sys *)sys;
    if (fails(w, CALL_WRITE)) {
        if (w->fault == FAULT_ERROR) return -ENOSPC;
        if (w->fault == FAULT_INTERRUPTED) return -EINTR;
        if (w->fault == FAULT_END) return 0;
        bytes = 1 + bytes / 2;
    }
    return w->machine.write(sys, file, from, bytes);
}

/* Skips the flush to disk, which would only cost time. */
static int faulty_flush(struct sys *sys, int file) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_FLUSH) ? -EIO : 0;
}

static int faulty_rename(struct sys *sys, const char *from, const char *to) {
    struct fault_sys *w = (struct fault_sys *)sys;
    return fails(w, CALL_RENAME) ? -EACCES : w->machine.rename(sys, from, to);
}

/* Needs no lock: only the thread of the run asks for free memory. */
static uint64_t faulty_free_bytes(struct sys *sys) {
    struct fault_sys *w = (struct fault_sys *)sys;
    bool little = w->n_free++ && (int)(random_next_atomic(&w->random) % 100) < w->free_percent;
    return little ? w->free_bytes : (uint64_t)1 << 40;
}

/* Discarded memory is filled with NaN, so that a read of a released ring slot shows in the results. */
static void faulty_discard(struct sys *sys, void *memory, size_t bytes) {
    struct fault_sys *w = (struct fault_sys *)sys;
    if (w->poison) memset(memory, 0xff, bytes);
    atomic_fetch_add(&w->n_discards, 1);
    if (!atomic_exchange(&w->in_group, true)) atomic_fetch_add(&w->n_groups, 1);
}

void fault_sys_init(struct fault_sys *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    sys_init_machine(&w->machine);
    w->sys = w->machine;
    w->sys.alloc = faulty_alloc;
    w->sys.map = faulty_map;
    w->sys.reserve = faulty_reserve;
    w->sys.commit = faulty_commit;
    w->sys.can_allocate = faulty_can_allocate;
    w->sys.thread_start = faulty_thread_start;
    w->sys.open_direct = faulty_open_direct;
    w->sys.open = faulty_open;
    w->sys.identify = faulty_identify;
    w->sys.create = faulty_create;
    w->sys.create_unnamed = faulty_create_unnamed;
    w->sys.link = faulty_link;
    w->sys.write = faulty_write;
    w->sys.flush = faulty_flush;
    w->sys.rename = faulty_rename;
    w->sys.read_at = fault_sys_read_at;
    w->sys.discard = faulty_discard;
    w->sys.free_bytes = faulty_free_bytes;
    w->poison = true;
    atomic_store(&w->random, seed);
}

void fault_sys_restart(struct fault_sys *w) {
    atomic_store(&w->fail_at, 0);
    w->n_free = 0;
    for (int i = 0; i < N_CALLS; i++) atomic_store(&w->count[i], 0);
    reset_peaks(&w->sys);
    atomic_store(&w->n_discards, 0);
    atomic_store(&w->n_groups, 0);
    atomic_store(&w->in_group, false);
}

void fault_sys_fail(struct fault_sys *w, enum call call, long at, long more) {
    fault_sys_restart(w);
    w->fail = call;
    w->fault = FAULT_ERROR;
    w->fail_more = more;
    atomic_store(&w->fail_at, at);
}

int64_t fault_sys_live_bytes(struct fault_sys *w) {
    struct memory_use use = sys_memory_use(&w->sys);
    int64_t live = 0;
    for (int i = 0; i < N_MEMORY_LINES; i++) live += use.live_bytes[i];
    return live;
}
