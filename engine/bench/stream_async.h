/* `bench stream`, how a host that runs ahead streams: what is to be expected of CUDA, where launching takes
 * the host a fraction of what computing takes the device, and a reader a few microseconds a piece. */
#ifndef SLUICE_BENCH_STREAM_ASYNC_H
#define SLUICE_BENCH_STREAM_ASYNC_H

#include "engine/bench/stream.h"

struct stream_async_row {
    const char *blocks;
    int resident_percent, readers;
    double bus, disk;                    /* bytes a second */
    bool pooled;                         /* nothing comes from the disk after the first step */
    double host_seconds, reader_seconds; /* that a visit takes of the host, a piece of its reader */
    double first_seconds;                /* of the first step, which comes from the disk */
    double pinning_seconds;              /* that its pool takes to pin, one chunk after another */
    double seconds;                      /* of a step, when steady */
    double floor_seconds, law_seconds;   /* what the plan's law says of a steady step */
};

enum { STREAM_ASYNC_MAX = 128 };

struct stream_async_table {
    struct stream_async_row rows[STREAM_ASYNC_MAX];
    int n_rows;
};

/* The same on every machine. watch may be NULL. */
enum status stream_async(struct stream_async_table *table, struct stream_watch *watch, struct error *e);

/* One row of which all but the seconds are given. */
enum status stream_async_run(struct stream_async_row *row, struct stream_watch *watch, struct error *e);

#endif
