/* Names of output files, and checks before the run that every output can be written and overwrites no input:
 * a lost model, latent or prompt cannot be generated again. */
#ifndef SLUICE_CLI_OUTPUT_H
#define SLUICE_CLI_OUTPUT_H

#include "cli/args.h"

#include <limits.h>
#include <stdbool.h>

/* One image or video of a run, for making its file name. */
struct output_item {
    int number, n;       /* number: position of the image or video in the run, from 1 to n */
    uint64_t first_seed; /* seed of the first image or video */
    int frames;          /* frames per video; 1: images; 0: not known yet */
    int frame;           /* frame number from 1 if each frame is a file of its own, else 0 */
};

/* True if a video of `frames` frames is written as one image per frame. */
bool output_is_frames(const char *pattern, int frames);
/* Makes a file name from --output: %d is the number, %03d the number with 3 digits, %s the seed, %% a percent
 * sign. Without %d, "-NUMBER" is inserted before the extension if n > 1. For frames, %d is the frame number;
 * with several videos and no %s it is "VIDEO-FRAME". A folder gets frames 0001.png, 0002.png, ... */
int output_name(const char *pattern, const struct output_item *item, char out[PATH_MAX],
                struct sluice_error *e);
/* Checks all outputs of the run: extensions, folders, that no two outputs are the same file, that no input is
 * overwritten, and that each file can be created. Exit code 2 or 6. Creates only the folders of --dump and
 * --prompt-cache. */
int output_check(const struct args *args, struct output_item item, struct sluice_error *e);
/* Warns about outputs that are pipes without a reader. Call once, before the run. */
void output_check_pipes(const struct args *args, struct output_item item);
/* USAGE if the image format does not allow the width or height of the request. */
int output_check_size(const struct args *args, const struct sluice_request *request, struct sluice_error *e);
/* The same for the size of an enlarged image, in pixels. */
int output_check_enlarged(const struct args *args, int width, int height, struct sluice_error *e);
/* Checks that --report names neither another output nor an input. After failure no report may be written. */
int output_check_report(const struct args *args, struct output_item item, struct sluice_error *e);
/* USAGE if `name` of the given flag is one of the images or videos of the run. NULL is allowed. */
int output_check_no_image(const struct args *args, struct output_item item, const char *flag,
                          const char *name, struct sluice_error *e);
/* USAGE if both names are the same file. Names may be NULL. */
int output_check_distinct(const char *flag, const char *name, const char *other_flag, const char *other,
                          struct sluice_error *e);
/* Fails with USAGE and both flags if the existing file `name` of the output flag is an input: a file that
 * another flag reads (also through links), a file in the folder of a model or part, a companion of a
 * part's file, or a .safetensors file in --lora-dir. New files, devices, pipes and "-" are allowed. */
int output_check_inputs(const struct args *args, const char *flag, const char *name, struct sluice_error *e);
/* Advances item to the next image, video or frame; false after the last. */
bool output_next(struct output_item *item);
/* Returns --output or the default: output.mp4 for several frames if it can be written, else output.png. */
const char *output_pattern(const struct args *args, int frames);
/* Sets the memory that encoding the images or videos needs, in the request (caller_bytes,
 * image_bytes_a_pixel). alpha: images have alpha; sound: videos have sound. */
void output_count_memory(const struct args *args, int frames, bool alpha, bool sound,
                         struct sluice_request *request);
/* Makes the name of the WAV file for the sound of a GIF or of frames: the output's name with the extension
 * .wav, that of a folder with .wav behind it. Exit code 6 if the name is too long. */
int output_sound_name(const char *pattern, struct output_item item, char out[PATH_MAX],
                      struct sluice_error *e);

#endif
