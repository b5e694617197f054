/* Ends the program with a signal if a test hangs. */
#ifndef SLUICE_TEST_HANG_HANG_GUARD_H
#define SLUICE_TEST_HANG_HANG_GUARD_H

/* Time limits: CPU seconds for one file or text, because other programs may load the machine; wall seconds
 * for a wait. */
#ifdef __SANITIZE_ADDRESS__
enum { HANG_SECONDS = 20 };
#else
enum { HANG_SECONDS = 2 };
#endif
enum { WAIT_SECONDS = 60 };

/* Starts a timer for CPU seconds and one for wall seconds, which end a hanging program; 0 stops a timer. */
void hang_guard(int processor_seconds, int seconds);

#endif
