/* Plan advice as JSON: how much faster a run would be with more memory, faster links or a larger batch. */
#ifndef SLUICE_API_ADVICE_JSON_H
#define SLUICE_API_ADVICE_JSON_H

#include "engine/api/job.h"

#include <jansson.h>

/* Returns a new JSON list of advice, or NULL without memory: one entry for each change that saves at least 2
 * % of the predicted time (for a larger batch: of the time per image and step). If several entries advise
 * more memory, each saves 2 % over the previous one. Entries are {"kind":"ram"|"vram","extra_bytes"} or
 * {"kind":"bus"|"disk"|"batch","factor"}, each with "stage" (the slowest stage after the change), "seconds"
 * (of the run) and "seconds_per_step" (of the slowest stage). Every number comes from planning with the
 * changed budget, rate or request. A job whose plan does not fit gets no advice. */
json_t *advice_json(const struct job *job);

#endif
