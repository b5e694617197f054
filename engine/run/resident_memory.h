/* Resident memory: for the blocks of one stage that stay there, each at a fixed offset.
 *
 * Residents on the device and blocks in the host's pool are both kept in it. It belongs to the session,
 * so that a plan that keeps them finds them again in the next run. A block is ready once it has been filled;
 * nothing else is known here of how it gets there. */
#ifndef SLUICE_RUN_RESIDENT_MEMORY_H
#define SLUICE_RUN_RESIDENT_MEMORY_H

#include "engine/run/block.h"
#include "engine/run/pins.h"
#include "engine/run/plan.h"

/* What the store must know of a stage. */
struct store_stage {
    const struct block *const *blocks;
    int n_blocks;
    int n_lasting; /* the first n_lasting are the model's; the others belong to this request */
};

/* One part of the stage's packed blocks: what adapters bring lies apart, so that it comes and goes while the
 * rest stays where it is. */
struct resident_part {
    char *base; /* NULL until the stage begins, and where it has no bytes */
    uint64_t bytes;
    uint64_t blocks; /* tells one list of blocks from another: of one component, and of those it visits */
    int n_blocks;
    uint64_t member[PLAN_BLOCKS_MAX / 64];
    uint32_t offset[PLAN_BLOCKS_MAX +
                    1]; /* of ARENA_ALIGN bytes, as laid out; a block ends where the next begins */
    uint64_t ready[PLAN_BLOCKS_MAX / 64];
    struct pins pins;                    /* of a pool, for a device with memory of its own */
    bool evicted;                        /* some have been: not to be kept for another run */
    uint64_t gone[PLAN_BLOCKS_MAX / 64]; /* of those the pages have been given back */
};

struct resident_memory {
    struct resident_part part[PACKED_PARTS];
};

static inline bool resident_memory_has(const struct resident_part *part, int block) {
    return part->member[block / 64] >> (block % 64) & 1;
}

/* Has this part of the block been filled? */
static inline bool resident_memory_ready(const struct resident_memory *memory, enum packed_part part,
                                         int block) {
    return memory->part[part].ready[block / 64] >> (block % 64) & 1;
}

static inline uint64_t resident_memory_offset(const struct resident_part *part, int block) {
    return (uint64_t)part->offset[block] * ARENA_ALIGN;
}

/* Address space and pages of the device, or of the host (LINE_STORE) where device is NULL or has no memory of
 * its own: as in sys. */
void *weights_reserve(struct sys *sys, struct device *device, uint64_t bytes);
int weights_commit(struct sys *sys, struct device *device, void *memory, uint64_t bytes);
void weights_decommit(struct sys *sys, struct device *device, void *memory, uint64_t bytes);
void weights_unreserve(struct sys *sys, struct device *device, void *memory, uint64_t bytes);

/* Of what an earlier run left moves each to a stage of the same blocks, which may be another one's number
 * now: a run may have fewer stages than the last. Before any is laid out. */
void resident_memory_match(struct resident_memory memory[PLAN_STAGES_MAX], const struct store_stage *stages,
                           int n_stages);
/* Lays out the members of parts that take no more than before; grows: of the others, which have their turn
 * when all stages have given back what they do. What an earlier run left of the same blocks stays, or moves
 * where others are members now; anything else is given back. While a part moves there is a 64th more of it
 * (at most 2 MiB) and two pages than before or after, whichever is more: the run has taken nothing else by
 * then. */
void resident_memory_lay_out(struct resident_memory *memory, struct sys *sys, struct device *device,
                             const struct store_stage *stage, const uint64_t *member, bool grows);
/* Is there memory? */
bool resident_memory_held(const struct resident_memory *memory);
/* Where a member lies. */
struct packed_place resident_memory_place(const struct resident_memory *memory, int block);
/* All of it has been filled. */
void resident_memory_set_ready(struct resident_memory *memory, int block);
/* Lays out again what has no memory yet, and gives the pages that only blocks occupy which are no members any
 * more back, for good. Nobody may be using them. */
void resident_memory_reduce(struct resident_memory *memory, struct sys *sys, struct device *device,
                            const struct store_stage *stage, const uint64_t *member);
/* Takes the memory if it is not there yet. MEMORY. */
enum status resident_memory_begin(struct resident_memory *memory, struct sys *sys, struct device *device,
                                  struct error *e);
/* Gives the memory back and forgets what was ready, not the layout. */
void resident_memory_end(struct resident_memory *memory, struct sys *sys, struct device *device);

#endif
