#include "bench/dev/stream_async.h"

#include "bench/dev/timed.h"
#include "engine/run/plan.h"

#include <string.h>

/* Host memory for weights that stream from the disk, in bytes: less than a block. */
static const uint64_t disk_ram_bytes = 256 << 20;
/* Pinning time: 60 ms for 64 MiB, the worst published measurement with 4 KiB pages. */
static const double pin_seconds_a_byte = 60e-3 / (64 << 20);

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Lower bound of a step: the largest of compute time, bus time and disk time. */
static double floor_of(const struct stream_async_row *row, const struct run_need *need,
                       const struct plan *plan) {
    const struct stage_need *n = &need->stage[0];
    const struct plan_stage *p = &plan->stage[0];
    double compute = 0, read = 0, streamed = (double)p->streamed_bytes_per_evaluation;
    for (int i = 0; i < n->n_blocks; i++) {
        compute += n->block_seconds[i];
        if (!plan_is_resident(p, i) && !plan_is_pooled(p, i)) read += (double)n->block_bytes[i];
    }
    return larger(compute, larger(streamed / row->bus, read / row->disk));
}

static enum status run_row(struct stream_async_row *row, struct stream_run *run, struct run_need *need,
                           struct plan *plan, struct error *e) {
    if (stream_measure(run, need, e) != OK) return e->code;
    stream_plan_ours(need, row->resident_percent, row->pooled ? STREAM_UNLIMITED : disk_ram_bytes, plan);
    row->floor_seconds = floor_of(row, need, plan);
    row->predicted_seconds = timing_predict(need, plan, 0).evaluation_seconds;
    struct stream_times times = {0};
    stream_execute(run, need, plan, &times, e);
    row->first_seconds = times.first;
    row->pinning_seconds = (double)plan->stage[0].pool_bytes * pin_seconds_a_byte;
    row->seconds = times.steady;
    return e->code;
}

enum status stream_async_run(struct stream_async_row *row, struct stream_watch *watch, struct error *e) {
    const struct op_rates rates = {{[CLASS_LINEAR] = STREAM_TIMED_FLOPS}};
    const struct host_rates host = {row->host_seconds, row->reader_seconds, pin_seconds_a_byte};
    struct async_timed device;
    struct stream_model model = {0};
    int shape = 0;
    while (strcmp(stream_shapes[shape].name, row->blocks) != 0) shape++;
    async_timed_init(&device, &rates, row->bus, row->disk, &host);
    struct sys *sys = &device.timed.sys;
    stream_shape_add(&stream_shapes[shape], STREAM_TIMED_FLOPS, &model);
    stream_model_make(&model, sys);
    struct stream_run run = {.model = &model,
                             .device = &device.timed.device,
                             .rates = {.ops = rates, .disk = row->disk, .host_copy = 20e9, .h2d = row->bus},
                             .lanes = 1,
                             .readers = row->readers,
                             .evaluations = STREAM_EVALUATIONS,
                             .go_on = stream_watch_go_on,
                             .user = watch};
    struct run_need *need = sys->alloc(sys, LINE_HOST, sizeof *need);
    struct plan *plan = sys->alloc(sys, LINE_HOST, sizeof *plan);
    if (!need || !plan) error_set(e, MEMORY, "no memory for a plan");
    if (e->code == OK) run_row(row, &run, need, plan, e);
    sys->release(sys, plan);
    sys->release(sys, need);
    return e->code;
}

static void add_row(struct stream_async_table *table, struct stream_watch *watch, struct stream_async_row row,
                    struct error *e) {
    if (e->code != OK) return;
    table->rows[table->n_rows] = row;
    if (stream_async_run(&table->rows[table->n_rows], watch, e) == OK) table->n_rows++;
}

enum status stream_async(struct stream_async_table *table, struct stream_watch *watch, struct error *e) {
    static const char *const pooled[] = {"zimage_4090", "flux", "qwen_image"}, *const from_disk[] = {
                                                                                   "zimage_3060",
                                                                                   "zimage_4090", "flux"};
    static const double hosts[] = {0.1e-3, 0.15e-3, 0.3e-3, 0.5e-3}, readers[] = {15e-6, 30e-6},
                        disks[] = {3e9, 6e9, 12e9};
    table->n_rows = 0;
    for (int b = 0; b < COUNT_OF(pooled); b++)
        for (int percent = 0; percent <= 40; percent += 40)
            for (int h = 0; h < COUNT_OF(hosts); h++)
                for (int r = 0; r < COUNT_OF(readers); r++)
                    add_row(table, watch,
                            (struct stream_async_row){.blocks = pooled[b],
                                                      .resident_percent = percent,
                                                      .readers = PLAN_SEPARATE_READERS,
                                                      .bus = 24e9,
                                                      .disk = 6e9,
                                                      .pooled = true,
                                                      .host_seconds = hosts[h],
                                                      .reader_seconds = readers[r]},
                            e);
    for (int b = 0; b < COUNT_OF(from_disk); b++)
        for (int d = 0; d < COUNT_OF(disks); d++)
            for (int percent = 0; percent <= 40; percent += 40)
                add_row(table, watch,
                        (struct stream_async_row){.blocks = from_disk[b],
                                                  .resident_percent = percent,
                                                  .readers = PLAN_SEPARATE_READERS,
                                                  .bus = 24e9,
                                                  .disk = disks[d],
                                                  .host_seconds = 0.3e-3,
                                                  .reader_seconds = 30e-6},
                        e);
    return e->code;
}
