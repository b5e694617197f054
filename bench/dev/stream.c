/* `sluice-dev stream`: compares this engine's weight streaming with layouts of other programs. A layout is a
 * hand-built plan or list of visits; plan code, store and executor are the engine's own. */
#include "bench/dev/paced.h"
#include "bench/dev/stream_async.h"

#include <string.h>

static const char *const layout_names[N_STREAM_LAYOUTS] = {
    "ours", "prefix", "suffix", "even", "depth1", "no_wrap", "sync", "branches_apart",
};

static uint64_t all_bytes(const struct stage_need *need) {
    uint64_t sum = 0;
    for (int i = 0; i < need->n_blocks; i++) sum += need->block_bytes[i];
    return sum;
}

static uint64_t largest_block(const struct stage_need *need) {
    uint64_t largest = 0;
    for (int i = 0; i < need->n_blocks; i++)
        if (need->block_bytes[i] > largest) largest = need->block_bytes[i];
    return largest;
}

/* Makes blocks resident from block `first` on, in steps of `step`, as far as they fit in `want` bytes. */
static void take_in_order(const struct stage_need *need, struct plan_stage *p, uint64_t want, int first,
                          int step) {
    uint64_t got = 0;
    for (int i = first; i >= 0 && i < need->n_blocks; i += step)
        if (got + need->block_bytes[i] <= want) {
            plan_set_resident(p, i, true);
            got += need->block_bytes[i];
        }
}

static uint64_t even_bytes(const struct stage_need *need, int n) {
    uint64_t bytes = 0;
    for (int k = 0; k < n; k++) bytes += need->block_bytes[(2 * k + 1) * need->n_blocks / (2 * n)];
    return bytes;
}

/* Makes evenly spaced blocks resident, of a number whose bytes come closest to `want` without exceeding
 * it. */
static void take_evenly(const struct stage_need *need, struct plan_stage *p, uint64_t want) {
    int best = 0;
    for (int n = 1; n <= need->n_blocks; n++)
        if (even_bytes(need, n) <= want && even_bytes(need, n) > even_bytes(need, best)) best = n;
    for (int k = 0; k < best; k++) plan_set_resident(p, (2 * k + 1) * need->n_blocks / (2 * best), true);
}

/* Plans another program's layout: residents of resident_bytes, a ring for two of the largest blocks, all
 * weights in the host memory pool. */
static void plan_by_hand(const struct run_need *need, enum stream_layout layout, uint64_t resident_bytes,
                         struct plan *plan) {
    const struct stage_need *n = &need->stage[0];
    struct plan_stage *p = &plan->stage[0];
    if (layout == LAYOUT_PREFIX)
        take_in_order(n, p, resident_bytes, 0, 1);
    else if (layout == LAYOUT_SUFFIX)
        take_in_order(n, p, resident_bytes, n->n_blocks - 1, -1);
    else
        take_evenly(n, p, resident_bytes);
    p->depth = layout == LAYOUT_DEPTH1;
    p->no_wrap = layout == LAYOUT_NO_WRAP;
    p->waits = layout == LAYOUT_SYNC;
    p->ring_bytes = 2 * align_up(largest_block(n), PLAN_PAGE);
    p->staging_bytes = PLAN_STAGING;
    for (int i = 0; i < n->n_blocks; i++)
        if (!plan_is_resident(p, i)) plan_set_pooled(p, i, true);
    plan_evaluate(need, plan);
}

/* Returns a percentage of the model's bytes, rounded up: rounded down, the result could miss a whole number
 * of blocks by one byte. */
static uint64_t share_of(const struct run_need *need, int percent) {
    return (all_bytes(&need->stage[0]) * (uint64_t)percent + 99) / 100;
}

void stream_plan_ours(const struct run_need *need, int resident_percent, uint64_t ram_bytes,
                      struct plan *plan) {
    uint64_t block = align_up(largest_block(&need->stage[0]), PLAN_PAGE);
    plan_least(need, ram_bytes, 0, plan); /* sets vram_least_bytes */
    uint64_t rest = plan->vram_least_bytes - block;
    plan_solve(need, ram_bytes, rest + share_of(need, resident_percent) + 2 * block, plan);
}

static void plan_layout(const struct run_need *need, enum stream_layout layout, int resident_percent,
                        struct plan *plan) {
    if (layout == LAYOUT_OURS || layout == LAYOUT_BRANCHES_APART) {
        stream_plan_ours(need, resident_percent, STREAM_UNLIMITED, plan);
        return;
    }
    plan_begin(need, plan);
    plan_by_hand(need, layout, share_of(need, resident_percent), plan);
}

/* Bytes that a step must stream: the bytes that the layout streams, at most the model's bytes beyond the
 * resident share. A layout that wastes memory therefore gets no easier lower bound. */
static double least_bytes(const struct run_need *need, const struct plan *plan, int resident_percent) {
    double rest = (double)(all_bytes(&need->stage[0]) - share_of(need, resident_percent));
    double own = (double)plan->stage[0].streamed_bytes_per_evaluation;
    return own < rest ? own : rest;
}

/* Sets the lower bound of a step: the larger of compute time and bus time. */
static void set_floor(struct stream_row *row, double compute) {
    row->floor_seconds = compute > row->copy_seconds ? compute : row->copy_seconds;
}

struct stream_case {
    const char *blocks;
    enum stream_layout layout;
    int resident_percent;
};

static enum status make_row(struct stream_run *run, const struct stream_case *c, struct run_need *need,
                            struct plan *plan, struct stream_row *row, struct error *e) {
    run->branches_apart = c->layout == LAYOUT_BRANCHES_APART;
    run->lanes = run->branches_apart ? 2 : 1;
    if (stream_measure(run, need, e) != OK) return e->code;
    plan_layout(need, c->layout, c->resident_percent, plan);
    *row = (struct stream_row){.blocks = c->blocks,
                               .layout = layout_names[c->layout],
                               .resident_percent = c->resident_percent,
                               .bus = run->rates.h2d};
    row->copy_seconds = least_bytes(need, plan, c->resident_percent) / row->bus;
    double compute = 0;
    for (int i = 0; i < need->stage[0].n_blocks; i++) compute += need->stage[0].block_seconds[i];
    set_floor(row, compute);
    struct stream_times times = {0};
    stream_execute(run, need, plan, &times, e);
    row->seconds = times.steady;
    return e->code;
}

static enum status stream_add_row(struct stream_table *table, struct stream_run *run,
                                  const struct stream_case *c, struct error *e) {
    struct sys *sys = run->model->sys;
    struct run_need *need = sys->alloc(sys, LINE_HOST, sizeof *need);
    struct plan *plan = sys->alloc(sys, LINE_HOST, sizeof *plan);
    if (!need || !plan) error_set(e, MEMORY, "no memory for a plan");
    if (e->code == OK && make_row(run, c, need, plan, &table->rows[table->n_rows], e) == OK) table->n_rows++;
    sys->release(sys, plan);
    sys->release(sys, need);
    return e->code;
}

bool stream_watch_go_on(void *user) {
    struct stream_watch *watch = user;
    return !watch || watch->go_on(watch->user, watch->fraction);
}

static void watch_row(struct stream_watch *watch, int n_done, int n_rows) {
    if (watch) watch->fraction = (double)n_done / n_rows;
}

static const double timed_buses[] = {12e9, 24e9, 56e9}; /* bytes/s of PCIe Gen3, Gen4, Gen5 x16 */
enum { N_TIMED = STREAM_SHAPES * COUNT_OF(timed_buses) * 4 * N_STREAM_LAYOUTS };

/* State of a timed run, built in place because it contains pointers to itself. */
struct timed_bench {
    struct timed timed;
    struct stream_model model;
    struct stream_run run;
};

static void timed_bench_init(struct timed_bench *b, int shape, double bus, struct stream_watch *watch) {
    const struct op_rates rates = {{[CLASS_LINEAR] = STREAM_TIMED_FLOPS}};
    const double disk = 3e9;
    b->model = (struct stream_model){0};
    stream_shape_add(&stream_shapes[shape], STREAM_TIMED_FLOPS, &b->model);
    timed_init(&b->timed, &rates, bus, disk);
    stream_model_make(&b->model, &b->timed.sys);
    b->run = (struct stream_run){.model = &b->model,
                                 .device = &b->timed.device,
                                 .rates = {.ops = rates, .disk = disk, .host_copy = 2 * bus, .h2d = bus},
                                 .evaluations = STREAM_EVALUATIONS,
                                 .go_on = stream_watch_go_on,
                                 .user = watch};
}

static enum status timed_rows(struct stream_table *table, int shape, double bus, struct stream_watch *watch,
                              struct error *e) {
    struct timed_bench b;
    timed_bench_init(&b, shape, bus, watch);
    for (int percent = 0; percent <= 60; percent += 20)
        for (int layout = 0; layout < N_STREAM_LAYOUTS && e->code == OK; layout++) {
            struct stream_case c = {stream_shapes[shape].name, (enum stream_layout)layout, percent};
            watch_row(watch, table->n_rows, N_TIMED);
            stream_add_row(table, &b.run, &c, e);
        }
    return e->code;
}

enum status stream_timed(struct stream_table *table, struct stream_watch *watch, struct error *e) {
    table->n_rows = 0;
    for (int shape = 0; shape < STREAM_SHAPES; shape++)
        for (int i = 0; i < COUNT_OF(timed_buses) && e->code == OK; i++)
            timed_rows(table, shape, timed_buses[i], watch, e);
    return e->code;
}

enum status stream_timed_row(struct stream_view *view, struct error *e) {
    struct stream_case c = {view->blocks, view->layout, view->resident_percent};
    struct timed_bench b;
    int shape = 0;
    while (shape < STREAM_SHAPES && strcmp(stream_shapes[shape].name, view->blocks) != 0) shape++;
    if (shape == STREAM_SHAPES) return error_set(e, USAGE, "unknown model of sluice-dev stream");
    timed_bench_init(&b, shape, view->bus, NULL);
    b.timed.trace = view->trace;
    b.timed.trace_user = view->user;
    return make_row(&b.run, &c, &view->need, &view->plan, &view->row, e);
}

/* Replaces the reading of weights: fills the buffer with zeros at memory speed. All other parts of the
 * benchmark work as in a run. */
static int64_t read_zeros(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    (void)sys, (void)file, (void)offset;
    memset(to, 0, bytes);
    return (int64_t)bytes;
}

static int identify_zero_file(struct sys *sys, int file, struct file_identity *identity) {
    (void)sys, (void)file;
    *identity = (struct file_identity){.regular = true};
    return 0;
}

/* Bus rate (bytes per second) at which copying a block takes as long as computing it. */
#define PACED_BALANCE 0.5e9
static const double paced_buses[] = {0.25e9, 0.5e9, 2e9};
enum { PACED_EVALUATIONS = 5, PACED_TRIES = 2 };

/* Synthetic model with Flux's proportions: equal work in every block, 2.4 times the bytes in a third of the
 * blocks. */
#define PACED_FLUX_SECONDS ((6 * 6.8e6 + 12 * 2.832e6) / 18 / PACED_BALANCE)
static const struct stream_shape paced_shapes[] = {
    {"uniform", {{12, 4 << 20, (4 << 20) / PACED_BALANCE}}},
    {"flux", {{6, 6.8e6, PACED_FLUX_SECONDS}, {12, 2.832e6, PACED_FLUX_SECONDS}}},
};
enum { N_PACED = COUNT_OF(paced_shapes) * COUNT_OF(paced_buses) * 2 * N_STREAM_LAYOUTS };

struct paced_bench {
    struct sys sys;
    struct device *compute;
    struct stream_model model;
    struct stream_table *table;
    struct stream_watch *watch;
    double step_seconds; /* least compute seconds per step of this model so far; 0: not measured */
};

/* Measures a step with everything resident, i.e. compute time. Repeats the measurement and keeps the least
 * time, because other load only slows a step down. */
static enum status measure_compute(struct paced_bench *b, struct stream_run run, struct error *e) {
    struct stream_times times;
    run.lanes = 1;
    run.branches_apart = false;
    run.evaluations = 3;
    struct run_need *need = b->sys.alloc(&b->sys, LINE_HOST, sizeof *need);
    struct plan *plan = b->sys.alloc(&b->sys, LINE_HOST, sizeof *plan);
    if (!need || !plan) error_set(e, MEMORY, "no memory for a plan");
    if (e->code == OK && stream_measure(&run, need, e) == OK) {
        plan_solve(need, (uint64_t)1 << 50, (uint64_t)1 << 50, plan);
        if (stream_execute(&run, need, plan, &times, e) == OK &&
            (b->step_seconds <= 0 || times.steady < b->step_seconds))
            b->step_seconds = times.steady;
    }
    b->sys.release(&b->sys, plan);
    b->sys.release(&b->sys, need);
    return e->code;
}

static double model_flops(const struct stream_model *m) {
    double flops = 0;
    for (int i = 0; i < m->n_blocks; i++)
        flops += 2.0 * m->sizes[i].rows * m->sizes[i].columns * m->sizes[i].tokens;
    return flops;
}

/* Measures the rate of the synthetic models' matrix products in FLOPs per second, with a model whose size
 * assumes a guessed rate. */
static enum status measure_rate(struct paced_bench *b, struct stream_run *run, double *flops,
                                struct error *e) {
    const double guess = 50e9;
    b->model = (struct stream_model){0};
    stream_shape_add(&paced_shapes[0], guess, &b->model);
    stream_model_make(&b->model, &b->sys);
    run->rates.ops.per_second[CLASS_LINEAR] = guess;
    for (int i = 0; i < 3 && e->code == OK; i++) measure_compute(b, *run, e);
    *flops = e->code == OK ? model_flops(&b->model) / b->step_seconds : 0;
    return e->code;
}

/* Measures one row of the result table: the shortest time of a few tries. The plan uses the compute rate
 * measured so far. */
static enum status paced_row(struct paced_bench *b, struct stream_run *run, const struct stream_case *c,
                             struct error *e) {
    struct stream_row *row = &b->table->rows[b->table->n_rows];
    double least = 0;
    for (int i = 0; i < PACED_TRIES; i++) {
        if (measure_compute(b, *run, e) != OK) return e->code;
        run->rates.ops.per_second[CLASS_LINEAR] = model_flops(&b->model) / b->step_seconds;
        if (stream_add_row(b->table, run, c, e) != OK) return e->code;
        b->table->n_rows--;
        if (i == 0 || row->seconds < least) least = row->seconds;
    }
    row->seconds = least;
    b->table->n_rows++;
    return OK;
}

/* Sets the lower bounds after all rows of a model are measured, when the least compute time is known. */
static void set_floors(struct paced_bench *b, int first_row) {
    for (int i = first_row; i < b->table->n_rows; i++) {
        struct stream_row *row = &b->table->rows[i];
        int lanes = row->layout == layout_names[LAYOUT_BRANCHES_APART] ? 2 : 1;
        set_floor(row, b->step_seconds * lanes);
    }
}

static enum status paced_rows(struct paced_bench *b, int shape, double flops, double bus, struct error *e) {
    struct device *device = paced_open(&b->sys, b->compute, bus, e);
    if (!device) return e->code;
    struct stream_run run = {.model = &b->model,
                             .device = device,
                             .rates = {.disk = 1e9, .host_copy = 4e9, .h2d = bus},
                             .readers = 2,
                             .evaluations = PACED_EVALUATIONS,
                             .go_on = stream_watch_go_on,
                             .user = b->watch};
    int first_row = b->table->n_rows;
    run.rates.ops.per_second[CLASS_LINEAR] = flops;
    b->step_seconds = 0;
    b->model = (struct stream_model){0};
    stream_shape_add(&paced_shapes[shape], flops, &b->model);
    stream_model_make(&b->model, &b->sys);
    for (int percent = 0; percent <= 40; percent += 40)
        for (int layout = 0; layout < N_STREAM_LAYOUTS && e->code == OK; layout++) {
            struct stream_case c = {paced_shapes[shape].name, (enum stream_layout)layout, percent};
            watch_row(b->watch, b->table->n_rows, N_PACED);
            paced_row(b, &run, &c, e);
        }
    set_floors(b, first_row);
    device->destroy(device);
    return e->code;
}

enum status stream_paced(struct device *device, struct stream_table *table, struct stream_watch *watch,
                         struct error *e) {
    struct paced_bench b = {.compute = device, .table = table, .watch = watch};
    sys_init_machine(&b.sys);
    b.sys.read_at = read_zeros;
    b.sys.identify = identify_zero_file;
    table->n_rows = 0;
    double flops = 0;
    struct device *free_bus = paced_open(&b.sys, device, 0, e);
    if (!free_bus) return e->code;
    struct stream_run run = {.model = &b.model,
                             .device = free_bus,
                             .lanes = 1,
                             .readers = 2,
                             .evaluations = PACED_EVALUATIONS,
                             .go_on = stream_watch_go_on,
                             .user = watch};
    measure_rate(&b, &run, &flops, e);
    free_bus->destroy(free_bus);
    for (int shape = 0; shape < COUNT_OF(paced_shapes); shape++)
        for (int i = 0; i < COUNT_OF(paced_buses) && e->code == OK; i++)
            paced_rows(&b, shape, flops, paced_buses[i], e);
    return e->code;
}
