/* Memory limit for file headers, checked before a header is read: a damaged or hostile header cannot exceed
 * the memory budget. The plan counts header memory too, but is made after the files are open. */
#ifndef SLUICE_BASE_HEADER_LIMIT_H
#define SLUICE_BASE_HEADER_LIMIT_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Headers up to this size in bytes are read under any budget: the plan then reports the least budget. */
enum { HEADER_LIMIT_MIN = 16 << 20 };

/* Returns BUDGET if `bytes` more host memory would exceed sys->header_limit; the error names a budget that
 * works. path: the file, for the message. */
enum status header_limit_check(struct sys *sys, const char *path, uint64_t bytes, struct error *e);

#endif
