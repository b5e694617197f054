/* Building blocks of the residency tests: runs that must give the same bits within their plan, for budgets
 * from the least to all resident, with cached and direct reads, and under randomly edited plans. */
#ifndef SLUICE_TEST_RESIDENCY_H
#define SLUICE_TEST_RESIDENCY_H

#include "engine/run/plan.h"
#include "test/lib/rig.h"

enum { BUDGETS_MOST = 10, EDITS_ALL = 16 };

/* Returns `thoroughly` if the environment variable THOROUGH is set, else n. */
int thorough_or(int thoroughly, int n);

/* Runs the request; expects images with the hashes of `want`, and memory peaks within the plan. */
struct result run_same(struct rig *rig, const struct sluice_request *request, const struct result *want,
                       const char *what);

/* Counts over runs with several budgets: how often each stage streamed, and how many different sets of
 * residents occurred. */
struct tally {
    int n_stages, streams[PLAN_STAGES_MAX];
    char stage[PLAN_STAGES_MAX][32], residents[BUDGETS_MOST][2048];
    int n, different;
};
int tally_of(const struct tally *t, const char *stage);

/* Runs under n budgets, at most BUDGETS_MOST, from the least to all resident; budgets are denser near the
 * least one, where one more resident block makes a difference. */
struct tally budgets(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                     const char *name);

/* Runs with direct reads on and off in turn, from the least budget to all resident. */
void direct_reads(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                  const char *name);

/* Runs with every block streaming through the smallest ring. */
void edited_plan(struct rig *rig, struct sluice_request request, const struct result *want, const char *what);

/* Runs under n randomly edited plans; n of at least EDITS_ALL varies every choice of a plan. */
void edited_plans(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                  const char *name);

/* Expects that image k of a batch of three is the image of seed + k. */
void batch_against_seeds(struct rig *rig, struct sluice_request request, json_int_t least, const char *name);

/* Runs the request with a new model and session. The result has no plan. */
struct result run_fresh(const char *folder, int threads, struct sluice_request request);

#endif
