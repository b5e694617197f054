/* The pictures that flags name: see pictures.h. */
#include "cli/pictures.h"

#include "cli/picture_read.h"
#include "cli/say.h"

#include <string.h>

static void say_lost(const struct args *args, const char *name, unsigned notes) {
    if (args->quiet) return;
    if (notes & PICTURE_TRANSPARENT) say_note("%s: its transparency is not used", name);
    if (notes & PICTURE_ANIMATED) say_note("%s moves: its first picture is used", name);
}

/* Of a picture that a run needs: its user is the program's arguments. */
static int read_rows(const struct sluice_picture *picture, void (*take)(void *to, const uint8_t *row),
                     void *to, struct sluice_error *e) {
    unsigned notes = 0;
    int status = picture_read(picture, &(struct row_taker){take, to}, &notes, e);
    say_lost(picture->user, picture->name, notes);
    return status;
}

/* Where the next row goes. */
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
    say_lost(args, name, notes);
    return status;
}

static int open_control(const struct args *args, struct control *control, struct sluice_error *e) {
    unsigned notes = 0;
    int status = args->control ? control_open(args->control, control, &notes, e) : SLUICE_OK;
    for (int i = 0; i < control->n; i++) give_readers(args, &control->frames[i]);
    say_lost(args, args->control, notes);
    return status;
}

int pictures_open(const struct args *args, struct pictures *pictures, struct sluice_error *e) {
    int status = open_one(args, args->init_image, &pictures->init, e);
    if (!status) status = open_one(args, args->end_image, &pictures->end, e);
    if (!status) status = open_one(args, args->mask, &pictures->mask, e);
    for (int i = 0; i < args->references.n && !status; i++) {
        status = open_one(args, args->references.at[i], &pictures->references[i], e);
        pictures->reference_list[i] = &pictures->references[i];
        pictures->n_references = i + 1;
    }
    return status ? status : open_control(args, &pictures->control, e);
}

void pictures_close(struct pictures *pictures) {
    control_destroy(&pictures->control);
}

void pictures_fill(const struct pictures *pictures, struct sluice_request *request) {
    if (pictures->init.width) request->init_image = &pictures->init;
    if (pictures->end.width) request->end_image = &pictures->end;
    if (pictures->mask.width) request->mask = &pictures->mask;
    if (pictures->n_references) request->references = pictures->reference_list;
    request->n_references = pictures->n_references;
    request->control = pictures->control.list;
    request->n_control = pictures->control.n;
}
