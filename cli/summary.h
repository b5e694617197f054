/* Prints the summary of a run to stderr: its duration, and advice if the run waited for weights. */
#ifndef SLUICE_CLI_SUMMARY_H
#define SLUICE_CLI_SUMMARY_H

#include "engine/sluice.h"

#include <stdbool.h>

struct summary {
    sluice_session *session; /* session of the last run, which succeeded */
    int n_pictures;          /* images or videos written */
    bool are_videos;
    double seconds; /* duration of the program */
    bool verbose;   /* prints also a line per stage */
};

void summary_print(const struct summary *summary);

#endif
