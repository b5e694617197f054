/* What may be asked of a model on a device: a request's numbers, pictures and precision, checked before
 * anything is laid out. */
#ifndef SLUICE_API_REQUEST_H
#define SLUICE_API_REQUEST_H

#include "engine/pictures/fit.h"
#include "engine/pictures/pictures.h"
#include "engine/open/model.h"
#include "kernels/device.h"

enum { BATCH_MAX = SLUICE_BATCH_MAX };

/* A request on its way from what a caller wrote to what is run. */
struct settling {
    const struct sluice_model *model;
    const struct device *device;
    bool decode_only;
    struct sluice_request *request;      /* what it leaves open is filled in */
    struct sampling *sampling;           /* found */
    double terminal;                     /* of the schedule, as schedule_options has it; found */
    enum precision precision;            /* of text encoder and denoiser; found */
    enum fit fit;                        /* of pictures of another size than is drawn; found */
    struct picture_size *reference_size; /* LANE_REFERENCES_MAX of them: as references are encoded; found */
};

/* The size at which a picture is shown to a vision encoder, which may read it at another. */
struct picture_size request_shown_size(const struct recipe *recipe, const struct sluice_picture *picture);

/* Fills, checks and finds all of that. USAGE for what is wrong with the request; SHAPE (of usage) for a
 * reference of a size that the model does not read; MISSING where the model lacks what it needs. */
enum status request_settle(struct settling *s, struct error *e);

/* Is this choice, which may be NULL, that one? */
bool asked_for(const char *choice, const char *how);

/* The most exact precision that the device has: its default, and the autoencoder's. */
enum precision request_first_precision(const struct device *device);

#endif
