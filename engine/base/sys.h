/* The one table through which the engine touches the world: memory, files, threads, clock.
 *
 * Tests put their own functions here to count, delay, fail or poison; nothing else in the engine knows that.
 * A table may be used from several threads at once; its functions are thread-safe. */
#ifndef SLUICE_BASE_SYS_H
#define SLUICE_BASE_SYS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The plan's lines of memory of our own: every byte is taken under one of them. */
enum memory_line {
    LINE_HOST,       /* descriptors, indexes, tokenizer: small and long-lived */
    LINE_STORE,      /* residents and ring */
    LINE_STATE,      /* lane state and what crosses stages */
    LINE_ACTIVATION, /* scratch of one visit */
    LINE_WORKSPACE,  /* scratch of one operator */
    LINE_DEVICE,     /* memory that plays a device's own: see kernels/paced */
    N_MEMORY_LINES,
};

struct memory_use {
    int64_t live_bytes[N_MEMORY_LINES];
    int64_t peak_bytes[N_MEMORY_LINES];
};

/* Tells whether an open file's bytes are still those that were opened. Not by when its inode last changed:
 * who links, renames or chmods a file leaves its bytes as they are. */
struct file_identity {
    uint64_t device, inode;
    int64_t bytes;
    int64_t modified_ns;
    int64_t changed_ns; /* its inode: nobody can date it back, so it tells what outlives this process */
    bool regular;
};

/* A multiple of every disk's sector and of what file systems ask of direct reads. */
enum { SYS_DIRECT_BLOCK = 4096 };

struct sys_thread; /* opaque to users of the table */

/* A budget of memory, and what of it is not for files; all 0: any. See room.h. */
struct sys_room {
    uint64_t budget_bytes, beside_bytes;
};

struct sys {
    void *context; /* the functions' own */

    /* Zeroed memory, aligned for any object; NULL when there is none. release takes NULL. */
    void *(*alloc)(struct sys *sys, enum memory_line line, size_t bytes);
    void (*release)(struct sys *sys, void *memory);

    /* Whole pages (zeroed, not yet resident); NULL when there are none. unmap gives them back at once. */
    void *(*map)(struct sys *sys, enum memory_line line, size_t bytes);
    void (*unmap)(struct sys *sys, enum memory_line line, void *memory, size_t bytes);

    /* The same in steps: address space first, then pages within it (multiples of 4,096 bytes), which may come
     * and go. commit returns 0 or negative errno. Only committed bytes count. */
    void *(*reserve)(struct sys *sys, size_t bytes);
    int (*commit)(struct sys *sys, enum memory_line line, void *memory, size_t bytes);
    void (*decommit)(struct sys *sys, enum memory_line line, void *memory, size_t bytes);
    void (*unreserve)(struct sys *sys, void *memory, size_t bytes);

    /* The machine may lay these bytes (mapped or committed) in large pages where it can: for what is filled
     * whole, and pinned or read into at once. Nothing more becomes resident than these bytes. */
    void (*use_large_pages)(struct sys *sys, void *memory, size_t bytes);

    /* The contents of these bytes will not be read again before they are written. Does nothing here; a stress
     * build fills them with 0xFF. */
    void (*discard)(struct sys *sys, void *memory, size_t bytes);
    /* Gives what the C library keeps of freed memory back to the machine. */
    void (*trim)(struct sys *sys);
    /* Lets the C library join the small pieces that a library of ours has freed since: without, its next
     * requests walk on through whatever the heap has free, and touch pages that trim gave back. */
    void (*settle)(struct sys *sys);
    /* Whether so much could be had now, on top of what is: where a limit is set (RLIMIT_AS, RLIMIT_DATA,
     * strict overcommit), by that; else nearly always. Takes nothing, touches nothing, counts nothing. */
    bool (*has_room)(struct sys *sys, size_t bytes);
    /* Memory that other programs leave; 0: not known. See free_memory.h. */
    uint64_t (*free_bytes)(struct sys *sys);

    /* Files. Negative errno on failure. read_at may return less than asked for; 0 is the end. */
    int (*open)(struct sys *sys, const char *path);
    /* The same file past the page cache, or what the file system says against it. There read_at takes memory,
     * bytes and offset in multiples of SYS_DIRECT_BLOCK; the last read ends where the file ends. */
    int (*open_direct)(struct sys *sys, const char *path);
    int (*identify)(struct sys *sys, int file, struct file_identity *identity);
    int64_t (*read_at)(struct sys *sys, int file, void *to, size_t bytes, int64_t offset);
    void (*close)(struct sys *sys, int file);
    /* Output: a new file for writing (fails with -EEXIST if there is one), written in order, made durable,
     * then renamed over its final name. It is locked (flock) for as long as it is open: one that is not was
     * left by a process that was killed. */
    int (*create)(struct sys *sys, const char *path);
    /* The same without a name, in that folder, so that a killed process leaves nothing; -EOPNOTSUPP where the
     * system has none. link gives it one (-EEXIST if that is taken). */
    int (*create_unnamed)(struct sys *sys, const char *folder);
    int (*link)(struct sys *sys, int file, const char *path);
    int64_t (*write)(struct sys *sys, int file, const void *from, size_t bytes);
    int (*flush)(struct sys *sys, int file);
    int (*rename)(struct sys *sys, const char *from, const char *to);
    int (*remove)(struct sys *sys, const char *path);

    /* A thread that runs main(argument); 0 or negative errno. join waits for it and frees it. */
    int (*thread_start)(struct sys *sys, struct sys_thread **thread, void (*main)(void *), void *argument);
    void (*thread_join)(struct sys *sys, struct sys_thread *thread);
    /* Waits until somebody wakes whoever waits there, or for so many seconds (0: without end), or for no
     * reason. lock is let go of meanwhile. Whatever threads of a store wait for goes through these, so that
     * threads may be another clock's than the machine's: see kernels/dry/actors.h. */
    void (*wait)(struct sys *sys, pthread_cond_t *there, pthread_mutex_t *lock, double seconds);
    void (*wake)(struct sys *sys, pthread_cond_t *there);

    /* Monotonic seconds. */
    double (*clock)(struct sys *sys);

    struct sys_room room;  /* for files that are opened */
    struct memory_use use; /* kept by alloc, release, map and unmap; read with sys_memory_use */
};

/* For wait: those of the C library measure another clock by default. */
void sys_cond_init(pthread_cond_t *there);

/* The real machine. Initialises in place; nothing to destroy. */
void sys_init_machine(struct sys *sys);

/* read_at and write, asked again when a signal interrupts them. -EINTR after a thousand times in a row: then
 * it is no signal, and nobody should wait for ever. */
int64_t sys_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset);
int64_t sys_write(struct sys *sys, int file, const void *from, size_t bytes);

/* A consistent copy of the counters. */
struct memory_use sys_memory_use(struct sys *sys);

#endif
