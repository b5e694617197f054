/* What a public function asks of its caller before it does anything: things that are there, and a thread with
 * room to work. */
#ifndef SLUICE_API_CALLER_H
#define SLUICE_API_CALLER_H

#include "engine/base/error.h"

#include <stdbool.h>

/* USAGE and false if it is NULL. name: as the header calls it. */
bool caller_gave(const void *given, const char *name, struct error *e);
/* USAGE and false if the calling thread's stack has less left than planning takes. Stacks that the system
 * does not know of, a coroutine's, are not asked. */
bool caller_has_stack(struct error *e);

#endif
