/* State of one run of `sluice generate`, `decode` or `upscale`; `sluice plan` opens it without running it. */
#ifndef SLUICE_CLI_GENERATION_H
#define SLUICE_CLI_GENERATION_H

#include "cli/args.h"
#include "cli/messages.h"
#include "cli/output.h"
#include "cli/request.h"
#include "cli/sound.h"
#include "cli/terminal.h"

#include <stdbool.h>

/* A video that is being written as one image per frame: into a temporary folder, from which all frames are
 * renamed together, so that a cancelled run leaves none. */
struct frames {
    const char *pattern;     /* file name pattern, as in output_name; NULL: no video is being written */
    struct output_item item; /* the video; item.frame is the frame written most recently */
    int lock_file;           /* lock file of the temporary folder */
    bool made;               /* this run created the target folder */
    char target[PATH_MAX], temporary[PATH_MAX];
};

/* Preview images: those of the first image are shown on a terminal that can display images; else, or with
 * --preview-path, each overwrites a file. */
struct previews {
    struct terminal terminal;
    bool announced; /* the name of the preview file has been printed */
    bool failed;    /* a preview file could not be written: the run writes no more previews */
};

struct generation {
    const struct args *args;
    const char *latent; /* path of the latent that `decode` reads; else NULL */
    bool upscales;      /* the run only enlarges args->init_image */
    sluice_model *model;
    sluice_session *session;
    struct sluice_request request;
    struct request_files files;
    uint64_t seed;
    bool seed_printed;
    bool unlogged;       /* the session's messages repeat those of another call: not printed */
    int n_images;        /* number of images or videos that the run generates */
    int n_frames;        /* frames per video; 1: images; 0: not known yet */
    int width, height;   /* planned size of a video */
    int n_written;       /* number of images or videos that are completely written */
    struct video *video; /* the video file that is being written, or NULL */
    struct frames frames;
    /* Sounds of the batch's videos, each kept until its video is complete; pcm NULL: none. */
    struct sound sounds[SLUICE_BATCH_MAX];
    struct previews previews;
    bool has_run;   /* a run was started, so sluice_report has a report */
    double started; /* progress_clock() at the start of the program */
    struct progress progress;
    struct sluice_error failure; /* first error of a callback; code 0: none */
};

/* Opens model and session; fills the request from the model's defaults and the flags. */
int generation_open(struct generation *generation, struct sluice_error *e);
void generation_close(struct generation *generation);

#endif
