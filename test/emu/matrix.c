#include "matrix.h"

#include "enqueue.h"

#include <pthread.h>
#include <stdlib.h>

float *matrix_floats(int64_t n) {
    float *memory = malloc((size_t)n * sizeof *memory);
    if (!memory) emu_stop("no memory for operands of a library");
    return memory;
}

#ifdef __SANITIZE_THREAD__

struct matrix {
    struct sys *sys;
};

struct matrix *matrix_open(struct sys *sys, struct error *e) {
    struct matrix *m = sys->alloc(sys, LINE_HOST, sizeof *m);
    if (m)
        m->sys = sys;
    else
        error_set(e, MEMORY, "no memory for an emulated library");
    return m;
}

void matrix_close(struct matrix *m) {
    if (m) m->sys->release(m->sys, m);
}

enum status matrix_prepare(struct matrix *m, const struct onednn_key *key, struct error *e) {
    (void)m, (void)key, (void)e;
    return OK;
}

/* Disables TSan for loops over copies of the operands, which need no checks. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

UNWATCHED static void multiply(const int32_t n[3], const float *src, const float *weights, float *dst) {
    for (int64_t i = 0; i < n[0]; i++)
        for (int64_t j = 0; j < n[1]; j++) {
            float sum = 0;
            for (int64_t k = 0; k < n[2]; k++) sum += src[i * n[2] + k] * weights[j * n[2] + k];
            dst[i * n[1] + j] = sum;
        }
}

UNWATCHED static float convolve_one(const int32_t n[5], const float *src, const float *weights) {
    int64_t c = n[2], side = n[4], row = (n[1] + side - 1) * c;
    float sum = 0;
    for (int64_t y = 0; y < side; y++)
        for (int64_t x = 0; x < side; x++)
            for (int64_t i = 0; i < c; i++)
                sum += src[y * row + x * c + i] * weights[(i * side + y) * side + x];
    return sum;
}

UNWATCHED static void convolve(const int32_t n[5], const float *src, const float *weights, float *dst) {
    int64_t c = n[2], taps = (int64_t)n[4] * n[4], row = (n[1] + n[4] - 1) * c;
    for (int64_t y = 0; y < n[0]; y++)
        for (int64_t x = 0; x < n[1]; x++)
            for (int64_t j = 0; j < n[3]; j++)
                dst[(y * n[1] + x) * n[3] + j] =
                    convolve_one(n, src + y * row + x * c, weights + j * c * taps);
}

void matrix_run(struct matrix *m, const struct onednn_key *key, const float *src, const float *weights,
                float *dst) {
    (void)m;
    if (key->kind == ONEDNN_CONV)
        convolve(key->number, src, weights, dst);
    else
        multiply(key->number, src, weights, dst);
}

#else

/* oneDNN's memory belongs to the emulator, so a separate struct sys counts it. */
struct matrix {
    struct sys *sys, machine;
    struct onednn *onednn;
    pthread_mutex_t lock; /* lock, because a stream may compute while the program prepares shapes */
};

struct matrix *matrix_open(struct sys *sys, struct error *e) {
    struct matrix *m = sys->alloc(sys, LINE_HOST, sizeof *m);
    if (!m) {
        error_set(e, MEMORY, "no memory for an emulated library");
        return NULL;
    }
    m->sys = sys;
    sys_init_machine(&m->machine);
    pthread_mutex_init(&m->lock, NULL);
    m->onednn = onednn_open(&m->machine, 1, e);
    if (m->onednn) return m;
    matrix_close(m);
    return NULL;
}

void matrix_close(struct matrix *m) {
    if (!m) return;
    onednn_close(m->onednn);
    pthread_mutex_destroy(&m->lock);
    m->sys->release(m->sys, m);
}

static struct onednn_key repacking(const struct onednn_key *key) {
    struct onednn_key repack = *key;
    repack.kind = ONEDNN_REPACK;
    return repack;
}

enum status matrix_prepare(struct matrix *m, const struct onednn_key *key, struct error *e) {
    struct onednn_key repack = repacking(key);
    pthread_mutex_lock(&m->lock);
    enum status s = onednn_prepare(m->onednn, key, e);
    if (!s && key->kind == ONEDNN_CONV) s = onednn_prepare(m->onednn, &repack, e);
    pthread_mutex_unlock(&m->lock);
    return s;
}

static void run(struct matrix *m, const struct onednn_key *key, struct onednn_operands operands) {
    struct error e = {0};
    char line[800];
    uint64_t bytes = onednn_facts(m->onednn, key).scratch_bytes;
    operands.scratch = matrix_floats((int64_t)(bytes / sizeof(float)) + 1);
    if (onednn_run(m->onednn, key, operands, &e)) emu_stop(error_line(&e, line, sizeof line));
    free(operands.scratch);
}

static void convolve(struct matrix *m, const struct onednn_key *key, const float *src, const float *weights,
                     float *dst) {
    struct onednn_key repack = repacking(key);
    uint64_t bytes = onednn_facts(m->onednn, key).weights_bytes;
    float *packed = matrix_floats((int64_t)(bytes / sizeof(float)) + 1);
    float *bias = matrix_floats(key->number[3]);
    for (int32_t i = 0; i < key->number[3]; i++) bias[i] = 0;
    run(m, &repack, (struct onednn_operands){.src = weights, .dst = packed});
    run(m, key, (struct onednn_operands){.src = src, .weights = packed, .bias = bias, .dst = dst});
    free(bias);
    free(packed);
}

void matrix_run(struct matrix *m, const struct onednn_key *key, const float *src, const float *weights,
                float *dst) {
    pthread_mutex_lock(&m->lock);
    if (key->kind == ONEDNN_CONV)
        convolve(m, key, src, weights, dst);
    else
        run(m, key, (struct onednn_operands){.src = src, .weights = weights, .dst = dst});
    pthread_mutex_unlock(&m->lock);
}

#endif
