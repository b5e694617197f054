/* A device that checks every operator call of the CPU tests. It poisons the workspace and guards its end, and
 * runs the call with one and two threads. It compares the results' bits, and oneDNN's heap use with cost().
 *
 * The checker replaces malloc, so it is not part of the test library (test/check.mk). */
#ifndef SLUICE_TEST_OPS_CHECKER_H
#define SLUICE_TEST_OPS_CHECKER_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/simd.h"
#include "test/lib/ops_operands.h"

enum { WORKSPACE_MAX = 256 << 20 };

extern struct ops_checker {
    struct device device; /* first member: struct device * is cast to this type */
    struct sys sys;
    struct device *two, *one;  /* CPU devices with two threads and with one thread */
    int64_t primitive_most[2]; /* largest heap use of a prepared product and of a prepared convolution */
    double hidden_most;        /* largest heap use during a run, relative to the prediction of cost() */
    int calls;
} checker;

extern char *workspace;

/* Bytes allocated by malloc and not freed; 0 where a sanitizer replaces malloc. */
extern int64_t heap_live;

/* cmocka fixtures that open both CPU devices and the operand pool, and check for leaks. */
int ops_set_up(void **state);
int ops_tear_down(void **state);

#endif
