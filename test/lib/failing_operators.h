/* A session's device one of whose operators finds no memory. One at a time. */
#ifndef SLUICE_TEST_FAILING_OPERATORS_H
#define SLUICE_TEST_FAILING_OPERATORS_H

#include "test/lib/rig.h"

/* From here on operators are counted; none fails yet. */
void operators_begin(struct rig *rig);
/* How many there were since the last call, or since the beginning. */
long operators_counted(void);
/* Counts anew: number `at`, from 1, fails; 0: none. */
void operators_fail_at(long at);
void operators_end(struct rig *rig);

/* Runs the request as it is and then with each of some operators of it failing, from the first on: at least
 * half of these runs go on, all to the same result. */
void operators_fail_in_turn(struct rig *rig, const struct sluice_request *request);

#endif
