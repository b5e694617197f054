/* The room: what a stage computes in. Taken in a run, counted in a dry one.
 *
 * State, scratch and workspace are the device's memory where it has its own, as the plan counts them; else
 * the host's, each under its line. Whole-picture buffers are part of the state, unless the plan has them in
 * the host's memory. What only the host reads is the host's either way. Forwards are handed tensors and
 * cannot tell. */
#ifndef SLUICE_RUN_ROOM_H
#define SLUICE_RUN_ROOM_H

#include "engine/run/plan.h"
#include "engine/run/run.h"

struct room {
    struct arena state, scratch, workspace;
    struct arena pictures; /* empty where they lie in the state */
    void *lane_states;     /* the families' structures, one a lane; from the stage before, if that hoists */
    void *weights;         /* the structure that block_point fills */
};

/* For a dry run. */
struct room room_counting(void);

/* Takes what need and plan say; of a stage that went on with the state of the one before only what that left.
 * MEMORY, with what was taken still there for room_leave. */
enum status room_take(const struct run *run, const struct stage_need *need, const struct plan_stage *plan,
                      struct room *room, struct error *e);

/* The host's side of either kind of room: structures of lanes and weights; lanes declare their state. */
enum status room_open(struct sys *sys, struct stage *stage, struct room *room, struct error *e);
void room_close(struct sys *sys, struct room *room);

/* Closes it and gives everything back. keeps_state: the next stage goes on with the lanes' state. Else a
 * second time does nothing. */
void room_leave(const struct run *run, struct room *room, bool keeps_state);

#endif
