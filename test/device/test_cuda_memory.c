/* Memory and ordering of the CUDA device, on a GPU or under the emulator: ring slots refilled while operators
 * are queued, event tables that wrap, pages mapped and unmapped in any order; under the emulator also CUDA
 * errors and the choice of GPUs.
 *
 * Under ThreadSanitizer a missing wait is a data race; an access to unmapped pages ends the process. */
#include "test/lib/assert_ok.h"
#include "test/lib/seeded.h"

#include "kernels/cuda/cuda.h"
#include "kernels/ops.h"
#include "test/device/emulated.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
#define __lsan_disable() ((void)0)
#define __lsan_enable()  ((void)0)
#endif

#pragma weak emu_reset
#pragma weak emu_set_driver

enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700 }; /* values of enum cudaError */
enum { FLOATS = 256, ROW = FLOATS * 4, MIB = 1 << 20, CHUNK = 2 << 20, PAGE = 4096 };

static struct sys sys;
static struct device *device;
static const struct device_memory *memory;

/* Resets the emulator, whose copies and kernels then take up to the given times longer, and opens the device.
 */
static void open_delayed(uint32_t copies_us, uint32_t kernels_us) {
    struct error e = {0};
    if (emulated()) emu_reset();
    if (emulated() && copies_us + kernels_us) emu_set_delays(copies_us, kernels_us);
    sys_init_machine(&sys);
    device = cuda_open(&sys, 0, &e);
    assert_ok(&e);
    memory = device->memory;
}

static void open_device(void) {
    open_delayed(0, 0);
}

static void close_device(void) {
    device->destroy(device);
    struct memory_use use = sys_memory_use(&sys);
    for (int i = 0; i < N_MEMORY_LINES; i++) assert_int_equal(use.live_bytes[i], 0);
}

static char *reserve_pages(size_t bytes) {
    char *pages = memory->reserve(device, bytes);
    assert_non_null(pages);
    assert_int_equal(memory->commit(device, pages, bytes), 0);
    return pages;
}

static float *alloc_mapped(size_t bytes) {
    float *shared = memory->alloc_mapped(device, bytes);
    assert_non_null(shared);
    return shared;
}

/* Queues a copy of n values on the device's compute stream. */
static enum status queue(void *out, void *in, int32_t n, struct error *e) {
    struct op op = {.kind = OP_COPY, .out = tensor_make(out, DTYPE_F32, 1, &n)};
    op.in[0] = tensor_make(in, DTYPE_F32, 1, &n);
    return device->run(device, &op, NULL, e);
}

static void wait_all(void) {
    struct error e = {0};
    double stalled = -1;
    memory->wait(device, &stalled, &e);
    assert_ok(&e);
    assert_true(stalled >= -1);
}

static void expect(struct error *e, enum status code, const char *found) {
    char line[1024];
    if (e->code != code || !strstr(error_line(e, line, sizeof line), found))
        fail_msg("expected %s with '%s': %s", status_name(code), found, line);
    *e = (struct error){0};
}

enum { SLOTS = 2, SOURCES = 4, VISITS = 1200 }; /* VISITS exceeds the size of both event tables */

/* A thread copies into the ring slot of each visit, which operators of the visit two before have read. */
static struct stream {
    float *sources;
    char *slots;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t event[VISITS], fence[VISITS];
    int n_events, n_fences;
} stream;

static void *copy_visits(void *argument) {
    for (int i = 0; i < VISITS; i++) {
        float *from = stream.sources + (size_t)(i % SOURCES) * FLOATS;
        pthread_mutex_lock(&stream.lock);
        while (stream.n_events <= i - SLOTS) pthread_cond_wait(&stream.changed, &stream.lock);
        uint64_t event = i < SLOTS ? 0 : stream.event[i - SLOTS];
        uint64_t passed = i < SOURCES ? 0 : stream.fence[i - SOURCES];
        pthread_mutex_unlock(&stream.lock);
        memory->wait_copy(device, passed);
        for (int k = 0; k < FLOATS; k++) from[k] = (float)i;
        uint64_t fence = memory->copy(device, stream.slots + (size_t)(i % SLOTS) * ROW, from, ROW, event);
        pthread_mutex_lock(&stream.lock);
        stream.fence[i] = fence;
        stream.n_fences++;
        pthread_cond_broadcast(&stream.changed);
        pthread_mutex_unlock(&stream.lock);
    }
    return NULL;
}

static void compute_visit(int i, char *out) {
    struct error e = {0};
    pthread_mutex_lock(&stream.lock);
    while (stream.n_fences <= i) pthread_cond_wait(&stream.changed, &stream.lock);
    uint64_t fence = stream.fence[i];
    pthread_mutex_unlock(&stream.lock);
    memory->await_copy(device, fence);
    queue(out, stream.slots + (size_t)(i % SLOTS) * ROW, FLOATS, &e);
    assert_ok(&e);
    uint64_t event = memory->record_event(device);
    assert_int_equal(event, i + 1);
    /* no new event, because no operator was queued since the previous event */
    assert_int_equal(memory->record_event(device), event);
    pthread_mutex_lock(&stream.lock);
    stream.event[i] = event;
    stream.n_events++;
    pthread_cond_broadcast(&stream.changed);
    pthread_mutex_unlock(&stream.lock);
}

static void run_visits(const uint32_t delays_us[2]) {
    struct error e = {0};
    pthread_t thread;
    open_delayed(delays_us[0], delays_us[1]);
    stream = (struct stream){.sources = alloc_mapped(SOURCES * ROW), .slots = reserve_pages(PAGE)};
    pthread_mutex_init(&stream.lock, NULL);
    pthread_cond_init(&stream.changed, NULL);
    char *out = reserve_pages((size_t)VISITS * ROW);
    float *values = alloc_mapped((size_t)VISITS * ROW);
    assert_int_equal(memory->record_event(device), 0);
    assert_int_equal(pthread_create(&thread, NULL, copy_visits, NULL), 0);
    for (int i = 0; i < VISITS; i++) compute_visit(i, out + (size_t)i * ROW);
    pthread_join(thread, NULL);
    queue(values, out, VISITS * FLOATS, &e);
    assert_ok(&e);
    wait_all();
    for (int i = 0; i < VISITS * FLOATS; i++)
        if (values[i] != (float)(i / FLOATS)) fail_msg("visit %d has %g", i / FLOATS, (double)values[i]);
    memory->finish(device);
    memory->free_mapped(device, values, (size_t)VISITS * ROW);
    memory->free_mapped(device, stream.sources, SOURCES * ROW);
    pthread_cond_destroy(&stream.changed);
    pthread_mutex_destroy(&stream.lock);
    close_device();
}

static void test_slots_are_filled_in_order(void **state) {
    static const uint32_t delays_us[][2] = {{0, 0}, {60, 0}, {0, 60}};
    for (int i = 0; i < (emulated() ? 3 : 1); i++) {
        run_visits(delays_us[i]);
        if (emulated()) assert_int_equal(emu_read_counts().pageable_copies, 0);
    }
}

/* An event overwritten in the event table counts as passed: the host has waited for it. */
static void test_overwritten_event_counts_as_passed(void **state) {
    enum { LATER = 300 };
    struct error e = {0};
    open_delayed(0, 500);
    float *source = alloc_mapped(ROW), *values = alloc_mapped(ROW), *others = alloc_mapped(2 * ROW);
    char *slot = reserve_pages(PAGE);
    source[0] = 1;
    memory->await_copy(device, memory->copy(device, slot, source, ROW, 0));
    queue(values, slot, FLOATS, &e);
    uint64_t first = memory->record_event(device);
    for (int i = 0; i < LATER; i++) {
        queue(others + FLOATS, others, FLOATS, &e);
        memory->record_event(device);
    }
    memory->wait_copy(device, 1);
    source[0] = 2;
    memory->copy(device, slot, source, ROW, first);
    assert_ok(&e);
    memory->finish(device);
    assert_true(values[0] == 1);
    memory->free_mapped(device, others, 2 * ROW);
    memory->free_mapped(device, values, ROW);
    memory->free_mapped(device, source, ROW);
    close_device();
}

/* Copies to the device from adjacent pinned chunks and from unpinned memory between them. */
static void test_copies_from_pinned_chunks(void **state) {
    struct error e = {0};
    open_device();
    float *pool = sys.map(&sys, LINE_STORE, MIB), *values = alloc_mapped(MIB);
    char *there = reserve_pages(MIB);
    for (int i = 0; i < MIB / 4; i++) pool[i] = (float)i;
    assert_int_equal(memory->pin(device, (char *)pool + 3 * PAGE, 10 * PAGE), 0);
    assert_int_equal(memory->pin(device, (char *)pool + 13 * PAGE, 90 * PAGE), 0);
    assert_int_equal(memory->pin(device, (char *)pool + 13 * PAGE, 90 * PAGE), -EEXIST);
    const size_t cuts[] = {0, 3 * PAGE, 13 * PAGE, 103 * PAGE, MIB};
    for (int i = 0; i < 4; i++)
        memory->await_copy(
            device, memory->copy(device, there + cuts[i], (char *)pool + cuts[i], cuts[i + 1] - cuts[i], 0));
    queue(values, there, MIB / 4, &e);
    wait_all();
    assert_memory_equal(values, pool, MIB);
    memory->unpin(device, (char *)pool + 13 * PAGE, 90 * PAGE);
    memory->unpin(device, (char *)pool + 3 * PAGE, 10 * PAGE);
    sys.unmap(&sys, LINE_STORE, pool, MIB);
    memory->free_mapped(device, values, MIB);
    close_device();
}

enum { PAGES = 4000, STEPS = 300 };

static uint64_t chunks_of(const bool *there) {
    uint64_t n = 0;
    for (int first = 0; first < PAGES; first += CHUNK / PAGE) {
        bool any = false;
        for (int i = first; i < first + CHUNK / PAGE && i < PAGES; i++) any |= there[i];
        n += any;
    }
    return n;
}

/* Commits uncommitted pages and writes to the first and last of them, or decommits committed pages. */
static void change_pages(uint64_t *random, char *pages, bool *there, void *shared) {
    int first = (int)random_below(random, PAGES), end = first + 1 + (int)random_below(random, 700),
        last = first;
    bool add = !there[first];
    while (last < PAGES && last < end && there[last] == !add) there[last++] = add;
    char *from = pages + (size_t)first * PAGE;
    size_t bytes = (size_t)(last - first) * PAGE;
    if (!add) {
        memory->decommit(device, from, bytes);
        return;
    }
    assert_int_equal(memory->commit(device, from, bytes), 0);
    memory->copy(device, from, shared, PAGE, 0);
    memory->copy(device, from + bytes - PAGE, shared, PAGE, 0);
    memory->finish(device);
}

static void test_pages_on_demand(void **state) {
    static bool there[PAGES];
    uint64_t random = seed_base;
    open_device();
    uint64_t own = memory->used(device);
    void *shared = alloc_mapped(PAGE);
    char *pages = memory->reserve(device, (size_t)PAGES * PAGE);
    for (int i = 0; i < STEPS; i++) {
        change_pages(&random, pages, there, shared);
        assert_int_equal(memory->used(device) - own, chunks_of(there) * CHUNK);
    }
    wait_all();
    memory->unreserve(device, pages, (size_t)PAGES * PAGE);
    assert_int_equal(memory->used(device), own);
    memory->free_mapped(device, shared, PAGE);
    close_device();
}

/* After preallocate, commits take no more memory from the GPU, and fail beyond the preallocated amount. */
static void test_preallocated_pages(void **state) {
    static bool there[PAGES];
    uint64_t random = seed_base;
    const uint64_t bytes = 32 * MIB;
    struct error e = {0};
    open_device();
    uint64_t own = memory->used(device);
    assert_int_equal(memory->preallocate(device, bytes, &e), OK);
    uint64_t used = memory->used(device);
    assert_true(used >= own + bytes && used <= device->overhead_bytes + bytes);
    assert_true(memory->available(device) > used);
    void *shared = alloc_mapped(PAGE);
    char *pages = memory->reserve(device, (size_t)PAGES * PAGE), *more = memory->reserve(device, 2 * bytes);
    for (int i = 0; i < STEPS; i++) change_pages(&random, pages, there, shared);
    assert_int_equal(memory->commit(device, more, 2 * bytes), -ENOMEM);
    /* the failed commit has taken no memory */
    assert_int_equal(memory->commit(device, more, CHUNK), 0);
    assert_int_equal(memory->used(device), used);
    assert_int_equal(memory->preallocate(device, 2 * bytes, &e), OK);
    assert_int_equal(memory->used(device), used + bytes);
    assert_int_equal(memory->preallocate(device, bytes, &e), OK);
    assert_int_equal(memory->used(device), used);
    memory->unreserve(device, more, 2 * bytes);
    memory->unreserve(device, pages, (size_t)PAGES * PAGE);
    assert_int_equal(memory->preallocate(device, 0, &e), OK);
    assert_int_equal(memory->used(device), own);
    memory->free_mapped(device, shared, PAGE);
    wait_all();
    close_device();
}

static void test_out_of_memory_can_be_retried(void **state) {
    struct error e = {0};
    if (!emulated()) skip();
    open_device();
    uint64_t own = memory->used(device);
    emu_fail(EMU_MEM_CREATE, 5, OUT_OF_MEMORY);
    memory->preallocate(device, 32 * MIB, &e);
    expect(&e, MEMORY, "67108864 more bytes needed");
    assert_int_equal(memory->used(device), own);
    assert_int_equal(memory->preallocate(device, 32 * MIB, &e), OK);
    char *pages = memory->reserve(device, 32 * MIB);
    emu_fail(EMU_MEM_MAP, 3, OUT_OF_MEMORY);
    assert_int_equal(memory->commit(device, pages, 32 * MIB), -ENOMEM);
    assert_int_equal(memory->commit(device, pages, 32 * MIB), 0);
    emu_fail(EMU_HOST_ALLOC, 1, OUT_OF_MEMORY);
    assert_null(memory->alloc_mapped(device, PAGE));
    void *pool = sys.map(&sys, LINE_STORE, MIB);
    emu_fail(EMU_HOST_REGISTER, 1, OUT_OF_MEMORY);
    assert_int_equal(memory->pin(device, pool, MIB), -ENOMEM);
    assert_int_equal(memory->pin(device, pool, MIB), 0);
    wait_all(); /* the failed pin must leave no error behind for this wait to report */
    memory->unpin(device, pool, MIB);
    sys.unmap(&sys, LINE_STORE, pool, MIB);
    close_device();
}

/* An error of an asynchronous copy is returned once, by the next operator. */
static void test_failed_copy_fails_next_operator(void **state) {
    struct error e = {0};
    if (!emulated()) skip();
    open_device();
    float *shared = alloc_mapped(2 * ROW);
    char *slot = reserve_pages(PAGE);
    emu_fail(EMU_COPY, 1, OUT_OF_MEMORY);
    memory->await_copy(device, memory->copy(device, slot, shared, ROW, 0));
    queue(shared + FLOATS, slot, FLOATS, &e);
    expect(&e, DEVICE, "copying to the GPU failed: found cudaErrorMemoryAllocation");
    queue(shared + FLOATS, slot, FLOATS, &e);
    assert_ok(&e);
    wait_all();
    memory->free_mapped(device, shared, 2 * ROW);
    close_device();
}

/* After the GPU is lost, every call fails at once with the reason, and host memory is freed. */
static void test_lost_gpu(void **state) {
    static const enum emu_call calls[] = {EMU_SYNCHRONIZE, EMU_LAUNCH};
    if (!emulated()) skip();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct error e = {0};
        double stalled = 0;
        __lsan_disable(); /* the lost GPU's driver memory is freed only by the end of the process */
        open_device();
        char *slot = reserve_pages(2 * PAGE);
        __lsan_enable();
        emu_fail(calls[i], 1, ILLEGAL_ADDRESS);
        queue(slot + PAGE, slot, FLOATS, &e);
        memory->wait(device, &stalled, &e);
        expect(&e, DEVICE, "found cudaErrorIllegalAddress");
        memory->wait(device, &stalled, &e);
        expect(&e, DEVICE, "the GPU was lost after an earlier error (");
        queue(slot + PAGE, slot, FLOATS, &e);
        expect(&e, DEVICE, "new process");
        memory->preallocate(device, MIB, &e);
        expect(&e, DEVICE, "new process");
        assert_int_equal(memory->commit(device, slot, PAGE), -EIO);
        assert_null(memory->reserve(device, PAGE));
        assert_null(memory->alloc_mapped(device, PAGE));
        assert_int_equal(memory->copy(device, slot, slot, PAGE, 0), 0);
        memory->await_copy(device, 1);
        memory->wait_copy(device, 1);
        memory->finish(device);
        memory->decommit(device, slot, PAGE);
        memory->unreserve(device, slot, PAGE);
        close_device();
    }
    emu_reset();
}

static void refuse(int ordinal, enum status code, const char *found) {
    struct error e = {0};
    assert_null(cuda_open(&sys, ordinal, &e));
    expect(&e, code, found);
}

static void test_unsupported_gpus_are_rejected(void **state) {
    struct error e = {0};
    struct cuda_info info;
    char why[400];
    if (!emulated()) skip();
    sys_init_machine(&sys);
    emu_reset();
    emu_set_driver(0);
    assert_int_equal(cuda_count(why, sizeof why), 0);
    assert_string_equal(why, "no NVIDIA driver found");
    refuse(0, DEVICE, "no NVIDIA driver found");
    emu_set_driver(12080);
    refuse(0, DEVICE, "too old: found a driver for CUDA 12.8, expected a driver for CUDA 13.0 or later");
    emu_reset();
    emu_set_devices(0, 8, 0, 1 << 30);
    refuse(0, DEVICE, "found no GPU");
    emu_set_devices(1, 7, 5, 1 << 30);
    refuse(0, DEVICE, "found compute capability 7.5, expected 8.0 or later");
    emu_set_devices(2, 8, 6, 1 << 30);
    refuse(2, USAGE, "no such GPU: cuda:2: found 2 GPUs, expected cuda:0 to cuda:1");
    refuse(-1, USAGE, "no such GPU: cuda:-1");
    assert_int_equal(cuda_describe(1, &info, &e), OK);
    assert_true(info.major == 8 && info.minor == 6 && info.bytes == 1 << 30);
    device = cuda_open(&sys, 1, &e);
    assert_ok(&e);
    close_device();
}

/* Each CUDA call of cuda_open fails in turn: everything opened before the failure is closed. */
static void test_failed_open_leaks_nothing(void **state) {
    if (!emulated()) skip();
    for (uint64_t n = 1; n < 2000; n += n < 4 ? 1 : 97) {
        struct error e = {0};
        enum emu_call call = n < 3 ? EMU_STREAM_CREATE : EMU_EVENT_CREATE;
        emu_reset();
        sys_init_machine(&sys);
        emu_fail(call, n, OUT_OF_MEMORY);
        device = cuda_open(&sys, 0, &e);
        if (!device) expect(&e, MEMORY, "out of GPU memory");
        if (device) device->destroy(device);
        struct memory_use use = sys_memory_use(&sys);
        assert_int_equal(use.live_bytes[LINE_HOST], 0);
    }
    emu_reset();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_are_filled_in_order),
        cmocka_unit_test(test_overwritten_event_counts_as_passed),
        cmocka_unit_test(test_copies_from_pinned_chunks),
        cmocka_unit_test(test_pages_on_demand),
        cmocka_unit_test(test_preallocated_pages),
        cmocka_unit_test(test_out_of_memory_can_be_retried),
        cmocka_unit_test(test_failed_copy_fails_next_operator),
        cmocka_unit_test(test_unsupported_gpus_are_rejected),
        cmocka_unit_test(test_failed_open_leaks_nothing),
        cmocka_unit_test(test_lost_gpu), /* runs last, because the process has no GPU afterwards */
    };
    return seeded_run(tests, sizeof tests / sizeof *tests);
}
