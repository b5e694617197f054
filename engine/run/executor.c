/* The loop over visits, for dry and real runs, and the memory of a stage: implements executor.h. */
#include "engine/run/executor.h"

#include "kernels/dry/dry.h"

#include <stdio.h>
#include <string.h>

/* Memory of a stage except weights: state, scratch and workspace. They lie in device memory if the device has
 * its own, else in host memory, as the plan counts them. Full-frame buffers are part of the state unless the
 * plan keeps them in host memory. */
struct stage_memory {
    struct arena state, scratch, workspace;
    struct arena pictures; /* arena of full-frame buffers; empty if these are part of the state */
    /* State structures: one per lane of the component and of each control network; inherited if the previous
     * stage hoists. */
    void *lane_states;
    void *weights; /* structure with pointers to the current block's weights, filled by block_point */
};

/* Allocates an arena with undefined contents: forwards write before they read. */
static bool take_arena(const struct run *run, enum memory_line line, struct arena *arena) {
    const struct device_memory *own = run->device->memory;
    if (!arena->bytes) return true;
    arena->base = own ? own->reserve(run->device, arena->bytes) : run->sys->map(run->sys, line, arena->bytes);
    if (own && arena->base && own->commit(run->device, arena->base, arena->bytes)) {
        own->unreserve(run->device, arena->base, arena->bytes);
        arena->base = NULL;
    }
    return arena->base;
}

/* Frees an arena, after store_end_stage has waited for the device's compute and copy queues. */
static void free_arena(const struct run *run, enum memory_line line, struct arena *arena) {
    const struct device_memory *own = run->device->memory;
    if (!own) {
        run->sys->unmap(run->sys, line, arena->base, arena->bytes);
    } else if (arena->base) {
        own->decommit(run->device, arena->base, arena->bytes);
        own->unreserve(run->device, arena->base, arena->bytes);
    }
    *arena = (struct arena){0};
}

/* Initialises stage memory for a dry run, which only counts bytes and allocates nothing. */
static struct stage_memory stage_memory_counting(void) {
    return (struct stage_memory){
        .state = arena_counting(), .scratch = arena_counting(), .pictures = arena_counting_apart()};
}

/* Allocates the state and scratch bytes given by need and plan. A stage that inherits its lane states
 * allocates only the rest. MEMORY; stage_memory_leave then frees what was allocated. */
static enum status stage_memory_take(const struct run *run, const struct stage_need *need,
                                     const struct plan_stage *plan, struct stage_memory *memory,
                                     struct error *e) {
    bool there = true;
    if (plan->pictures_on_host) memory->pictures.bytes = align_up(need->picture_bytes, PLAN_PAGE);
    if (!memory->lane_states) {
        memory->state = (struct arena){.bytes = plan->state_bytes};
        there = take_arena(run, LINE_STATE, &memory->state);
    }
    memory->scratch = (struct arena){.bytes = plan->activation_bytes};
    memory->workspace = (struct arena){.bytes = plan->workspace_bytes};
    if (memory->pictures.bytes)
        memory->pictures.base = shared_map(run->sys, run->device, LINE_STATE, memory->pictures.bytes);
    there = there && (memory->pictures.base || !memory->pictures.bytes);
    there = there && take_arena(run, LINE_ACTIVATION, &memory->scratch) &&
            take_arena(run, LINE_WORKSPACE, &memory->workspace);
    return there ? OK : error_set(e, MEMORY, "no memory for the activations of stage '%s'", plan->name);
}

/* Bytes of a lane's state structure in memory->lane_states. */
static size_t lane_state_bytes(const struct component *c) {
    return align_up(c->family->state.bytes, _Alignof(max_align_t));
}

/* Declares the state of a component's lanes, whose state structures begin at `at`. Lane i of every group has
 * the same structure; a lane with residuals_of has that of the lane that computes. Returns the end of the
 * structures. */
static char *declare_lanes(const struct stage *stage, const struct component *c, struct lane *lanes, char *at,
                           struct stage_memory *memory, bool *ok) {
    size_t bytes = lane_state_bytes(c);
    for (int i = 0; i < stage->n_lanes * stage->n_groups; i++)
        lanes[i].state = at + (size_t)(i % stage->n_lanes - lanes[i].residuals_of) * bytes;
    c->family->state.declare(c, lanes, stage->n_lanes, &memory->state,
                             memory->pictures.bytes ? &memory->pictures : &memory->state, ok);
    return at + (size_t)stage->n_lanes * bytes;
}

/* Allocates the host structures of lanes and weights, and declares the lane state. For real and dry runs. */
static enum status stage_memory_open(struct sys *sys, struct stage *stage, struct stage_memory *memory,
                                     struct error *e) {
    size_t largest = 1, lane_bytes = lane_state_bytes(stage->component);
    for (int k = 0; k < stage->n_controls; k++) lane_bytes += lane_state_bytes(stage->control[k].component);
    for (int i = 0; i < stage->n_blocks; i++) {
        size_t bytes = block_weights_bytes(stage->blocks[i]);
        if (bytes > largest) largest = bytes;
    }
    memory->weights = sys_new(sys, 1, largest, "the weights structure of a stage", e);
    if (!memory->weights || memory->lane_states) return e->code;
    memory->lane_states = sys_new(sys, (size_t)stage->n_lanes, lane_bytes, "the lane states of a stage", e);
    if (!memory->lane_states) return e->code;
    bool ok = true;
    char *at = declare_lanes(stage, stage->component, stage->lanes, memory->lane_states, memory, &ok);
    for (int k = 0; k < stage->n_controls; k++)
        at = declare_lanes(stage, stage->control[k].component, stage->control[k].lanes, at, memory, &ok);
    return ok ? OK : error_set(e, INTERNAL, "the state of stage '%s' is larger than planned", stage->name);
}

/* Frees the host structures of lanes and weights. */
static void stage_memory_close(struct sys *sys, struct stage_memory *memory) {
    sys->release(sys, memory->lane_states);
    sys->release(sys, memory->weights);
    memory->lane_states = memory->weights = NULL;
}

/* Frees the stage's memory, except the lane state if keeps_state. A second call does nothing. */
static void stage_memory_leave(const struct run *run, struct stage_memory *memory, bool keeps_state) {
    struct stage_memory inherited = {0};
    if (keeps_state) {
        inherited = (struct stage_memory){.state = memory->state, .lane_states = memory->lane_states};
        memory->state = (struct arena){0};
        memory->lane_states = NULL;
    }
    stage_memory_close(run->sys, memory);
    free_arena(run, LINE_STATE, &memory->state);
    shared_unmap(run->sys, run->device, LINE_STATE, memory->pictures.base, memory->pictures.bytes);
    memory->pictures = (struct arena){0};
    free_arena(run, LINE_ACTIVATION, &memory->scratch);
    free_arena(run, LINE_WORKSPACE, &memory->workspace);
    *memory = inherited;
}

/* The component of a visit: the stage's, or a control network. */
static const struct component *component_of(const struct stage *stage, const struct visit *visit) {
    return visit->control ? stage->control[visit->control - 1].component : stage->component;
}

/* The lanes of the visit's component and group. */
static const struct lane *lanes_of(const struct stage *stage, const struct visit *visit) {
    const struct lane *lanes = visit->control ? stage->control[visit->control - 1].lanes : stage->lanes;
    return visit->evaluation < 0 ? lanes : lanes + visit->evaluation % stage->n_groups * stage->n_lanes;
}

/* Runs one visit: the block's forward for each lane of the group. In a dry run `place`, the block's address,
 * is empty. */
static enum status run_visit(struct context *x, const struct stage *stage, const struct visit *visit,
                             struct packed_place place, void *weights) {
    const struct block *block = stage->blocks[visit->block];
    int evaluation = visit->evaluation < 0 ? 0 : visit->evaluation, timestep = evaluation / stage->n_groups;
    const struct component *c = component_of(stage, visit);
    const struct lane *lanes = lanes_of(stage, visit);
    block_point(block, place, weights);
    x->precision = block_precision(block->kind, stage->precision, x->device);
    for (int i = visit->first_lane; i < visit->first_lane + visit->n_lanes; i++) {
        struct visit_scope scope = {
            .settings = c->settings,
            .latent_format = &c->latent_format,
            .lane = &lanes[i],
            .number = block->number,
            .chunk = stage->n_chunks ? evaluation % stage->n_chunks : 0,
            .pass = visit->pass,
            .first = visit->evaluation <= 0,
            .first_of_prompt = lane_first_of_prompt(lanes, i) == i,
            .timestep = timestep,
            .n_timesteps = visit->evaluation < 0 ? visit->n_hoisted : 1,
            .timesteps = stage->timesteps ? stage->timesteps + timestep : NULL,
        };
        if (lanes[i].padding) continue;
        x->scratch->used = 0;
        block->kind->forward(x, weights, &scope);
    }
    return x->error->code;
}

enum status executor_state_bytes(struct sys *sys, struct stage *stage, uint64_t *bytes,
                                 uint64_t *picture_bytes, struct error *e) {
    struct stage_memory memory = stage_memory_counting();
    stage_memory_open(sys, stage, &memory, e);
    *bytes = memory.state.peak;
    *picture_bytes = memory.pictures.peak;
    stage_memory_close(sys, &memory);
    return e->code;
}

static bool same_size(const struct tensor *a, const struct tensor *b) {
    return a->rank == b->rank && !memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->rank);
}

/* True if the two lanes run the same operators on the same shapes. */
static bool lanes_alike(const struct lane *a, const struct lane *b) {
    bool same = a->prompt == b->prompt && a->n_tokens == b->n_tokens && a->keeps_prefix == b->keeps_prefix &&
                a->pooled_row == b->pooled_row && a->n_clean_frames == b->n_clean_frames &&
                a->hoisted == b->hoisted && a->tiled == b->tiled && a->padding == b->padding &&
                a->n_controls == b->n_controls && !a->residuals_of == !b->residuals_of;
    for (int i = 0; i < a->n_controls && same; i++)
        same = same_size(&a->control[i].input, &b->control[i].input);
    for (int i = 0; i < LANE_REFERENCES_MAX; i++)
        same = same && same_size(&a->reference[i], &b->reference[i]);
    return same && same_size(&a->text, &b->text) && same_size(&a->pooled, &b->pooled) &&
           same_size(&a->latent, &b->latent) && same_size(&a->concat, &b->concat) &&
           same_size(&a->image, &b->image) && same_size(&a->prediction, &b->prediction) &&
           same_size(&a->picture, &b->picture) && same_size(&a->moments, &b->moments);
}

/* True if two evaluations of one phase run the same operators: the lanes of their groups have the same
 * shapes, and neither is evaluation 0 with kept prefixes, which alone computes the prefixes. */
static bool evaluations_alike(const struct stage *stage, int a, int b) {
    if (stage->lanes->keeps_prefix && (!a || !b)) return false;
    int of_a = a % stage->n_groups * stage->n_lanes, of_b = b % stage->n_groups * stage->n_lanes;
    for (int i = 0; i < stage->n_lanes; i++) {
        if (!lanes_alike(&stage->lanes[of_a + i], &stage->lanes[of_b + i])) return false;
        for (int k = 0; k < stage->n_controls; k++)
            if (!lanes_alike(&stage->control[k].lanes[of_a + i], &stage->control[k].lanes[of_b + i]))
                return false;
    }
    return true;
}

/* The evaluations of a stage that compute the same lanes; they need not be consecutive. If the stage keeps
 * prefixes, the first step's evaluations are separate from the later ones. */
struct phase {
    int first;      /* index of the phase's first evaluation */
    int n;          /* number of evaluations */
    int n_measured; /* evaluations whose visits were measured or skipped so far, the current one included */
};

/* Two bounds for each range of evaluations (guidance, skip-layer guidance, control networks), the first step
 * and the ends. */
enum { PHASES_MAX = 2 * (2 + CONTROLS_MAX) + 4 };
struct phases {
    int n;
    struct phase phase[PHASES_MAX];
};

/* True if evaluations a and b belong to one phase. */
static bool phase_holds(const struct stage *stage, int a, int b) {
    bool keeps = stage->lanes->keeps_prefix;
    if (keeps && (a < stage->n_groups) != (b < stage->n_groups)) return false;
    for (int i = 0; i < stage->n_lanes; i++) {
        if (lane_is_of(&stage->lanes[i], a) != lane_is_of(&stage->lanes[i], b)) return false;
        for (int k = 0; k < stage->n_controls; k++)
            if (lane_is_of(&stage->control[k].lanes[i], a) != lane_is_of(&stage->control[k].lanes[i], b))
                return false;
    }
    return true;
}

/* Returns the phase of an evaluation; NULL if it is not listed yet. */
static struct phase *phase_of(const struct stage *stage, struct phases *phases, int evaluation) {
    int i = 0;
    while (i < phases->n && !phase_holds(stage, phases->phase[i].first, evaluation)) i++;
    return i < phases->n ? &phases->phase[i] : NULL;
}

/* Lists the phases of a stage. Fails with INTERNAL if there are more than PHASES_MAX. */
static enum status list_phases(const struct stage *stage, struct phases *phases, struct error *e) {
    *phases = (struct phases){0};
    for (int i = 0; i < stage->evaluations; i++) {
        struct phase *phase = phase_of(stage, phases, i);
        if (!phase) {
            if (phases->n == PHASES_MAX)
                return error_set(e, INTERNAL, "stage '%s' has more than %d phases", stage->name, PHASES_MAX);
            phase = &phases->phase[phases->n++];
            *phase = (struct phase){.first = i};
        }
        phase->n++;
    }
    return OK;
}

/* Dry-run measurement of one visit, summed over its lanes. */
struct measured {
    double seconds, flops, adapter_flops;
    uint64_t picture_bytes;
};

/* Measures one visit in a dry run; of several lanes with the same shapes only one is run. */
static enum status measure_visit(struct context *x, struct dry *dry, const struct stage *stage,
                                 const struct visit *visit, void *weights, struct measured *m) {
    const struct lane *lanes = lanes_of(stage, visit);
    struct visit one = *visit;
    *m = (struct measured){0};
    for (int left = visit->n_lanes, n; left; left -= n, one.first_lane += n) {
        const struct lane *first = lanes + one.first_lane;
        /* The first lane of each prompt is measured separately, because it computes the prefix. */
        bool computes_prefix = component_of(stage, visit)->family->lanes.prefix &&
                               lane_first_of_prompt(lanes, one.first_lane) == one.first_lane;
        for (n = 1; n < left && !computes_prefix && lanes_alike(first, first + n);) n++;
        one.n_lanes = 1;
        x->flops = x->adapter_flops = dry->seconds = 0;
        dry->picture_bytes = 0;
        if (run_visit(x, stage, &one, (struct packed_place){{NULL}}, weights) != OK) {
            if (x->error->code == UNSUPPORTED && !*x->error->where)
                error_where(x->error, "block '%s'", stage->blocks[visit->block]->name);
            break;
        }
        m->seconds += n * dry->seconds;
        m->flops += n * x->flops;
        m->adapter_flops += n * x->adapter_flops;
        m->picture_bytes += (unsigned)n * dry->picture_bytes;
    }
    return x->error->code;
}

/* True if a streamed block is loaded for visit i: the previous visit to a block with weights in this
 * evaluation is to another block. */
static bool is_loaded(const struct run *run, int i) {
    const struct visit *visits = run->visits->visits, *v = &visits[i];
    const struct block *const *blocks = run->stages[v->stage].blocks;
    for (i--; i >= 0 && visits[i].stage == v->stage && visits[i].evaluation == v->evaluation; i--)
        if (blocks[visits[i].block]->bytes) return visits[i].block != v->block;
    return true;
}

/* Measures the visits of a stage by a dry run and adds them to the stage's struct stage_need. Evaluations
 * with equal shapes are measured once.
 */
static enum status measure_visits(const struct run *run, int i_stage, struct context *x, struct dry *dry,
                                  void *weights, struct stage_need *need) {
    const struct stage *stage = &run->stages[i_stage];
    /* Number of leading evaluations of each phase that cover all tensor shapes: one per group and chunk, or
     * all if the lanes' pictures differ in size. n_alike: number of these that the current measurement
     * covers; 0: an earlier measurement covers them. */
    int unlike = stage->n_groups * (stage->n_chunks ? stage->n_chunks : 1), n_alike = 1, evaluation = -1;
    int loads[PLAN_BLOCKS_MAX] = {0}; /* loads of each block in all evaluations, if it is streamed */
    struct phases phases;
    if (list_phases(stage, &phases, x->error) != OK) return x->error->code;
    for (int i = 1; i < stage->n_lanes; i++)
        if (!same_size(&stage->lanes[i].picture, &stage->lanes->picture)) unlike = stage->evaluations;
    for (int i = 0; i < run->visits->n_visits; i++) {
        const struct visit *visit = &run->visits->visits[i];
        struct measured m;
        if (visit->stage != i_stage) continue;
        bool once = visit->evaluation < 0;
        struct phase single = {.n = 1}, *phase = once ? &single : phase_of(stage, &phases, visit->evaluation);
        if (!once) need->block_repeats[visit->block] = true;
        if (!once && is_loaded(run, i)) loads[visit->block]++;
        bool begins = visit->evaluation != evaluation;
        evaluation = visit->evaluation;
        if (begins && !once) phase->n_measured++;
        int k = once ? 0 : phase->n_measured - 1; /* index among the evaluations of the phase */
        if (k >= unlike) continue;
        if (begins) {
            n_alike = 1;
            /* Each chunk of video frames is measured separately. */
            if (!once && stage->n_groups == unlike) {
                if (k && evaluations_alike(stage, evaluation - 1, evaluation)) n_alike = 0;
                while (n_alike && k + n_alike < unlike &&
                       evaluations_alike(stage, evaluation, evaluation + n_alike))
                    n_alike++;
            }
        }
        if (!n_alike) continue;
        if (measure_visit(x, dry, stage, visit, weights, &m) != OK) break;
        int of = once ? 1 : unlike;
        double share = once ? 1 : (double)phase->n / stage->evaluations;
        need->block_seconds[visit->block] += m.seconds * n_alike / of * share;
        if (need->picture_bytes)
            need->block_picture_bytes[visit->block] += m.picture_bytes * (unsigned)n_alike / (unsigned)of;
        need->flops += m.flops * n_alike * phase->n / of;
        need->adapter_flops += m.adapter_flops * n_alike * phase->n / of;
    }
    for (int i = 0; i < stage->n_blocks; i++)
        if (need->block_repeats[i])
            need->block_extra_loads[i] = (float)loads[i] / (float)stage->evaluations - 1;
    return x->error->code;
}

/* Measures the memory, FLOPs and seconds of one stage. */
static enum status measure_stage(const struct run *run, int i_stage, struct dry *dry, struct stage_need *need,
                                 struct error *e) {
    struct stage *stage = &run->stages[i_stage];
    struct stage_memory memory = stage_memory_counting();
    struct context x = {
        .device = &dry->device, .precision = stage->precision, .scratch = &memory.scratch, .error = e};
    dry->workspace_bytes = dry->internal_bytes = 0;
    dry->pictures = &memory.pictures;
    if (stage_memory_open(run->sys, stage, &memory, e) != OK) goto out;
    need->picture_bytes = memory.pictures.peak;
    if (need->picture_bytes && stage->n_blocks > PLAN_PICTURE_BLOCKS_MAX) {
        error_set(e, UNSUPPORTED, "the decoder has too many blocks" FOUND "%d" EXPECTED "at most %d",
                  stage->n_blocks, PLAN_PICTURE_BLOCKS_MAX);
        goto out;
    }
    measure_visits(run, i_stage, &x, dry, memory.weights, need);
    need->state_bytes = memory.state.peak;
    need->activation_bytes = memory.scratch.peak;
    need->workspace_bytes = dry->workspace_bytes;
    need->library_bytes = dry->internal_bytes;
out:
    stage_memory_close(run->sys, &memory);
    return e->code;
}

enum status executor_measure(const struct run *run, bool prepare, struct run_need *need, struct error *e) {
    struct dry dry;
    dry_init(&dry, run->sys, run->device, prepare);
    dry.rates = &need->rates.ops;
    memset(need->stage, 0, (size_t)run->n_stages * sizeof *need->stage);
    need->n_stages = run->n_stages;
    need->separate = run->device->memory != NULL;
    need->device_bytes = run->device->overhead_bytes;
    for (int i = 0; i < run->n_stages && e->code == OK; i++) {
        const struct stage *stage = &run->stages[i];
        struct stage_need *n = &need->stage[i];
        memcpy(n->name, stage->name, sizeof n->name);
        snprintf(n->family, sizeof n->family, "%s", stage->component->family->name);
        n->evaluations = stage->evaluations;
        n->lanes = stage->n_lanes;
        n->groups = stage->n_groups;
        n->hoists = stage->hoists;
        n->tiled = stage->lanes->tiled;
        n->n_blocks = stage->n_blocks;
        for (int k = 0; k < n->n_blocks; k++) {
            n->block_bytes[k] = stage->blocks[k]->bytes;
            n->block_adapter_bytes[k] = stage->blocks[k]->adapter_bytes;
            n->block_keepable[k] = k < stage->n_model_blocks;
        }
        measure_stage(run, i, &dry, &need->stage[i], e);
    }
    /* oneDNN primitives are built before the first visit and stay for all stages. */
    need->primitives_bytes = dry.primitives_bytes;
    for (int i = 0; i < run->n_stages; i++) need->stage[i].library_bytes += dry.primitives_bytes;
    dry_destroy(&dry);
    return e->code;
}

/* State of a run that computes (not a dry run). */
struct execution {
    const struct run *run;
    struct error *e;
    const struct visit *visit; /* the visit being executed, or the previous one */
    struct context *context;
    struct store *store;
    struct store_counters *counters;
    double done, done_before; /* FLOPs of completed visits; value at the last restart point */
    int n_ended;              /* visits before this index have had their evaluation_ended hook called */

    const struct run_need *need;
    const struct residents *residents;
    const struct plan *plan;  /* current plan */
    struct plan reduced[2];   /* plans with fewer residents after evictions; two buffers used alternately */
    int n_evicted, n_retries; /* evictions in the run; evictions in this stage after failed allocations */
    bool operator_failed;     /* an operator of the last visit found no memory */
};

/* Called by operators, and by the store while it waits: updates the counters and calls the tick hook. */
static bool execution_tick(void *user) {
    struct execution *x = user;
    if (x->counters) *x->counters = store_count(x->store);
    return x->run->hooks->tick(x->run->hooks->user, x->visit, x->done + x->context->flops, x->e);
}

/* Called by operators: waits until a tensor's bytes, and earlier bytes of the packed block, have arrived. */
static bool execution_await(void *user, const struct tensor *tensor) {
    struct execution *x = user;
    int i_visit = (int)(x->visit - x->run->visits->visits);
    return !tensor->weight_end || store_await(x->store, i_visit, tensor->weight_end, x->e) == OK;
}

/* Waits until the device has computed all queued operators. */
static enum status wait_for_device(struct execution *x) {
    double stalled = 0;
    device_wait(x->run->device, &stalled, x->e);
    store_add_stall(x->store, stalled);
    return x->e->code;
}

/* Runs one visit between acquire and release of its weights, and calls the hook after an evaluation. */
static enum status execute_visit(struct execution *x, int i_visit, struct stage_memory *memory) {
    const struct run *run = x->run;
    const struct visit *visit = x->visit;
    struct packed_place place;
    x->context->flops = 0;
    x->operator_failed = false;
    if (!execution_tick(x)) return x->e->code;
    if (store_acquire(x->store, i_visit, &place, x->e) != OK) return x->e->code;
    run_visit(x->context, &run->stages[visit->stage], visit, place, memory->weights);
    x->operator_failed = x->e->code == MEMORY;
    if (x->e->code == OK) /* before the release, waits for weight bytes that no operator needed */
        store_await(x->store, i_visit, run->stages[visit->stage].blocks[visit->block]->bytes, x->e);
    store_release(x->store, i_visit);
    x->done += x->context->flops;
    x->context->flops = 0;
    if (x->e->code != OK || !visit->ends_evaluation || wait_for_device(x) != OK) return x->e->code;
    if (x->counters) *x->counters = store_count(x->store);
    if (i_visit < x->n_ended) return OK; /* the evaluation ran before: its hook is not called again */
    x->n_ended = i_visit + 1;
    return run->hooks->evaluation_ended(run->hooks->user, visit, x->e);
}

/* True if visit i is the first of an evaluation. */
static bool begins_evaluation(const struct visit_list *visits, int i) {
    const struct visit *v = &visits->visits[i];
    return !i || v[-1].stage != v->stage || v[-1].evaluation != v->evaluation;
}

/* True if computation can restart here: first visit of an evaluation and, for video, of a lane's first
 * chunk. */
static bool can_restart_at(const struct run *run, int i) {
    const struct visit *v = &run->visits->visits[i];
    int n_chunks = run->stages[v->stage].n_chunks;
    if (n_chunks && v->evaluation % n_chunks) return false;
    return begins_evaluation(run->visits, i);
}

/* Bit set of the stages whose residents are in memory, including `stage`. */
static uint32_t held_stages(const struct execution *x, int stage) {
    uint32_t held = (uint32_t)1 << stage;
    for (int s = 0; s < x->plan->n_stages; s++)
        if (resident_memory_held(&x->residents->memory[s])) held |= (uint32_t)1 << s;
    return held;
}

/* Evicts residents before an evaluation's first visit. Returns false if none are left or an error is set. */
static bool evict(struct execution *x, uint64_t bytes, int i_visit, enum evict_reason reason) {
    const struct visit *first = &x->run->visits->visits[i_visit];
    struct plan *reduced = &x->reduced[x->n_evicted % 2];
    uint64_t freed = plan_evict(x->need, x->plan, first->stage, held_stages(x, first->stage), bytes, reduced);
    if (!freed || store_replan(x->store, reduced, i_visit, x->e) != OK) return false;
    x->plan = reduced;
    x->n_evicted++;
    if (x->run->hooks->evicted) x->run->hooks->evicted(x->run->hooks->user, first, freed, reason);
    return true;
}

/* After a lack of memory: evicts half of the residents, then all. If none are left, the error stays. */
static bool evict_more(struct execution *x, int i_visit, enum evict_reason reason) {
    struct error found = *x->e;
    uint64_t bytes = 0;
    uint32_t held = held_stages(x, x->run->visits->visits[i_visit].stage);
    for (int s = 0; s < x->plan->n_stages; s++)
        if (held >> s & 1) bytes += x->plan->stage[s].resident_bytes;
    *x->e = (struct error){0};
    if (evict(x, x->n_retries++ ? UINT64_MAX : bytes / 2, i_visit, reason)) return true;
    if (x->e->code == OK) *x->e = found;
    return false;
}

/* Executes one visit and handles failure or eviction. Returns the index of the next visit. */
static int execute_next(struct execution *x, int i_visit, struct stage_memory *memory) {
    const struct visit_list *visits = x->run->visits;
    const struct run_hooks *hooks = x->run->hooks;
    x->visit = &visits->visits[i_visit];
    if (can_restart_at(x->run, i_visit)) x->done_before = x->done;
    if (begins_evaluation(visits, i_visit)) {
        x->operator_failed = false;
        if (hooks->evaluation_begins && x->visit->evaluation >= 0) {
            /* The hook overwrites inputs, so the device must have finished reading them. */
            if (wait_for_device(x) != OK) return i_visit;
            if (hooks->evaluation_begins(hooks->user, x->visit, x->e) != OK) return i_visit;
        }
    }
    if (execute_visit(x, i_visit, memory) != OK) {
        /* An operator found no memory: evicts residents and restarts the evaluation (for video VAEs, the
         * lane). */
        int first = i_visit;
        if (!x->operator_failed) return i_visit;
        while (!can_restart_at(x->run, first)) first--;
        if (!evict_more(x, first, EVICT_OPERATOR)) return i_visit;
        x->done = x->done_before;
        return first;
    }
    i_visit++;
    bool last = i_visit == visits->n_visits || visits->visits[i_visit].stage != x->visit->stage;
    if (!x->visit->ends_evaluation || last || !hooks->bytes_needed) return i_visit;
    uint64_t bytes = hooks->bytes_needed(hooks->user);
    if (bytes) evict(x, bytes, i_visit, EVICT_ASKED);
    return i_visit;
}

enum status executor_explain(struct device *device, struct error *e) {
    struct error failed = {0};
    double stalled = 0;
    if (device_wait(device, &stalled, &failed) != OK) *e = failed;
    return e->code;
}

/* Allocates a stage's memory, with fewer residents if memory is short. The store begins the stage first,
 * because the store returns ring memory that this stage does not use. */
static enum status begin_stage(struct execution *x, int i_visit, struct stage_memory *memory) {
    const struct run *run = x->run;
    int i = run->visits->visits[i_visit].stage;
    /* True: the stage uses the lane state that the previous stage left. */
    bool goes_on = memory->lane_states;
    x->n_retries = 0;
    while (store_begin_stage(x->store, i, x->e) != OK ||
           stage_memory_take(run, &x->need->stage[i], &x->plan->stage[i], memory, x->e) != OK ||
           stage_memory_open(run->sys, &run->stages[i], memory, x->e) != OK) {
        store_end_stage(x->store, i);
        stage_memory_leave(run, memory, goes_on);
        if (executor_explain(run->device, x->e) != MEMORY || !evict_more(x, i_visit, EVICT_STAGE)) break;
    }
    x->n_retries = 0;
    return x->e->code;
}

/* Executes the stage that contains visit *i_visit, then sets *i_visit to the first visit of the next stage.
 */
static enum status execute_stage(struct execution *x, int *i_visit, struct stage_memory *memory) {
    const struct run *run = x->run;
    int i_stage = run->visits->visits[*i_visit].stage;
    struct context context = {.device = run->device,
                              .precision = run->stages[i_stage].precision,
                              .scratch = &memory->scratch,
                              .error = x->e,
                              .tick = execution_tick,
                              .tick_user = x,
                              .await = execution_await,
                              .await_user = x};
    x->context = &context;
    if (begin_stage(x, *i_visit, memory) != OK) return x->e->code;
    context.workspace = memory->workspace.base;
    context.workspace_bytes = memory->workspace.bytes;
    while (x->e->code == OK && *i_visit < run->visits->n_visits &&
           run->visits->visits[*i_visit].stage == i_stage)
        *i_visit = execute_next(x, *i_visit, memory);
    /* If the last visit ends an evaluation, execute_visit has already waited for the device. */
    if (x->e->code == OK && !x->visit->ends_evaluation) wait_for_device(x);
    store_end_stage(x->store, i_stage);
    if (x->e->code == OK) run->hooks->stage_ended(run->hooks->user, i_stage, x->e);
    stage_memory_leave(run, memory, x->e->code == OK && run->stages[i_stage].hoists);
    return x->e->code;
}

enum status executor_run(const struct run *run, const struct run_need *need, const struct plan *plan,
                         struct residents *residents, struct store_counters *counters, struct error *e) {
    struct execution x = {
        .run = run, .e = e, .counters = counters, .need = need, .residents = residents, .plan = plan};
    struct stage_memory memory = {0};
    struct store_stage stages[PLAN_STAGES_MAX];
    for (int i = 0; i < run->n_stages; i++)
        stages[i] = (struct store_stage){run->stages[i].blocks, run->stages[i].n_blocks,
                                         run->stages[i].n_model_blocks};
    struct store_options options = {
        .sys = run->sys,
        .stages = stages,
        .visits = run->visits,
        .need = need,
        .plan = plan,
        .residents = residents,
        .readers = run->readers,
        .converter = run->converter,
        .tick = execution_tick,
        .tick_user = &x,
    };
    if (store_open(&options, &x.store, e) != OK) return e->code;
    /* Reserves all device memory of the plan before the first visit, so that a lack of memory shows early. */
    const struct device_memory *own = run->device->memory;
    if (own && own->preallocate && !run->nested)
        own->preallocate(run->device, plan->vram_peak_bytes - need->device_bytes, e);
    for (int i = 0; i < run->visits->n_visits && e->code == OK;) execute_stage(&x, &i, &memory);
    stage_memory_leave(run, &memory, false);
    if (counters) *counters = store_count(x.store);
    store_close(x.store);
    /* Discards residents after a device failure, because copies into them may have failed. */
    struct error late = {0};
    double stalled = 0;
    device_wait(run->device, &stalled, &late);
    if (late.code != OK || e->code == DEVICE) residents_destroy(residents);
    return e->code;
}
