/* What may be asked of a model on a device: a request's numbers, pictures and precision, checked before
 * anything is laid out. */
#ifndef SLUICE_API_REQUEST_H
#define SLUICE_API_REQUEST_H

#include "engine/pictures/fit.h"
#include "engine/pictures/pictures.h"
#include "engine/open/model.h"
#include "kernels/device.h"

enum { BATCH_MAX = SLUICE_BATCH_MAX };

/* What previews are made by. */
enum preview { PREVIEW_NONE, PREVIEW_LATENT, PREVIEW_TAESD, PREVIEW_VAE, N_PREVIEWS };

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
    enum preview preview;                /* found */
    struct picture_size *reference_size; /* LANE_REFERENCES_MAX of them: as references are encoded; found */
};

/* The size at which a picture is shown to a vision encoder, which may read it at another. */
struct picture_size request_shown_size(const struct recipe *recipe, const struct sluice_picture *picture);

/* Fills, checks and finds all of that. USAGE for what is wrong with the request; SHAPE (of usage) for a
 * reference of a size that the model does not read; MISSING where the model lacks what it needs. */
enum status request_settle(struct settling *s, struct error *e);

/* How many pictures the denoiser reads rows of that a vision encoder makes: the first frame's, or the last's
 * too. */
int request_frames_seen(const struct sluice_model *model);

/* Of the frames that lead, all of which have it; 0: there are none. */
struct picture_size request_control_size(const struct sluice_request *request);

/* Parts of that (request_pictures.c): what is drawn where the request does not say: as large as the picture
 * to start from; of a video that it begins an area with its aspect; of a model that edits an area with the
 * last reference's aspect. */
struct picture_size request_drawn_size(const struct settling *s);
/* Of a request whose numbers are filled in. */
enum status request_check_pictures(struct settling *s, struct error *e);

/* USAGE: this flag's number, and what would do; a number that is not within bounds (NaN is within none); a
 * flag that means nothing to this model. */
enum status request_misused(struct error *e, const char *flag, double found, const char *expected);
enum status request_within(const char *flag, double found, double least, double most, struct error *e);
enum status request_refuse_of_model(const struct settling *s, const char *flag, const char *expected,
                                    struct error *e);

/* Is this choice, which may be NULL, that one? */
bool asked_for(const char *choice, const char *how);

/* The most exact precision that the device has: its default, and the autoencoder's. */
enum precision request_first_precision(const struct device *device);

#endif
