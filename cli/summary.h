/* What a run did, in a few lines on stderr: how long it took, and what it waited for where
 * something can be done about that. */
#ifndef SLUICE_CLI_SUMMARY_H
#define SLUICE_CLI_SUMMARY_H

#include "engine/sluice.h"

#include <stdbool.h>

struct summary {
    sluice_session *session; /* whose last run ended well */
    int n_pictures;
    bool videos;    /* that is what they are */
    double seconds; /* of the program */
    bool verbose;   /* lines for every stage too */
};

void summary_say(const struct summary *summary);

#endif
