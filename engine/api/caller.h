/* What a public function asks of its caller before it does anything: things that are there, and a thread with
 * room to work. */
#ifndef SLUICE_API_CALLER_H
#define SLUICE_API_CALLER_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* USAGE and false if it is NULL. name: as the header calls it. */
bool caller_gave(const void *given, const char *name, struct error *e);
/* The same of a struct, whose struct_size has to be set, too. */
bool caller_filled(const void *given, const char *name, struct error *e);
/* USAGE and false if the calling thread's stack has less left than that. Stacks that the system does not know
 * of, a coroutine's, are not asked. bytes: SLUICE_STACK_BYTES where a request is planned (a job beside
 * another, one's layouts and a simulation of its visits: 0.6 MiB by -fstack-usage, and oneDNN builds its
 * operators from there), else SLUICE_STACK_BYTES_TO_OPEN (64 KiB at most by test/program/test_embedder.c,
 * without a driver of NVIDIA's; saying that it is too little takes 8). */
bool caller_has_stack(size_t bytes, struct error *e);
/* USAGE and false if no session has so many threads. */
bool caller_threads(int threads, struct error *e);

#endif
