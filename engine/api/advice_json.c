#include "engine/api/advice_json.h"
#include "loaders/json.h"

#include "engine/api/stages.h"

#include "engine/run/advice.h"

/* Advice is listed if the predicted time is at most this share of the plan's time. Smaller savings are within
 * the error of the measured rates. */
static const double HELPS = 0.98;

enum { ADVISED_BATCH = 4 };

static const char *const kinds[] = {
    [ADVICE_RAM] = "ram", [ADVICE_VRAM] = "vram", [ADVICE_BUS] = "bus", [ADVICE_DISK] = "disk"};

static void put_advice(json_t *list, const char *stage, const struct advice *a) {
    bool memory = a->kind == ADVICE_RAM || a->kind == ADVICE_VRAM;
    json_t *entry = json_pack("{s:s, s:s, s:f, s:f}", "kind", kinds[a->kind], "stage", stage, "seconds",
                              a->seconds, "seconds_per_step", a->step_seconds);
    if (memory)
        json_put(entry, "extra_bytes", json_integer((json_int_t)a->extra_bytes));
    else
        json_put(entry, "factor", json_real(a->factor));
    json_push(list, entry);
}

static void put_machine(const struct job *job, json_t *list) {
    struct plan_advice found;
    plan_advise((const struct run_need *const *)job->needs, job->n_needs, job->chosen, &job->plan, &found);
    double best = job->plan.seconds;
    for (int i = 0; i < found.n; i++) {
        const struct advice *a = &found.advice[i];
        bool memory = a->kind == ADVICE_RAM || a->kind == ADVICE_VRAM;
        if (a->seconds > HELPS * (memory ? best : job->plan.seconds)) continue;
        if (memory) best = a->seconds;
        put_advice(list, job->plan.stage[found.stage].name, a);
    }
}

static int advice_json_denoise_stage(const struct job *job) {
    for (int s = 0; s < job->layout.n_stages; s++)
        if (job->layout.kind[s] == &stage_denoise) return s;
    return -1;
}

/* Adds advice for a larger batch under the same budget: the images of a batch share every streamed byte. */
static void put_batch(const struct job *job, json_t *list) {
    int stage = advice_json_denoise_stage(job);
    if (stage < 0 || job->batch > 1 || !job->plan.stage[stage].streamed_bytes_per_evaluation) return;
    struct sluice_request request = job->request;
    struct job several;
    struct error e = {0};
    request.batch = ADVISED_BATCH;
    request.plan = NULL;
    request.max_ram_bytes = (int64_t)job->plan.ram_budget_bytes;
    if (job_open(&several, &job->context, &request, NULL, &e) == OK && job_plan(&several, &e) == OK &&
        plan_check(several.need, &several.plan, &e) == OK &&
        plan_step_seconds(&several.plan.stage[stage]) <=
            HELPS * ADVISED_BATCH * plan_step_seconds(&job->plan.stage[stage]))
        json_push(list, json_pack("{s:s, s:s, s:f, s:f, s:f}", "kind", "batch", "stage",
                                  job->plan.stage[stage].name, "factor", (double)ADVISED_BATCH, "seconds",
                                  several.plan.seconds, "seconds_per_step",
                                  plan_step_seconds(&several.plan.stage[stage])));
    job_close(&several);
}

json_t *advice_json(const struct job *job) {
    struct error e = {0};
    json_t *list = json_array();
    if (!list || plan_check(job->need, &job->plan, &e) != OK || !(job->plan.seconds > 0)) return list;
    put_machine(job, list);
    put_batch(job, list);
    return list;
}
