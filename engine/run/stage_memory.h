/* Memory of a stage except weights. A dry run only counts the bytes. State, scratch and workspace lie in
 * device memory if the device has its own, else in host memory, as the plan counts them. Full-frame buffers
 * are part of the state unless the plan keeps them in host memory. Structures that only the host reads lie in
 * host memory. Forward functions receive tensors and do not depend on where these lie. */
#ifndef SLUICE_RUN_STAGE_MEMORY_H
#define SLUICE_RUN_STAGE_MEMORY_H

#include "engine/run/plan.h"
#include "engine/run/run.h"

struct stage_memory {
    struct arena state, scratch, workspace;
    struct arena pictures; /* arena of full-frame buffers; empty if these are part of the state */
    void *lane_states;     /* state structures, one per lane; inherited if the previous stage hoists */
    void *weights;         /* weights structure of the current block, filled by block_point */
};

struct stage_memory stage_memory_counting(void);

/* Allocates the state and scratch bytes given by need and plan. A stage that inherits its lane states
 * allocates only the rest. MEMORY; stage_memory_leave then frees what was allocated. */
enum status stage_memory_take(const struct run *run, const struct stage_need *need,
                              const struct plan_stage *plan, struct stage_memory *memory, struct error *e);

/* Allocates the host structures of lanes and weights, and declares the lane state. For real and dry runs. */
enum status stage_memory_open(struct sys *sys, struct stage *stage, struct stage_memory *memory,
                              struct error *e);
void stage_memory_close(struct sys *sys, struct stage_memory *memory);

/* Frees the stage's memory, except the lane state if keeps_state. A second call does nothing. */
void stage_memory_leave(const struct run *run, struct stage_memory *memory, bool keeps_state);

#endif
