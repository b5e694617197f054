/* The room: see room.h. */
#include "engine/run/room.h"

#include "engine/run/pins.h"

/* ---- memory ---- */

/* Zeroed or not: nobody reads what he has not written. */
static bool take(const struct run *run, enum memory_line line, struct arena *arena) {
    const struct device_memory *own = run->device->memory;
    if (!arena->bytes) return true;
    arena->base = own ? own->reserve(run->device, arena->bytes) : run->sys->map(run->sys, line, arena->bytes);
    if (own && arena->base && own->commit(run->device, arena->base, arena->bytes)) {
        own->unreserve(run->device, arena->base, arena->bytes);
        arena->base = NULL;
    }
    return arena->base;
}

/* The store has ended the stage: both queues of the device are done. */
static void give_back(const struct run *run, enum memory_line line, struct arena *arena) {
    const struct device_memory *own = run->device->memory;
    if (!own) {
        run->sys->unmap(run->sys, line, arena->base, arena->bytes);
    } else if (arena->base) {
        own->decommit(run->device, arena->base, arena->bytes);
        own->unreserve(run->device, arena->base, arena->bytes);
    }
    *arena = (struct arena){0};
}

struct room room_counting(void) {
    return (struct room){
        .state = arena_counting(), .scratch = arena_counting(), .pictures = arena_counting_apart()};
}

enum status room_take(const struct run *run, const struct stage_need *need, const struct plan_stage *plan,
                      struct room *room, struct error *e) {
    bool there = true;
    if (plan->pictures_on_host) room->pictures.bytes = align_up(need->picture_bytes, PLAN_PAGE);
    if (!room->lane_states) {
        room->state = (struct arena){.bytes = plan->state_bytes};
        there = take(run, LINE_STATE, &room->state);
    }
    room->scratch = (struct arena){.bytes = plan->activation_bytes};
    room->workspace = (struct arena){.bytes = plan->workspace_bytes};
    if (room->pictures.bytes)
        room->pictures.base = shared_map(run->sys, run->device, LINE_STATE, room->pictures.bytes);
    there = there && (room->pictures.base || !room->pictures.bytes);
    there =
        there && take(run, LINE_ACTIVATION, &room->scratch) && take(run, LINE_WORKSPACE, &room->workspace);
    return there ? OK : error_set(e, MEMORY, "no memory for the activations of stage '%s'", plan->name);
}

/* ---- the host's side ---- */

static size_t largest_weights(const struct stage *stage) {
    size_t largest = 1;
    for (int i = 0; i < stage->n_blocks; i++)
        if (stage->blocks[i]->kind->weights_bytes > largest) largest = stage->blocks[i]->kind->weights_bytes;
    return largest;
}

static enum status declare_lanes(struct sys *sys, struct stage *stage, struct room *room, struct error *e) {
    const struct family *family = stage->component->family;
    room->lane_states = sys->alloc(sys, LINE_HOST, (size_t)stage->n_lanes * family->lane_state_bytes);
    if (!room->lane_states) return error_set(e, MEMORY, "no memory for stage '%s'", stage->name);
    struct arena *pictures = room->pictures.bytes ? &room->pictures : &room->state;
    bool ok = true;
    for (int i = 0; i < stage->n_lanes * stage->n_groups; i++)
        stage->lanes[i].state =
            (char *)room->lane_states + (size_t)(i % stage->n_lanes) * family->lane_state_bytes;
    family->declare(stage->component, stage->lanes, stage->n_lanes, &room->state, pictures, &ok);
    return ok ? OK : error_set(e, INTERNAL, "the state of stage '%s' is larger than planned", stage->name);
}

enum status room_open(struct sys *sys, struct stage *stage, struct room *room, struct error *e) {
    room->weights = sys->alloc(sys, LINE_HOST, largest_weights(stage));
    if (!room->weights) return error_set(e, MEMORY, "no memory for stage '%s'", stage->name);
    return room->lane_states ? OK : declare_lanes(sys, stage, room, e);
}

void room_close(struct sys *sys, struct room *room) {
    sys->release(sys, room->lane_states);
    sys->release(sys, room->weights);
    room->lane_states = room->weights = NULL;
}

void room_leave(const struct run *run, struct room *room, bool keeps_state) {
    struct room kept = {0};
    if (keeps_state) {
        kept = (struct room){.state = room->state, .lane_states = room->lane_states};
        room->state = (struct arena){0};
        room->lane_states = NULL;
    }
    room_close(run->sys, room);
    give_back(run, LINE_STATE, &room->state);
    shared_unmap(run->sys, run->device, LINE_STATE, room->pictures.base, room->pictures.bytes);
    room->pictures = (struct arena){0};
    give_back(run, LINE_ACTIVATION, &room->scratch);
    give_back(run, LINE_WORKSPACE, &room->workspace);
    *room = kept;
}
