/* Allocates state and scratch memory of a stage: implements stage_memory.h. */
#include "engine/run/stage_memory.h"

#include "engine/run/pinned_memory.h"

/* Allocates an arena with undefined contents: forwards write before they read. */
static bool stage_memory_take_arena(const struct run *run, enum memory_line line, struct arena *arena) {
    const struct device_memory *own = run->device->memory;
    if (!arena->bytes) return true;
    arena->base = own ? own->reserve(run->device, arena->bytes) : run->sys->map(run->sys, line, arena->bytes);
    if (own && arena->base && own->commit(run->device, arena->base, arena->bytes)) {
        own->unreserve(run->device, arena->base, arena->bytes);
        arena->base = NULL;
    }
    return arena->base;
}

/* Frees an arena, after the store has ended the stage and so waited for both device queues. */
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

struct stage_memory stage_memory_counting(void) {
    return (struct stage_memory){
        .state = arena_counting(), .scratch = arena_counting(), .pictures = arena_counting_apart()};
}

enum status stage_memory_take(const struct run *run, const struct stage_need *need,
                              const struct plan_stage *plan, struct stage_memory *memory, struct error *e) {
    bool there = true;
    if (plan->pictures_on_host) memory->pictures.bytes = align_up(need->picture_bytes, PLAN_PAGE);
    if (!memory->lane_states) {
        memory->state = (struct arena){.bytes = plan->state_bytes};
        there = stage_memory_take_arena(run, LINE_STATE, &memory->state);
    }
    memory->scratch = (struct arena){.bytes = plan->activation_bytes};
    memory->workspace = (struct arena){.bytes = plan->workspace_bytes};
    if (memory->pictures.bytes)
        memory->pictures.base = shared_map(run->sys, run->device, LINE_STATE, memory->pictures.bytes);
    there = there && (memory->pictures.base || !memory->pictures.bytes);
    there = there && stage_memory_take_arena(run, LINE_ACTIVATION, &memory->scratch) &&
            stage_memory_take_arena(run, LINE_WORKSPACE, &memory->workspace);
    return there ? OK : error_set(e, MEMORY, "no memory for the activations of stage '%s'", plan->name);
}

static size_t largest_weights(const struct stage *stage) {
    size_t largest = 1;
    for (int i = 0; i < stage->n_blocks; i++) {
        size_t bytes = block_weights_bytes(stage->blocks[i]);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static enum status declare_lanes(struct sys *sys, struct stage *stage, struct stage_memory *memory,
                                 struct error *e) {
    const struct family *family = stage->component->family;
    memory->lane_states = sys->alloc(sys, LINE_HOST, (size_t)stage->n_lanes * family->lane_state_bytes);
    if (!memory->lane_states) return error_set(e, MEMORY, "no memory for stage '%s'", stage->name);
    struct arena *pictures = memory->pictures.bytes ? &memory->pictures : &memory->state;
    bool ok = true;
    for (int i = 0; i < stage->n_lanes * stage->n_groups; i++)
        stage->lanes[i].state =
            (char *)memory->lane_states + (size_t)(i % stage->n_lanes) * family->lane_state_bytes;
    family->declare(stage->component, stage->lanes, stage->n_lanes, &memory->state, pictures, &ok);
    return ok ? OK : error_set(e, INTERNAL, "the state of stage '%s' is larger than planned", stage->name);
}

enum status stage_memory_open(struct sys *sys, struct stage *stage, struct stage_memory *memory,
                              struct error *e) {
    memory->weights = sys->alloc(sys, LINE_HOST, largest_weights(stage));
    if (!memory->weights) return error_set(e, MEMORY, "no memory for stage '%s'", stage->name);
    return memory->lane_states ? OK : declare_lanes(sys, stage, memory, e);
}

void stage_memory_close(struct sys *sys, struct stage_memory *memory) {
    sys->release(sys, memory->lane_states);
    sys->release(sys, memory->weights);
    memory->lane_states = memory->weights = NULL;
}

void stage_memory_leave(const struct run *run, struct stage_memory *memory, bool keeps_state) {
    struct stage_memory inherited = {0};
    if (keeps_state) {
        inherited = (struct stage_memory){.state = memory->state, .lane_states = memory->lane_states};
        memory->state = (struct arena){0};
        memory->lane_states = NULL;
    }
    stage_memory_close(run->sys, memory);
    give_back(run, LINE_STATE, &memory->state);
    shared_unmap(run->sys, run->device, LINE_STATE, memory->pictures.base, memory->pictures.bytes);
    memory->pictures = (struct arena){0};
    give_back(run, LINE_ACTIVATION, &memory->scratch);
    give_back(run, LINE_WORKSPACE, &memory->workspace);
    *memory = inherited;
}
