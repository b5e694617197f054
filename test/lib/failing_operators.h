/* Makes one operator of a device fail with MEMORY. One device at a time. */
#ifndef SLUICE_TEST_FAILING_OPERATORS_H
#define SLUICE_TEST_FAILING_OPERATORS_H

#include "test/lib/rig.h"

/* Starts counting the operators that the device runs; none fails yet. */
void operators_begin(struct device *device);
/* Returns the number of operators run since operators_begin or operators_fail_at. */
long operators_counted(void);
/* Restarts the count; operator number `at`, from 1, fails. 0: none fails. */
void operators_fail_at(long at);
void operators_end(struct device *device);

/* Runs the request once without faults, then with one operator failing each time, at positions spread over
 * the run. At least half of the runs with a failing operator must succeed, with the result of the run without
 * faults. */
void operators_fail_in_turn(struct rig *rig, const struct sluice_request *request);

#endif
