/* What residency gates are made of: runs that must give the same bits within their plan, from the least
 * budget to all resident, read past the page cache or not, and under plans edited at random. */
#ifndef SLUICE_TEST_RESIDENCY_H
#define SLUICE_TEST_RESIDENCY_H

#include "engine/run/plan.h"
#include "test/lib/rig.h"

enum { BUDGETS_MOST = 10, EDITS_ALL = 16 };

/* The first where it is to be thorough, else the second. */
int some(int thoroughly, int n);

/* ---- planned = used ---- */

/* One run that must give the same bits within its plan. */
struct result run_same(struct rig *rig, const struct sluice_request *request, const struct result *want,
                       const char *what);

/* ---- budgets ---- */

/* At how many budgets each stage of a plan streamed, and how many sets of residents there were. */
struct tally {
    int n_stages, streams[PLAN_STAGES_MAX];
    char stage[PLAN_STAGES_MAX][32], residents[BUDGETS_MOST][2048];
    int n, different;
};
int tally_of(const struct tally *t, const char *stage);

/* n budgets, at most BUDGETS_MOST, from the least to all resident; denser at the least, where one block more
 * makes a difference. */
struct tally budgets(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                     const char *name);

/* ---- direct reads ---- */

/* On and off in turn, from the least to all resident. */
void direct_reads(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                  const char *name);

/* ---- edited plans ---- */

/* Everything streams through the least ring. */
void edited_plan(struct rig *rig, struct sluice_request request, const struct result *want, const char *what);

/* n plans; from EDITS_ALL on every choice has been varied. */
void edited_plans(struct rig *rig, struct sluice_request request, const struct result *want, int n,
                  const char *name);

/* ---- batch ---- */

/* Image k of three is the picture of seed + k. */
void batch_against_seeds(struct rig *rig, struct sluice_request request, json_int_t least, const char *name);

/* ---- a fresh session ---- */

/* What a fresh model and session give. */
struct result fresh(const char *folder, int threads, struct sluice_request request);

#endif
