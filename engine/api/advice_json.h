/* Advice as JSON: what would make this run faster, for people who choose a machine or a request. */
#ifndef SLUICE_API_ADVICE_JSON_H
#define SLUICE_API_ADVICE_JSON_H

#include "engine/api/job.h"

#include <jansson.h>

/* A new list, or NULL without memory. One entry for each thing that would save at least a fiftieth of the
 * time (of the time of an image and step, for "batch"), and of more memory only what saves that over less of
 * it:
 * {"kind":"ram"|"vram","extra_bytes"} or {"kind":"bus"|"disk"|"batch","factor"}, each with "stage" (the one
 * that takes longest), "seconds" in all and "seconds_per_step" of that stage then. Every number is the
 * solver's own answer to the changed budget, rate or request. The job has its plan; one that does not fit
 * gets no advice, since the error names the least that would do. */
json_t *advice_json(const struct job *job);

#endif
