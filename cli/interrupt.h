/* Ctrl-C, SIGTERM and SIGHUP (a closed terminal).
 *
 * The first asks the running session to end at its next visit; the second ends the process at once. Where
 * nothing runs that could end tidily, the first already ends it. Temporary outputs go in every case. */
#ifndef SLUICE_CLI_INTERRUPT_H
#define SLUICE_CLI_INTERRUPT_H

#include "engine/sluice.h"

#include <stdbool.h>

/* Installs the handlers; SIGPIPE is ignored, so that a closed pipe is a failed write. */
void interrupt_install(void);
/* From here on the first signal only sets the flag: the caller asks interrupt_pending and ends tidily. */
void interrupt_gracefully(void);
/* The session that a signal cancels; NULL before it closes. */
void interrupt_watch(sluice_session *session);
/* Has a signal come? Also cancels the watched session again: a cancel that came before the run began does
 * nothing by the library's rule, so callbacks ask here. */
bool interrupt_pending(void);
/* The error to end with. */
int interrupt_error(struct sluice_error *error);

#endif
