/* The only door to oneDNN (2.6 and 3): matrix products, direct convolutions, and the repacking of their
 * weights.
 *
 * Everything is packed, and f32 but for the operands of one kind of product: oneDNN 2.6 leaves its fast
 * AVX-512 path when rows are strided, and one less degree of freedom is one less way to get other bits. A
 * primitive is named by its shape, built by onednn_prepare and kept until onednn_close; onednn_run only looks
 * it up, and computes on the thread that calls: several may run one primitive at a time (engine/base/team.h),
 * and OpenMP, on which oneDNN stands, starts no thread and waits for none. Invariants: the calling thread's
 * OpenMP setting is left as it was; oneDNN's scratch is the caller's (user mode); oneDNN's own primitive
 * cache is off, as ours is the one that is counted. */
#ifndef SLUICE_CPU_ONEDNN_H
#define SLUICE_CPU_ONEDNN_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

enum onednn_kind {
    ONEDNN_PRODUCT_T,       /* dst[M,N] = src[M,K] . weights[N,K]^T */
    ONEDNN_PRODUCT_T_BF16,  /* the same of bf16; sums and dst are f32 */
    ONEDNN_PRODUCT,         /* dst[M,N] = src[M,K] . weights[K,N] */
    ONEDNN_PRODUCT_PACKED,  /* the same with weights[N/64,K,64], as oneDNN's AVX-512 kernel reads them: the
                               bits of the others without their copying. N in 64s, K in 16s */
    ONEDNN_PRODUCT_T_ADDED, /* dst[M,N] += src[M,K] . weights[N,K]^T */
    ONEDNN_CONV, /* dst[Y,X,N] = bias + src[(Y-1)s+k,(X-1)s+k,C] * weights, without padding, stride s; C and N
                    multiples of 8 */
    ONEDNN_REPACK, /* dst = the weights [N,C,k,k] in src as the convolution of the same numbers wants them */
};

/* Numbers: products {M, N, K}; convolutions {Y, X, C, N, k, s - 1}. number[ONEDNN_SHARED] is 1 if all of
 * OpenMP's threads compute it, one run at a time; nothing but the bench that measures oneDNN itself asks for
 * that. */
enum { ONEDNN_SHARED = 6 };

struct onednn_key {
    int32_t kind, number[ONEDNN_SHARED + 1];
};

struct onednn_facts {
    uint64_t scratch_bytes;
    uint64_t hidden_bytes;  /* the most that oneDNN allocates while every thread runs the primitive */
    uint64_t weights_bytes; /* of a convolution's repacked weights */
    bool reference;         /* oneDNN has only its slow reference code for this */
    bool brgemm;            /* its AVX-512 kernel for products, which reads packed weights as they are */
    bool supported;
};

struct onednn_operands {
    const void *src, *weights, *bias;
    void *dst, *scratch;
};

/* Of address space, beyond what an allocation asks for: the C library's heap grows in steps, of 1 MiB where
 * it cannot grow in place. */
enum { ONEDNN_MARGIN = 1 << 20 };

/* Heap and JIT code that one primitive keeps, with our memory objects. Measured at most: see onednn.c. */
uint64_t onednn_primitive_bytes(const struct onednn_key *key);

/* Has this processor instructions for products of bf16, as far as oneDNN may use them? Without, it computes
 * them by widening: slower than f32. */
bool onednn_has_bf16(void);

struct onednn;

/* threads: as many as may run primitives at a time. MEMORY or DEVICE; NULL then. */
struct onednn *onednn_open(struct sys *sys, int threads, struct error *e);
void onednn_close(struct onednn *o);

/* See cpu.h: cpu_instructions, cpu_library_more_bytes, cpu_library. */
const char *onednn_instructions(void);
uint64_t onednn_more_bytes(void);
void onednn_version(char *out, size_t out_bytes);

/* A pure function of key, thread count and instruction set, whether prepared or not. */
struct onednn_facts onednn_facts(const struct onednn *o, const struct onednn_key *key);
/* Equal keys, equal number. */
uint64_t onednn_signature(const struct onednn_key *key);
/* Whether a product of packed weights can be had and is the faster one: not below AVX-512. */
bool onednn_packs(const struct onednn *o, const struct onednn_key *key);

/* Builds the primitive unless it is there. MEMORY, or DEVICE if oneDNN refuses. */
enum status onednn_prepare(struct onednn *o, const struct onednn_key *key, struct error *e);
/* INTERNAL if it was not prepared, DEVICE if oneDNN fails. */
enum status onednn_run(struct onednn *o, const struct onednn_key *key, struct onednn_operands operands,
                       struct error *e);

#endif
