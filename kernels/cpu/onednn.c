/* Interface to oneDNN. Versions 2 and 3 describe primitives differently; the first section of this file hides
 * the differences. Tested: 2.6.3 and 3.2.0, whose scratch and internal bytes stay within the same bounds. */
#include "kernels/cpu/onednn.h"

#include <assert.h>
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

static const dnnl_dims_t zeros = {0, 0};

#if DNNL_VERSION_MAJOR == 2

typedef const dnnl_memory_desc_t *layout_ref;

static layout_ref layout_of(const dnnl_memory_desc_t *l) {
    return l;
}

static dnnl_status_t layout_create(dnnl_memory_desc_t *l, int rank, const dnnl_dims_t dim,
                                   dnnl_data_type_t type, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(l, rank, dim, type, tag);
}

static void layout_destroy(dnnl_memory_desc_t *l) {
    (void)l;
}

static dnnl_status_t product_describe(dnnl_primitive_desc_t *d, dnnl_engine_t engine,
                                      const dnnl_memory_desc_t *src, const dnnl_memory_desc_t *weights,
                                      const dnnl_memory_desc_t *dst, dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t m;
    dnnl_status_t s = dnnl_matmul_desc_init(&m, src, weights, NULL, dst);
    return s ? s : dnnl_primitive_desc_create(d, &m, attr, engine, NULL);
}

static dnnl_status_t append_sum(dnnl_post_ops_t posts) {
    return dnnl_post_ops_append_sum(posts, 1);
}

/* Describes a convolution. l: layouts of source, weights, bias and destination. */
static dnnl_status_t conv_describe(dnnl_primitive_desc_t *d, dnnl_engine_t engine,
                                   const dnnl_memory_desc_t *l, const dnnl_dims_t strides,
                                   dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t c;
    dnnl_status_t s = dnnl_convolution_forward_desc_init(&c, dnnl_forward_inference, dnnl_convolution_direct,
                                                         &l[0], &l[1], &l[2], &l[3], strides, zeros, zeros);
    return s ? s : dnnl_primitive_desc_create(d, &c, attr, engine, NULL);
}

#elif DNNL_VERSION_MAJOR == 3

typedef const_dnnl_memory_desc_t layout_ref;

static layout_ref layout_of(const dnnl_memory_desc_t *l) {
    return *l;
}

static dnnl_status_t layout_create(dnnl_memory_desc_t *l, int rank, const dnnl_dims_t dim,
                                   dnnl_data_type_t type, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(l, rank, dim, type, tag);
}

static void layout_destroy(dnnl_memory_desc_t *l) {
    if (*l) dnnl_memory_desc_destroy(*l);
}

static dnnl_status_t product_describe(dnnl_primitive_desc_t *d, dnnl_engine_t engine,
                                      const dnnl_memory_desc_t *src, const dnnl_memory_desc_t *weights,
                                      const dnnl_memory_desc_t *dst, dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(d, engine, *src, *weights, NULL, *dst, attr);
}

static dnnl_status_t append_sum(dnnl_post_ops_t posts) {
    return dnnl_post_ops_append_sum(posts, 1, 0, dnnl_f32);
}

static dnnl_status_t conv_describe(dnnl_primitive_desc_t *d, dnnl_engine_t engine,
                                   const dnnl_memory_desc_t *l, const dnnl_dims_t strides,
                                   dnnl_primitive_attr_t attr) {
    return dnnl_convolution_forward_primitive_desc_create(d, engine, dnnl_forward_inference,
                                                          dnnl_convolution_direct, l[0], l[1], l[2], l[3],
                                                          strides, zeros, zeros, zeros, attr);
}

#else
#error "Sluice supports oneDNN 2 and 3"
#endif

enum { OPERAND_SRC, OPERAND_WEIGHTS, OPERAND_BIAS, OPERAND_DST, OPERAND_SCRATCH, N_OPERANDS };

static const int operand_argument[N_OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                                 DNNL_ARG_SCRATCHPAD};

/* Entry of the hash table of built oneDNN primitives. */
struct entry {
    struct onednn_key key;
    dnnl_primitive_t primitive; /* NULL: the entry is unused */
    struct onednn_facts facts;
};

/* Cached properties of oneDNN primitives that are not built. A plan asks for few shapes, thousands of times;
 * later shapes overwrite earlier ones. */
struct answer {
    bool filled;
    struct onednn_key key;
    struct onednn_facts facts;
};
enum { ANSWERS = 256 };

struct onednn {
    struct sys *sys;
    int threads;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attr, adding; /* adding: attributes for products that add to their destination */
    struct entry *entries; /* hash table of built primitives: open addressing, at most half full */
    uint64_t n_entries, capacity;
    struct answer *answers;
};

uint64_t onednn_signature(const struct onednn_key *key) {
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)(uint32_t)key->kind;
    for (int i = 0; i <= ONEDNN_SHARED; i++) {
        h = (h ^ (uint32_t)key->number[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

static struct entry *entry_find(const struct onednn *o, const struct onednn_key *key) {
    uint64_t i = onednn_signature(key) & (o->capacity - 1);
    while (o->entries[i].primitive && memcmp(&o->entries[i].key, key, sizeof *key) != 0)
        i = (i + 1) & (o->capacity - 1);
    return &o->entries[i];
}

static enum status onednn_grow(struct onednn *o, struct error *e) {
    if (2 * (o->n_entries + 1) <= o->capacity) return OK;
    struct onednn bigger = *o;
    bigger.capacity = 2 * o->capacity;
    bigger.entries =
        sys_new(o->sys, bigger.capacity, sizeof *bigger.entries, "the table of oneDNN primitives", e);
    if (!bigger.entries) return e->code;
    for (uint64_t i = 0; i < o->capacity; i++)
        if (o->entries[i].primitive) *entry_find(&bigger, &o->entries[i].key) = o->entries[i];
    o->sys->release(o->sys, o->entries);
    *o = bigger;
    return OK;
}

static bool onednn_has(int isa) {
    return ((int)dnnl_get_effective_cpu_isa() & isa) == isa;
}

bool onednn_has_bf16(void) {
    return onednn_has(dnnl_cpu_isa_avx512_core_bf16);
}

bool onednn_packs_int8(void) {
    return onednn_has(dnnl_cpu_isa_avx512_core_vnni);
}

bool onednn_has_int8(void) {
    return onednn_packs_int8() || onednn_has(dnnl_cpu_isa_avx2_vnni);
}

static dnnl_status_t describe_product(const struct onednn *o, const struct onednn_key *key,
                                      dnnl_primitive_desc_t *d) {
    static const struct {
        dnnl_format_tag_t weights;
        dnnl_data_type_t types[3]; /* types of source, weights and destination */
    } kinds[] = {
        [ONEDNN_PRODUCT_T] = {dnnl_ba, {dnnl_f32, dnnl_f32, dnnl_f32}},
        [ONEDNN_PRODUCT_T_BF16] = {dnnl_ba, {dnnl_bf16, dnnl_bf16, dnnl_f32}},
        [ONEDNN_PRODUCT] = {dnnl_ab, {dnnl_f32, dnnl_f32, dnnl_f32}},
        [ONEDNN_PRODUCT_PACKED] = {dnnl_BA16a64b, {dnnl_f32, dnnl_f32, dnnl_f32}},
        [ONEDNN_PRODUCT_T_ADDED] = {dnnl_ba, {dnnl_f32, dnnl_f32, dnnl_f32}},
        [ONEDNN_PRODUCT_INT8] = {dnnl_BA16a64b4a, {dnnl_u8, dnnl_s8, dnnl_s32}},
    };
    const int32_t *n = key->number;
    const dnnl_data_type_t *types = kinds[key->kind].types;
    bool unpacked = key->kind == ONEDNN_PRODUCT_INT8 && !onednn_packs_int8();
    dnnl_format_tag_t tag = unpacked ? dnnl_ba : kinds[key->kind].weights;
    dnnl_memory_desc_t l[3] = {0};
    dnnl_status_t s = layout_create(&l[0], 2, (const dnnl_dims_t){n[0], n[2]}, types[0], dnnl_ab);
    if (!s) s = layout_create(&l[1], 2, (const dnnl_dims_t){n[2], n[1]}, types[1], tag);
    if (!s) s = layout_create(&l[2], 2, (const dnnl_dims_t){n[0], n[1]}, types[2], dnnl_ab);
    dnnl_primitive_attr_t attr = key->kind == ONEDNN_PRODUCT_T_ADDED ? o->adding : o->attr;
    if (!s) s = product_describe(d, o->engine, &l[0], &l[1], &l[2], attr);
    for (int i = 0; i < 3; i++) layout_destroy(&l[i]);
    return s;
}

static dnnl_status_t describe_conv(const struct onednn *o, const struct onednn_key *key,
                                   dnnl_primitive_desc_t *d) {
    const int32_t *n = key->number, k = n[4], stride = n[5] + 1;
    dnnl_dims_t source = {1, n[2], (int64_t)(n[0] - 1) * stride + k, (int64_t)(n[1] - 1) * stride + k};
    dnnl_memory_desc_t l[4] = {0};
    dnnl_status_t s = layout_create(&l[0], 4, source, dnnl_f32, dnnl_nhwc);
    /* For weights in plain layout oneDNN would choose its slow reference code. */
    if (!s) s = layout_create(&l[1], 4, (const dnnl_dims_t){n[3], n[2], k, k}, dnnl_f32, dnnl_format_tag_any);
    if (!s) s = layout_create(&l[2], 1, (const dnnl_dims_t){n[3]}, dnnl_f32, dnnl_a);
    if (!s) s = layout_create(&l[3], 4, (const dnnl_dims_t){1, n[3], n[0], n[1]}, dnnl_f32, dnnl_nhwc);
    if (!s) s = conv_describe(d, o->engine, l, (const dnnl_dims_t){stride, stride}, o->attr);
    for (int i = 0; i < 4; i++) layout_destroy(&l[i]);
    return s;
}

static dnnl_status_t describe_repack(const struct onednn *o, const struct onednn_key *key,
                                     dnnl_primitive_desc_t *d) {
    const int32_t *n = key->number, k = n[4];
    dnnl_memory_desc_t plain = {0};
    dnnl_primitive_desc_t conv = NULL;
    dnnl_status_t s = describe_conv(o, key, &conv);
    if (!s) s = layout_create(&plain, 4, (const dnnl_dims_t){n[3], n[2], k, k}, dnnl_f32, dnnl_oihw);
    if (!s) {
        layout_ref packed = dnnl_primitive_desc_query_md(conv, dnnl_query_weights_md, 0);
        s = dnnl_reorder_primitive_desc_create(d, layout_of(&plain), o->engine, packed, o->engine, o->attr);
        layout_destroy(&plain);
    }
    if (conv) dnnl_primitive_desc_destroy(conv);
    return s;
}

static dnnl_status_t onednn_describe(const struct onednn *o, const struct onednn_key *key,
                                     dnnl_primitive_desc_t *d) {
    if (key->kind == ONEDNN_CONV) return describe_conv(o, key, d);
    if (key->kind == ONEDNN_REPACK) return describe_repack(o, key, d);
    return describe_product(o, key, d);
}

static uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Upper bound of bytes that oneDNN allocates inside a run. Below AVX-512 each thread packs blocks of both
 * operands: weights up to 10,000 outputs by 192 inputs, rows 384 by 192, both rounded up. On AVX2 products of
 * up to 256 rows are not packed and need at most 22 KB of stack per thread. Everything else allocates
 * descriptors only (at most 552 bytes).
 *
 * Measured with a malloc interposer, oneDNN 2.6.3, 1 to 8 threads, 24,000 shapes: at most 0.92 of this bound.
 * bf16 products with native instructions, 1,550 shapes: 400 bytes. int8 products of AVX2_VNNI are always
 * packed. The arguments of a run add 3,460 bytes for four threads. Each thread touches 44 KB of stack and of
 * a C library heap once (1 to 8 threads). */
static uint64_t internal_bytes(const struct onednn_key *key, const char *implementation, int threads) {
    enum { DESCRIPTORS = 6144, HEAP = 48 << 10, STACK = 64 << 10 };
    enum { UNPACKED_ROWS = 256, BM = 10048, BN = 432, BK = 256 };
    uint64_t descriptors = (DESCRIPTORS + HEAP) * (uint64_t)threads;
    if (!strstr(implementation, "gemm")) return descriptors;
    uint64_t m = (uint64_t)key->number[0], n = (uint64_t)key->number[1];
    uint64_t block = (min_u64(n + 48, BM) + min_u64(m + 48, BN)) * BK * sizeof(float);
    if (onednn_has(dnnl_cpu_isa_avx2) && key->kind != ONEDNN_PRODUCT_INT8 && m <= UNPACKED_ROWS) block = 0;
    return descriptors + (uint64_t)threads * (block + STACK);
}

static uint64_t layout_bytes(const_dnnl_primitive_desc_t d, dnnl_query_t what) {
    layout_ref l = dnnl_primitive_desc_query_md(d, what, 0);
    return l ? dnnl_memory_desc_get_size(l) : 0;
}

static struct onednn_facts facts_read(const struct onednn *o, const struct onednn_key *key,
                                      const_dnnl_primitive_desc_t d) {
    const char *implementation = "";
    dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, &implementation);
    return (struct onednn_facts){.scratch_bytes = layout_bytes(d, dnnl_query_scratchpad_md),
                                 .internal_bytes = internal_bytes(key, implementation, o->threads),
                                 .weights_bytes = layout_bytes(d, dnnl_query_weights_md),
                                 .reference = strstr(implementation, "ref") != NULL,
                                 .brgemm = strstr(implementation, "brg") != NULL,
                                 .supported = true};
}

/* Sets OpenMP's thread count for oneDNN; returns the previous thread count, which the caller restores. */
static int onednn_enter(const struct onednn *o, const struct onednn_key *key) {
    int before = omp_get_max_threads();
    omp_set_num_threads(key->number[ONEDNN_SHARED] ? o->threads : 1);
    return before;
}

struct onednn_facts onednn_facts(const struct onednn *o, const struct onednn_key *key) {
    const struct entry *entry = entry_find(o, key);
    if (entry->primitive) return entry->facts;
    struct answer *answer = &o->answers[onednn_signature(key) % ANSWERS];
    if (answer->filled && !memcmp(&answer->key, key, sizeof *key)) return answer->facts;
    *answer = (struct answer){.filled = true, .key = *key};
    dnnl_primitive_desc_t d = NULL;
    int before = onednn_enter(o, key);
    if (!onednn_describe(o, key, &d)) {
        answer->facts = facts_read(o, key, d);
        dnnl_primitive_desc_destroy(d);
    }
    omp_set_num_threads(before);
    return answer->facts;
}

bool onednn_packs(const struct onednn *o, const struct onednn_key *key) {
    if (key->number[1] % 64 || key->number[2] % 16) return false;
    struct onednn_facts facts = onednn_facts(o, key);
    return facts.supported && facts.brgemm;
}

/* Bounds the memory of one int8 product primitive. With AMX its code grows with the number of inputs up to a
 * limit, and faster if the rows are not a multiple of 64. Measured for the shapes of linear_int8.c (16 to 128
 * rows, 64 or 128 outputs, 64 to 128,000 inputs): 6,000 primitives, oneDNN 2.6.3, at most 0.90 of this bound.
 * Rows that are not a multiple of 16 would take up to 2.2 MB. */
static uint64_t int8_bytes(const struct onednn_key *key) {
    enum { VNNI = 88, AMX_MOST = 576 };
    uint64_t blocks = (uint64_t)key->number[2] / 64;
    uint64_t kb = key->number[0] % 64 ? 96 + blocks * 5 / 4 : 64 + blocks;
    if (!onednn_packs_int8()) return 48 << 10;
    if (!onednn_has(dnnl_cpu_isa_avx512_core_amx)) kb = VNNI;
    return (kb < AMX_MOST ? kb : AMX_MOST) << 10;
}

/* Bounds the memory that one primitive keeps: live heap plus touched pages of JIT code. Measured at each
 * onednn_prepare (malloc interposer; resident anonymous executable maps): oneDNN 2.6.3, 61,000 shapes with
 * AVX-512, most of 40,000 with AVX2, AVX or SSE4.1 too. Each bound exceeds every measurement by 6 % or more.
 * Plans add a hundred such bounds, so they must be tight; bench/LOG.md has the differences.
 *
 * Products, measured maxima in KB. f32 with AVX-512: 136 up to 256 inputs and outputs, 161 for multiples of
 * 64 on both sides, else 345. Below AVX-512: 8. bf16 with AVX512_BF16 (1,550 shapes, 1 to 8 threads): 136 for
 * multiples of 64, 222 up to 256 by 256, else 499. A pipeline has few different products.
 *
 * Convolutions with AVX-512: a 3x3 convolution has tables and code per column (865 bytes of descriptors; more
 * code for more channels), 8.8 MB in total at 2,048 columns and 1,024 channels of stride 2; a 1x1 convolution
 * at most 190 KB. Output blocks with a remainder need additional kernels. Below AVX-512: 35 KB. Repacking: 14
 * KB.
 *
 * oneDNN 3 (3.2.0, 35,000 shapes) keeps up to 1.37 times as much memory per primitive as 2.6; on AVX2 the
 * convolutions of oneDNN 3 need as much as convolutions of 2.6 on AVX-512. */
uint64_t onednn_primitive_bytes(const struct onednn_key *key) {
    uint64_t bytes, columns = (uint64_t)key->number[1], c = (uint64_t)key->number[2],
                    n = (uint64_t)key->number[3];
    bool three = DNNL_VERSION_MAJOR == 3,
         rest = n > 64 && n % 32 &&
                n % 48; /* rest: the output channels of a convolution leave an incomplete oneDNN block */
    bool wide = columns % 64 == 0 && c % 64 == 0, small = columns <= 256 && c <= 256;
    if (key->kind == ONEDNN_REPACK) return 20 << 10;
    if (key->kind == ONEDNN_PRODUCT_INT8)
        bytes = int8_bytes(key);
    else if (key->kind == ONEDNN_PRODUCT_T_BF16)
        bytes = wide ? 160 << 10 : small ? 256 << 10 : 576 << 10;
    else if (key->kind != ONEDNN_CONV)
        bytes = !onednn_has(dnnl_cpu_isa_avx512_core) ? 48 << 10
                : small                               ? 148 << 10
                : wide                                ? 184 << 10
                                                      : 384 << 10;
    else if (!onednn_has(three ? dnnl_cpu_isa_avx2 : dnnl_cpu_isa_avx512_core))
        bytes = 40 << 10;
    else if (key->number[4] == 1)
        bytes = (uint64_t)((c > 1280 ? 168 : 128) + (rest ? 40 : 0)) << 10;
    else
        bytes = ((rest ? 116 : 88) << 10) + 260 * c +
                columns * (1240 + (rest ? 190 : 0) + c * (key->number[5] ? 30 : 11) / 4);
    return three ? bytes * 3 / 2 : bytes;
}

static enum status onednn_failed(const struct onednn_key *key, const char *what, dnnl_status_t s,
                                 struct error *e) {
    static const char *const kinds[] = {"product (transposed)", "bf16 product",    "product",
                                        "product (packed)",     "product (added)", "int8 product",
                                        "convolution",          "repacking"};
    const int32_t *n = key->number;
    return error_set(
        e, DEVICE, "oneDNN: %s failed" FOUND "status %d" EXPECTED "a %s of sizes %d %d %d %d %d %d", what,
        (int)s, kinds[key->kind], (int)n[0], (int)n[1], (int)n[2], (int)n[3], (int)n[4], (int)n[5]);
}

/* Creates the arguments of one run of a primitive; concurrent runs of one primitive cannot share them.
 * Returns the number of arguments; *status is the result. */
static int arguments_create(const struct onednn *o, const struct entry *entry,
                            const struct onednn_operands *operands, dnnl_exec_arg_t *arguments,
                            dnnl_status_t *status) {
    static const struct {
        dnnl_query_t what;
        int index;
    } queries[N_OPERANDS] = {{dnnl_query_src_md, 0},
                             {dnnl_query_weights_md, 0},
                             {dnnl_query_weights_md, 1},
                             {dnnl_query_dst_md, 0},
                             {dnnl_query_scratchpad_md, 0}};
    void *data[N_OPERANDS] = {(void *)(uintptr_t)operands->src, (void *)(uintptr_t)operands->weights,
                              (void *)(uintptr_t)operands->bias, operands->dst, operands->scratch};
    int n = 0;
    const_dnnl_primitive_desc_t d = NULL;
    *status = dnnl_primitive_get_primitive_desc(entry->primitive, &d);
    for (int i = 0; i < N_OPERANDS && !*status; i++) {
        layout_ref l = dnnl_primitive_desc_query_md(d, queries[i].what, queries[i].index);
        if (!l || !dnnl_memory_desc_get_size(l)) continue;
        arguments[n].arg = operand_argument[i];
        *status = dnnl_memory_create(&arguments[n].memory, l, o->engine, data[i]);
        n += !*status;
    }
    return n;
}

enum status onednn_prepare(struct onednn *o, const struct onednn_key *key, struct error *e) {
    if (entry_find(o, key)->primitive) return OK;
    if (onednn_grow(o, e)) return e->code;
    uint64_t bytes = onednn_primitive_bytes(key);
    if (!o->sys->can_allocate(o->sys,
                              bytes + ONEDNN_MARGIN)) /* without memory oneDNN would end the process */
        return error_set(e, MEMORY, "no memory for a oneDNN primitive of %llu bytes",
                         (unsigned long long)bytes);
    struct entry entry = {.key = *key};
    dnnl_primitive_desc_t d = NULL;
    int before = onednn_enter(o, key);
    dnnl_status_t s = onednn_describe(o, key, &d);
    if (!s) {
        entry.facts = facts_read(o, key, d);
        s = dnnl_primitive_create(&entry.primitive, d);
        dnnl_primitive_desc_destroy(d);
    }
    omp_set_num_threads(before);
    if (s) return onednn_failed(key, "creating a primitive", s, e);
    *entry_find(o, key) = entry;
    o->n_entries++;
    return OK;
}

enum status onednn_run(struct onednn *o, const struct onednn_key *key, struct onednn_operands operands,
                       struct error *e) {
    const struct entry *entry = entry_find(o, key);
    if (!entry->primitive)
        return error_set(e, INTERNAL,
                         "a oneDNN primitive was not prepared" FOUND "kind %d: %d %d %d %d %d %d",
                         (int)key->kind, (int)key->number[0], (int)key->number[1], (int)key->number[2],
                         (int)key->number[3], (int)key->number[4], (int)key->number[5]);
    dnnl_exec_arg_t arguments[N_OPERANDS];
    dnnl_status_t s = dnnl_success;
    int before = onednn_enter(o, key), n = arguments_create(o, entry, &operands, arguments, &s);
    if (!s) s = dnnl_primitive_execute(entry->primitive, o->stream, n, arguments);
    if (!s) s = dnnl_stream_wait(o->stream);
    for (int i = 0; i < n; i++) dnnl_memory_destroy(arguments[i].memory);
    o->sys->consolidate_heap(o->sys);
    omp_set_num_threads(before);
    return s ? onednn_failed(key, "running a primitive", s, e) : OK;
}

const char *cpu_instructions(void) {
    static const struct {
        int isa; /* oneDNN's bits for the instruction set, including the bits of all smaller sets */
        const char *name;
    } sets[] = {
#if DNNL_VERSION_MAJOR == 3
        {dnnl_cpu_isa_avx512_core_fp16, "AVX512_CORE_FP16"},
        {dnnl_cpu_isa_avx2_vnni_2, "AVX2_VNNI_2"},
#endif
        {dnnl_cpu_isa_avx512_core_amx, "AVX512_CORE_AMX"},
        {dnnl_cpu_isa_avx512_core_bf16, "AVX512_CORE_BF16"},
        {dnnl_cpu_isa_avx512_core_vnni, "AVX512_CORE_VNNI"},
        {dnnl_cpu_isa_avx512_core, "AVX512_CORE"},
        {dnnl_cpu_isa_avx2_vnni, "AVX2_VNNI"},
        {dnnl_cpu_isa_avx2, "AVX2"},
        {dnnl_cpu_isa_avx, "AVX"},
        {dnnl_cpu_isa_sse41, "SSE41"},
    };
    int isa = dnnl_get_effective_cpu_isa(), best = -1;
    for (int i = 0; i < (int)(sizeof sets / sizeof *sets); i++)
        if ((isa & sets[i].isa) == sets[i].isa && (best < 0 || sets[i].isa > sets[best].isa)) best = i;
    return best < 0 ? "default" : sets[best].name;
}

/* Memory that the loaded oneDNN takes beyond the memory of oneDNN 2.6 on AVX-512. Below AVX-512 oneDNN uses
 * gemm: its first call builds kernels for all operands (2 to 3 MB of code with AVX and AVX2), and its threads
 * keep heap memory (400 KB each with SSE4.1). Measured: processes of 15.0 to 16.1 MB instead of 13.0 to 14.0,
 * 1 to 8 threads, oneDNN 2.6.3. Version 3 (PyPI's 3.2.0, a library of 54 MB; test/program/budget.sh): 1.7 MiB
 * more than planned for 2.6 at the smallest budget, in 11 runs. All versions: memory touched once while
 * building, beyond what primitives keep, 1.3 to 2.1 MB (resident set after 40 to 400 convolutions or
 * repackings). */
uint64_t cpu_library_more_bytes(void) {
    enum { BUILDING = 3 };
    uint64_t mib =
        BUILDING + (DNNL_VERSION_MAJOR == 3 ? 3 : 0) + (onednn_has(dnnl_cpu_isa_avx512_core) ? 0 : 3);
    return mib << 20;
}

void cpu_library(char *out, size_t out_bytes) {
    const dnnl_version_t *v = dnnl_version();
    snprintf(out, out_bytes, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
}

/* Runs one product of each f32 kind when the device opens: oneDNN's first product builds kernels that stay
 * allocated. So does the first int8 product with AVX_VNNI; other products build none. */
static enum status warm(struct onednn *o, struct error *e) {
    enum { SMALL = 20 };
    static const float zero[SMALL * SMALL];
    float out[SMALL * SMALL];
    static const int32_t kinds[] = {ONEDNN_PRODUCT_T, ONEDNN_PRODUCT, ONEDNN_PRODUCT_INT8};
    for (int i = 0; i < (onednn_has_int8() && !onednn_packs_int8() ? 3 : 2); i++) {
        struct onednn_key key = {kinds[i], {SMALL, SMALL, SMALL}};
        if (onednn_prepare(o, &key, e)) return e->code;
        uint64_t scratch_bytes = onednn_facts(o, &key).scratch_bytes;
        void *scratch = o->sys->alloc(o->sys, LINE_HOST, scratch_bytes + 1);
        if (!scratch) return error_set(e, MEMORY, "no memory to start oneDNN");
        struct onednn_operands operands = {.src = zero, .weights = zero, .dst = out, .scratch = scratch};
        enum status status = onednn_run(o, &key, operands, e);
        o->sys->release(o->sys, scratch);
        if (status) return status;
    }
    return OK;
}

static dnnl_status_t attributes_create(struct onednn *o) {
    dnnl_post_ops_t posts = NULL;
    dnnl_status_t s = dnnl_primitive_attr_create(&o->attr);
    if (!s) s = dnnl_primitive_attr_set_scratchpad_mode(o->attr, dnnl_scratchpad_mode_user);
    if (!s) s = dnnl_primitive_attr_create(&o->adding);
    if (!s) s = dnnl_primitive_attr_set_scratchpad_mode(o->adding, dnnl_scratchpad_mode_user);
    if (!s) s = dnnl_post_ops_create(&posts);
    if (!s) s = append_sum(posts);
    if (!s) s = dnnl_primitive_attr_set_post_ops(o->adding, posts);
    if (posts) dnnl_post_ops_destroy(posts);
    return s;
}

static enum status start(struct onednn *o, struct error *e) {
    enum { CAPACITY = 64 };
    static const char what[] = "the table of oneDNN primitives";
    o->entries = sys_new(o->sys, CAPACITY, sizeof *o->entries, what, e);
    o->answers = sys_new(o->sys, ANSWERS, sizeof *o->answers, what, e);
    if (!o->entries || !o->answers) return e->code;
    o->capacity = CAPACITY;
    dnnl_status_t s = dnnl_set_primitive_cache_capacity(0);
    if (!s) s = dnnl_engine_create(&o->engine, dnnl_cpu, 0);
    if (!s) s = dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags);
    if (!s) s = attributes_create(o);
    if (s) return error_found((error_set(e, DEVICE, "oneDNN does not start"), e), "status %d", (int)s);
    return warm(o, e);
}

struct onednn *onednn_open(struct sys *sys, int threads, struct error *e) {
    struct onednn *o = sys_new(sys, 1, sizeof *o, "oneDNN", e);
    if (!o) return NULL;
    o->sys = sys;
    o->threads = threads;
    if (start(o, e) == OK) return o;
    onednn_close(o);
    return NULL;
}

void onednn_close(struct onednn *o) {
    if (!o) return;
    for (uint64_t i = 0; i < o->capacity; i++)
        if (o->entries[i].primitive) dnnl_primitive_destroy(o->entries[i].primitive);
    o->sys->release(o->sys, o->entries);
    o->sys->release(o->sys, o->answers);
    if (o->attr) dnnl_primitive_attr_destroy(o->attr);
    if (o->adding) dnnl_primitive_attr_destroy(o->adding);
    if (o->stream) dnnl_stream_destroy(o->stream);
    if (o->engine) dnnl_engine_destroy(o->engine);
    o->sys->release(o->sys, o);
}
