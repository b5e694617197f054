#include "kernels/cuda/pinnable.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK = 16 << 20, LEAST = 64 << 10, CHUNKS_MAX = 4096, PARTS_MAX = 8 };

/* Address range in which every chunk maps the same pages. */
struct trial {
    int file;
    char *memory;
    uint64_t bytes, pinned; /* size of the address range; bytes pinned so far, from the start of the range */
    uint64_t parts[PARTS_MAX]; /* offsets of pinned parts smaller than a chunk */
    int n_parts;
    cudaError_t refused; /* error of the last failed attempt */
};

static bool trial_open(struct trial *t, uint64_t chunks) {
    *t = (struct trial){.file = memfd_create("pinned", MFD_CLOEXEC), .bytes = chunks * CHUNK};
    if (t->file < 0 || ftruncate(t->file, CHUNK)) return false;
    void *at = mmap(NULL, t->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    t->memory = at == MAP_FAILED ? NULL : at;
    return t->memory;
}

/* Pins more of the range. Mapped pages count as resident once per mapping, so a chunk is mapped only while
 * pinned. */
static bool pin_next(struct trial *t, uint64_t bytes) {
    char *at = t->memory + t->pinned;
    if (t->pinned % CHUNK == 0 &&
        mmap(at, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, t->file, 0) == MAP_FAILED)
        return false;
    cudaError_t code = cudaHostRegister(at, bytes, cudaHostRegisterPortable);
    if (code != cudaSuccess) t->refused = code, (void)cudaGetLastError(); /* clears CUDA's error */
    madvise(at, bytes, MADV_DONTNEED);
    if (code == cudaSuccess) t->pinned += bytes;
    return code == cudaSuccess;
}

static void trial_close(struct trial *t) {
    uint64_t whole = t->n_parts ? t->parts[0] : t->pinned;
    for (uint64_t at = 0; at < whole; at += CHUNK) (void)cudaHostUnregister(t->memory + at);
    for (int i = 0; i < t->n_parts; i++) (void)cudaHostUnregister(t->memory + t->parts[i]);
    if (t->memory) munmap(t->memory, t->bytes);
    if (t->file >= 0) close(t->file);
}

uint64_t pinnable_try(uint64_t bytes, cudaError_t *refused) {
    struct trial t;
    uint64_t chunks = bytes / CHUNK + (bytes % CHUNK != 0), pinned = bytes;
    if (chunks > CHUNKS_MAX) chunks = CHUNKS_MAX;
    if (trial_open(&t, chunks)) {
        while (t.pinned < t.bytes && pin_next(&t, CHUNK)) {
        }
        for (uint64_t part = CHUNK / 2; part >= LEAST && t.pinned < t.bytes; part /= 2) {
            uint64_t at = t.pinned;
            if (pin_next(&t, part)) t.parts[t.n_parts++] = at;
        }
        pinned = t.pinned < t.bytes ? t.pinned : bytes;
    }
    trial_close(&t);
    *refused = t.refused;
    return pinned < bytes ? pinned : bytes;
}

bool pinnable_must_be_tried(void) {
    return access("/dev/dxg", F_OK) == 0;
}
