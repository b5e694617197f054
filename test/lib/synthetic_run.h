/* A run of the synthetic family in two stages: through the executor, and as a plain loop over its blocks. */
#ifndef SLUICE_TEST_SYNTHETIC_RUN_H
#define SLUICE_TEST_SYNTHETIC_RUN_H

#include "engine/run/executor.h"
#include "test/lib/arithmetic_device.h"
#include "test/lib/assert_ok.h"
#include "test/lib/seeded.h"
#include "test/lib/synthetic_family.h"
#include "test/lib/memory_checker.h"

#include <math.h>
#include <string.h>

enum {
    SYNTHETIC_STAGES = 2,
    SYNTHETIC_LANES = 3,
    SYNTHETIC_ROWS = 5,
    SYNTHETIC_COLUMNS = 48,
    EVENTS = 64,
    SYNTHETIC_BLOCKS = 16
};

extern const int32_t synthetic_dims[SYNTHETIC_STAGES][4];
extern const int synthetic_lanes[SYNTHETIC_STAGES], synthetic_evaluations[SYNTHETIC_STAGES];

extern struct synthetic {
    struct synthetic_files files[SYNTHETIC_STAGES];
    struct component components[SYNTHETIC_STAGES];
    const struct block *list[SYNTHETIC_STAGES][SYNTHETIC_BLOCKS];
    struct stage stages[SYNTHETIC_STAGES];
    struct lane lanes[SYNTHETIC_STAGES][SYNTHETIC_LANES];
    float latent[SYNTHETIC_STAGES][SYNTHETIC_LANES][SYNTHETIC_ROWS * SYNTHETIC_COLUMNS],
        prediction[SYNTHETIC_STAGES][SYNTHETIC_LANES][SYNTHETIC_ROWS * SYNTHETIC_COLUMNS];
    struct visit_list visits;
    struct arithmetic device;
    struct run run;
    struct run_need need;
    struct plan plan;
    struct residents residents;
    struct store_counters counters;
    long ticks, cancel_at; /* tick at which the run is cancelled; 0: never */
    double done;
    int events[EVENTS],
        n_events; /* events of the run: the index of a visit that ended an evaluation, or -1 - stage */
    /* Callback that changes a visit's weights before the plain loop computes the visit; NULL: no change. */
    void (*change_weights)(const struct visit *visit, void *weights);
} synthetic;

/* Callbacks that the executor calls during the run. */
enum status synthetic_evaluation_ended(void *user, const struct visit *visit, struct error *e);
enum status synthetic_stage_ended(void *user, int stage, struct error *e);

/* Resets the lanes to the start of a run. nan: one latent contains a NaN. */
void synthetic_reset(bool nan);

void synthetic_make(void);
/* Sets synthetic.need from a dry run of the current stages. */
void synthetic_measure(void);
void synthetic_remove(void);

/* Resets the counters and runs through the executor with synthetic.plan. */
void synthetic_execute(struct error *e);

/* The latents that every run must give, set by synthetic_expect. */
extern float synthetic_want[SYNTHETIC_STAGES][SYNTHETIC_LANES][SYNTHETIC_ROWS * SYNTHETIC_COLUMNS];

/* Runs a plain loop over blocks, without store, plan or executor, and stores its latents in synthetic_want.
 */
void synthetic_expect(bool nan);

/* Runs synthetic.plan and expects the latents of synthetic_want and no memory violation. */
void synthetic_run_same(bool nan);

/* Runs on a device with its own memory behind a bus of this speed; 0: as fast as the host. */
void synthetic_use_bus(double bytes_per_second);

uint64_t synthetic_least_budget(void);

/* Sets synthetic.plan: blocks are resident with this probability in percent; rings have the minimum size or
 * up to `pages` pages more. */
void synthetic_random_plan(uint64_t percent, uint64_t pages);

/* Returns the planned pages of all memory lines at the worst moment. */
int64_t planned_pages(void);

#endif
