/* The progress line: one that is rewritten on a terminal, plain lines now and then elsewhere. */
#ifndef SLUICE_CLI_PROGRESS_H
#define SLUICE_CLI_PROGRESS_H

#include "engine/sluice.h"

#include <stdbool.h>

struct progress {
    bool silent, live; /* set by progress_start */
    int n_pictures;
    bool videos;    /* that is what they are */
    char stage[32]; /* of the last line */
    int step;
    double shown_seconds;
    double looked_seconds, looked_stall; /* when it was last found out whether it waits */
    bool waits;
};

/* Seconds of a clock that never goes back. */
double progress_clock(void);
void progress_start(struct progress *progress, bool silent, int n_pictures);
/* Shows the state if it is time to; called often. */
void progress_show(struct progress *progress, const struct sluice_progress *now);
/* "12 s", "3 min 20 s", "2 h 5 min" into out (at least 32 bytes); returns out. */
char *progress_duration(double seconds, char *out);
/* "3.42 GiB", "419 MiB" into out (at least 32 bytes); returns out. */
char *progress_bytes(double bytes, char *out);

#endif
