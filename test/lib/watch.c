#include "test/lib/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

uint64_t draw(atomic_ullong *state) {
    uint64_t z = atomic_fetch_add(state, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool fails(struct watch *w, enum call call) {
    long n = atomic_fetch_add(&w->count[call], 1) + 1, at = atomic_load(&w->fail_at);
    if (call == CALL_ALLOC || call == CALL_MAP || call == CALL_COMMIT) atomic_store(&w->in_group, false);
    return at && w->fail == call && n >= at && n - at <= w->fail_more;
}

static void *watch_alloc(struct sys *sys, enum memory_line line, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_ALLOC) ? NULL : w->machine.alloc(sys, line, bytes);
}

static void *watch_map(struct sys *sys, enum memory_line line, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_MAP) ? NULL : w->machine.map(sys, line, bytes);
}

static void *watch_reserve(struct sys *sys, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_MAP) ? NULL : w->machine.reserve(sys, bytes);
}

static int watch_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_COMMIT) ? -ENOMEM : w->machine.commit(sys, line, memory, bytes);
}

static bool watch_can_allocate(struct sys *sys, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    return !fails(w, CALL_ROOM) && w->machine.can_allocate(sys, bytes);
}

static void forget_peaks(struct sys *sys) {
    struct memory_use use = sys_memory_use(sys);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        __atomic_store_n(&sys->use.peak_bytes[i], use.live_bytes[i], __ATOMIC_RELAXED);
}

static int watch_thread_start(struct sys *sys, struct sys_thread **thread, void (*body)(void *),
                              void *argument) {
    struct watch *w = (struct watch *)sys;
    /* Readers start when what an earlier run kept has been given back: from here on the plan is a promise. */
    if (!atomic_load(&w->count[CALL_THREAD])) forget_peaks(sys);
    return fails(w, CALL_THREAD) ? -EAGAIN : w->machine.thread_start(sys, thread, body, argument);
}

static int watch_open_direct(struct sys *sys, const char *path) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_OPEN_DIRECT) ? -EINVAL : w->machine.open_direct(sys, path);
}

size_t watch_shorten(int file, size_t bytes, uint64_t r) {
    size_t unit = fcntl(file, F_GETFL) & O_DIRECT ? SYS_DIRECT_BLOCK : 1;
    return unit * (1 + (size_t)r % (bytes / unit));
}

int64_t watch_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct watch *w = (struct watch *)sys;
    if (fails(w, CALL_READ)) {
        if (w->fault == FAULT_ERROR) return -EIO;
        if (w->fault == FAULT_INTERRUPTED) return -EINTR;
        if (w->fault == FAULT_END) return 0;
        bytes = watch_shorten(file, bytes, bytes / 2);
    }
    if (w->on_read) w->on_read(w->on_read_user, atomic_load(&w->count[CALL_READ]));
    uint64_t r = draw(&w->random);
    if (w->delay_us) {
        struct timespec pause = {0, (long)((r >> 8) % (1000 * (uint64_t)w->delay_us))};
        nanosleep(&pause, NULL);
    }
    if (w->interrupts && (r >> 50) % 3 == 0) return -EINTR;
    if (w->short_reads && (r >> 40) % 3 == 0 && bytes > 1) bytes = watch_shorten(file, bytes, r >> 16);
    return w->machine.read_at(sys, file, to, bytes, offset);
}

static int watch_open(struct sys *sys, const char *path) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_OPEN) ? -EMFILE : w->machine.open(sys, path);
}

static int watch_identify(struct sys *sys, int file, struct file_identity *identity) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_IDENTIFY) ? -EIO : w->machine.identify(sys, file, identity);
}

static int watch_create(struct sys *sys, const char *path) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_CREATE) ? -EACCES : w->machine.create(sys, path);
}

static int watch_create_unnamed(struct sys *sys, const char *folder) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_CREATE) ? -EACCES : w->machine.create_unnamed(sys, folder);
}

static int watch_link(struct sys *sys, int file, const char *path) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_RENAME) ? -EACCES : w->machine.link(sys, file, path);
}

static int64_t watch_write(struct sys *sys, int file, const void *from, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    if (fails(w, CALL_WRITE)) {
        if (w->fault == FAULT_ERROR) return -ENOSPC;
        if (w->fault == FAULT_INTERRUPTED) return -EINTR;
        if (w->fault == FAULT_END) return 0;
        bytes = 1 + bytes / 2;
    }
    return w->machine.write(sys, file, from, bytes);
}

/* Durability is the machine's; here it would only take time. */
static int watch_flush(struct sys *sys, int file) {
    struct watch *w = (struct watch *)sys;
    (void)file;
    return fails(w, CALL_FLUSH) ? -EIO : 0;
}

static int watch_rename(struct sys *sys, const char *from, const char *to) {
    struct watch *w = (struct watch *)sys;
    return fails(w, CALL_RENAME) ? -EACCES : w->machine.rename(sys, from, to);
}

/* Asked by the thread that runs. */
static uint64_t watch_free_bytes(struct sys *sys) {
    struct watch *w = (struct watch *)sys;
    bool little = w->n_free++ && (int)(draw(&w->random) % 100) < w->free_percent;
    return little ? w->free_bytes : (uint64_t)1 << 40;
}

/* A NaN in every float: whoever reads a released slot cannot miss it. */
static void watch_discard(struct sys *sys, void *memory, size_t bytes) {
    struct watch *w = (struct watch *)sys;
    if (w->poison) memset(memory, 0xff, bytes);
    atomic_fetch_add(&w->n_discards, 1);
    if (!atomic_exchange(&w->in_group, true)) atomic_fetch_add(&w->n_groups, 1);
}

void watch_init(struct watch *w, uint64_t seed) {
    memset(w, 0, sizeof *w);
    sys_init_machine(&w->machine);
    w->sys = w->machine;
    w->sys.alloc = watch_alloc;
    w->sys.map = watch_map;
    w->sys.reserve = watch_reserve;
    w->sys.commit = watch_commit;
    w->sys.can_allocate = watch_can_allocate;
    w->sys.thread_start = watch_thread_start;
    w->sys.open_direct = watch_open_direct;
    w->sys.open = watch_open;
    w->sys.identify = watch_identify;
    w->sys.create = watch_create;
    w->sys.create_unnamed = watch_create_unnamed;
    w->sys.link = watch_link;
    w->sys.write = watch_write;
    w->sys.flush = watch_flush;
    w->sys.rename = watch_rename;
    w->sys.read_at = watch_read_at;
    w->sys.discard = watch_discard;
    w->sys.free_bytes = watch_free_bytes;
    w->poison = true;
    atomic_store(&w->random, seed);
}

void watch_restart(struct watch *w) {
    atomic_store(&w->fail_at, 0);
    w->n_free = 0;
    for (int i = 0; i < N_CALLS; i++) atomic_store(&w->count[i], 0);
    forget_peaks(&w->sys);
    atomic_store(&w->n_discards, 0);
    atomic_store(&w->n_groups, 0);
    atomic_store(&w->in_group, false);
}

void watch_fail(struct watch *w, enum call call, long at, long more) {
    watch_restart(w);
    w->fail = call;
    w->fault = FAULT_ERROR;
    w->fail_more = more;
    atomic_store(&w->fail_at, at);
}

int64_t watch_live(struct watch *w) {
    struct memory_use use = sys_memory_use(&w->sys);
    int64_t live = 0;
    for (int i = 0; i < N_MEMORY_LINES; i++) live += use.live_bytes[i];
    return live;
}
