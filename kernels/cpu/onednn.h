/* The only interface to oneDNN (2.6 and 3): matrix products, direct convolutions, and repacking of
 * convolution weights.
 *
 * All tensors are packed, and f32 except the operands of bf16 products: oneDNN 2.6 leaves its fast AVX-512
 * path for strided rows, and fewer variants mean fewer ways to change bits. A primitive is identified by its
 * shape, built by onednn_prepare and kept until onednn_close. onednn_run looks it up and computes on the
 * calling thread. Several threads may run one primitive at a time (engine/base/thread_pool.h); OpenMP, which
 * oneDNN uses, starts no threads.
 *
 * Invariants: the calling thread's OpenMP setting is restored; oneDNN's scratch comes from the caller (user
 * mode); oneDNN's own primitive cache is off, because only the primitives kept here are counted. */
#ifndef SLUICE_CPU_ONEDNN_H
#define SLUICE_CPU_ONEDNN_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* Kinds of primitives. */
enum onednn_kind {
    ONEDNN_PRODUCT_T,       /* dst[M,N] = src[M,K] . weights[N,K]^T */
    ONEDNN_PRODUCT_T_BF16,  /* bf16 operands; sums and dst are f32 */
    ONEDNN_PRODUCT,         /* dst[M,N] = src[M,K] . weights[K,N] */
    ONEDNN_PRODUCT_PACKED,  /* weights[N/64,K,64], the layout of oneDNN's AVX-512 kernel: same bits, without
                             * repacking; N a multiple of 64, K of 16 */
    ONEDNN_PRODUCT_T_ADDED, /* dst[M,N] += src[M,K] . weights[N,K]^T */
    ONEDNN_PRODUCT_INT8, /* dst[M,N] = src[M,K] . weights^T: u8 by s8, exact s32 sums (modulo 2^32); N and K
                          * multiples of 64. weights[N/64,K/64,16,64,4] if onednn_packs_int8, else [N,K] */
    ONEDNN_CONV,   /* dst[Y,X,N] = bias + src[(Y-1)s+k,(X-1)s+k,C] * weights: convolution without padding,
                    * stride s; C and N multiples of 8 */
    ONEDNN_REPACK, /* repacks weights [N,C,k,k] from src to dst for the ONEDNN_CONV with equal number[] */
};

/* Shape of a oneDNN primitive in number[]: products {M, N, K}; convolutions {Y, X, C, N, k, s - 1} with
 * kernel side k and stride s. number[ONEDNN_SHARED] = 1: all OpenMP threads compute one run; only the
 * benchmark of oneDNN itself sets it. */
enum { ONEDNN_SHARED = 6 };

struct onednn_key {
    int32_t kind, number[ONEDNN_SHARED + 1];
};

/* Properties of a oneDNN primitive. */
struct onednn_facts {
    uint64_t scratch_bytes;  /* bytes of scratch that the caller passes to onednn_run */
    uint64_t internal_bytes; /* most bytes that oneDNN allocates while all threads run the primitive */
    uint64_t weights_bytes;  /* bytes of a convolution's repacked weights */
    bool reference;          /* oneDNN uses its slow reference code */
    bool brgemm;             /* oneDNN uses its AVX-512 kernel, which reads packed weights without copying */
    bool supported;
};

struct onednn_operands {
    const void *src, *weights, *bias;
    void *dst, *scratch;
};

/* Free address space in bytes that must remain after an allocation: the C library's heap grows in steps of 1
 * MiB if it cannot grow in place. */
enum { ONEDNN_MARGIN = 1 << 20 };

/* Upper bound, from measurements, of the heap and JIT code bytes of one primitive with its memory objects. */
uint64_t onednn_primitive_bytes(const struct onednn_key *key);

/* True if the CPU has bf16 product instructions and oneDNN may use them. Otherwise oneDNN converts bf16 to
 * f32, which is slower than f32. */
bool onednn_has_bf16(void);

/* True if oneDNN uses int8 product instructions with exact sums: AMX, AVX512_VNNI or AVX_VNNI. With older
 * instructions oneDNN adds pairs of products in 16 bits, which saturate. */
bool onednn_has_int8(void);
/* True if int8 products read packed weights (AVX512_VNNI or AMX). */
bool onednn_packs_int8(void);

struct onednn;

/* Opens oneDNN. threads: most threads that run primitives at a time. NULL with MEMORY or DEVICE. */
struct onednn *onednn_open(struct sys *sys, int threads, struct error *e);
void onednn_close(struct onednn *o);

/* Properties of the loaded oneDNN library, for users of the CPU device. */

/* Returns the instruction set used for products, as oneDNN names it ("AVX512_CORE_BF16"): the CPU's best, or
 * less if DNNL_MAX_CPU_ISA is set; "default" if oneDNN has no name. */
const char *cpu_instructions(void);
/* Returns how many bytes the loaded oneDNN takes after its start in excess of oneDNN 2.6 on AVX-512. */
uint64_t cpu_library_more_bytes(void);
/* Writes the version of the loaded oneDNN, such as "oneDNN 2.6.3", to out. */
void cpu_library(char *out, size_t out_bytes);

/* Returns a primitive's properties from key, thread count and instruction set alone; the primitive need not
 * be built. */
struct onednn_facts onednn_facts(const struct onednn *o, const struct onednn_key *key);
/* Returns a hash of a primitive's key. */
uint64_t onednn_signature(const struct onednn_key *key);
/* True if products with packed weights are supported and faster, which is the case only with AVX-512. */
bool onednn_packs(const struct onednn *o, const struct onednn_key *key);

/* Builds the primitive unless it exists. MEMORY, or DEVICE if oneDNN refuses. */
enum status onednn_prepare(struct onednn *o, const struct onednn_key *key, struct error *e);
/* Runs a primitive. INTERNAL if the primitive was not prepared, DEVICE if oneDNN fails. */
enum status onednn_run(struct onednn *o, const struct onednn_key *key, struct onednn_operands operands,
                       struct error *e);

#endif
