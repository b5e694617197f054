/* `sluice-dev stream`: measures how close weight streaming comes to the lower bound, compared with layouts
 * of other programs. */
#ifndef SLUICE_DEV_STREAM_H
#define SLUICE_DEV_STREAM_H

#include "bench/dev/stream_model.h"
#include "bench/dev/timed.h"

enum stream_layout {
    LAYOUT_OURS,           /* the planner's layout */
    LAYOUT_PREFIX,         /* the first blocks are resident */
    LAYOUT_SUFFIX,         /* the last blocks are resident */
    LAYOUT_EVEN,           /* every n-th block is resident */
    LAYOUT_DEPTH1,         /* every n-th block is resident; prefetches only the next visit's block */
    LAYOUT_NO_WRAP,        /* every n-th block is resident; no prefetch across steps */
    LAYOUT_SYNC,           /* every n-th block is resident; copies blocks on demand, without overlap */
    LAYOUT_BRANCHES_APART, /* the planner's layout; each of two guidance branches streams separately */
    N_STREAM_LAYOUTS,
};

struct stream_row {
    const char *blocks, *layout;
    int resident_percent;
    double bus;          /* bus rate in bytes per second */
    double seconds;      /* seconds per step in the steady state */
    double copy_seconds; /* bus time for the bytes that a step must stream, in seconds */
    double floor_seconds;
};

enum { STREAM_ROWS_MAX = 512 };

struct stream_table {
    struct stream_row rows[STREAM_ROWS_MAX];
    int n_rows;
};

struct stream_watch {
    bool (*go_on)(void *user, double fraction); /* progress callback, called often; false cancels */
    void *user;
    double fraction; /* progress, 0 to 1; set by the benchmark */
};

/* Measures all models and layouts under a virtual clock; the results are equal on every machine. watch may
 * be NULL. */
enum status stream_timed(struct stream_table *table, struct stream_watch *watch, struct error *e);

/* Measures some of the models and layouts in real time, on the given device behind buses of three fixed
 * rates. watch may be NULL. */
enum status stream_paced(struct device *device, struct stream_table *table, struct stream_watch *watch,
                         struct error *e);

/* Plans a model's single stage: device memory for residents of resident_percent of the model plus two of the
 * largest blocks, and ram_bytes on the host. */
#define STREAM_UNLIMITED ((uint64_t)1 << 50)
void stream_plan_ours(const struct run_need *need, int resident_percent, uint64_t ram_bytes,
                      struct plan *plan);

/* Callback for stream_run.go_on; user: a stream_watch or NULL. */
bool stream_watch_go_on(void *user);

/* Inputs and results of one table row that runs under the virtual clock, with an optional trace. */
struct stream_view {
    const char *blocks; /* input: name of a model, such as "flux"; unknown names fail with USAGE */
    enum stream_layout layout;
    int resident_percent;
    double bus;
    /* Optional trace callback, as in struct timed. A visit is one operator; STREAM_EVALUATIONS steps run. */
    void (*trace)(void *user, enum timed_event event, uint64_t start, uint64_t end, uint64_t bytes);
    void *user;
    /* Results of the run: memory need, plan, and row of the result table. */
    struct run_need need;
    struct plan plan;
    struct stream_row row;
};
enum status stream_timed_row(struct stream_view *view, struct error *e);

#endif
