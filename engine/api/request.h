/* Checks a request against its model and device, and fills in defaults, before any memory is planned. */
#ifndef SLUICE_API_REQUEST_H
#define SLUICE_API_REQUEST_H

#include "engine/pictures/fit.h"
#include "engine/pictures/pictures.h"
#include "engine/open/model.h"
#include "kernels/device.h"

enum { BATCH_MAX = SLUICE_BATCH_MAX };

/* How previews are decoded: by a linear map of latent channels to RGB, the tiny autoencoder or the VAE. */
enum preview { PREVIEW_NONE, PREVIEW_LATENT, PREVIEW_TAESD, PREVIEW_VAE, N_PREVIEWS };

/* Input of request_resolve and, from the member `sampling` on, the results. */
struct request_resolver {
    const struct sluice_model *model;
    const struct device *device;
    bool decode_only;
    struct sluice_request *request; /* on input the caller's request, on output with defaults filled in */
    struct sampling *sampling;      /* sampler, schedule and prediction type */
    double terminal;                /* the schedule's terminal value (schedule_options.terminal) */
    enum precision precision;       /* precision of text encoders and denoiser */
    enum fit fit;                   /* how input images of another size are fitted */
    enum preview preview;
    struct picture_size *reference_size; /* [LANE_REFERENCES_MAX]: encoded size of each reference image */
};

/* Size at which a reference image is passed to the vision encoder, which may resize it again. */
struct picture_size request_vision_size(const struct recipe *recipe, const struct sluice_picture *picture);

/* Fills in the request's defaults, checks it and sets the results. Fails with USAGE for an invalid request,
 * with SHAPE (exit 2) for a reference image of an unsupported size, with MISSING for a missing component. */
enum status request_resolve(struct request_resolver *s, struct error *e);

/* Video frames whose vision tokens the denoiser reads: 0, 1 (the first) or 2 (first and last). */
int request_vision_frames(const struct sluice_model *model);

/* Size of each frame of the control video; 0x0 without a control video. */
struct picture_size request_control_size(const struct sluice_request *request);

/* Default output size (request_pictures.c): the input image's size. For image-to-video the model's default
 * area with the input image's aspect ratio. For editing models the model's default area with the last
 * reference image's aspect ratio. */
struct picture_size request_output_size(const struct request_resolver *s);
/* Checks the input images of a request whose sizes and counts are resolved. */
enum status request_check_pictures(struct request_resolver *s, struct error *e);

/* These functions fail with USAGE. request_bad_value: a flag's value is invalid. request_check_range: a value
 * is NaN or outside its range; returns OK for other values. request_not_for_model: the model does not support
 * a flag. */
enum status request_bad_value(struct error *e, const char *flag, double found, const char *expected);
enum status request_check_range(const char *flag, double found, double least, double most, struct error *e);
enum status request_not_for_model(const struct request_resolver *s, const char *flag, const char *expected,
                                  struct error *e);

/* True if two strings are equal; `choice` may be NULL. */
bool choice_is(const char *choice, const char *how);

/* The device's most exact precision. Text encoders and denoiser use it by default, the VAE always. */
enum precision request_default_precision(const struct device *device);

#endif
