/* Watches every operator call of test_ops: prepares it, poisons the workspace, guards what lies behind it,
 * repeats the call, compares the bits (with one thread too where no library takes part), and compares what
 * oneDNN allocates with what cost() said.
 *
 * Not of the test library: its malloc would be every program's (test/check.mk). */
#ifndef SLUICE_TEST_OPS_CHECKER_H
#define SLUICE_TEST_OPS_CHECKER_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/simd.h"
#include "test/lib/ops_operands.h"

enum { WORKSPACE_MAX = 256 << 20 };

extern struct ops_checker {
    struct device device; /* first */
    struct sys sys;
    struct device *two, *one;  /* threads */
    int64_t primitive_most[2]; /* heap kept by a product, a convolution */
    double hidden_most;        /* of what was said */
    int calls;
} checker;

extern char *workspace;

/* What malloc has handed out and not got back; 0 where a sanitizer has its own. */
extern int64_t heap_live;

/* cmocka's: open both devices and the pool, and see that nothing was left. */
int ops_set_up(void **state);
int ops_tear_down(void **state);

#endif
