/* Cost of planning, in counts that are equal on every machine: calls of device->cost and timed candidate
 * plans. Equal images and equal groups of a batch share results, and hopeless candidates are skipped. */
#include "engine/run/plan.h"
#include "test/lib/rig.h"

static long n_costs, n_timed;
static void (*cost_of_device)(const struct device *device, const struct op *op, struct op_cost *cost);

static void counting_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    n_costs++;
    cost_of_device(device, op, cost);
}

/* The linker option --wrap (test/check.mk) redirects the engine's calls to these functions. */
double __real_block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage,
                                   double enough);
double __real_block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);
double __wrap_block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage,
                                   double enough);
double __wrap_block_stream_bound(const struct block_stream *block_stream, const struct plan_stage *stage);

double __wrap_block_stream_seconds(const struct block_stream *block_stream, const struct plan_stage *stage,
                                   double enough) {
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
    query(rig, &request, NULL);
    printf("%2d images, tiling %-4s %5lld MiB: %7ld cost calls, %7ld timed plans\n", batch, tiling,
           (long long)(budget >> 20), n_costs, n_timed);
    check(n_costs > 0 && n_timed > 0, "no calls were counted");
    return (struct counts){n_costs, n_timed};
}

enum { GROUPINGS = 15 }; /* number of different sizes of batch groups for 64 images */

/* Limits the cost calls for a batch to a multiple of those for one image. Equal groups share calls. Each
 * group size has at most two kinds of groups, because the last group may be smaller. */
static void test_batch_shares_measurements(struct rig *rig) {
    struct counts one = plan_of(rig, 1, plenty, "auto"), many = plan_of(rig, 64, plenty, "auto");
    check(many.costs <= 2 * GROUPINGS * one.costs, "%ld cost calls for 64 images, %ld for one", many.costs,
          one.costs);
    check(many.timed <= 10000, "%ld timed plans although everything fits", many.timed);
}

/* With little memory, planning times candidates of every group size, and again for the advice. */
static void test_little_memory_limits_search(struct rig *rig) {
    json_int_t least, all;
    bounds(rig, request_fox(1024, 1024, 4, 16, 3), &least, &all);
    for (int i = 0; i < 8; i += 1 + i) {
        int64_t budget = least + ((int64_t)i << 20);
        struct counts c = plan_of(rig, 16, budget, "auto");
        check(c.timed <= 100000, "%ld timed plans with a budget of %lld bytes", c.timed, (long long)budget);
    }
}

/* VAE tiling `on` costs no more planning than `auto`, which also measures the tiled decoder. */
static void test_auto_tiling_costs_no_more(struct rig *rig) {
    struct counts both = plan_of(rig, 1, plenty, "auto"), on = plan_of(rig, 1, plenty, "on");
    check(on.costs <= both.costs, "%ld cost calls with tiling on, %ld with auto", on.costs, both.costs);
}

int main(void) {
    struct rig rig;
    if (!rig_open(&rig, "models/demo", 3, 3)) return finish();
    cost_of_device = rig.session->device->cost;
    rig.session->device->cost = counting_cost;
    test_batch_shares_measurements(&rig);
    test_little_memory_limits_search(&rig);
    test_auto_tiling_costs_no_more(&rig);
    rig.session->device->cost = cost_of_device;
    check(!atomic_load(&rig.fault_sys.count[CALL_THREAD]), "planning starts threads");
    rig_close(&rig);
    return finish();
}
