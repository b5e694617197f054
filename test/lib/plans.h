/* Queries plans as JSON, and reads and sums their numbers. */
#ifndef SLUICE_TEST_PLANS_H
#define SLUICE_TEST_PLANS_H

#include "engine/sluice.h"

#include <jansson.h>

struct rig;

/* Returns the plan of a request, which is freed in rig_close. fits: set to whether the plan fits, unless
 * NULL.
 */
json_t *query(struct rig *rig, const struct sluice_request *request, bool *fits);

/* Returns a plan as the text of a plan file, which is freed in rig_close. */
const char *plan_text(struct rig *rig, json_t *plan);

json_int_t number(json_t *object, const char *key);
double real(json_t *object, const char *key);
const char *word(json_t *object, const char *key);

/* Returns "ram_bytes" of the plan's object `which`, such as "least" or "peak". */
json_int_t ram(json_t *plan, const char *which);

/* Return stage or block number i, or NULL beyond the last one. */
json_t *stage_at(json_t *plan, size_t i);
json_t *block_at(json_t *stage, size_t i);

/* Returns the bytes of all blocks of the stage `name`. */
json_int_t blocks_bytes(json_t *plan, const char *name);

json_t *stage_of(json_t *plan, const char *name);

json_int_t streamed(json_t *plan, const char *name);

/* A memory budget above the need of every fixture, so that nothing is evicted. */
static const int64_t plenty = (int64_t)1 << 36;

/* Returns the minimum RAM budget of a request, and the RAM that it takes with all blocks resident. */
void bounds(struct rig *rig, struct sluice_request request, json_int_t *least, json_int_t *all);

/* Returns the planned bytes of residents, ring and bounce buffers in the stage where they are largest. */
json_int_t planned_store(json_t *plan);

#endif
