/* Handles Ctrl-C (SIGINT), SIGTERM and SIGHUP (closed terminal).
 *
 * Before interrupt_gracefully is called, the first signal exits at once. After that call, the first signal
 * cancels the running session and the second signal exits at once. Temporary files of outputs are removed in
 * every case. */
#ifndef SLUICE_CLI_INTERRUPT_H
#define SLUICE_CLI_INTERRUPT_H

#include "engine/sluice.h"

#include <stdbool.h>

/* Installs the handlers. Ignores SIGPIPE, so that writing to a closed pipe fails instead. */
void interrupt_install(void);
/* From now on the first signal does not exit: the caller polls interrupt_pending and cleans up itself. */
void interrupt_gracefully(void);
/* Sets the session that a signal cancels. Pass NULL before closing the session. */
void interrupt_watch(sluice_session *session);
/* True after a signal. Cancels the watched session again, because sluice_cancel has no effect before the run
 * begins; callbacks of the run therefore call this. */
bool interrupt_pending(void);
/* Fills the error of a cancelled run. */
int interrupt_error(struct sluice_error *error);

#endif
