/* `bench stream`: how near to the floor the streamer comes, against the layouts that others use. */
#ifndef SLUICE_API_BENCH_STREAM_H
#define SLUICE_API_BENCH_STREAM_H

#include "engine/api/bench_blocks.h"

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
    double copy_seconds; /* that the bus takes for what a step streams once */
    double floor_seconds;
};

enum { STREAM_ROWS_MAX = 512 };

struct stream_table {
    struct stream_row rows[STREAM_ROWS_MAX];
    int n_rows;
};

/* The whole table under a virtual clock: the same on every machine. */
enum status stream_timed(struct stream_table *table, struct error *e);

/* Some of it for real, on the device given, behind a bus of three set rates: computing and copying are
 * measured. progress may be NULL. */
enum status stream_paced(struct device *device, struct stream_table *table,
                         void (*progress)(void *user, double fraction), void *user, struct error *e);

#endif
