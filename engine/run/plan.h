/* The plan: where bytes lie and when they move. A plan never changes computed values or shapes. It is a
 * structure without pointers that can be printed, hashed and parsed. The planner is a pure function of
 * visits, dry-run measurements (struct stage_need) and budgets:
 *
 *     plan.c           sizes that a stage needs; solving, choosing, evaluating and reducing plans of a whole
 *                      run; the check of a plan, its hash
 *     plan_search.c    the search for the fastest plan of one stage
 *     timing.c         predicts the time of a stage, and chooses residents that keep the stream even */
#ifndef SLUICE_RUN_PLAN_H
#define SLUICE_RUN_PLAN_H

#include "engine/base/arena.h"
#include "engine/base/error.h"
#include "engine/base/tensor.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLAN_STAGES_MAX = 16, PLAN_BLOCKS_MAX = 1088, PLAN_PAGE = 4096 };

/* Blocks move in pieces of at most these bytes: PLAN_READ_PIECE from files to host memory; PLAN_COPY_PIECE
 * from pinned host memory to a discrete GPU; PLAN_STAGED_PIECE from the disk to a discrete GPU. PLAN_STAGING
 * holds two staging buffers per reader: one buffer is filled while the other is copied to the GPU. */
enum {
    PLAN_READ_PIECE = 8 << 20,
    PLAN_COPY_PIECE = 16 << 20,
    PLAN_STAGED_PIECE = 2 << 20,
    PLAN_STAGING = 32 << 20
};

/* Number of reader threads. Through the page cache two, because the kernel reads ahead and more threads
 * disturb it. Past the page cache four, because the disk works only on requests in flight; each needs bounce
 * memory. Measured: bench/LOG.md. */
enum {
    PLAN_READERS = 2,
    PLAN_DIRECT_READERS = 4,
    PLAN_SEPARATE_READERS = 8,
    PLAN_BOUNCE_PIECE = 1 << 20,
    PLAN_BOUNCE = PLAN_DIRECT_READERS * PLAN_BOUNCE_PIECE,
};

/* Largest number of blocks of a stage with full-frame activation buffers; VAE decoders have tens of
 * blocks. */
enum { PLAN_PICTURE_BLOCKS_MAX = 128 };

/* Requested placement of full-frame buffers, on a device with its own memory. */
enum pictures_place { PICTURES_ANYWHERE, PICTURES_ON_DEVICE, PICTURES_ON_HOST };

/* Throughput rates, which convert work to seconds: measured by `bench bus` and `bench ops`, or defaults. */
struct rates {
    struct op_rates ops; /* rates of operators on the computing device */
    double disk;         /* bytes per second from files to host memory, with several readers */
    double host_copy;    /* bytes per second from host memory to host memory */
    double h2d; /* bytes per second from pinned host memory to device memory; unused if device and host share
                   one memory */
};

/* Memory and time of one stage, measured by the dry run. */
struct stage_need {
    char name[16], family[24];
    int evaluations, n_blocks;
    int lanes, groups; /* lanes per group (computed together); number of groups */
    bool hoists;       /* hoist stage: computes values that all evaluations of the next stage read */
    uint64_t block_bytes[PLAN_BLOCKS_MAX];
    uint64_t block_adapter_bytes[PLAN_BLOCKS_MAX]; /* part of block_bytes that is adapter bytes */
    bool block_repeats[PLAN_BLOCKS_MAX]; /* true: visited in evaluations; false: visited once before them */
    /* Mean number of loads of a streamed block in an evaluation, minus 1. Only blocks of control networks
     * differ from 0: it is less if the network runs in some evaluations only, more if a block has several
     * visits that are not adjacent. */
    float block_extra_loads[PLAN_BLOCKS_MAX];
    /* True: model weights, which may stay for the next run; false: gathered rows. */
    bool block_keepable[PLAN_BLOCKS_MAX];
    /* Seconds that a load takes beyond reading block_bytes: type conversion, another size in the file. */
    double block_fill_seconds[PLAN_BLOCKS_MAX];
    double block_seconds[PLAN_BLOCKS_MAX]; /* seconds to compute the block for one group in one evaluation */
    /* Bytes of all full-frame buffers. Bytes that each block's operators move to or from full-frame buffers,
     * per group and evaluation. */
    uint64_t picture_bytes, block_picture_bytes[PLAN_PICTURE_BLOCKS_MAX];
    bool tiled; /* VAE tiling: full-frame buffers are as small as possible, and some work is done twice */
    enum pictures_place pictures_place;
    uint64_t state_bytes, activation_bytes, workspace_bytes, library_bytes;
    uint64_t image_bytes; /* host bytes of the caller's buffers for output images */
    /* Bytes that a nested run (a decoded preview) takes between two evaluations, in addition to the stage:
     * host memory (pinned, if the device has its own memory), and device memory. */
    uint64_t callback_ram_bytes, callback_vram_bytes;
    double callback_seconds;     /* predicted seconds of all nested runs of the stage */
    double scan_seconds;         /* predicted seconds to scan the weights for row scales, before the run */
    double flops, adapter_flops; /* FLOPs of the stage, adapters included; FLOPs of adapters */
};

struct run_need {
    struct rates rates; /* input of the planner, not measured by the dry run */
    bool separate;      /* the device has its own memory (discrete GPU): copies, a pinned pool, two budgets */
    enum precision precision; /* precision of the request; part of the plan hash */
    enum dtype weights; /* type that weights are converted to while loading (--type); N_DTYPES: as stored */
    int n_stages;
    uint64_t adapters;         /* hash of the chosen adapters; 0: none. Part of the plan hash */
    uint64_t base_bytes;       /* memory of the idle process in bytes: a constant of the build */
    uint64_t host_bytes;       /* host bytes of descriptors and input images */
    uint64_t interstage_bytes; /* bytes of the tensors that stages pass on (inter-stage buffers) */
    /* Largest temporary memory before the first stage, beyond base and host bytes (opening the model, reading
     * images). */
    uint64_t open_bytes;
    uint64_t bounce_bytes; /* bounce memory of all readers for direct reads; 0: page cache */
    uint64_t device_bytes; /* bytes taken on a separate device before any stage: context, handles, kernels */
    uint64_t primitives_bytes; /* bytes of compiled oneDNN primitives; part of every stage's library_bytes */
    uint64_t pin_limit_bytes;  /* system's limit of pinned host memory in total; 0: unknown */
    struct stage_need stage[PLAN_STAGES_MAX];
};

/* Bytes of a run_need with n_stages stages; the unused stages at the end may be left unallocated. */
static inline size_t run_need_bytes(int n_stages) {
    return offsetof(struct run_need, stage) + (size_t)n_stages * sizeof(struct stage_need);
}

/* The resource that limits the time of a stage. */
enum bound { BOUND_COMPUTE, BOUND_BUS, BOUND_DISK, N_BOUNDS };

struct plan_stage {
    char name[16], family[24];
    int32_t evaluations, lanes, n_blocks;
    /* Limits on prefetching. Solved plans set depth, no_wrap and waits to 0: prefetch as far as the ring
     * allows, across evaluations, without waiting. Other values are set by hand, for comparison. */
    int32_t depth;   /* most visits to prefetch ahead; 0: no limit */
    int32_t no_wrap; /* 1: no prefetch across the end of an evaluation */
    int32_t waits;   /* 1: a copy starts only after the previous visit has ended (no overlap) */
    uint64_t resident[PLAN_BLOCKS_MAX / 64]; /* bit set: the block stays on the device for the whole stage */
    /* On a discrete GPU: a set bit keeps the streamed block in pinned host memory (the pool). A block with a
     * clear bit is read from the disk at each visit, through the staging buffers. */
    uint64_t pooled[PLAN_BLOCKS_MAX / 64];
    uint64_t ring_bytes, resident_bytes, streamed_bytes_per_evaluation;
    uint64_t pool_bytes, staging_bytes;
    uint64_t pinned_bytes; /* pinned bytes at the pool's start; the pool's other bytes pass through staging
                              buffers */
    uint64_t state_bytes, activation_bytes, workspace_bytes, library_bytes, peak_ram_bytes, peak_vram_bytes;
    double flops;
    /* Predicted seconds; lower bound of these (busiest of compute, bus, disk). */
    double seconds, floor_seconds;
    int16_t bound; /* enum bound */
    /* On a separate device, 1: full-frame buffers lie in host memory and operators access them over the bus;
     * 0: they lie in device memory. */
    int16_t pictures_on_host;
    int16_t groups, tiled;
};

struct plan {
    int32_t n_stages;
    int32_t keep; /* 1: residents and pools stay for later stages and the session's next run */
    struct plan_stage stage[PLAN_STAGES_MAX];
    uint64_t base_bytes, host_bytes, interstage_bytes;
    uint64_t bounce_bytes;
    uint64_t ram_budget_bytes, ram_peak_bytes, ram_least_bytes;
    uint64_t vram_budget_bytes, vram_peak_bytes, vram_least_bytes; /* 0 if device and host share one memory */
    uint64_t adapters;
    double seconds, floor_seconds;
    int32_t bound;
    int16_t precision, weights;
};

static inline int plan_readers(bool separate, uint64_t bounce_bytes) {
    if (separate) return PLAN_SEPARATE_READERS;
    return bounce_bytes ? PLAN_DIRECT_READERS : PLAN_READERS;
}

/* Bit sets of blocks; bit i is the block of index i in its stage. */
static inline bool blocks_has(const uint64_t *blocks, int i) {
    return blocks[i / 64] >> (i % 64) & 1;
}

static inline void blocks_set(uint64_t *blocks, int i, bool in) {
    uint64_t bit = (uint64_t)1 << (i % 64);
    blocks[i / 64] = (blocks[i / 64] & ~bit) | (in ? bit : 0);
}

static inline void blocks_toggle(uint64_t *blocks, int i) {
    blocks[i / 64] ^= (uint64_t)1 << (i % 64);
}

static inline bool plan_is_resident(const struct plan_stage *stage, int block) {
    return blocks_has(stage->resident, block);
}

static inline bool plan_is_pooled(const struct plan_stage *stage, int block) {
    return blocks_has(stage->pooled, block);
}

static inline void plan_set_pooled(struct plan_stage *stage, int block, bool pooled) {
    blocks_set(stage->pooled, block, pooled);
}

static inline void plan_set_resident(struct plan_stage *stage, int block, bool resident) {
    blocks_set(stage->resident, block, resident);
}

/* Mean bytes of a streamed block's loads in an evaluation. */
static inline uint64_t stage_streamed_bytes(const struct stage_need *need, int block) {
    uint64_t bytes = need->block_bytes[block];
    float extra = need->block_extra_loads[block];
    return extra == 0 ? bytes : (uint64_t)((double)bytes * (1 + (double)extra));
}

static inline uint64_t plan_pages(uint64_t bytes) {
    return align_up(bytes, PLAN_PAGE);
}

/* Mean seconds of one step over all groups; includes reading the residents in the first step. */
static inline double plan_step_seconds(const struct plan_stage *stage) {
    return stage->seconds / stage->evaluations * stage->groups;
}

/* Bytes of a set of blocks in resident memory or pool: whole pages each of adapter bytes and base weights. */
uint64_t plan_blocks_bytes(const struct stage_need *need, const uint64_t blocks[PLAN_BLOCKS_MAX / 64]);

/* Solves the plan: chooses residents, rings, pools, staging and placement of full-frame buffers for budgets
 * of host and device memory. vram_budget_bytes is ignored if device and host share memory. Always returns a
 * plan: below the least budgets it is the least plan, whose peak exceeds its budget. Each least budget is the
 * smallest that works with the other budget unchanged. If none works, it is the smallest that works with the
 * other budget at its least. Sizes are whole pages. See plan_search.c. */
void plan_solve(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                struct plan *plan);

/* Writes the plan that needs the least memory, with the same least budgets as plan_solve. Cheap. */
void plan_least(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                struct plan *plan);

/* Lower bound of the predicted seconds under any budget, up to rounding; 0 if rates are unknown. Cheap. */
double plan_bound_seconds(const struct run_need *need);

/* True if some plan fits both budgets. */
bool plan_exists(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes);

/* Chooses among n needs of the same run, which differ in lanes per group and in tiled decoding. Solves each
 * and returns the index of the fastest plan that works; ties go to the first. The least budgets in *plan are
 * the minimum over all needs. */
int plan_choose(const struct run_need *const *needs, int n, uint64_t ram_budget_bytes,
                uint64_t vram_budget_bytes, struct plan *plan);

/* Recomputes sums, peaks and seconds, which depend on residents, rings, pools, staging and keep. For plans
 * read from JSON. */
void plan_evaluate(const struct run_need *need, struct plan *plan);

/* Reduces a plan during a run: evicts residents until at least `bytes` are returned while `stage` is active,
 * or as many as possible. held: bit set of the stages whose residents are in memory. Inactive stages are
 * reduced first; evicted blocks are spread evenly over a stage. The ring of the active stage grows to hold
 * the largest block that now streams, or two such blocks if enough memory remains. The ring never grows by
 * more than the stage frees, so that no peak rises. Returns the bytes returned now, counting only pages that
 * one block occupies alone. 0: nothing can be evicted, and *reduced equals the plan. */
uint64_t plan_evict(const struct run_need *need, const struct plan *plan, int stage, uint32_t held,
                    uint64_t bytes, struct plan *reduced);

/* BUDGET if the plan cannot work: a peak above its budget (the error names the least budget), a ring smaller
 * than a block that streams through it, or too little staging. */
enum status plan_check(const struct run_need *need, const struct plan *plan, struct error *e);

/* Initialises a plan without residents and rings, and copies the fields that depend on the need alone. */
void plan_begin(const struct run_need *need, struct plan *plan);
/* True if the request allows full-frame buffers in host memory (on_host) or in device memory. */
static inline bool plan_pictures_may(const struct stage_need *need, bool on_host) {
    return need->pictures_place == PICTURES_ANYWHERE || (need->pictures_place == PICTURES_ON_HOST) == on_host;
}
/* Bytes of device state, including full-frame buffers unless these lie in host memory. */
uint64_t plan_state_bytes(const struct stage_need *need, bool pictures_on_host);
/* Sets the limit of pinned memory in the need, at least one page. Full-frame buffers in host memory must be
 * pinned; if they exceed the limit, the need requires device memory for them. */
void plan_limit_pins(struct run_need *need, uint64_t bytes);
/* Bytes of a stage's pool that can be pinned. */
uint64_t plan_pinnable(const struct run_need *need, const struct plan_stage *stage, int i_stage);
/* Host bytes, and bytes of a separate device, that a stage needs besides residents, ring, pool and staging.
 * pictures_on_host: as in the stage's plan. */
uint64_t plan_fixed_ram(const struct run_need *need, int stage, bool pictures_on_host);
uint64_t plan_fixed_vram(const struct run_need *need, int stage, bool pictures_on_host);
/* Return a stage's smallest usable ring (the largest streamed block) and smallest staging buffers (for blocks
 * from the disk to a discrete GPU), in bytes of whole pages. */
uint64_t plan_least_ring(const struct stage_need *need, const struct plan_stage *stage);
uint64_t plan_least_staging(const struct run_need *need, const struct plan_stage *stage, int i_stage);

/* Writes 16 hexadecimal digits that hash the whole plan; out has 17 bytes. Returns out. */
char *plan_hash(const struct plan *plan, char *out);

/* Input of plan_search, which finds the plan of one stage. */
struct plan_search_input {
    const struct run_need *need;
    const struct plan *budget;   /* plan of the whole run, with the budgets */
    int stage;                   /* index of the stage to search */
    uint64_t other_stages_bytes; /* device bytes that residents of other stages occupy */
    const uint64_t *residents;   /* bit set of residents that the caller requires; NULL: the search chooses */
};

/* Writes residents, ring, pool, staging and placement of full-frame buffers to *stage. Leaves *stage
 * unchanged if no plan fits. */
void plan_search(const struct plan_search_input *input, struct plan_stage *stage);
/* Lower bound of the predicted seconds of any plan of this stage, up to rounding; 0 if rates are unknown. */
double plan_search_bound(const struct run_need *need, int stage);

/* ---- predicted time of a stage whose weights stream through a ring: timing.c ----
 *
 * Model: one copier moves blocks in visit order and runs ahead as far as the ring has space. Space is freed
 * in visit order, when a visit's computation ends. A visit begins when the previous one has ended and its
 * bytes have arrived. All times are maxima or sums of earlier times, so one pass over the visits computes
 * them. test/golden/stream has the times of an independent simulator.
 * Simplifications: a block arrives as a whole, so the prediction is an upper bound (most visibly if the ring
 * holds one block). The ring wastes no space at its end. Unpinned parts of a pool are copied to staging while
 * the disk continues, one copy at a time. Operators wait for every byte of full-frame buffers in host memory
 * at the bus rate, without overlap; concurrent weight copies are not slowed. A rate of 0 means unknown and
 * takes no time. */

/* Busy seconds of each resource (computation, bus, disk), without waiting. */
struct stage_load {
    double busy[N_BOUNDS];
};

/* A stage as a stream of blocks in visit order: blocks visited once, then the blocks of every evaluation.
 * Built once per stage, because the solver evaluates thousands of plans. */
struct block_stream {
    bool separate;
    int n, n_once, evaluations;
    int place[PLAN_BLOCKS_MAX]; /* index of the block in its stage */
    uint64_t bytes[PLAN_BLOCKS_MAX];
    /* Seconds per block and evaluation: computation, copy over the bus (separate device only), read from the
     * disk. */
    double compute[PLAN_BLOCKS_MAX], bus[PLAN_BLOCKS_MAX], disk[PLAN_BLOCKS_MAX];
    double host[PLAN_BLOCKS_MAX]; /* seconds to copy the block within host memory, out of an unpinned pool */
    double disk_rate, host_rate;
    /* Times at which compute, bus and disk finish the first evaluation, if the ring were unlimited. */
    struct stage_load start;
};

struct timing {
    double seconds;            /* predicted seconds of the whole stage */
    double evaluation_seconds; /* seconds of one evaluation in steady state */
    double floor_seconds;      /* lower bound of `seconds`: busy time of the busiest resource */
    /* floor_seconds of the first evaluation alone, and of each later evaluation */
    double first_floor_seconds, later_floor_seconds;
    enum bound bound; /* the resource with the largest load in the whole stage */
};

/* Builds the stream of a stage. pictures_on_host: as in struct plan_stage. */
void block_stream_make(const struct stage_need *need, const struct rates *rates, bool separate,
                       bool pictures_on_host, struct block_stream *block_stream);

/* Load of the first evaluation (block_stream_first_load), which reads all blocks from the disk, and of each
 * later one (block_stream_later_load). On a separate device later loads read only blocks outside the pool. */
struct stage_load block_stream_first_load(const struct block_stream *block_stream);
struct stage_load block_stream_later_load(const struct block_stream *block_stream,
                                          const struct plan_stage *stage);

struct timing block_stream_timing(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Predicts the seconds of a stage, as block_stream_timing. Stops early if they exceed `enough`: the result is
 * then only a lower bound, above `enough`. */
double block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage,
                            double enough);

/* Lower bound, up to rounding, of the seconds of every plan with this stage's residents and pool. Cheap. */
double block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);

/* Input of block_stream_thin, which takes eligible blocks (at most `most` bytes) out of a stream so that the
 * rest streams evenly. A block is taken if the bytes streamed so far would otherwise exceed an even rate per
 * second of computation by more than `allowance` bytes. stream, eligible, taken: bit sets by block index. */
struct thinning {
    const uint64_t *stream, *eligible;
    uint64_t most;
    double allowance;
};
void block_stream_thin(const struct block_stream *block_stream, const struct thinning *thinning,
                       uint64_t *taken);

struct timing timing_predict(const struct run_need *need, const struct plan *plan, int stage);

#endif
