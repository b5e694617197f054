/* fill_gpu FREE_MIB SECONDS [CONSTANTLY]: allocates GPU memory until FREE_MIB are free, prints "ready" and
 * holds the memory for SECONDS or until killed. CONSTANTLY: also allocates memory that becomes free
 * meanwhile. */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static size_t free_now(void) {
    size_t unused = 0, all = 0;
    return cudaMemGetInfo(&unused, &all) == cudaSuccess ? unused : 0;
}

/* Allocates GPU memory in pieces of decreasing size until `leave` bytes are free. */
static void take(size_t leave) {
    for (size_t piece = (size_t)1 << 30; piece >= (size_t)2 << 20; piece /= 2) {
        void *memory = NULL;
        while (free_now() >= leave + piece && cudaMalloc(&memory, piece) == cudaSuccess) continue;
        (void)cudaGetLastError();
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: fill_gpu FREE_MIB SECONDS [CONSTANTLY]\n");
        return 2;
    }
    size_t leave = (size_t)strtoul(argv[1], NULL, 10) << 20;
    time_t end = time(NULL) + strtol(argv[2], NULL, 10);
    if (cudaSetDevice(0) != cudaSuccess || cudaFree(NULL) != cudaSuccess) {
        fprintf(stderr, "fill_gpu: no GPU\n");
        return 1;
    }
    take(leave);
    printf("ready, %zu MiB free\n", free_now() >> 20);
    fflush(stdout);
    while (time(NULL) < end) {
        if (argc > 3) take(leave);
        usleep(100000);
    }
    return 0;
}
