/* What planning costs, counted: operators that are asked what they cost, and plans that are timed. A batch's
 * images are alike, and so are most of its groups; what no budget's plan could be is passed over. Seconds are
 * nobody's to promise; these counts are what they follow from. */
#include "engine/run/timing.h"
#include "test/lib/rig.h"

/* ---- counting ---- */

static long n_costs, n_timed;
static void (*cost_of_device)(const struct device *device, const struct op *op, struct op_cost *cost);

static void counting_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    n_costs++;
    cost_of_device(device, op, cost);
}

/* The linker puts these before the engine's. */
double __real_block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage, double enough);
double __real_block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);
double __wrap_block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage, double enough);
double __wrap_block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);

double __wrap_block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage, double enough) {
    n_timed++;
    return __real_block_stream_seconds(block_stream, stage, enough);
}

double __wrap_block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage) {
    n_timed++;
    return __real_block_stream_bound(block_stream, stage);
}

static struct counts {
    long costs, timed;
} plan_of(struct rig *rig, int batch, int64_t budget, const char *tiling) {
    struct sluice_request request = request_fox(1024, 1024, 4, batch, 3);
    request.max_ram_bytes = budget;
    request.vae_tiling = tiling;
    n_costs = n_timed = 0;
    json_t *plan = query(rig, &request, NULL);
    printf("%2d pictures, tiling %-4s %5lld MiB: %7ld operators, %7ld plans\n", batch, tiling,
           (long long)(budget >> 20), n_costs, n_timed);
    check(n_costs > 0 && n_timed > 0, "nothing is counted");
    json_decref(plan);
    return (struct counts){n_costs, n_timed};
}

/* ---- what it may be ---- */

enum { GROUPINGS = 15 }; /* of 64 images: each with its own number of images at once */

/* Two kinds of groups a grouping, tiled and not, and two prompts; one image is these, once. */
static void batches(struct rig *rig) {
    struct counts one = plan_of(rig, 1, plenty, "auto"), many = plan_of(rig, 64, plenty, "auto");
    check(many.costs <= 2 * GROUPINGS * one.costs, "%ld operators for 64 pictures, %ld for one", many.costs,
          one.costs);
    check(many.timed <= 10000, "%ld plans where everything fits", many.timed);
}

/* Where memory is short each grouping is searched, and again for what is advised. */
static void short_memory(struct rig *rig) {
    json_int_t least, all;
    bounds(rig, request_fox(1024, 1024, 4, 16, 3), &least, &all);
    for (int i = 0; i < 8; i += 1 + i) {
        int64_t budget = least + ((int64_t)i << 20);
        struct counts c = plan_of(rig, 16, budget, "auto");
        check(c.timed <= 100000, "%ld plans under %lld bytes", c.timed, (long long)budget);
    }
}

/* Whether it helps is found out by what is measured anyway. */
static void tiling(struct rig *rig) {
    struct counts both = plan_of(rig, 1, plenty, "auto"), on = plan_of(rig, 1, plenty, "on");
    check(on.costs <= both.costs, "%ld operators with tiling, %ld with either", on.costs, both.costs);
}

int main(void) {
    struct rig rig;
    if (!rig_open(&rig, "models/demo", 3, 3)) return finish();
    cost_of_device = rig.session->device->cost;
    rig.session->device->cost = counting_cost;
    batches(&rig);
    short_memory(&rig);
    tiling(&rig);
    rig.session->device->cost = cost_of_device;
    check(!atomic_load(&rig.fault_sys.count[CALL_THREAD]), "planning starts threads");
    rig_close(&rig);
    return finish();
}
