/* `sluice-dev stream` with asynchronous launches, as expected of CUDA: a launch takes the host a fraction of
 * the device's compute time, and a reader a few microseconds per piece. */
#ifndef SLUICE_DEV_STREAM_ASYNC_H
#define SLUICE_DEV_STREAM_ASYNC_H

#include "bench/dev/stream.h"

struct stream_async_row {
    const char *blocks;
    int resident_percent, readers;
    double bus, disk; /* rates of bus and disk in bytes per second */
    bool pooled;      /* weights stay in host memory, so only the first step reads the disk */
    double host_seconds, reader_seconds;     /* host seconds per visit, reader seconds per piece of a read */
    double first_seconds;                    /* seconds of the first step, read from the disk */
    double pinning_seconds;                  /* seconds of pinning the host pool, chunk by chunk */
    double seconds;                          /* seconds per step in the steady state */
    double floor_seconds, predicted_seconds; /* lower bound and predicted time of a steady step, in seconds */
};

enum { STREAM_ASYNC_MAX = 128 };

struct stream_async_table {
    struct stream_async_row rows[STREAM_ASYNC_MAX];
    int n_rows;
};

/* Fills the table of results, which are equal on every machine. watch may be NULL. */
enum status stream_async(struct stream_async_table *table, struct stream_watch *watch, struct error *e);

/* Computes one row's result times, in seconds, from the row's other fields. */
enum status stream_async_run(struct stream_async_row *row, struct stream_watch *watch, struct error *e);

#endif
