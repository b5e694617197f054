/* The emulator's settings, injected failures, counters and fatal errors. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

settings now;

static quiet_lock counting;
static struct emu_counts counts;
static struct {
    uint64_t in; /* number of calls until an injected failure; 0: no failure */
    cudaError_t error;
} planned[EMU_CALLS];

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

static int order_named(const char *text) {
    return !text || !strcmp(text, "forward") ? EMU_FORWARD
           : !strcmp(text, "reverse")        ? EMU_REVERSE
                                             : EMU_RANDOM;
}

static void read_environment() {
    now.order = order_named(getenv("EMU_ORDER"));
    now.seed = number("EMU_SEED", 1);
    now.copies_us = (uint32_t)number("EMU_DELAY", 0);
    now.kernels_us = (uint32_t)number("EMU_DELAY_KERNELS", 0);
    now.devices = (int)number("EMU_DEVICES", 1);
    now.driver = (int)number("EMU_DRIVER", CUDART_VERSION);
    now.bytes = number("EMU_MEMORY", 8ull << 30);
    now.taken = number("EMU_TAKEN", 0);
    now.pinnable = number("EMU_PINNABLE", UINT64_MAX);
    now.granule = number("EMU_GRANULE", 2 << 20);
    now.maps = number("EMU_MAPS", 1) != 0;
    const char *mma = getenv("EMU_MMA");
    now.truncates = mma && !strcmp(mma, "truncate");
    now.context = number("EMU_CONTEXT", 256 << 20);
    now.shared = number("EMU_SHARED", 99 << 10);
    now.compiled_for = (int)number("EMU_COMPILED_FOR", 0);
    now.code = number("EMU_CODE", 0);
    now.major = 8, now.minor = 0;
    now.integrated = number("EMU_INTEGRATED", 0) != 0;
    const char *text = getenv("EMU_CAPABILITY");
    if (text) sscanf(text, "%d.%d", &now.major, &now.minor);
    text = getenv("EMU_FAIL");
    int call, error;
    unsigned long long n;
    if (text && sscanf(text, "%d:%llu:%d", &call, &n, &error) == 3 && call >= 0 && call < EMU_CALLS)
        emu_fail((emu_call)call, n, error);
}

__attribute__((constructor)) static void begin() {
    read_environment();
}

void emu_reset(void) {
    lock(&counting);
    for (auto &p : planned) p = {0, cudaSuccess};
    struct emu_counts old = counts;
    counts = emu_counts{};
    counts.live_bytes = counts.peak_bytes = old.live_bytes;
    counts.pinned_bytes = old.pinned_bytes;
    counts.registered_bytes = old.registered_bytes;
    unlock(&counting);
    strike(cudaSuccess);
    cudaGetLastError();
    read_environment();
}

void emu_set_order(enum emu_order order, uint64_t seed) {
    now.order = order;
    now.seed = seed;
}

void emu_set_delays(uint32_t copies_us, uint32_t kernels_us) {
    now.copies_us = copies_us;
    now.kernels_us = kernels_us;
}

void emu_set_shared(uint64_t bytes, int compiled_for) {
    now.shared = bytes;
    now.compiled_for = compiled_for;
}

void emu_set_devices(int n, int major, int minor, uint64_t bytes) {
    now.devices = n;
    now.major = major, now.minor = minor;
    now.bytes = bytes;
}

void emu_set_driver(int version) {
    now.driver = version;
}

void emu_set_pinnable(uint64_t bytes) {
    now.pinnable = bytes;
}

void emu_set_taken(uint64_t bytes) {
    now.taken = bytes;
}

void emu_fail(enum emu_call call, uint64_t n, int error) {
    lock(&counting);
    planned[call] = {n, (cudaError_t)error};
    unlock(&counting);
}

cudaError_t planned_failure(emu_call call) {
    lock(&counting);
    counts.calls[call]++;
    bool fails = planned[call].in && !--planned[call].in;
    cudaError_t error = fails ? planned[call].error : cudaSuccess;
    unlock(&counting);
    return error;
}

void refuse(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = snprintf(line, sizeof line, "emu: ");
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, arguments);
    va_end(arguments);
    if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
    line[n++] = '\n';
    if (write(2, line, (size_t)n) < 0) _exit(EMU_FAULT_STATUS);
    _exit(EMU_FAULT_STATUS);
}

static struct {
    void (*after_kernel)(void *user, const char *kernel);
    void *user;
} watcher;

void emu_set_watcher(void (*after_kernel)(void *user, const char *kernel), void *user) {
    watcher.after_kernel = after_kernel;
    watcher.user = user;
}

void tell_watcher(const char *kernel) {
    if (watcher.after_kernel) watcher.after_kernel(watcher.user, kernel);
}

void count_copy(size_t bytes, bool pageable) {
    lock(&counting);
    counts.copied_bytes += bytes;
    counts.pageable_copies += pageable;
    unlock(&counting);
}

void count_late_kernel() {
    lock(&counting);
    counts.late_kernels++;
    unlock(&counting);
}

void count_device(int64_t bytes) {
    lock(&counting);
    counts.live_bytes += (uint64_t)bytes;
    if (counts.peak_bytes < counts.live_bytes) counts.peak_bytes = counts.live_bytes;
    unlock(&counting);
}

bool count_host(int64_t pinned, int64_t registered) {
    lock(&counting);
    uint64_t all = counts.pinned_bytes + counts.registered_bytes + (uint64_t)(pinned + registered);
    bool allowed = pinned + registered <= 0 || all <= now.pinnable;
    if (allowed) counts.pinned_bytes += (uint64_t)pinned;
    if (allowed) counts.registered_bytes += (uint64_t)registered;
    unlock(&counting);
    return allowed;
}

uint64_t device_live() {
    lock(&counting);
    uint64_t bytes = counts.live_bytes;
    unlock(&counting);
    return bytes;
}

struct emu_counts emu_read_counts(void) {
    lock(&counting);
    struct emu_counts copy = counts;
    unlock(&counting);
    return copy;
}

void delay(uint32_t us, uint64_t *random) {
    if (!us) return;
    uint64_t ns = random_next(random) % ((uint64_t)us * 1000);
    timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    syscall(SYS_nanosleep, &t, nullptr);
}
