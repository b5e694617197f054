#include "cli/input_images.h"

#include "cli/picture.h"
#include "cli/messages.h"

#include <string.h>

static void note_unused(const struct args *args, const char *name, unsigned notes) {
    if (args->quiet) return;
    if (notes & PICTURE_TRANSPARENT) message_note("%s: transparency is ignored", name);
    if (notes & PICTURE_ANIMATED) message_note("%s is animated: only the first frame is used", name);
}

/* Callback of the library: decodes an image. picture->user: struct args. */
static int read_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *e) {
    unsigned notes = 0;
    int status = picture_read(picture, &(struct row_sink){take, to}, &notes, e);
    note_unused(picture->user, picture->name, notes);
    return status;
}

struct place {
    uint8_t *at;
    size_t row_bytes;
};

static void copy_row(void *to, const uint8_t *row) {
    struct place *next = to;
    memcpy(next->at, row, next->row_bytes);
    next->at += next->row_bytes;
}

static int read_pixels(const struct sluice_picture *picture, uint8_t *rgb, struct sluice_error *e) {
    struct place first = {rgb, 3 * (size_t)picture->width};
    return read_rows(picture, copy_row, &first, e);
}

static void give_readers(const struct args *args, struct sluice_picture *picture) {
    picture->read = read_pixels;
    picture->read_rows = read_rows;
    picture->user = (void *)(uintptr_t)args;
}

static int open_one(const struct args *args, const char *name, struct sluice_picture *picture,
                    struct sluice_error *e) {
    unsigned notes = 0;
    int status = name ? picture_open(name, picture, &notes, e) : SLUICE_OK;
    give_readers(args, picture);
    note_unused(args, name, notes);
    return status;
}

static int open_control(const struct args *args, struct control *control, struct sluice_error *e) {
    unsigned notes = 0;
    int status = args->control ? control_open(args->control, control, &notes, e) : SLUICE_OK;
    for (int i = 0; i < control->n; i++) give_readers(args, &control->frames[i]);
    note_unused(args, args->control, notes);
    return status;
}

int input_images_open(const struct args *args, struct input_images *input_images, struct sluice_error *e) {
    int status = open_one(args, args->init_image, &input_images->init, e);
    if (!status) status = open_one(args, args->end_image, &input_images->end, e);
    if (!status) status = open_one(args, args->mask, &input_images->mask, e);
    for (int i = 0; i < args->references.n && !status; i++) {
        status = open_one(args, args->references.at[i], &input_images->references[i], e);
        input_images->reference_list[i] = &input_images->references[i];
        input_images->n_references = i + 1;
    }
    return status ? status : open_control(args, &input_images->control, e);
}

void input_images_close(struct input_images *input_images) {
    control_destroy(&input_images->control);
}

void input_images_fill(const struct input_images *input_images, struct sluice_request *request) {
    if (input_images->init.width) request->init_image = &input_images->init;
    if (input_images->end.width) request->end_image = &input_images->end;
    if (input_images->mask.width) request->mask = &input_images->mask;
    if (input_images->n_references) request->references = input_images->reference_list;
    request->n_references = input_images->n_references;
    request->control = input_images->control.list;
    request->n_control = input_images->control.n;
}
