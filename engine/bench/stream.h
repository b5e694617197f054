/* `bench stream`: how near to the floor the streamer comes, against the layouts that others use. */
#ifndef SLUICE_BENCH_STREAM_H
#define SLUICE_BENCH_STREAM_H

#include "engine/bench/stream_model.h"
#include "kernels/dry/timed.h"

enum stream_layout {
    LAYOUT_OURS,           /* what the solver plans */
    LAYOUT_PREFIX,         /* the first blocks stay */
    LAYOUT_SUFFIX,         /* the last ones */
    LAYOUT_EVEN,           /* every n-th by index */
    LAYOUT_DEPTH1,         /* even; only the next visit's block is fetched */
    LAYOUT_NO_WRAP,        /* even; nothing of the next step before this one has ended */
    LAYOUT_SYNC,           /* even; a block is copied when it is asked for, nothing overlaps */
    LAYOUT_BRANCHES_APART, /* ours, but each of two guidance branches streams for itself */
    N_STREAM_LAYOUTS,
};

struct stream_row {
    const char *blocks, *layout;
    int resident_percent;
    double bus;          /* bytes a second */
    double seconds;      /* of a step, when steady */
    double copy_seconds; /* that the bus takes for what a step must stream */
    double floor_seconds;
};

enum { STREAM_ROWS_MAX = 512 };

struct stream_table {
    struct stream_row rows[STREAM_ROWS_MAX];
    int n_rows;
};

/* Who waits for a table. */
struct stream_watch {
    bool (*go_on)(void *user, double fraction); /* called often; false ends the bench with CANCELLED */
    void *user;
    double fraction; /* done so far; the bench's own */
};

/* The whole table under a virtual clock: the same on every machine. watch may be NULL. */
enum status stream_timed(struct stream_table *table, struct stream_watch *watch, struct error *e);

/* Some of it for real, on the device given, behind a bus of three set rates: computing and copying are
 * measured. watch may be NULL. */
enum status stream_paced(struct device *device, struct stream_table *table, struct stream_watch *watch,
                         struct error *e);

/* What the solver plans for a model's one stage: on the device residents of that share of the model and two
 * of the largest blocks, on the host so many bytes. */
#define STREAM_UNLIMITED ((uint64_t)1 << 50)
void stream_plan_ours(const struct run_need *need, int resident_percent, uint64_t ram_bytes,
                      struct plan *plan);

/* As struct stream_run asks; user: a watch, or NULL. */
bool stream_watch_go_on(void *user);

/* One row under the virtual clock, to look into. */
struct stream_view {
    const char *blocks; /* USAGE if there is no such model */
    enum stream_layout layout;
    int resident_percent;
    double bus;
    /* As in struct timed. Every visit is one operator, STREAM_EVALUATIONS steps follow each other. May be
     * NULL. */
    void (*trace)(void *user, enum timed_event event, uint64_t start, uint64_t end, uint64_t bytes);
    void *user;
    /* Given back. */
    struct run_need need;
    struct plan plan;
    struct stream_row row;
};
enum status stream_timed_row(struct stream_view *view, struct error *e);

#endif
