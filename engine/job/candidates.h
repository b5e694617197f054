/* Candidate layouts: makes each layout that the planner may choose, measures it by a dry run and frees it. */
#ifndef SLUICE_JOB_CANDIDATES_H
#define SLUICE_JOB_CANDIDATES_H

#include "engine/job/job.h"

/* Measures the memory need and time of every candidate layout, and lays the job out for the first one. Fails
 * with USAGE, META or JSON for invalid rates, DEVICE or MEMORY. */
enum status candidates_measure(struct job *job, struct error *e);
/* Switches the job to the candidate layout with this number of image groups and this VAE tiling. Fails with
 * BUDGET if there is no such candidate. */
enum status candidates_lay_out(struct job *job, int groups, bool tiled, struct error *e);
/* Adds the preview job's memory and time to the measured need of a stage. A stage without previews
 * (runs_previews false) only gets the memory that libraries hold for the whole run. Does nothing without a
 * preview job. */
void candidates_add_preview(const struct job *job, bool runs_previews, struct stage_need *need);
/* True if weights are read with O_DIRECT, past the page cache. direct_io: the request's choice. model_bytes,
 * memory_bytes: size of the model and of the machine's memory. Pure function, so that the same flags give the
 * same plan. */
bool candidates_read_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes);

#endif
