/* The table of functions through which the engine uses the system: memory, files, threads, clock. Tests
 * replace functions to count, delay or fail calls, or to poison memory. All functions are thread-safe. */
#ifndef SLUICE_BASE_SYS_H
#define SLUICE_BASE_SYS_H

#include "engine/base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Categories of host memory in the plan; every allocation belongs to one. */
enum memory_line {
    LINE_HOST,       /* descriptors, indexes, tokenizers: small and long-lived */
    LINE_STORE,      /* residents and ring */
    LINE_STATE,      /* lane state and inter-stage tensors */
    LINE_ACTIVATION, /* scratch memory of one visit's forward functions */
    LINE_WORKSPACE,  /* workspace of one operator */
    LINE_DEVICE,     /* host memory that simulates device memory: see bench/dev/paced.h */
    N_MEMORY_LINES,
};

struct memory_use {
    int64_t live_bytes[N_MEMORY_LINES];
    int64_t peak_bytes[N_MEMORY_LINES];
};

/* Identifies the content of an open file. The inode's change time is not compared during a run, because
 * linking, renaming or chmod leave the bytes unchanged. */
struct file_identity {
    uint64_t device, inode;
    int64_t bytes;
    int64_t modified_ns;
    int64_t changed_ns; /* change time of the inode, which cannot be set back */
    bool regular;
};

/* Block size of direct reads in bytes: a multiple of disk sectors and of file system requirements. */
enum { SYS_DIRECT_BLOCK = 4096 };

struct sys_thread; /* opaque thread handle */

/* Memory budget for file headers, and the part of the budget that is reserved for other purposes; all 0: no
 * limit. See header_limit_check. */
struct sys_header_limit {
    uint64_t budget_bytes, reserved_bytes;
};

struct sys {
    void *context; /* private data of the functions in this struct */

    /* Allocates zeroed memory, aligned for any object; NULL if memory is short. release accepts NULL. */
    void *(*alloc)(struct sys *sys, enum memory_line line, size_t bytes);
    void (*release)(struct sys *sys, void *memory);

    /* Maps whole pages, zeroed and not yet resident; NULL if memory is short. unmap returns them at once. */
    void *(*map)(struct sys *sys, enum memory_line line, size_t bytes);
    void (*unmap)(struct sys *sys, enum memory_line line, void *memory, size_t bytes);

    /* Map memory in two steps: reserve address space, then commit and decommit pages in it (multiples of
     * 4,096 bytes). commit returns 0 or a negative errno. Only committed bytes are counted. */
    void *(*reserve)(struct sys *sys, size_t bytes);
    int (*commit)(struct sys *sys, enum memory_line line, void *memory, size_t bytes);
    void (*decommit)(struct sys *sys, enum memory_line line, void *memory, size_t bytes);
    void (*unreserve)(struct sys *sys, void *memory, size_t bytes);

    /* Permits large pages in mapped or committed memory. Only for memory that is about to be filled or pinned
     * entirely: otherwise large pages make unused bytes resident. */
    void (*use_large_pages)(struct sys *sys, void *memory, size_t bytes);

    /* Declares memory undefined until it is written again. A stress build fills it with 0xFF. */
    void (*discard)(struct sys *sys, void *memory, size_t bytes);
    /* Returns freed memory of the C library's heap to the system. */
    void (*trim)(struct sys *sys);
    /* Makes the C library merge small free chunks. Otherwise later requests use other parts of the heap and
     * touch pages that trim has returned to the system. */
    void (*consolidate_heap)(struct sys *sys);
    /* True if `bytes` more could be allocated now under RLIMIT_AS, RLIMIT_DATA and strict overcommit; almost
     * always true without such limits. Allocates and counts nothing. */
    bool (*can_allocate)(struct sys *sys, size_t bytes);
    /* Free memory in bytes without swapping; 0: unknown. See free_memory_bytes. */
    uint64_t (*free_bytes)(struct sys *sys);

    /* File functions return a negative errno on failure. read_at may return fewer bytes; 0 at the end. */
    int (*open)(struct sys *sys, const char *path);
    /* Opens a file for direct reads, which bypass the page cache; the file system may refuse. read_at
     * then needs memory, size and offset in multiples of SYS_DIRECT_BLOCK; the last read ends at the
     * file's end. */
    int (*open_direct)(struct sys *sys, const char *path);
    int (*identify)(struct sys *sys, int file, struct file_identity *identity);
    int64_t (*read_at)(struct sys *sys, int file, void *to, size_t bytes, int64_t offset);
    void (*close)(struct sys *sys, int file);
    /* Creates a new output file (-EEXIST if it exists) to be written in order, flushed, and renamed. The file
     * is locked (flock) while open, so an unlocked temporary file is left over from a killed process. */
    int (*create)(struct sys *sys, const char *path);
    /* Creates an unnamed file in a folder, so that a killed process leaves nothing; -EOPNOTSUPP if
     * unsupported. link names the file (-EEXIST if the name is taken). */
    int (*create_unnamed)(struct sys *sys, const char *folder);
    int (*link)(struct sys *sys, int file, const char *path);
    int64_t (*write)(struct sys *sys, int file, const void *from, size_t bytes);
    int (*flush)(struct sys *sys, int file);
    int (*rename)(struct sys *sys, const char *from, const char *to);
    int (*remove)(struct sys *sys, const char *path);

    /* Starts a thread that runs main(argument); returns 0 or a negative errno. thread_join waits for the
     * thread and frees it. */
    int (*thread_start)(struct sys *sys, struct sys_thread **thread, void (*main)(void *), void *argument);
    void (*thread_join)(struct sys *sys, struct sys_thread *thread);
    /* Waits for a call of wake, for at most `seconds` (0: no limit), releasing the lock meanwhile; spurious
     * returns are possible. Store threads wait only through wait and wake, so that they can run on a virtual
     * clock (bench/dev/virtual_threads.h). */
    void (*wait)(struct sys *sys, pthread_cond_t *there, pthread_mutex_t *lock, double seconds);
    void (*wake)(struct sys *sys, pthread_cond_t *there);

    double (*clock)(struct sys *sys);

    /* True on a virtual machine whose host takes free pages back (host_takes_free_pages). Large pages are
     * then slower than small ones: small pages were often freed recently, so the host still backs them
     * (bench/LOG.md). */
    bool host_takes_free_pages;

    struct sys_header_limit header_limit; /* memory limit for the headers of files that are opened */
    struct memory_use use;                /* byte counters; read with sys_memory_use */
};

/* Allocates n zeroed elements of element_bytes each (LINE_HOST). Fails with MEMORY, "no memory for WHAT":
 * then returns NULL. Freed with sys->release. */
void *sys_new(struct sys *sys, size_t n, size_t element_bytes, const char *what, struct error *e);

/* Initialises a condition for sys->wait on the monotonic clock (the C library's default: wall clock). */
void sys_cond_init(pthread_cond_t *there);

/* Fills struct sys with the functions of the operating system; nothing to destroy. */
void sys_init_machine(struct sys *sys);

/* Read or write through struct sys, repeating interrupted calls; -EINTR after a thousand interruptions in a
 * row. */
int64_t sys_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset);
int64_t sys_write(struct sys *sys, int file, const void *from, size_t bytes);

/* Returns a consistent copy of the memory counters. */
struct memory_use sys_memory_use(struct sys *sys);

/* Headers of files up to this size in bytes are read under any budget: the plan then reports the least
 * budget. */
enum { HEADER_LIMIT_MIN = 16 << 20 };

/* Checks the memory for a file header before the header is read, so that a damaged or hostile header cannot
 * exceed the memory budget: the plan counts header memory too, but is made after the files are open. Returns
 * BUDGET if `bytes` more host memory would exceed sys->header_limit; the error names a budget that works.
 * path: the file, for the message. */
enum status header_limit_check(struct sys *sys, const char *path, uint64_t bytes, struct error *e);

#endif
