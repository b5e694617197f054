/* Queries plans as JSON, and reads and sums their numbers. */
#ifndef SLUICE_TEST_PLANS_H
#define SLUICE_TEST_PLANS_H

#include "engine/sluice.h"

#include <jansson.h>

struct rig;

json_t *query(struct rig *rig, const struct sluice_request *request, bool *fits);

json_int_t number(json_t *object, const char *key);

json_int_t ram(json_t *plan, const char *which);

json_t *stage_of(json_t *plan, const char *name);

json_int_t streamed(json_t *plan, const char *name);

/* A memory budget above the need of every fixture, so that nothing is evicted. */
static const int64_t plenty = (int64_t)1 << 36;

void bounds(struct rig *rig, struct sluice_request request, json_int_t *least, json_int_t *all);

/* Returns the planned bytes of residents, ring and bounce buffers in the stage where they are largest. */
json_int_t planned_store(json_t *plan);

#endif
