/* The functions of struct sys for POSIX systems. See sys.h. */
#include "engine/base/sys.h"

#include "engine/base/machine_limits.h"
#include "engine/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <sys/file.h>
#include <unistd.h>

/* Header in front of every allocation, with its size: release subtracts the size from the memory counters. */
struct block_header {
    _Alignas(max_align_t) size_t bytes;
    enum memory_line line;
};

/* Adds bytes to the counter of a memory category, and raises its peak. */
static void sys_count(struct sys *sys, enum memory_line line, int64_t bytes) {
    int64_t live = __atomic_add_fetch(&sys->use.live_bytes[line], bytes, __ATOMIC_RELAXED);
    int64_t peak = __atomic_load_n(&sys->use.peak_bytes[line], __ATOMIC_RELAXED);
    while (live > peak && !__atomic_compare_exchange_n(&sys->use.peak_bytes[line], &peak, live, false,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void *machine_alloc(struct sys *sys, enum memory_line line, size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(struct block_header)) return NULL;
    struct block_header *header = calloc(1, sizeof *header + bytes);
    if (!header) return NULL;
    header->bytes = bytes;
    header->line = line;
    sys_count(sys, line, (int64_t)bytes);
    return header + 1;
}

static void machine_release(struct sys *sys, void *memory) {
    if (!memory) return;
    struct block_header *header = (struct block_header *)memory - 1;
    sys_count(sys, header->line, -(int64_t)header->bytes);
    free(header);
}

static void *machine_map(struct sys *sys, enum memory_line line, size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    sys_count(sys, line, (int64_t)bytes);
    return memory;
}

static void machine_unmap(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    if (!memory) return;
    munmap(memory, bytes);
    sys_count(sys, line, -(int64_t)bytes);
}

static void *machine_reserve(struct sys *sys, size_t bytes) {
    (void)sys;
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int machine_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) < 0) return -errno;
    sys_count(sys, line, (int64_t)bytes);
    return 0;
}

static void machine_decommit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    madvise(memory, bytes, MADV_DONTNEED);
    mprotect(memory, bytes, PROT_NONE);
    sys_count(sys, line, -(int64_t)bytes);
}

static void machine_unreserve(struct sys *sys, void *memory, size_t bytes) {
    (void)sys;
    if (memory) munmap(memory, bytes);
}

static void machine_use_large_pages(struct sys *sys, void *memory, size_t bytes) {
    (void)sys;
    madvise(memory, bytes, MADV_HUGEPAGE); /* no effect on systems without transparent huge pages */
}

static void machine_discard(struct sys *sys, void *memory, size_t bytes) {
    (void)sys;
#ifdef SLUICE_STRESS
    memset(memory, 0xFF, bytes);
#else
    (void)memory, (void)bytes;
#endif
}

static void machine_trim(struct sys *sys) {
    (void)sys;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* glibc keeps freed small chunks apart and merges them only at a large request. oneDNN's aligned requests
 * leave small free chunks in each run and cannot reuse these chunks (glibc bug 14581, fixed in 2.38).
 * Measured with Z-Image at full size: 26 MiB in 13 s, all the heap that reading the tokenizer had freed. */
static void machine_consolidate_heap(struct sys *sys) {
    enum { LARGE = 4096 };
    (void)sys;
#ifdef __GLIBC__
    void *volatile large = malloc(LARGE);
    free(large);
#endif
}

static bool machine_can_allocate(struct sys *sys, size_t bytes) {
    (void)sys;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    munmap(memory, bytes);
    return true;
}

static uint64_t machine_free_bytes(struct sys *sys) {
    (void)sys;
    return free_memory_bytes("");
}

/* Non-blocking, so that a FIFO without a writer gives an error instead of hanging. */
static int machine_open(struct sys *sys, const char *path) {
    (void)sys;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return file < 0 ? -errno : file;
}

static int machine_open_direct(struct sys *sys, const char *path) {
    (void)sys;
    int file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
    return file < 0 ? -errno : file;
}

static int machine_identify(struct sys *sys, int file, struct file_identity *identity) {
    (void)sys;
    struct stat s;
    if (fstat(file, &s) < 0) return -errno;
    *identity = (struct file_identity){
        .device = s.st_dev,
        .inode = s.st_ino,
        .bytes = s.st_size,
        .modified_ns = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec,
        .changed_ns = (int64_t)s.st_ctim.tv_sec * 1000000000 + s.st_ctim.tv_nsec,
        .regular = S_ISREG(s.st_mode),
    };
    return 0;
}

static int64_t machine_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    (void)sys;
    ssize_t n = pread(file, to, bytes, offset);
    return n < 0 ? -errno : n;
}

static void machine_close(struct sys *sys, int file) {
    (void)sys;
    close(file);
}

static int machine_create(struct sys *sys, const char *path) {
    (void)sys;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) return -errno;
    /* Without lock support, temporary files of killed processes may be left over. */
    flock(file, LOCK_EX | LOCK_NB);
    return file;
}

/* Requires /proc, because machine_link names the unnamed file through /proc/self/fd. */
static int machine_create_unnamed(struct sys *sys, const char *folder) {
    (void)sys;
    if (access("/proc/self/fd", X_OK)) return -EOPNOTSUPP;
    int file = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    if (file >= 0) flock(file, LOCK_EX | LOCK_NB);
    if (file >= 0) return file;
    /* Kernels without O_TMPFILE fail with EISDIR or EINVAL. */
    return errno == EISDIR || errno == EINVAL ? -EOPNOTSUPP : -errno;
}

static int machine_link(struct sys *sys, int file, const char *path) {
    (void)sys;
    char unnamed[32];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", file);
    return linkat(AT_FDCWD, unnamed, AT_FDCWD, path, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static int64_t machine_write(struct sys *sys, int file, const void *from, size_t bytes) {
    (void)sys;
    ssize_t n = write(file, from, bytes);
    return n < 0 ? -errno : n;
}

static int machine_flush(struct sys *sys, int file) {
    (void)sys;
    return fsync(file) < 0 ? -errno : 0;
}

static int machine_rename(struct sys *sys, const char *from, const char *to) {
    (void)sys;
    return rename(from, to) < 0 ? -errno : 0;
}

static int machine_remove(struct sys *sys, const char *path) {
    (void)sys;
    return unlink(path) < 0 ? -errno : 0;
}

struct sys_thread {
    pthread_t thread;
    void (*main)(void *);
    void *argument;
};

static void *thread_entry(void *argument) {
    struct sys_thread *thread = argument;
    thread->main(thread->argument);
    return NULL;
}

static int machine_thread_start(struct sys *sys, struct sys_thread **out, void (*main)(void *),
                                void *argument) {
    struct sys_thread *thread = sys->alloc(sys, LINE_HOST, sizeof *thread);
    if (!thread) return -ENOMEM;
    thread->main = main;
    thread->argument = argument;
    /* Asynchronous signals are blocked in library threads: a program's signal handler may need its own
     * thread's stack (oneDNN 2.6's AVX2 products use the stack register as a pointer). Synchronous faults
     * stay unblocked. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t held_back, before;
    sigfillset(&held_back);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&held_back, own[i]);
    pthread_sigmask(SIG_SETMASK, &held_back, &before);
    int failed = pthread_create(&thread->thread, NULL, thread_entry, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        sys->release(sys, thread);
        return -failed;
    }
    *out = thread;
    return 0;
}

void *sys_new(struct sys *sys, size_t n, size_t element_bytes, const char *what, struct error *e) {
    size_t bytes;
    void *memory =
        __builtin_mul_overflow(n, element_bytes, &bytes) ? NULL : sys->alloc(sys, LINE_HOST, bytes);
    if (!memory) error_set(e, MEMORY, "no memory for %s", what);
    return memory;
}

void sys_cond_init(pthread_cond_t *there) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(there, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void machine_wait(struct sys *sys, pthread_cond_t *there, pthread_mutex_t *lock, double seconds) {
    struct timespec until;
    (void)sys;
    if (seconds <= 0) {
        pthread_cond_wait(there, lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    double end = (double)until.tv_nsec + seconds * 1e9;
    until.tv_sec += (time_t)(end / 1e9);
    until.tv_nsec = (long)(end - (double)(time_t)(end / 1e9) * 1e9);
    pthread_cond_timedwait(there, lock, &until);
}

static void machine_wake(struct sys *sys, pthread_cond_t *there) {
    (void)sys;
    pthread_cond_broadcast(there);
}

static void machine_thread_join(struct sys *sys, struct sys_thread *thread) {
    if (!thread) return;
    pthread_join(thread->thread, NULL);
    sys->release(sys, thread);
}

static double machine_clock(struct sys *sys) {
    (void)sys;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void sys_init_machine(struct sys *sys) {
    *sys = (struct sys){
        .alloc = machine_alloc,
        .release = machine_release,
        .map = machine_map,
        .unmap = machine_unmap,
        .reserve = machine_reserve,
        .commit = machine_commit,
        .decommit = machine_decommit,
        .unreserve = machine_unreserve,
        .use_large_pages = machine_use_large_pages,
        .discard = machine_discard,
        .trim = machine_trim,
        .consolidate_heap = machine_consolidate_heap,
        .can_allocate = machine_can_allocate,
        .free_bytes = machine_free_bytes,
        .open = machine_open,
        .open_direct = machine_open_direct,
        .identify = machine_identify,
        .read_at = machine_read_at,
        .close = machine_close,
        .create = machine_create,
        .write = machine_write,
        .flush = machine_flush,
        .create_unnamed = machine_create_unnamed,
        .link = machine_link,
        .rename = machine_rename,
        .remove = machine_remove,
        .thread_start = machine_thread_start,
        .thread_join = machine_thread_join,
        .wait = machine_wait,
        .wake = machine_wake,
        .clock = machine_clock,
        .host_takes_free_pages = host_takes_free_pages(""),
    };
}

enum { INTERRUPTIONS_MAX = 1000 };

int64_t sys_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    int64_t n = -EINTR;
    for (int i = 0; i < INTERRUPTIONS_MAX && n == -EINTR; i++) n = sys->read_at(sys, file, to, bytes, offset);
    return n;
}

int64_t sys_write(struct sys *sys, int file, const void *from, size_t bytes) {
    int64_t n = -EINTR;
    for (int i = 0; i < INTERRUPTIONS_MAX && n == -EINTR; i++) n = sys->write(sys, file, from, bytes);
    return n;
}

struct memory_use sys_memory_use(struct sys *sys) {
    struct memory_use use;
    for (int i = 0; i < N_MEMORY_LINES; i++) {
        use.live_bytes[i] = __atomic_load_n(&sys->use.live_bytes[i], __ATOMIC_RELAXED);
        use.peak_bytes[i] = __atomic_load_n(&sys->use.peak_bytes[i], __ATOMIC_RELAXED);
    }
    return use;
}

enum status header_limit_check(struct sys *sys, const char *path, uint64_t bytes, struct error *e) {
    /* Bytes that a small request needs besides file headers; added to the budget that the error recommends.
     */
    enum { DESCRIPTORS = 4 << 20 };
    uint64_t budget = sys->header_limit.budget_bytes, reserved = sys->header_limit.reserved_bytes;
    uint64_t least = reserved + (uint64_t)sys_memory_use(sys).live_bytes[LINE_HOST] + bytes;
    char smallest[SIZE_TEXT_BYTES], found[SIZE_TEXT_BYTES], expected[SIZE_TEXT_BYTES];
    if (!budget || least <= budget || least <= reserved + HEADER_LIMIT_MIN) return OK;
    least += DESCRIPTORS;
    return error_set(
        e, BUDGET,
        "the model does not fit the memory budget; the smallest budget that works is --max-ram %" PRIu64
        "B (%s)" WHERE "%s" FOUND "a budget of %s" EXPECTED "at least %s for the header of this file",
        least, size_text(least, smallest), path, size_text(budget, found), size_text(bytes, expected));
}
