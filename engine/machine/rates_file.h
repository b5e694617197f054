/* Rates files (JSON): measured speeds of a machine, from which plans predict times.
 *
 * {"version":1,"machine":"...","threads":N,"disk":B/s,"host_copy":B/s,"h2d":B/s,
 * "ops":{"linear":FLOP/s,"linear_bf16":FLOP/s,"linear_int8":FLOP/s,"attention":FLOP/s,
 * "attention_int8":FLOP/s,"conv":FLOP/s,"bytes":B/s},
 * "cuda":{the same}}, every key except version is optional. "ops" has the CPU's rates, "cuda" the GPU's.
 *
 * Benches write these files, people edit them, plans read them: any content must be handled. A missing rate
 * is the device's default. Unknown keys are refused, because a mistyped key would silently give a default. */
#ifndef SLUICE_MACHINE_RATES_FILE_H
#define SLUICE_MACHINE_RATES_FILE_H

#include "engine/run/plan.h"

#include <stdint.h>

/* Default rates of a device. The rates depend on device and threads only, so that the same flags give the
 * same plan. "cuda" gives the rates of a small GPU; an unknown device or 0 threads count as one CPU thread.
 */
void rates_default(const char *device, int threads, struct rates *rates);

struct cuda_card;
/* Default rates of a named GPU model, in a PC of its generation. */
void rates_of_card(const struct cuda_card *card, struct rates *rates);

/* Overwrites *rates with the rates that the text has for this device. Fails with JSON, DUP, LIMIT, UTF8 or
 * META if the text is not a rates file. Fails with USAGE for a rate that is 0, negative or above 1e18; a
 * failure leaves *rates unchanged. file: the file's name for messages, or NULL. threads: number of threads of
 * the session; operator rates measured with more threads are scaled down. threads 0: no scaling. */
enum status rates_read(const char *device, const char *file, const char *text, int threads,
                       struct rates *rates, struct error *e);

/* Makes the text of a rates file, which the caller frees with free: the rates of the text `old` (NULL: none),
 * overwritten by the non-zero rates of *measured. threads: number of threads that the operators were measured
 * with; 0: not measured. Fails like rates_read for old, and with MEMORY. */
enum status rates_merge(const char *old, const struct rates *measured, const char *machine, int threads,
                        char **text, struct error *e);

#endif
