/* A run of the toy family in two stages, once through the executor and once as a plain loop over its blocks.
 */
#ifndef SLUICE_TEST_TOY_RUN_H
#define SLUICE_TEST_TOY_RUN_H

#include "engine/run/executor.h"
#include "test/lib/arithmetic_device.h"
#include "test/lib/assert_ok.h"
#include "test/lib/seeded.h"
#include "test/lib/toy_family.h"
#include "test/lib/watch_memory.h"

#include <math.h>
#include <string.h>

enum { TOY_STAGES = 2, TOY_LANES = 3, TOY_ROWS = 5, TOY_COLUMNS = 48, EVENTS = 64, TOY_BLOCKS = 16 };

extern const int32_t toy_dims[TOY_STAGES][4];
extern const int toy_lanes[TOY_STAGES], toy_evaluations[TOY_STAGES];

extern struct toy {
    struct toy_files files[TOY_STAGES];
    struct component components[TOY_STAGES];
    const struct block *list[TOY_STAGES][TOY_BLOCKS];
    struct stage stages[TOY_STAGES];
    struct lane lanes[TOY_STAGES][TOY_LANES];
    float latent[TOY_STAGES][TOY_LANES][TOY_ROWS * TOY_COLUMNS],
        prediction[TOY_STAGES][TOY_LANES][TOY_ROWS * TOY_COLUMNS];
    struct visit_list visits;
    struct arithmetic device;
    struct run run;
    struct run_need need;
    struct plan plan;
    struct residents residents;
    struct store_counters counters;
    long ticks, cancel_at; /* 0: never */
    double done;
    int events[EVENTS], n_events; /* a visit's place; or -1 - stage */
    /* In the plain loop: changes the weights of a visit, before it is computed. NULL: as they are. */
    void (*change_weights)(const struct visit *visit, void *weights);
} toy;

/* The run's hooks. */
enum status toy_evaluation_ended(void *user, const struct visit *visit, struct error *e);
enum status toy_stage_ended(void *user, int stage, struct error *e);

/* Lanes as at the start of a run; a NaN among them on request. */
void toy_reset(bool nan);

void toy_make(void);
/* Of the stages as they are: what a run needs. */
void toy_measure(void);
void toy_remove(void);

/* The run through the executor, with toy.plan; counts from here on. */
void toy_execute(struct error *e);

/* The run as a plain loop over blocks, without store, plan or executor. */
void plain_run(void);

/* All pages that the plan has lines for, at the worst moment. */
int64_t planned_pages(void);

#endif
