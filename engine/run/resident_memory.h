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

struct resident_memory {
    char *base; /* NULL until the stage begins */
    uint64_t bytes;
    uint64_t blocks; /* tells one list of blocks from another: of one component, and of those it visits */
    int n_blocks;
    uint64_t member[PLAN_BLOCKS_MAX / 64];
    uint64_t offset[PLAN_BLOCKS_MAX + 1]; /* as laid out; a block ends where the next begins */
    bool ready[PLAN_BLOCKS_MAX];
    struct pins pins;                    /* of a pool, for a device with memory of its own */
    bool evicted;                        /* some have been: not to be kept for another run */
    uint64_t gone[PLAN_BLOCKS_MAX / 64]; /* of those the pages have been given back */
};

static inline bool resident_memory_has(const struct resident_memory *memory, int block) {
    return memory->member[block / 64] >> (block % 64) & 1;
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
/* Lays out the members. What an earlier run left is kept only if keep is set and the same blocks lie at the
 * same places; anything else is given back. */
void resident_memory_lay_out(struct resident_memory *memory, struct sys *sys, struct device *device,
                             const struct store_stage *stage, const uint64_t *member,
                             const struct stage_need *need, uint64_t bytes, bool keep);
/* Gives the pages that only this member occupies back, for good; it is no member any more. Nobody may be
 * using it. */
void resident_memory_evict(struct resident_memory *memory, struct sys *sys, struct device *device, int block);
/* Takes the memory if it is not there yet. MEMORY. */
enum status resident_memory_begin(struct resident_memory *memory, struct sys *sys, struct device *device,
                                  uint64_t bytes, struct error *e);
/* Gives the memory back and forgets what was ready, not the layout. */
void resident_memory_end(struct resident_memory *memory, struct sys *sys, struct device *device);

#endif
