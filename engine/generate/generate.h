/* Executes a planned job: prepares the device, runs the visits, and calls the host's work between them. */
#ifndef SLUICE_GENERATE_GENERATE_H
#define SLUICE_GENERATE_GENERATE_H

#include "engine/generate/running.h"

/* Runs a job whose plan fits and whose input pictures are read. The caller sets r's job, options, report,
 * residents, cancelled and latent_file; all other fields are zero. Writes the run's measurements to
 * r->report. */
enum status generate(struct running *r, struct error *e);

#endif
