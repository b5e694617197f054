/* Threads that share one piece of work at a time, and give way to whoever else wants the processor.
 *
 * The work is n items. Whoever comes takes the next few, the calling thread among them, and the call returns
 * when no item is left and nobody is at one any more: a thread that the system does not let run takes nothing
 * and is waited for by nobody. So the members who compute an item are left to chance, and an item must give
 * the same result whoever computes it. A thread without work looks for some for 50 us, then sleeps: OpenMP's
 * (libgomp 12) spin for milliseconds, which beside other load or under a quota costs fifty times a run
 * (bench/LOG.md).
 *
 * Invariants: a member begins an item only while the call that offers it has not returned; the fields of the
 * work change only while nobody is inside. Nothing here knows what is computed. */
#ifndef SLUICE_BASE_TEAM_H
#define SLUICE_BASE_TEAM_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

struct team;

/* Items [first, end) of the work, by one member: below the team's members and below the work's items, in the
 * order in which they come, so that memory of their own is needed for no more of them. No two calls at a time
 * have the same member. May not call team_run. */
typedef void team_work(const void *context, int64_t first, int64_t end, int member);

/* A team of 1 to 1,024 members; starts no thread yet. sys outlives it. NULL: no memory, and *e says so. */
struct team *team_open(struct sys *sys, int members, struct error *e);
/* NULL is fine. */
void team_close(struct team *team);

/* Starts the members that are not there yet; one thread at a time. MEMORY if the system has no thread left.
 * The team itself would work with those that it has, but what was planned with all ends by it: a run says so
 * and names how many there could be, and does not take twice as long instead. Asked again, it tries again. */
enum status team_start(struct team *team, struct error *e);

/* Calls work until each of n items (0 or more) was in exactly one call. One thread at a time. */
void team_run(struct team *team, int64_t n, team_work *work, const void *context);

int team_members(const struct team *team);

#endif
