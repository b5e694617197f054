/* Against what never ends: a signal ends the program. */
#ifndef SLUICE_TEST_HANG_HANG_GUARD_H
#define SLUICE_TEST_HANG_HANG_GUARD_H

/* Processor seconds that a file or a text may take: others may be busy on the machine. A wait without end is
 * a minute. */
#ifdef __SANITIZE_ADDRESS__
enum { HANG_SECONDS = 20 };
#else
enum { HANG_SECONDS = 2 };
#endif
enum { WAIT_SECONDS = 60 };

/* From here on so many of either; 0: no more guard. */
void guard(int processor_seconds, int seconds);

#endif
