/* State of one run of `sluice generate` or `sluice decode`; `sluice plan` opens it without running it. */
#ifndef SLUICE_CLI_GENERATION_H
#define SLUICE_CLI_GENERATION_H

#include "cli/args.h"
#include "cli/frames.h"
#include "cli/previews.h"
#include "cli/messages.h"
#include "cli/request.h"
#include "cli/video.h"

#include <stdbool.h>

struct generation {
    const struct args *args;
    const char *latent; /* decode: path of the latent; generate: NULL */
    sluice_model *model;
    sluice_session *session;
    struct sluice_request request;
    struct request_files files;
    uint64_t seed;
    bool seed_printed;
    int n_images;      /* images or videos of the run */
    int n_frames;      /* frames per video; 1: images; 0: not known yet */
    int width, height; /* planned size of a video */
    int n_written;
    struct video *video;  /* the video file that is being written, or NULL */
    struct frames frames; /* the video that is being written as one image per frame */
    struct previews previews;
    bool has_run; /* a run was started, so sluice_report has a report */
    double started;
    struct progress progress;
    struct sluice_error failure; /* first error of a callback; code 0: none */
};

/* Opens model and session; fills the request from the model's defaults and the flags. */
int generation_open(struct generation *generation, struct sluice_error *e);
void generation_close(struct generation *generation);

#endif
