/* Limit on memory for file headers: checked before a header is read, so that a damaged or hostile header
 * cannot exceed the memory budget. The plan counts the same memory, but only after the files are open. */
#ifndef SLUICE_BASE_HEADER_LIMIT_H
#define SLUICE_BASE_HEADER_LIMIT_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Headers up to this size are read under any budget, so that a plan can be made and its error names the least
 * budget. */
enum { HEADER_LIMIT_MIN = 16 << 20 };

/* BUDGET, naming a budget that works, if `bytes` more than LINE_HOST holds now exceed sys->header_limit.
 * path: the file, for the message. */
enum status header_limit_check(struct sys *sys, const char *path, uint64_t bytes, struct error *e);

#endif
