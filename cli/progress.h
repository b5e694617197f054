/* The progress display: one live line on a terminal, occasional lines in a log. */
#ifndef SLUICE_CLI_PROGRESS_H
#define SLUICE_CLI_PROGRESS_H

#include "engine/sluice.h"

#include <stdbool.h>

struct progress {
    bool silent, live; /* set by progress_start; live: stderr is a terminal */
    int n_pictures;    /* images or videos of the run */
    bool are_videos;
    char stage[32]; /* stage and step of the last progress line */
    int step;
    double shown_seconds;
    double checked_seconds,
        checked_stall; /* run time and waiting time, in seconds, at the last update of is_waiting */
    bool is_waiting;   /* over a quarter of the last second went to waiting for weights */
};

/* Seconds of a monotonic clock. */
double progress_clock(void);
void progress_start(struct progress *progress, bool silent, int n_pictures);
/* Prints a progress line if one is due. Cheap enough for every callback. */
void progress_show(struct progress *progress, const struct sluice_progress *now);
/* Removes the live line; progress_show then prints nothing more. */
void progress_finish(struct progress *progress);
/* Formats "12 s", "3 min 20 s" or "2 h 5 min" into out (at least 32 bytes); returns out. */
char *progress_duration(double seconds, char *out);
/* Formats "3.42 GiB" or "419 MiB" into out (at least 32 bytes); returns out. */
char *progress_bytes(double bytes, char *out);

#endif
