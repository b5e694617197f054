/* JSON of plans (`plan --json`, which --plan reads back), of tuning advice, and of run reports (`generate
 * --report`). User scripts rely on the keys. */
#ifndef SLUICE_API_PLAN_JSON_H
#define SLUICE_API_PLAN_JSON_H

#include "engine/generate/report.h"

#include <jansson.h>

/* The numbers of the job's plan. */
struct sluice_plan plan_summary(const struct job *job);
/* Returns the job's plan as a new JSON object, owned by the caller; NULL if memory is short. */
json_t *plan_json(const struct job *job);

/* Returns a new JSON list of advice, or NULL if memory is short: one entry for each change that saves at
 * least 2 % of the predicted time (for a larger batch: of the time per image and step). If several entries
 * advise more memory, each saves 2 % over the previous one. Entries are {"kind":"ram"|"vram","extra_bytes"}
 * or {"kind":"bus"|"disk"|"batch"|"int8"|"int8_files","factor"}, each with "stage" (the slowest stage after
 * the change), "seconds" (of the run) and "seconds_per_step" (of the slowest stage). Every number comes from
 * planning with the changed budget, rate or request. A job whose plan does not fit gets no advice.
 *
 * int8: --precision int8 makes the run `factor` times as fast, conversion of the weights included.
 * int8_files: likewise with a transformer file written by `sluice convert --type int8_convrot`; listed beside
 * int8 if it saves another 2 %. Devices without int8 and runs with adapters get neither. Fails with MEMORY.
 */
json_t *advice_json(const struct job *job, struct error *e);

/* Returns the report of a run as a new JSON object, owned by the caller. plan: JSON of the plan; NULL: the
 * run failed before planning. device: lists the algorithms that cuBLASLt or cuDNN chose. */
json_t *report_json(const struct report *report, json_t *plan, struct device *device);

#endif
