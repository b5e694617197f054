/* Self-test of the emulator: small CUDA programs, correct ones and ones with one fault each. Every case has
 * two streams and the same four arrays. A faulty kernel is a template instance; the correct instance of the
 * template is also a case.
 *
 * Each case runs in its own process in three thread orders. Correct cases must pass in all orders; faults
 * must be found in at least one order by the emulator, a wrong result or the sanitizer, as the table lists.
 */
#include "emu.h"
#include "kernels/cuda/ptx.cuh"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exit status of a case; the emulator and the sanitizers end the process with others. */
enum { CASE_RIGHT = 0, CASE_WRONG = 3, CASE_UNKNOWN = 4 };

static const unsigned FULL = 0xFFFFFFFF;
enum { THREADS = 64, BLOCKS = 6, N = BLOCKS * THREADS };

static cudaStream_t compute, copies;
static cudaEvent_t event;
static float *in, *out, *host_in, *host_out;

static void need(cudaError_t error) {
    if (!error) return;
    fprintf(stderr, "case: %s\n", cudaGetErrorString(error));
    exit(CASE_UNKNOWN);
}

static void device_begin() {
    need(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    need(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
    need(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    need(cudaMalloc((void **)&in, N * sizeof *in));
    need(cudaMalloc((void **)&out, N * sizeof *out));
    need(cudaHostAlloc((void **)&host_in, N * sizeof *in, cudaHostAllocDefault));
    need(cudaHostAlloc((void **)&host_out, N * sizeof *out, cudaHostAllocDefault));
    for (int i = 0; i < N; i++) host_in[i] = (float)i;
}

static void device_end() {
    cudaStreamDestroy(compute);
    cudaStreamDestroy(copies);
    cudaEventDestroy(event);
    cudaFree(in);
    cudaFree(out);
    cudaFreeHost(host_in);
    cudaFreeHost(host_out);
}

static void upload(cudaStream_t stream) {
    need(cudaMemcpyAsync(in, host_in, N * sizeof *in, cudaMemcpyHostToDevice, stream));
}

static void download(cudaStream_t stream) {
    need(cudaMemcpyAsync(host_out, out, N * sizeof *out, cudaMemcpyDeviceToHost, stream));
}

static void order(cudaStream_t first, cudaStream_t then) {
    need(cudaEventRecord(event, first));
    need(cudaStreamWaitEvent(then, event, 0));
}

/* Downloads the result and compares it with the expected elements; returns CASE_RIGHT or CASE_WRONG. */
static int judge(float (*expected)(int i)) {
    download(compute);
    need(cudaStreamSynchronize(compute));
    for (int i = 0; i < N; i++)
        if (host_out[i] != expected(i)) return CASE_WRONG;
    return CASE_RIGHT;
}

static float reversed(int i) {
    return (float)(i / THREADS * THREADS + THREADS - 1 - i % THREADS);
}

template <bool BARRIER> __global__ static void reverse(float *to, const float *from) {
    SMEM_ARRAY(float, tile, THREADS);
    int base = blockIdx.x * THREADS, t = threadIdx.x;
    tile[t] = from[base + t];
    if (BARRIER) __syncthreads();
    to[base + t] = tile[THREADS - 1 - t];
}

/* A thread takes its neighbour's value; FIRST and SECOND enable barriers before and after the read. */
template <bool FIRST, bool SECOND> __global__ static void rotate(float *to, const float *from) {
    SMEM_DYN(float, tile);
    int base = blockIdx.x * THREADS, t = threadIdx.x;
    float value = from[base + t];
    for (int round = 0; round < 4; round++) {
        tile[t] = value;
        if (FIRST) __syncthreads();
        value = tile[(t + 1) % THREADS];
        if (SECOND) __syncthreads();
    }
    to[base + t] = value;
}

static float rotated(int i) {
    return (float)(i / THREADS * THREADS + (i % THREADS + 4) % THREADS);
}

template <int KIND> __global__ static void divergent(float *to) {
    int t = threadIdx.x;
    if (KIND == 0 && t < 40) __syncthreads();
    if (KIND == 1 && t == 5) return;
    if (KIND == 1) __syncthreads();
    if (KIND == 2 && t < 32)
        __syncthreads();
    else if (KIND == 2)
        __syncthreads();
    to[t] = 1;
}

template <bool BARRIER> static int run_reverse() {
    upload(compute);
    LAUNCH(reverse<BARRIER>, BLOCKS, THREADS, 0, compute, out, in);
    return judge(reversed);
}

template <bool FIRST, bool SECOND> static int run_rotate() {
    upload(compute);
    LAUNCH((rotate<FIRST, SECOND>), BLOCKS, THREADS, THREADS * sizeof(float), compute, out, in);
    return judge(rotated);
}

template <int KIND> static int run_divergent() {
    LAUNCH(divergent<KIND>, 1, THREADS, 0, compute, out);
    need(cudaStreamSynchronize(compute));
    return CASE_RIGHT;
}

/* Runs more blocks than the emulator has shared memories, in several launches: reusing shared memory must not
 * look like a race. */
static int run_many() {
    upload(compute);
    for (int launches = 0; launches < 30; launches++)
        LAUNCH((rotate<true, true>), BLOCKS, THREADS, THREADS * sizeof(float), compute, out, in);
    return judge(rotated);
}

template <bool BARRIER> __global__ static void warp_rotate(float *to, const float *from) {
    SMEM_ARRAY(float, tile, THREADS);
    int base = blockIdx.x * THREADS, t = threadIdx.x;
    tile[t] = from[base + t];
    if (BARRIER) __syncwarp();
    to[base + t] = tile[t / 32 * 32 + (t + 4) % 32];
}

static float warp_rotated(int i) {
    return (float)(i / 32 * 32 + (i + 4) % 32);
}

template <bool BARRIER> static int run_warp_rotate() {
    upload(compute);
    LAUNCH(warp_rotate<BARRIER>, BLOCKS, THREADS, 0, compute, out, in);
    return judge(warp_rotated);
}

__global__ static void exchanges(float *to) {
    int t = threadIdx.x, lane = t % 32;
    float sum = (float)lane;
    for (int b = 16; b; b /= 2) sum += __shfl_xor_sync(FULL, sum, b);
    double down = __shfl_down_sync(FULL, (double)lane, 3);
    int up = __shfl_up_sync(FULL, lane, 3), half = __shfl_xor_sync(FULL, lane, 8, 16);
    unsigned odd = __ballot_sync(FULL, lane & 1);
    int third = 0;
    if (lane < 16)
        third = __shfl_sync(0xFFFF, lane, 3);
    else
        third = __shfl_sync(0xFFFF0000u, lane, 20);
    bool right = sum == 496 && down == (lane < 29 ? lane + 3 : lane) && up == (lane < 3 ? lane : lane - 3) &&
                 half == (lane ^ 8) && odd == 0xAAAAAAAAu && third == (lane < 16 ? 3 : 20) &&
                 __all_sync(FULL, lane < 32) && !__any_sync(FULL, lane > 31);
    to[blockIdx.x * THREADS + t] = right ? 1.0f : 0.0f;
}

static float one(int) {
    return 1;
}

static int run_exchanges() {
    LAUNCH(exchanges, BLOCKS, THREADS, 0, compute, out);
    return judge(one);
}

template <int KIND> __global__ static void absent(float *to) {
    int t = threadIdx.x;
    float value = (float)t;
    if (KIND == 0 && t % 32 < 20) value = __shfl_xor_sync(FULL, value, 1);
    /* the block has 40 threads, so its second warp is incomplete */
    if (KIND == 1) value = __shfl_xor_sync(FULL, value, 1);
    if (KIND == 2 && t % 32 < 16) value = __shfl_sync(0xFFFF, value, 20);
    to[t] = value;
}

template <int KIND> static int run_absent() {
    LAUNCH(absent<KIND>, 1, KIND == 1 ? 40 : int(THREADS), 0, compute, out);
    need(cudaStreamSynchronize(compute));
    return CASE_RIGHT;
}

enum { SIDE = 16 };

template <bool COMMIT_WAIT, bool BARRIER>
__global__ static void product(float *c, const uint16_t *a, const uint16_t *b) {
    SMEM_ARRAY(uint16_t, tiles, 2 * SIDE * SIDE);
    int l = threadIdx.x;
    copy_async_16(tiles + 8 * l, a + 8 * l, true);
    copy_async_commit();
    copy_async_16(tiles + SIDE * SIDE + 8 * l, b + 8 * l, true);
    copy_async_commit();
    if (COMMIT_WAIT) copy_async_wait<0>();
    if (BARRIER) __syncthreads();
    uint32_t fa[4], fb[4], fb_both[2][2];
    ldmatrix_x4(fa, tiles + l % 16 * SIDE + l / 16 * 8);
    ldmatrix_x4_transposed(fb, tiles + SIDE * SIDE + l % 16 * SIDE + l / 16 * 8);
    for (int i = 0; i < 4; i++) fb_both[i / 2][i % 2] = fb[i];
    float d[2][4] = {};
    mma_bf16<2>(d, fa, fb_both);
    for (int i = 0; i < 8; i++)
        c[(l / 4 + i % 4 / 2 * 8) * SIDE + i / 4 * 8 + l % 4 * 2 + i % 2] = d[i / 4][i % 4];
}

template <bool COMMIT_WAIT, bool BARRIER> static int run_product() {
    uint16_t *a = (uint16_t *)in, *b = a + SIDE * SIDE, *host = (uint16_t *)host_in;
    for (int i = 0; i < 2 * SIDE * SIDE; i++) host[i] = cuda_f32_bf16((float)(i * 7 % 13 - 6));
    upload(compute);
    LAUNCH((product<COMMIT_WAIT, BARRIER>), 1, 32, 0, compute, out, a, b);
    download(compute);
    need(cudaStreamSynchronize(compute));
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            float sum = 0;
            for (int k = 0; k < SIDE; k++)
                sum += cuda_bf16_f32(host[i * SIDE + k]) * cuda_bf16_f32(host[SIDE * SIDE + k * SIDE + j]);
            if (sum != host_out[i * SIDE + j]) return CASE_WRONG;
        }
    return CASE_RIGHT;
}

/* Without BARRIER the next tile overwrites a tile that slower lanes still read. */
template <bool BARRIER> __global__ static void early(float *to, const float *from) {
    SMEM_ARRAY(float, tile, THREADS);
    int t = threadIdx.x;
    float sum = 0;
    for (int i = 0; i < BLOCKS; i++) {
        if (t < THREADS / 4) copy_async_16(tile + 4 * t, from + i * THREADS + 4 * t, true);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        sum += tile[THREADS - 1 - t];
        if (BARRIER) __syncthreads();
    }
    for (int i = 0; i < BLOCKS; i++) to[i * THREADS + t] = sum;
}

static float summed(int i) {
    float sum = 0;
    for (int b = 0; b < BLOCKS; b++) sum += (float)(b * THREADS + THREADS - 1 - i % THREADS);
    return sum;
}

template <bool BARRIER> static int run_early() {
    upload(compute);
    LAUNCH(early<BARRIER>, 1, THREADS, 0, compute, out, in);
    return judge(summed);
}

enum { NO_FAULT, SHARED_BY_ONE, DYNAMIC_BY_ONE, GLOBAL_BY_ONE, GLOBAL_FAR, GLOBAL_BEFORE, LOCAL_BY_ONE };

template <int KIND> __global__ static void overrun(float *to, const float *from, int zero) {
    SMEM_ARRAY(float, tile, THREADS);
    SMEM_DYN(float, dynamic);
    float local[8];
    int t = threadIdx.x;
    for (int i = 0; i < 8; i++) local[i] = from[i];
    tile[t] = dynamic[t] = from[t];
    if (KIND == SHARED_BY_ONE && t == THREADS - 1) tile[THREADS + zero] = 1;
    if (KIND == DYNAMIC_BY_ONE && t == THREADS - 1) dynamic[THREADS + zero] = 1;
    if (KIND == GLOBAL_BY_ONE && t == 0) to[N + zero] = 1;
    if (KIND == GLOBAL_FAR && t == 0) to[N + 50000 + zero] = 1;
    if (KIND == GLOBAL_BEFORE && t == 0) to[zero - 3] = 1;
    if (KIND == LOCAL_BY_ONE && t == 3) local[8 + zero] = 2;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += local[i] + tile[i] + dynamic[i];
    for (int i = t; i < N; i += THREADS) to[i] = sum;
}

static float thrice(int) {
    return 3 * 28;
}

template <int KIND> static int run_overrun() {
    upload(compute);
    LAUNCH(overrun<KIND>, 1, THREADS, THREADS * sizeof(float), compute, out, in, 0);
    return judge(thrice);
}

__global__ static void misaligned(float *to, const float *from) {
    st128(to + 4 * threadIdx.x, ld128(from + 4 * threadIdx.x));
}

static float unchanged(int i) {
    return (float)i;
}

template <int BY> static int run_wide() {
    upload(compute);
    LAUNCH(misaligned, 1, N / 4, 0, compute, out, in + BY);
    return judge(unchanged);
}

/* Two threads, or two blocks, write one word in undefined order. */
__global__ static void collide(float *to, int stride) {
    to[(blockIdx.x * THREADS + threadIdx.x) / stride] = 1;
}

template <int BLOCKS_RUN, int STRIDE> static int run_collide() {
    LAUNCH(collide, BLOCKS_RUN, THREADS, 0, compute, out, STRIDE);
    need(cudaStreamSynchronize(compute));
    return CASE_RIGHT;
}

__global__ static void twice(float *to, const float *from) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    to[i] = 2 * from[i];
}

static float doubled(int i) {
    return (float)(2 * i);
}

static void launch_twice() {
    LAUNCH(twice, BLOCKS, THREADS, 0, compute, out, in);
}

/* Uploads an array on the copy stream, runs a kernel on the compute stream, then overwrites the array on the
 * copy stream. The parameters enable the waits between the streams. */
template <bool FIRST_WAIT, bool SECOND_WAIT, bool LAST_WAIT> static int run_streams() {
    upload(copies);
    if (FIRST_WAIT) order(copies, compute);
    launch_twice();
    if (SECOND_WAIT) order(compute, copies);
    for (int i = 0; i < N; i++) host_out[i] = -1;
    need(cudaMemsetAsync(in, 0, N * sizeof *in, copies));
    download(compute);
    if (LAST_WAIT) need(cudaStreamSynchronize(compute));
    int result = CASE_RIGHT;
    for (int i = 0; i < N; i++)
        if (host_out[i] != doubled(i)) result = CASE_WRONG;
    return result;
}

static int run_events() {
    need(cudaEventRecord(event, compute));
    upload(copies);
    order(copies, compute);
    launch_twice();
    need(cudaEventRecord(event, compute));
    need(cudaEventSynchronize(event));
    return cudaEventQuery(event) == cudaSuccess ? judge(doubled) : CASE_WRONG;
}

static int run_overwritten() {
    upload(copies);
    host_in[3] = 17;
    order(copies, compute);
    launch_twice();
    return judge(doubled) == CASE_UNKNOWN;
}

static int run_pageable() {
    static float pageable[N];
    for (int i = 0; i < N; i++) pageable[i] = (float)i;
    need(cudaMemcpyAsync(in, pageable, sizeof pageable, cudaMemcpyHostToDevice, compute));
    for (int i = 0; i < N; i++) pageable[i] = 0;
    launch_twice();
    int result = judge(doubled);
    need(cudaMemcpyAsync(pageable, out, sizeof pageable, cudaMemcpyDeviceToHost, compute));
    if (pageable[N - 1] != doubled(N - 1)) return CASE_WRONG;
    return emu_read_counts().pageable_copies == 2 ? result : CASE_WRONG;
}

static int run_default_stream() {
    LAUNCH(twice, BLOCKS, THREADS, 0, (cudaStream_t)0, out, in);
    return CASE_RIGHT;
}

static int run_wrong_kind() {
    cudaMemcpyAsync(in, host_in, 16, cudaMemcpyDeviceToHost, compute);
    return CASE_RIGHT;
}

static int run_long_copy() {
    cudaMemcpyAsync(in, host_in, N * sizeof *in + 4, cudaMemcpyHostToDevice, compute);
    return CASE_RIGHT;
}

static int run_host_argument() {
    static float pageable[N];
    LAUNCH(twice, BLOCKS, THREADS, 0, compute, out, (const float *)pageable);
    return CASE_RIGHT;
}

template <int GRID, int BLOCK, int SHARED> static int run_shape() {
    LAUNCH(twice, GRID, BLOCK, SHARED, compute, out, in);
    return CASE_RIGHT;
}

static int run_shared_allowed() {
    upload(compute);
    need(cudaFuncSetAttribute(overrun<NO_FAULT>, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
    LAUNCH(overrun<NO_FAULT>, 1, THREADS, 64 << 10, compute, out, in, 0);
    return judge(thrice);
}

static int run_shared_most() {
    need(cudaFuncSetAttribute(twice, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    return CASE_RIGHT;
}

static int run_freed_early() {
    emu_set_delays(0, 300000);
    static float registered[1024];
    need(cudaHostRegister(registered, sizeof registered, 0));
    launch_twice();
    need(cudaMemcpyAsync(in, registered, 64, cudaMemcpyHostToDevice, compute));
    need(cudaHostUnregister(registered));
    need(cudaStreamSynchronize(compute));
    return CASE_RIGHT;
}

template <bool TOUCH_AFTER> static int run_mapped() {
    size_t granule;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUdeviceptr at;
    CUmemGenericAllocationHandle first, second;
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ||
        cuMemAddressReserve(&at, 4 * granule, 0, 0, 0) || cuMemCreate(&first, granule, &prop, 0) ||
        cuMemCreate(&second, granule, &prop, 0) || cuMemMap(at, granule, 0, first, 0) ||
        cuMemMap(at + granule, granule, 0, second, 0) || cuMemSetAccess(at, 2 * granule, &access, 1) ||
        cuMemRelease(first))
        return CASE_UNKNOWN;
    uint64_t expected = 2 * granule + 2 * N * sizeof(float);
    if (emu_read_counts().live_bytes != expected) return CASE_WRONG;
    float *memory = (float *)(uintptr_t)(at + granule) - N / 2;
    need(cudaMemcpyAsync(memory, host_in, N * sizeof *in, cudaMemcpyHostToDevice, compute));
    LAUNCH(twice, BLOCKS, THREADS, 0, compute, out, (const float *)memory);
    int result = judge(doubled);
    cuMemUnmap(at, granule);
    if (emu_read_counts().live_bytes != expected - granule) return CASE_WRONG;
    if (TOUCH_AFTER) {
        LAUNCH(twice, BLOCKS, THREADS, 0, compute, out,
               (const float *)(uintptr_t)(at + granule) + (granule / sizeof(float) - THREADS));
        need(cudaStreamSynchronize(compute));
    }
    cuMemUnmap(at + granule, granule);
    cuMemRelease(second);
    cuMemAddressFree(at, 4 * granule);
    return result;
}

static int run_failures() {
    void *memory;
    emu_fail(EMU_MALLOC, 2, cudaErrorMemoryAllocation);
    need(cudaMalloc(&memory, 64));
    cudaFree(memory);
    if (cudaMalloc(&memory, 64) != cudaErrorMemoryAllocation ||
        cudaGetLastError() != cudaErrorMemoryAllocation || cudaGetLastError() != cudaSuccess)
        return CASE_WRONG;
    size_t free_bytes, left, total;
    need(cudaMemGetInfo(&free_bytes, &total));
    emu_set_taken(free_bytes - 65536);
    need(cudaMemGetInfo(&left, &total));
    if (left != 65536 || cudaMalloc(&memory, 65537) != cudaErrorMemoryAllocation) return CASE_WRONG;
    cudaGetLastError();
    emu_set_taken(0);
    emu_fail(EMU_LAUNCH, 1, cudaErrorIllegalAddress);
    launch_twice();
    bool right = cudaStreamSynchronize(compute) == cudaErrorIllegalAddress;
    right = right && cudaMalloc(&memory, 64) == cudaErrorIllegalAddress;
    right = right && cudaGetLastError() == cudaErrorIllegalAddress &&
            cudaGetLastError() == cudaErrorIllegalAddress;
    emu_reset();
    int count;
    emu_set_driver(0);
    right = right && cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver;
    emu_reset();
    emu_set_devices(0, 8, 0, 1 << 30);
    right = right && cudaGetDeviceCount(&count) == cudaErrorNoDevice && !count;
    emu_reset();
    cudaGetLastError();
    return right ? CASE_RIGHT : CASE_WRONG;
}

#ifdef __SANITIZE_ADDRESS__
enum { BUILD = 1 };
#elif defined __SANITIZE_THREAD__
enum { BUILD = 2 };
#else
enum { BUILD = 0 };
#endif

#define RACE    "data race"
#define ADDRESS "AddressSanitizer"
#define WRONG   "wrong result"
#define ALL(text)                                                                                            \
    { text, text, text }

/* Cases with the expected report without sanitizer, with ASan and UBSan, and with TSan (null: this build does
 * not find the fault), and a variable of the environment. */
static const struct emu_case {
    const char *name;
    int (*run)();
    const char *found[3], *variable, *value;
} cases[] = {
    {"clean reverse", run_reverse<true>, {}},
    {"clean rotate", run_rotate<true, true>, {}},
    {"clean many blocks", run_many, {}},
    {"clean warp rotate", run_warp_rotate<true>, {}},
    {"clean exchanges", run_exchanges, {}},
    {"clean product", run_product<true, true>, {}},
    {"clean prefetch", run_early<true>, {}},
    {"clean arrays", run_overrun<NO_FAULT>, {}},
    {"clean wide loads", run_wide<0>, {}},
    {"clean streams", run_streams<true, true, true>, {}},
    {"clean streams", run_streams<true, true, true>, {}, "EMU_DELAY", "20000"},
    {"clean streams", run_streams<true, true, true>, {}, "EMU_DELAY_KERNELS", "20000"},
    {"clean events", run_events, {}, "EMU_DELAY", "20000"},
    {"clean pageable", run_pageable, {}, "EMU_DELAY", "20000"},
    {"clean large shared", run_shared_allowed, {}},
    {"clean mapped", run_mapped<false>, {}},
    {"clean mapped", run_mapped<false>, {}, "EMU_GRANULE", "65536"},
    {"clean failures", run_failures, {}},
    {"no syncthreads", run_reverse<false>, {WRONG, WRONG, RACE}},
    {"no syncthreads before", run_rotate<false, true>, {WRONG, WRONG, RACE}},
    {"no syncthreads after", run_rotate<true, false>, {WRONG, WRONG, RACE}},
    {"no syncwarp", run_warp_rotate<false>, {WRONG, WRONG, RACE}},
    {"divergent if", run_divergent<0>, ALL("divergent barrier")},
    {"divergent return", run_divergent<1>, ALL("divergent barrier")},
    {"divergent branches", run_divergent<2>, ALL("divergent barrier")},
    {"absent lanes", run_absent<0>, ALL("absent lanes")},
    {"absent threads", run_absent<1>, ALL("absent lanes")},
    {"absent source", run_absent<2>, ALL("absent lane")},
    {"async never awaited", run_product<false, true>, ALL("never waited")},
    {"async without barrier", run_product<true, false>, {WRONG, WRONG, RACE}},
    {"async refilled early", run_early<false>, {WRONG, WRONG, RACE}},
    {"shared by one", run_overrun<SHARED_BY_ONE>, {nullptr, "out of bounds", nullptr}},
    {"dynamic by one", run_overrun<DYNAMIC_BY_ONE>, {nullptr, ADDRESS, nullptr}},
    {"global by one", run_overrun<GLOBAL_BY_ONE>, {nullptr, ADDRESS, nullptr}},
    {"global far", run_overrun<GLOBAL_FAR>, {"not mapped", ADDRESS, nullptr}},
    {"global before", run_overrun<GLOBAL_BEFORE>, {"not mapped", ADDRESS, nullptr}},
    {"local by one", run_overrun<LOCAL_BY_ONE>, {nullptr, "out of bounds", nullptr}},
    {"misaligned", run_wide<1>, ALL("misaligned")},
    {"two blocks one word", run_collide<2, 2 * THREADS>, {nullptr, nullptr, RACE}},
    {"two threads one word", run_collide<1, 2>, {nullptr, nullptr, RACE}},
    {"no wait copy compute", run_streams<false, true, true>, {nullptr, nullptr, RACE}},
    {"no wait copy compute", run_streams<false, true, true>, {WRONG, WRONG, RACE}, "EMU_DELAY", "300000"},
    {"no wait compute copy", run_streams<true, false, true>, {nullptr, nullptr, RACE}},
    {"no wait compute copy",
     run_streams<true, false, true>,
     {WRONG, WRONG, RACE},
     "EMU_DELAY_KERNELS",
     "300000"},
    {"no last wait", run_streams<true, true, false>, {WRONG, WRONG, RACE}, "EMU_DELAY", "300000"},
    {"source overwritten", run_overwritten, {nullptr, nullptr, RACE}},
    {"default stream", run_default_stream, ALL("default stream")},
    {"wrong kind", run_wrong_kind, ALL("kind 2")},
    {"long copy", run_long_copy, ALL("pass the end")},
    {"host argument", run_host_argument, ALL("nor pinned")},
    {"no blocks", run_shape<0, 32, 0>, ALL("a grid of (0")},
    {"many threads", run_shape<1, 1025, 0>, ALL("(1025, 1, 1) threads")},
    {"large shared", run_shape<1, 32, 50000>, ALL("shared memory")},
    {"largest shared", run_shared_most, ALL("shared memory")},
    {"freed early", run_freed_early, ALL("was freed before")},
    {"unmapped", run_mapped<true>, {"not mapped", ADDRESS, "ThreadSanitizer: SEGV"}},
};

/* Runs a case in its own process; stderr goes to `text`. Returns its exit status or 128 + signal. */
static int run_alone(const char *self, const struct emu_case *x, const char *order, char *text,
                     size_t bytes) {
    int pipe_ends[2];
    if (pipe(pipe_ends)) return -1;
    pid_t child = fork();
    if (!child) {
        dup2(pipe_ends[1], 2);
        close(pipe_ends[0]);
        setenv("EMU_ORDER", order, 1);
        if (x->variable) setenv(x->variable, x->value, 1);
        execl(self, self, x->name, (char *)nullptr);
        _exit(127);
    }
    close(pipe_ends[1]);
    size_t n = 0;
    char rest[4096];
    for (ssize_t got; (got = read(pipe_ends[0], rest, sizeof rest)) > 0;) {
        size_t fits = (size_t)got < bytes - 1 - n ? (size_t)got : bytes - 1 - n;
        memcpy(text + n, rest, fits);
        n += fits;
    }
    text[n] = 0;
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool case_holds(const char *self, const struct emu_case *x) {
    static const char *const orders[] = {"forward", "reverse", "random"};
    static char text[65536];
    bool clean = !strncmp(x->name, "clean", 5);
    int found = 0;
    for (int i = 0; i < 3 && (clean || !found); i++) {
        int status = run_alone(self, x, orders[i], text, sizeof text);
        const char *expected_text = x->found[BUILD];
        bool known = status != CASE_UNKNOWN && status != 127;
        if (clean ? status == 0 : known && status && expected_text && strstr(text, expected_text))
            found++;
        else if (clean || !known || (status && status != CASE_WRONG))
            printf("%s, %s: status %d\n%s", x->name, orders[i], status, text);
    }
    return clean ? found == 3 : found > 0;
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0;
    for (auto &x : cases) {
        if (argc == 2 && !strcmp(x.name, argv[1])) {
            device_begin();
            int result = x.run();
            device_end();
            if (result == CASE_WRONG) fprintf(stderr, WRONG "\n");
            return result;
        }
        if (argc == 2) continue;
        if (strncmp(x.name, "clean", 5) && !x.found[BUILD]) {
            skipped++;
            continue;
        }
        bool holds = case_holds(argv[0], &x);
        holds ? passed++ : failed++;
        if (!holds)
            printf("FAILED: %s%s%s\n", x.name, x.variable ? " with " : "", x.variable ? x.variable : "");
    }
    if (argc == 2) return CASE_UNKNOWN;
    printf("%d faults are found only by other builds\n%d passed, %d failed\n", skipped, passed, failed);
    return failed != 0;
}
