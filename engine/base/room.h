/* Room: what opening files may take of a budget, asked before it is taken. A plan counts it too, but only
 * once the files are open: what a header says of itself must not be believed at any price. */
#ifndef SLUICE_BASE_ROOM_H
#define SLUICE_BASE_ROOM_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Headers of ordinary models have room in any budget, so that there is a plan which names the least. */
enum { ROOM_ANYWAY = 16 << 20 };

/* BUDGET, naming one that would do, if so many bytes more than LINE_HOST has now are beyond sys->room. path:
 * of the file that they are for. */
enum status room_check(struct sys *sys, const char *path, uint64_t bytes, struct error *e);

#endif
