/* Converts flags to a request of the library, and opens the files that the request reads. Combinations of
 * flags that cannot work are errors. */
#ifndef SLUICE_CLI_REQUEST_H
#define SLUICE_CLI_REQUEST_H

#include "cli/args.h"

/* True if the command only enlarges an image: `upscale`, or `plan` of an image and an upscaler alone. */
bool request_upscales(const struct args *args);
/* Refuses combinations of flags that no model supports: USAGE. */
int request_check(const struct args *args, struct sluice_error *e);
/* The seed of --seed, or a random one for -1. */
int request_seed(const struct args *args, uint64_t *seed, struct sluice_error *e);

/* Contents of the files of --plan and --rates (NULL without the flag), and the input images. Their headers
 * are read before a model is opened; the library reads the pixels later and refuses unsuitable images. */
struct request_files {
    char *plan, *rates;
    struct sluice_picture init, end, mask, references[STRINGS_MAX]; /* width 0: the image's flag is absent */
    /* Properties of the images (enum picture_note); for --control, of all frames together. */
    unsigned init_notes, end_notes, mask_notes, reference_notes[STRINGS_MAX], control_notes;
    const struct sluice_picture *reference_list[STRINGS_MAX];
    int n_references;
    struct sluice_picture redux[STRINGS_MAX];
    const struct sluice_picture *redux_list[STRINGS_MAX];
    int n_redux;
    /* Controls of the request; pictures and notes of control i: [i][0] image, [1] mask, [2] image to inpaint.
     */
    struct sluice_control controls[SLUICE_CONTROLS_MAX];
    int n_controls;
    struct sluice_picture control_pictures[SLUICE_CONTROLS_MAX][3];
    unsigned control_picture_notes[SLUICE_CONTROLS_MAX][3];
    int n_control; /* frames of the control video (--control), which VACE reads */
    struct sluice_picture *control;
    const struct sluice_picture **control_list;
    char **control_names;
};

/* Reads the files. Free with request_free_files, also after failure. */
int request_read_files(const struct args *args, struct request_files *files, struct sluice_error *e);
/* Prints a note for each image whose transparency or animation the model ignores. */
void request_note_images(const struct args *args, const struct request_files *files,
                         const sluice_model *model);
void request_free_files(struct request_files *files);
/* Fills the request with the model's defaults, then with the flags. Borrows args and files. */
void request_fill(struct sluice_request *request, const sluice_model *model, const struct args *args,
                  uint64_t seed, const struct request_files *files);
/* Warns about parts of the prompts that have no effect in this request. */
void request_warn(const struct sluice_request *request, const struct args *args);

#endif
