/* The plan: where bytes lie and when they move; never what is computed, nor in what shapes.
 *
 * A plain structure without pointers: printable, hashable, readable back. A pure function of visits, images,
 * the dry run and budgets. What a stage needs (struct stage_need) comes from the dry run and from nowhere
 * else. */
#ifndef SLUICE_RUN_PLAN_H
#define SLUICE_RUN_PLAN_H

#include "engine/base/arena.h"
#include "engine/base/error.h"
#include "engine/base/tensor.h"
#include "engine/run/rates.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLAN_STAGES_MAX = 10, PLAN_BLOCKS_MAX = 1088, PLAN_PAGE = 4096 };

/* Blocks travel in pieces of at most this: from files to host memory; to a device with memory of its own, out
 * of the pool or from the disk. What the pool does not keep passes staging buffers of such a piece:
 * PLAN_STAGING is two for each reader, of which one is filled while the other leaves for the device. */
enum {
    PLAN_READ_PIECE = 8 << 20,
    PLAN_COPY_PIECE = 16 << 20,
    PLAN_STAGED_PIECE = 2 << 20,
    PLAN_STAGING = 32 << 20
};

/* Threads of the store that read files: two through the page cache, which reads ahead by itself and gets
 * confused by more; four past it, for a disk is busy only with what is asked of it, and the bounce memory
 * that each of those needs. Measured: bench/LOG.md. */
enum {
    PLAN_READERS = 2,
    PLAN_DIRECT_READERS = 4,
    PLAN_SEPARATE_READERS = 8,
    PLAN_BOUNCE_PIECE = 1 << 20,
    PLAN_BOUNCE = PLAN_DIRECT_READERS * PLAN_BOUNCE_PIECE,
};

/* Blocks that a stage with whole-picture buffers may have: decoders have tens. */
enum { PLAN_PICTURE_BLOCKS_MAX = 128 };

/* On a separate device: where the request has whole-picture buffers lie. */
enum pictures_place { PICTURES_ANYWHERE, PICTURES_ON_DEVICE, PICTURES_ON_HOST };

/* What one stage needs, measured by the dry run. */
struct stage_need {
    char name[16], family[24];
    int evaluations, n_blocks;
    int lanes, groups; /* that compute together; so many of those take turns in the same memory */
    bool hoists;       /* computed once, before the evaluations of the next stage */
    uint64_t block_bytes[PLAN_BLOCKS_MAX];
    uint64_t
        block_side_bytes[PLAN_BLOCKS_MAX]; /* of them, what adapters bring: where blocks stay it lies apart */
    bool block_repeats[PLAN_BLOCKS_MAX];   /* visited anew in every evaluation */
    bool block_lasts[PLAN_BLOCKS_MAX];     /* the model's, not this request's: may stay for the next run */
    double block_fill_seconds[PLAN_BLOCKS_MAX]; /* of filling beyond reading the packed block: what a file
                                                   has more, and converting it */
    double block_seconds[PLAN_BLOCKS_MAX]; /* of computing, lanes of one group, in one evaluation (or before
                                              the first) */
    /* Of whole-picture buffers; what each block's operators read and write there in that time. */
    uint64_t picture_bytes, block_picture_bytes[PLAN_PICTURE_BLOCKS_MAX];
    bool tiled; /* those are as small as can be, and some of it is computed twice */
    enum pictures_place pictures_place;
    uint64_t state_bytes, activation_bytes, workspace_bytes, library_bytes;
    uint64_t image_bytes; /* of the host's, held meanwhile by who is handed pictures */
    /* What a run within this one takes in the host's turns between evaluations (run.within), beside all else:
     * of the host's memory (where the device has its own, pinned), and of a separate device's. */
    uint64_t turn_ram_bytes, turn_vram_bytes;
    double turn_seconds;         /* of all such turns, predicted */
    double flops, adapter_flops; /* of those, what adapters bring */
};

struct run_need {
    struct rates rates;       /* given, not measured */
    bool separate;            /* the device has memory of its own: copies, a pinned pool, two budgets */
    enum precision precision; /* the request's: what a plan is for is part of its hash */
    enum dtype weights;       /* the type that they are converted to; N_DTYPES: as they are stored */
    int n_stages;
    uint64_t adapters;     /* tells one choice of adapters from another; 0: none. In the hash, too */
    uint64_t base_bytes;   /* the process as it stands: a constant of the build */
    uint64_t host_bytes;   /* descriptors of model and request */
    uint64_t cross_bytes;  /* tensors that cross stages */
    uint64_t open_bytes;   /* peak before the first stage beyond base and host: tokenizer parsing */
    uint64_t bounce_bytes; /* of all readers, in pages: files are read past the page cache; 0: through it */
    uint64_t device_bytes; /* taken on a separate device before any stage: context, handles, kernels */
    uint64_t
        primitives_bytes; /* of what libraries build of operators, which every stage's library_bytes has */
    uint64_t pin_limit_bytes; /* what of the host's memory can be pinned together; 0: no limit is known */
    struct stage_need stage[PLAN_STAGES_MAX];
};

/* Of a need with so many stages: those behind them need not be there, so that many needs are small. */
static inline size_t run_need_bytes(int n_stages) {
    return offsetof(struct run_need, stage) + (size_t)n_stages * sizeof(struct stage_need);
}

/* What a time follows from. */
enum bound { BOUND_COMPUTE, BOUND_BUS, BOUND_DISK, N_BOUNDS };

struct plan_stage {
    char name[16], family[24];
    int32_t evaluations, lanes, n_blocks;
    /* How far the copier may run ahead. Solved plans leave these 0: as far as the ring allows, over
     * evaluations, without waiting. Others are made by hand, to compare. */
    int32_t depth;   /* 0: any; n: at most n visits ahead of the one that computes */
    int32_t no_wrap; /* 1: nothing of the next evaluation before this one has ended */
    int32_t waits;   /* 1: a copy begins only when the visit before it has ended: nothing overlaps */
    uint64_t resident[PLAN_BLOCKS_MAX / 64]; /* bit set: stays on the device while the stage lasts */
    /* On a separate device: bit set: a streamed block stays in the pinned pool; else it is read from the disk
     * again each time, through the staging buffers. */
    uint64_t pooled[PLAN_BLOCKS_MAX / 64];
    uint64_t ring_bytes, resident_bytes, streamed_bytes_per_evaluation;
    uint64_t pool_bytes, staging_bytes;
    uint64_t pinned_bytes; /* of the pool, its first: what lies behind them passes through staging, too */
    uint64_t state_bytes, activation_bytes, workspace_bytes, library_bytes, peak_ram_bytes, peak_vram_bytes;
    double flops;
    double seconds, floor_seconds; /* of the whole stage, predicted; floor: max of compute, bus and disk */
    int16_t bound;                 /* enum bound */
    /* On a separate device: 1: whole-picture buffers lie in the host's memory, where operators of the device
     * reach them over the bus; else they are a part of the state. */
    int16_t pictures_on_host;
    int16_t groups, tiled; /* the need's */
};

struct plan {
    int32_t n_stages;
    int32_t keep; /* residents and pools of all stages stay, for later stages and the session's next run */
    struct plan_stage stage[PLAN_STAGES_MAX];
    uint64_t base_bytes, host_bytes, cross_bytes;
    uint64_t bounce_bytes; /* the need's: see there */
    uint64_t ram_budget_bytes, ram_peak_bytes, ram_least_bytes;
    uint64_t vram_budget_bytes, vram_peak_bytes,
        vram_least_bytes; /* 0 where device and host are one memory */
    uint64_t adapters;    /* the need's */
    double seconds, floor_seconds;
    int32_t bound;
    int16_t precision, weights; /* the need's */
};

/* Of a run on a separate device or not, with bounce memory or without. */
static inline int plan_readers(bool separate, uint64_t bounce_bytes) {
    if (separate) return PLAN_SEPARATE_READERS;
    return bounce_bytes ? PLAN_DIRECT_READERS : PLAN_READERS;
}

static inline bool plan_is_resident(const struct plan_stage *stage, int block) {
    return stage->resident[block / 64] >> (block % 64) & 1;
}

static inline bool plan_is_pooled(const struct plan_stage *stage, int block) {
    return stage->pooled[block / 64] >> (block % 64) & 1;
}

static inline void plan_set_pooled(struct plan_stage *stage, int block, bool pooled) {
    uint64_t bit = (uint64_t)1 << (block % 64);
    stage->pooled[block / 64] = (stage->pooled[block / 64] & ~bit) | (pooled ? bit : 0);
}

static inline void plan_set_resident(struct plan_stage *stage, int block, bool resident) {
    uint64_t bit = (uint64_t)1 << (block % 64);
    stage->resident[block / 64] = (stage->resident[block / 64] & ~bit) | (resident ? bit : 0);
}

/* Sizes are whole pages. */
static inline uint64_t plan_pages(uint64_t bytes) {
    return align_up(bytes, PLAN_PAGE);
}

/* Of one step, all groups, on average: the first one, which reads what stays, counts like the others. */
static inline double plan_step_seconds(const struct plan_stage *stage) {
    return stage->seconds / stage->evaluations * stage->groups;
}

/* What these blocks take where they stay, in whole pages: their own parts and their sides apart. */
uint64_t plan_kept_bytes(const struct stage_need *need, const uint64_t blocks[PLAN_BLOCKS_MAX / 64]);

/* Chooses residents, rings, pools, staging and where pictures lie for budgets of host and device memory;
 * where they are one memory, vram_budget_bytes is not read. Always gives a plan: below the least budgets it
 * is the least plan, whose peak is then above its budget. A least budget is the one that would do with the
 * other as given; where the other never does, with the least of that. Sizes are rounded to pages. See
 * plan_search.c. */
void plan_solve(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                struct plan *plan);

/* What plan_solve begins with: the least plan, with the same least budgets. Cheap. */
void plan_least(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                struct plan *plan);

/* No plan is predicted to be faster, under any budget, but for rounding; 0 where rates are unknown. Cheap. */
double plan_bound_seconds(const struct run_need *need);

/* Whether any plan works. */
bool plan_exists(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes);

/* The same run may be needed in several ways, which differ in how many lanes compute together (lanes, groups,
 * and what follows from them) and in whether a decoder keeps whole pictures (tiled). Solves for each of the n
 * needs and takes the fastest plan that works; of those that are as fast the first. The least budgets are
 * those of all of them. Returns its need's place. See plan_choose.c. */
int plan_choose(const struct run_need *const *needs, int n, uint64_t ram_budget_bytes,
                uint64_t vram_budget_bytes, struct plan *plan);

/* Recomputes everything that follows from residents, rings, pools, staging and keep: sums, peaks, seconds.
 * For plans that were read back. */
void plan_evaluate(const struct run_need *need, struct plan *plan);

/* The plan with fewer residents, so that at least `bytes` of their memory go back while `stage` is active, or
 * as much as there is. held: set of the stages whose residents lie in memory now; those that are not active
 * give first, then the active one, each spread evenly over its blocks. A ring grows to hold the largest block
 * that now streams, or two of them where that leaves enough; never by more than its stage frees, so that
 * no peak rises. Returns what goes back now, counting only pages that a block has for itself wherever it
 * lies; 0: nothing can be evicted, and *lesser is the plan itself. See plan_evict.c. */
uint64_t plan_evict(const struct run_need *need, const struct plan *plan, int stage, uint32_t held,
                    uint64_t bytes, struct plan *lesser);

/* BUDGET if the plan cannot work: a peak above its budget (naming the least that would do), a ring that is
 * smaller than a block that must pass through it, or too little staging. */
enum status plan_check(const struct run_need *need, const struct plan *plan, struct error *e);

/* A plan of nothing: no residents, rings of 0; what follows from the need alone is filled in. */
void plan_begin(const struct run_need *need, struct plan *plan);
/* May they lie there? */
static inline bool plan_pictures_may(const struct stage_need *need, bool on_host) {
    return need->pictures_place == PICTURES_ANYWHERE || (need->pictures_place == PICTURES_ON_HOST) == on_host;
}
/* The state that lies on the device: with whole-picture buffers, unless those lie in the host's memory. */
uint64_t plan_state_bytes(const struct stage_need *need, bool pictures_on_host);
/* From here on the need knows that no more than that can be pinned together, at least a page. Pictures that
 * could lie on either side lie on the device where the host's cannot hold them: it would have to be pinned.
 */
void plan_limit_pins(struct run_need *need, uint64_t bytes);
/* What of a stage's pool can be pinned. */
uint64_t plan_pinnable(const struct run_need *need, const struct plan_stage *stage, int i_stage);
/* What a stage takes besides residents, ring, pool and staging: of host memory, and of device memory where
 * that is separate. pictures_on_host: as in its plan. */
uint64_t plan_fixed_ram(const struct run_need *need, int stage, bool pictures_on_host);
uint64_t plan_fixed_vram(const struct run_need *need, int stage, bool pictures_on_host);
/* The least that must be there for the stage to work, in whole pages: a ring for the largest streamed block;
 * staging for what comes from the disk to a separate device. */
uint64_t plan_least_ring(const struct stage_need *need, const struct plan_stage *stage);
uint64_t plan_least_staging(const struct run_need *need, const struct plan_stage *stage, int i_stage);

/* 16 hexadecimal digits over everything in the plan; out has 17 bytes. Returns out. */
char *plan_hash(const struct plan *plan, char *out);

#endif
