/* Previews as the program shows them: on a terminal that shows pictures, the first picture's, or in a file
 * that each overwrites, or both where a file is asked for. */
#ifndef SLUICE_CLI_PREVIEWS_H
#define SLUICE_CLI_PREVIEWS_H

#include "cli/output.h"
#include "cli/terminal.h"

struct previews {
    struct terminal terminal;
    bool said;   /* where they are */
    bool failed; /* one could not be written: no more are */
};

/* Can they be written, and over nothing that is read or written otherwise? Of all pictures that are numbered;
 * exit 2 or 6. */
int previews_check(const struct args *args, struct output_of of, struct sluice_error *e);
/* What showing them takes, of the process; also where that is no terminal, so that a plan depends on none. */
int64_t previews_bytes(const struct args *args);
/* What goes wrong is one warning, and no reason to end the run. of: all pictures. */
void previews_show(struct previews *previews, const struct args *args, struct output_of of,
                   const struct sluice_preview *preview);

#endif
