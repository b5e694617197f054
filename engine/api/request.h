/* What may be asked of a model on a device: a request's numbers, pictures and precision, checked before
 * anything is laid out. Pure but for the job's own copy of the request. */
#ifndef SLUICE_API_REQUEST_H
#define SLUICE_API_REQUEST_H

#include "engine/api/job.h"

/* Fills what the request leaves open, then checks it all and finds the job's precision. USAGE for what is
 * wrong with it; SHAPE (of usage) for a picture of another size; MISSING where the model lacks what it needs.
 */
enum status request_settle(struct job *job, struct error *e);

/* Is this choice, which may be NULL, that one? */
bool asked_for(const char *choice, const char *how);

/* The most exact precision that the device has: its default, and the autoencoder's. */
enum precision request_first_precision(const struct device *device);

#endif
