/* Declarations shared by the emulator's files, which are compiled without sanitizers and announce to TSan
 * only the order that CUDA guarantees. They use no pthread mutex or condition variable, which would add order
 * and hide races. */
#ifndef SLUICE_EMU_INTERNAL_H
#define SLUICE_EMU_INTERNAL_H

#include "emu.h"

#include <cuda_runtime.h>

#ifndef __x86_64__
#error "the emulator switches fibers with x86-64 assembly"
#endif

#include <linux/futex.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef EMU_TSAN
extern "C" {
void __tsan_acquire(void *);
void __tsan_release(void *);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *, unsigned flags);
void *__tsan_get_current_fiber(void);
void __tsan_set_fiber_name(void *, const char *);
}
static inline void after(void *place) {
    __tsan_acquire(place);
}
static inline void before(void *place) {
    __tsan_release(place);
}
enum { WITH_TSAN = 1 };
#else
/* TSan annotations: code after `after(place)` runs after all code that precedes `before(place)`. */
static inline void after(void *) {
}
static inline void before(void *) {
}
enum { WITH_TSAN = 0 };
#endif

#ifdef EMU_ASAN
extern "C" {
void __asan_poison_memory_region(void const volatile *, size_t);
void __asan_unpoison_memory_region(void const volatile *, size_t);
void __sanitizer_start_switch_fiber(void **fake_stack, const void *bottom, size_t bytes);
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom, size_t *bytes);
}
enum { WITH_ASAN = 1 };
#else
static inline void __asan_poison_memory_region(void const volatile *, size_t) {
}
static inline void __asan_unpoison_memory_region(void const volatile *, size_t) {
}
enum { WITH_ASAN = 0 };
#endif

/* Requests pages of 2 MiB, so that a large new mapping has 500 times fewer page faults. */
static inline void ask_for_huge_pages(void *at, size_t bytes) {
    if (bytes >= (size_t)2 << 20) madvise(at, bytes, MADV_HUGEPAGE);
}

/* memset and memcpy that the sanitizers' runtimes do not intercept. */
static inline void quiet_fill(void *to, int value, size_t bytes) {
    asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
}
static inline void quiet_copy(void *to, const void *from, size_t bytes) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}

static inline void futex_wait(uint32_t *word, uint32_t while_it_is) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_it_is, nullptr, nullptr, 0);
}
static inline void futex_wake(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

struct quiet_lock {
    uint32_t word; /* state of the lock: 0 free, 1 locked, 2 locked with waiters */
};
static inline void lock(quiet_lock *l) {
    uint32_t free = 0;
    if (__atomic_compare_exchange_n(&l->word, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    while (__atomic_exchange_n(&l->word, 2, __ATOMIC_ACQUIRE)) futex_wait(&l->word, 2);
}
static inline void unlock(quiet_lock *l) {
    if (__atomic_exchange_n(&l->word, 0, __ATOMIC_RELEASE) == 2) futex_wake(&l->word);
}

static inline double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the next number of xorshift64*; the state must not be 0. */
static inline uint64_t random_next(uint64_t *state) {
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Dull;
}

struct settings {
    int order;
    uint64_t seed;
    uint32_t copies_us, kernels_us;
    bool truncates; /* emulated tensor cores truncate sums, instead of rounding them */
    int devices, major, minor, integrated, driver;
    int compiled_for; /* architecture of compiled kernels, such as 89; 0: the device's capability */
    bool maps;        /* the device supports virtual memory management */
    uint64_t bytes, taken, pinnable, granule, context, code, shared;
};
extern settings now;

/* Prints one line to stderr and exits with status 86. */
void refuse(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Counts the CUDA call; returns the injected error for this call, or success. */
cudaError_t planned_failure(emu_call call);
/* Calls the callback set with emu_set_watcher. */
void tell_watcher(const char *kernel);
void count_copy(size_t bytes, bool pageable);
void count_device(int64_t bytes);
/* Adds to the counts of host memory. Returns false and counts nothing if the pin limit would be exceeded. */
bool count_host(int64_t pinned, int64_t registered);
uint64_t device_live();
/* Sleeps for a random time up to `us` microseconds. */
void delay(uint32_t us, uint64_t *random);

/* Stores the error for cudaGetLastError, and returns it. */
cudaError_t report(cudaError_t error);
/* Returns the sticky error that has occurred, or success. */
cudaError_t struck();
/* Makes the error sticky, after a running copy has ended. */
void strike(cudaError_t error);
extern quiet_lock copying; /* locked while a copy runs */
bool is_sticky(cudaError_t error);
cudaError_t need_device();
/* Returns the limit of a kernel's dynamic shared memory in bytes. */
size_t shared_limit(const void *function);
/* Marks the kernel's code as loaded; returns whether it was loaded before. */
bool kernel_loaded(const void *function);
void count_late_kernel();
/* Returns whether the code of any kernel is loaded. */
bool kernels_there();

enum range_kind { RANGE_DEVICE, RANGE_MAPPED, RANGE_PINNED, RANGE_REGISTERED };

/* Adds an address range. Returns false if the range overlaps another range. */
bool range_add(range_kind kind, const void *start, size_t bytes);
/* Removes the range that starts at `start`. Returns its bytes, or 0 if no range starts there. */
size_t range_remove(range_kind kind, const void *start);
enum cover { COVER_NONE, COVER_PART, COVER_DEVICE, COVER_HOST };
/* Returns the kind of memory of a byte range; COVER_PART: one memory allocation covers only the first bytes.
 */
cover range_cover(const void *start, size_t bytes);
bool device_memory_left(size_t bytes);
/* Returns the bytes of free device memory; from the first call that needs the CUDA context on, the context
 * counts as used. */
uint64_t device_memory_free();
void make_context();

struct launch {
    const char *name;
    const void *function;
    dim3 grid, block;
    size_t shared_bytes;
    void (*call)(void *);
    void *arguments;
};

struct worker;
/* Creates the state of a stream's host thread, which runs thread blocks. That host thread must call this
 * function. */
worker *worker_create();
void worker_destroy(worker *worker);
void worker_run(worker *worker, const launch *launch);
/* Returns the name of the running kernel, for messages; "" outside of kernels. */
const char *kernel_running();

typedef void warp_operation(void *const operands[32], uint32_t mask);
/* Waits until all lanes in the mask have arrived; the last lane performs the warp operation for all. */
void warp_meet(uint32_t mask, warp_operation *operation, const char *what, void *operand, const char *file,
               int line);

#endif
