/* Executes a planned job: prepares the device, runs the visits, and calls the host's work between them. */
#ifndef SLUICE_GENERATE_GENERATE_H
#define SLUICE_GENERATE_GENERATE_H

#include "engine/generate/running.h"

/* Runs a job whose plan fits and whose pictures are read. r: job, options, report, residents, cancelled and
 * latent_file are set, the rest is zero. Writes the run's measurements to r->report. */
enum status generate(struct running *r, struct error *e);

#endif
