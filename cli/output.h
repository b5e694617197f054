/* Names of pictures and videos, and the checks before any work that everything asked for can be written. */
#ifndef SLUICE_CLI_OUTPUT_H
#define SLUICE_CLI_OUTPUT_H

#include "cli/args.h"

#include <limits.h>
#include <stdbool.h>

/* Which pictures or clips names are made for. */
struct output_of {
    int number, n;       /* from 1, of so many */
    uint64_t first_seed; /* of number 1 */
    int frames;          /* of each; 1: pictures; 0: that is not known yet */
    int frame;           /* the one that a name is wanted of, from 1, where each is a picture */
};

/* How clips are written: in a file each, or as a picture a frame. */
bool output_is_video(const char *pattern);
bool output_is_frames(const char *pattern, int frames);
/* %d is the number, %03d of so many digits, %s the seed, %% a %; without, -NUMBER before the extension when
 * n > 1. Where frames are pictures %d is the frame's number, always there, and of several clips without %s
 * it follows the clip's; a folder has frames 0001.png ... */
int output_name(const char *pattern, const struct output_of *of, char out[PATH_MAX], struct sluice_error *e);
/* Extensions, folders, that no two outputs are one file and none an input. Of all that are numbered; exit 2
 * or 6. Leaves nothing behind but the folder of --dump. */
int output_check(const struct args *args, struct output_of of, struct sluice_error *e);
/* USAGE where the format has no pictures of such sides as are asked for. */
int output_check_side(const struct args *args, const struct sluice_request *request, struct sluice_error *e);
/* Is --report a file of its own, and no input? Where it is not, no report may be written, not even of this
 * mistake. */
int output_check_report(const struct args *args, struct output_of of, struct sluice_error *e);
/* USAGE if both names, which may be NULL, are one file's. */
int output_check_distinct(const char *flag, const char *name, const char *other_flag, const char *other,
                          struct sluice_error *e);
/* The first name of all under that pattern, and the one behind each; false: there are no more. */
struct output_of output_first(struct output_of of, const char *pattern);
bool output_next(struct output_of *of);
/* What -o says, or its default for so many frames. */
const char *output_pattern(const struct args *args, int frames);
/* What writing pictures or videos of so many frames takes, to be counted in a request. */
void output_fill_bytes(const struct args *args, int frames, struct sluice_request *request);

#endif
