/* Measures the cost of low-rank adapters on the CPU: in the large matrix products of Z-Image at 1056 tokens
 * (a 512x512 image and its text), then in the forward pass of one block. Runs with and without adapters
 * alternate in one process. Prints medians of CPU time, which other load on the machine hardly affects.
 *
 * make build/release/adapter_cost && build/release/adapter_cost [threads [rounds [rank]]] */
#include "engine/bench/block.h"
#include "engine/bench/random_component.h"
#include "kernels/cpu/cpu.h"
#include "kernels/dry/dry.h"
#include "kernels/ops.h"
#include "models/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_PARTS = 3, MAX_ROUNDS = 99, PAGE = 4096 };

/* Sizes of one matrix product: tokens, inputs, outputs; number of separately adapted parts of a fused
 * weight; calls per block. The feed-forward network processes its rows in two chunks. */
static const struct product {
    int32_t t, k, n;
    int parts, calls;
} products[] = {
    {1056, 3840, 11520, 3, 1}, {1056, 3840, 3840, 1, 1}, {528, 3840, 10240, 1, 4}, {528, 10240, 3840, 1, 2}};

static struct sys sys;

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct tensor matrix(struct context *x, enum dtype dtype, int32_t rows, int32_t columns) {
    return context_tensor(x, dtype, 2, (int32_t[]){rows, columns});
}

/* Runs one matrix product, with or without adapters, in the same memory. Returns its CPU time in seconds. */
static double run(struct context *x, const struct product *p, int rank, bool adapted) {
    struct low_rank chain[MAX_PARTS];
    int32_t rows = p->n / p->parts;
    x->scratch->used = 0;
    struct tensor in = matrix(x, DTYPE_F32, p->t, p->k), out = matrix(x, DTYPE_F32, p->t, p->n);
    struct tensor weight = matrix(x, DTYPE_BF16, p->n, p->k);
    for (int i = 0; i < p->parts; i++) {
        struct tensor down = matrix(x, DTYPE_BF16, rank, p->k), up = matrix(x, DTYPE_BF16, rows, rank);
        up.scale = 0.8f;
        chain[i] = (struct low_rank){down, up, i * rows, i + 1 < p->parts ? &chain[i + 1] : NULL};
    }
    weight.adapters = adapted ? chain : NULL;
    double start = cpu_seconds();
    op_linear(x, out, in, weight, (struct epilogue){0});
    return cpu_seconds() - start;
}

static int compare_doubles(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *seconds, int n) {
    qsort(seconds, (size_t)n, sizeof *seconds, compare_doubles);
    return n % 2 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
}

/* Allocates the memory that a dry run counts and fills it with values near 0.01, so that no page is the
 * shared zero page. */
static char *context_open(struct context *x, struct arena *arena, struct device *device,
                          const struct product *p, int rank) {
    struct dry dry;
    *arena = arena_counting();
    dry_init(&dry, &sys, device, true);
    x->device = &dry.device;
    run(x, p, rank, false);
    run(x, p, rank, true);
    uint64_t arena_bytes = align_up(arena->peak, PAGE),
             bytes = arena_bytes + align_up(dry.workspace_bytes, PAGE);
    x->workspace_bytes = dry.workspace_bytes;
    dry_destroy(&dry);
    char *memory = aligned_alloc(PAGE, bytes);
    for (uint64_t i = 0; memory && i < bytes / 2; i++)
        ((uint16_t *)(void *)memory)[i] = (uint16_t)(0x3c00 + i * 37 % 128);
    *arena = (struct arena){.base = memory, .bytes = arena_bytes};
    x->device = device;
    x->workspace = memory + arena_bytes;
    return memory;
}

/* The block is that of `sluice bench block`, which prints wall-clock time instead. */
static void measure_block(struct device *device, int rounds, int rank, struct error *e) {
    struct random_component blocks[2] = {0};
    double seconds[2][MAX_ROUNDS];
    struct random_component_sizes sizes = bench_block_case_named("block").sizes;
    for (int i = 0; i < 2 && e->code == OK; i++) {
        sizes.adapter_rank = i * rank;
        if (random_component_make(&blocks[i], &sys, device, &sizes, e) == OK)
            random_component_run(&blocks[i], device, e);
    }
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 2 && e->code == OK; i++) {
            double start = cpu_seconds();
            random_component_run(&blocks[i], device, e);
            seconds[i][r] = cpu_seconds() - start;
        }
    double base = median(seconds[0], rounds), with = median(seconds[1], rounds);
    if (e->code == OK)
        printf("one block: %.1f ms, with adapters %.1f ms: %+.1f %%\n", 1e3 * base, 1e3 * with,
               100 * (with / base - 1));
    for (int i = 0; i < 2; i++)
        if (blocks[i].sys) random_component_destroy(&blocks[i]);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 15;
    int rank = argc > 3 ? atoi(argv[3]) : 16;
    struct error e = {0};
    double all[2] = {0};
    sys_init_machine(&sys);
    struct device *device = cpu_open(&sys, threads, &e);
    if (!device || rounds < 1 || rounds > MAX_ROUNDS || rank < 1) return 2;
    for (size_t i = 0; i < sizeof products / sizeof *products && e.code == OK; i++) {
        const struct product *p = &products[i];
        double seconds[2][MAX_ROUNDS];
        struct arena arena;
        struct context x = {.scratch = &arena, .error = &e};
        char *memory = context_open(&x, &arena, device, p, rank);
        if (!memory) return 1;
        for (int adapted = 0; adapted < 2; adapted++) run(&x, p, rank, adapted);
        for (int r = 0; r < rounds; r++)
            for (int adapted = 0; adapted < 2; adapted++) seconds[adapted][r] = run(&x, p, rank, adapted);
        double base = median(seconds[0], rounds), with = median(seconds[1], rounds);
        printf("%d x %d x %d, %d adapters of rank %d: %.1f ms, with adapters %.1f ms: %+.1f %%\n", (int)p->t,
               (int)p->k, (int)p->n, p->parts, rank, 1e3 * base, 1e3 * with, 100 * (with / base - 1));
        all[0] += p->calls * base, all[1] += p->calls * with;
        free(memory);
    }
    printf("all matrix products of a block: %+.1f %%\n", 100 * (all[1] / all[0] - 1));
    if (e.code == OK) measure_block(device, rounds, rank, &e);
    device->destroy(device);
    return e.code != OK;
}
