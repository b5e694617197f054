/* A run as generate, decode and, up to its request, plan have it. */
#ifndef SLUICE_CLI_DRAWING_H
#define SLUICE_CLI_DRAWING_H

#include "cli/args.h"
#include "cli/frames.h"
#include "cli/previews.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "cli/video.h"

#include <stdbool.h>

struct drawing {
    const struct args *args;
    const char *latent; /* decode: the file; generate: NULL */
    sluice_model *model;
    sluice_session *session;
    struct sluice_request request;
    struct request_files files;
    uint64_t seed;
    int n_images;      /* that names are made for */
    int n_frames;      /* of each; 0 until it is known */
    int width, height; /* of a video, as they were planned */
    int n_written;
    struct video *video; /* that is being written; or */
    struct frames frames;
    struct previews previews;
    bool ran; /* the session has a report of its own */
    double started;
    struct progress progress;
    struct sluice_error failure; /* the first of ours in a callback; code 0: none */
};

/* Opens model and session and fills the request from defaults and flags. */
int drawing_open(struct drawing *drawing, struct sluice_error *e);
void drawing_close(struct drawing *drawing);

#endif
