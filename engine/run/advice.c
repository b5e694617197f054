/* Computes advice by solving changed budgets and rates: implements advice.h. */
#include "engine/run/advice.h"

#include "engine/run/plan.h"

#include <string.h>

enum { HALVINGS = 5 };

/* True if computation alone limits the time of a step of the stage. */
static bool computing_decides(const struct run_need *need, const struct plan *plan, int stage,
                              double step_seconds) {
    struct block_stream block_stream;
    block_stream_make(&need->stage[stage], &need->rates, need->separate, plan->stage[stage].pictures_on_host,
                      &block_stream);
    return step_seconds <=
           1.005 * block_stream_later_load(&block_stream, &plan->stage[stage]).busy[BOUND_COMPUTE];
}

/* Input of the advice: a run_need for each way to group the run's lanes, and the plan to improve. */
struct advice_input {
    const struct run_need *const *needs;
    int n;
    const struct plan *now;
    int stage;
};

/* Solves the run with `extra` bytes added to the budget of one memory (RAM or VRAM). */
static struct advice solve_with(const struct advice_input *q, enum advice_kind kind, uint64_t extra) {
    struct plan plan;
    struct advice a = {.kind = kind, .extra_bytes = extra};
    int chosen = plan_choose(q->needs, q->n, q->now->ram_budget_bytes + (kind == ADVICE_RAM ? extra : 0),
                             q->now->vram_budget_bytes + (kind == ADVICE_VRAM ? extra : 0), &plan);
    const struct run_need *need = q->needs[chosen];
    a.seconds = plan.seconds;
    a.step_seconds = plan_step_seconds(&plan.stage[q->stage]);
    a.computing_decides =
        computing_decides(need, &plan, q->stage, timing_predict(need, &plan, q->stage).evaluation_seconds);
    return a;
}

/* Adds advice on the memory that limits the stage's speed. With a discrete GPU, more RAM holds more weights
 * and helps only if the disk is the limit. */
static void advise_memory(const struct advice_input *q, struct plan_advice *out) {
    static const double more[] = {0.25, 0.5, 1};
    bool vram = q->needs[0]->separate && q->now->stage[q->stage].bound != BOUND_DISK;
    enum advice_kind kind = vram ? ADVICE_VRAM : ADVICE_RAM;
    uint64_t budget = kind == ADVICE_RAM ? q->now->ram_budget_bytes : q->now->vram_budget_bytes, low = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t extra = (uint64_t)(more[i] * (double)budget) + 1;
        struct advice a = solve_with(q, kind, extra);
        for (int k = 0; k < HALVINGS && a.computing_decides && extra - low > 1; k++) {
            struct advice less = solve_with(q, kind, low + (a.extra_bytes - low) / 2);
            if (less.computing_decides)
                a = less;
            else
                low = less.extra_bytes;
        }
        out->advice[out->n++] = a;
        if (a.computing_decides) return;
        low = extra;
    }
}

/* Solves the run again with twice the rate of one link (disk or bus). The grouping of lanes stays. The need
 * has its own rate again at the end: a copy would be too large for the stack. */
static void advise_link(struct run_need *need, const struct plan *plan, enum advice_kind kind,
                        struct plan_advice *out) {
    double *rate = kind == ADVICE_BUS ? &need->rates.h2d : &need->rates.disk, own = *rate;
    if (!(own > 0)) return;
    *rate = 2 * own;
    struct advice_input q = {(const struct run_need *const[]){need}, 1, plan, out->stage};
    struct advice a = solve_with(&q, kind, 0);
    *rate = own;
    a.factor = 2;
    out->advice[out->n++] = a;
}

void plan_advise(struct run_need *const *needs, int n, int chosen, const struct plan *plan,
                 struct plan_advice *advice) {
    struct run_need *need = needs[chosen];
    memset(advice, 0, sizeof *advice);
    if (!plan->n_stages) return;
    int stage = 0;
    for (int s = 1; s < plan->n_stages; s++)
        if (plan->stage[s].seconds > plan->stage[stage].seconds) stage = s;
    advice->stage = stage;
    struct advice_input q = {(const struct run_need *const *)needs, n, plan, stage};
    advice->seconds = plan->seconds;
    advice->step_seconds = plan_step_seconds(&plan->stage[stage]);
    if (!computing_decides(need, plan, stage, timing_predict(need, plan, stage).evaluation_seconds))
        advise_memory(&q, advice);
    if (need->separate) advise_link(need, plan, ADVICE_BUS, advice);
    advise_link(need, plan, ADVICE_DISK, advice);
}
