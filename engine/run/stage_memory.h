/* Stage memory: what a stage computes in. Taken in a run, counted in a dry one.
 *
 * State, scratch and workspace are the device's memory where it has its own, as the plan counts them; else
 * the host's, each under its line. Whole-picture buffers are part of the state, unless the plan has them in
 * the host's memory. What only the host reads is the host's either way. Forwards are handed tensors and
 * cannot tell. */
#ifndef SLUICE_RUN_STAGE_MEMORY_H
#define SLUICE_RUN_STAGE_MEMORY_H

#include "engine/run/plan.h"
#include "engine/run/run.h"

struct stage_memory {
    struct arena state, scratch, workspace;
    struct arena pictures; /* empty where they lie in the state */
    void *lane_states;     /* the families' structures, one a lane; from the stage before, if that hoists */
    void *weights;         /* what block_point fills */
};

/* For a dry run. */
struct stage_memory stage_memory_counting(void);

/* Takes what need and plan say; of a stage that went on with the state of the one before only what that left.
 * MEMORY, with what was taken still there for stage_memory_leave. */
enum status stage_memory_take(const struct run *run, const struct stage_need *need,
                              const struct plan_stage *plan, struct stage_memory *memory, struct error *e);

/* The host's side of either kind: structures of lanes and weights; lanes declare their state. */
enum status stage_memory_open(struct sys *sys, struct stage *stage, struct stage_memory *memory,
                              struct error *e);
void stage_memory_close(struct sys *sys, struct stage_memory *memory);

/* Closes it and gives everything back. keeps_state: the next stage goes on with the lanes' state. Else a
 * second time does nothing. */
void stage_memory_leave(const struct run *run, struct stage_memory *memory, bool keeps_state);

#endif
