/* Memory for weight blocks that stay for a whole stage, each at a fixed offset: resident blocks on the
 * device, and blocks kept in host memory for a GPU. Owned by the session, so that the next run finds the
 * blocks that the plan keeps. A block is ready once the store has loaded all bytes. */
#ifndef SLUICE_RUN_RESIDENT_MEMORY_H
#define SLUICE_RUN_RESIDENT_MEMORY_H

#include "engine/run/block.h"
#include "engine/run/plan.h"
#include "kernels/device.h"

/* ---- host memory for a device ----
 *
 * Operators access shared memory over the bus. Copies from pinned memory run concurrently with computation.
 * Pinning takes 0.2 seconds per GiB or more, so the host memory that holds weights is pinned in chunks while
 * the device computes. A reader pins the chunk that it copies from; other readers continue with pinned
 * chunks. Systems limit pinned memory, some to almost nothing: a refused chunk is not tried again, but later
 * chunks are tried. */

/* Maps whole zeroed pages that device operators can access; plain host memory if the device has no memory of
 * its own or accepts any host memory. NULL if memory is short. */
void *shared_map(struct sys *sys, struct device *device, enum memory_line line, size_t bytes);
void shared_unmap(struct sys *sys, struct device *device, enum memory_line line, void *memory, size_t bytes);

/* Memory is pinned in chunks of PINS_CHUNK bytes, at most PINS_MAX chunks; ranges above 32 GiB use larger
 * chunks. */
enum { PINS_CHUNK = 64 << 20, PINS_MAX = 512 };

enum pin_state { PIN_NOT_YET, PIN_UNDER_WAY, PIN_DONE, PIN_REFUSED };

/* Pinning state of a memory range. All zero: nothing is pinned and nothing needs pinning. */
struct pins {
    struct device *device;
    char *memory;
    uint64_t bytes, chunk;
    uint8_t state[PINS_MAX]; /* enum pin_state of each chunk */
    bool refused;            /* at least one chunk could not be pinned */
};

/* Starts tracking a range of whole pages, which must stay allocated until pins_end. Pins nothing yet. */
void pins_begin(struct pins *pins, struct device *device, char *memory, uint64_t bytes);
/* State of the chunk that holds byte `from`; *end: end of the chunk, which one copy must not cross. PIN_DONE
 * if nothing needs pinning; PIN_REFUSED beyond the range. Thread-safe without a lock. */
enum pin_state pins_state(const struct pins *pins, uint64_t from, uint64_t *end);
/* True if at least one chunk could not be pinned. Thread-safe. */
bool pins_refuse(const struct pins *pins);
/* Sets the state of an unpinned chunk to PIN_UNDER_WAY and returns true; the caller must then call pins_pin.
 * Returns false in other states. One thread at a time. */
bool pins_claim(struct pins *pins, uint64_t from);
/* Pins a chunk whose state the caller has set to PIN_UNDER_WAY (pins_claim). Threads may pin different chunks
 * concurrently. */
void pins_pin(struct pins *pins, uint64_t from);
/* Unpins all chunks. No copy may be using them. */
void pins_end(struct pins *pins);

/* ---- resident blocks ---- */

/* The blocks of a stage as input of the store. */
struct store_stage {
    const struct block *const *blocks;
    int n_blocks;
    /* Number of leading blocks with model weights; later blocks hold gathered embedding rows. */
    int n_model_blocks;
};

/* One part (adapter bytes or base weights) of a stage's resident blocks. Each part has its own memory, so
 * that adapters can change while base weights stay. */
struct resident_part {
    char *base; /* address of the memory; NULL before the stage begins, or if the part has no bytes */
    uint64_t bytes;
    uint64_t blocks; /* hash that identifies the stage's list of blocks across runs */
    int n_blocks;
    uint64_t member[PLAN_BLOCKS_MAX / 64]; /* bit set of the resident blocks */
    /* Offset of each block in units of ARENA_ALIGN; a block ends where the next begins. */
    uint32_t offset[PLAN_BLOCKS_MAX + 1];
    uint64_t ready[PLAN_BLOCKS_MAX / 64]; /* bit set of the blocks whose bytes are loaded */
    struct pins pins; /* pinned ranges of host memory that holds weights for a discrete GPU */
    bool evicted;     /* true: blocks were evicted, so no later run reuses the memory */
    /* Bit set of evicted blocks whose pages were returned to the system. */
    uint64_t gone[PLAN_BLOCKS_MAX / 64];
};

struct resident_memory {
    struct resident_part part[PACKED_PARTS];
};

static inline bool resident_memory_has(const struct resident_part *part, int block) {
    return blocks_has(part->member, block);
}

static inline bool resident_memory_ready(const struct resident_memory *memory, enum packed_part part,
                                         int block) {
    return blocks_has(memory->part[part].ready, block);
}

static inline uint64_t resident_memory_offset(const struct resident_part *part, int block) {
    return (uint64_t)part->offset[block] * ARENA_ALIGN;
}

/* Reserve and commit memory for weights: on the device, or on the host (LINE_STORE) if device is NULL or has
 * no memory of its own. Same contract as in struct sys. */
void *weights_reserve(struct sys *sys, struct device *device, uint64_t bytes);
int weights_commit(struct sys *sys, struct device *device, void *memory, uint64_t bytes);
void weights_decommit(struct sys *sys, struct device *device, void *memory, uint64_t bytes);
void weights_unreserve(struct sys *sys, struct device *device, void *memory, uint64_t bytes);

/* Assigns memory of an earlier run to this run's stages with the same blocks; stage numbers may differ. Call
 * before resident_memory_lay_out. */
void resident_memory_match(struct resident_memory memory[PLAN_STAGES_MAX], const struct store_stage *stages,
                           int n_stages);
/* Assigns offsets to the blocks of the bit set `member`. Memory of an earlier run with the same blocks stays,
 * or is moved if the members differ; other memory is freed. Call for all stages with grows = false (parts
 * that need no more memory than before), then with grows = true (the other parts). Moving a part needs 1/64
 * of its size (at most 2 MiB) plus two pages beyond the larger layout. */
void resident_memory_lay_out(struct resident_memory *memory, struct sys *sys, struct device *device,
                             const struct store_stage *stage, const uint64_t *member, bool grows);
/* True if adapter bytes or base weights have memory. */
bool resident_memory_held(const struct resident_memory *memory);
/* Address of each part of a block; NULL for a part without memory. */
struct packed_place resident_memory_place(const struct resident_memory *memory, int block);
void resident_memory_set_ready(struct resident_memory *memory, int block);
/* Evicts the blocks outside the bit set `member`, which must not be in use. The pages that only evicted
 * blocks occupy are returned for good. A part without memory is only laid out again. */
void resident_memory_reduce(struct resident_memory *memory, struct sys *sys, struct device *device,
                            const struct store_stage *stage, const uint64_t *member);
/* Allocates the memory of all parts unless allocated. Fails with MEMORY. */
enum status resident_memory_begin(struct resident_memory *memory, struct sys *sys, struct device *device,
                                  struct error *e);
/* Frees the memory and clears the ready bits; keeps the layout. */
void resident_memory_end(struct resident_memory *memory, struct sys *sys, struct device *device);

#endif
