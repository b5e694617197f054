/* Rates as text: {"version":1,"machine":"...","threads":N,"disk":B/s,"host_copy":B/s,"h2d":B/s,
 * "ops":{"linear":FLOP/s,"linear_bf16":FLOP/s,"attention":FLOP/s,"conv":FLOP/s,"bytes":B/s},
 * "cuda":{the same}}, every key but version optional. ops are the CPU's.
 *
 * Written by the benches, edited by people, read by plans: so it may hold anything. What it does not say is
 * the stated default of the device. A key that nobody knows is refused: a mistyped one would otherwise plan
 * with a default and say nothing. */
#ifndef SLUICE_API_RATES_FILE_H
#define SLUICE_API_RATES_FILE_H

#include "engine/run/rates.h"

#include <stdint.h>

/* Lets predictions exist before anything was measured. From device and threads alone, so that the same flags
 * give the same plan. "cuda" is a small card; unknown devices and 0 threads count as one thread of the CPU.
 */
void rates_default(const char *device, int threads, struct rates *rates);

struct cuda_card;
/* The same of a card that is known by name, in a machine of its time. */
void rates_of_card(const struct cuda_card *card, struct rates *rates);

/* Puts what text says of this device over *rates. JSON, DUP, LIMIT, UTF8 or META for what is no rates file;
 * USAGE for a rate that is 0, negative or beyond any machine; *rates then stays as it is. file: its name for
 * messages, or NULL. threads: the session's; operators that were measured with more of them count as so much
 * slower. 0: as measured. */
enum status rates_read(const char *device, const char *file, const char *text, int threads,
                       struct rates *rates, struct error *e);

/* New text, freed with free: what old says (NULL: nothing), with what *measured says over it where that is
 * not 0. threads: what the operators were measured with; 0: they were not. The errors of rates_read for old,
 * and MEMORY. */
enum status rates_merge(const char *old, const struct rates *measured, const char *machine, int threads,
                        char **text, struct error *e);

#endif
