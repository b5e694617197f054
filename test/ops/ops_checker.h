/* A device that checks every operator call of the CPU tests. It prepares the call, poisons the workspace and
 * guards its end, repeats the call with one and two threads, compares the bits, and compares oneDNN's heap
 * use with cost().
 *
 * Not in the test library: its malloc would replace every program's (test/check.mk). */
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
    struct device *two, *one;  /* CPU devices with two threads and one */
    int64_t primitive_most[2]; /* largest heap of a prepared product and convolution */
    double hidden_most;        /* largest heap use during a run, relative to cost() */
    int calls;
} checker;

extern char *workspace;

/* Bytes allocated by malloc and not freed; 0 where a sanitizer replaces malloc. */
extern int64_t heap_live;

/* cmocka fixtures: open both devices and the pool; check for leaks. */
int ops_set_up(void **state);
int ops_tear_down(void **state);

#endif
