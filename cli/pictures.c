/* The pictures that flags name: see pictures.h. */
#include "cli/pictures.h"

#include "cli/picture_read.h"
#include "cli/say.h"

static int read_one(const struct args *args, const char *name, struct sluice_picture *picture,
                    struct sluice_error *e) {
    bool transparent = false;
    int status = name ? picture_read(name, picture, &transparent, e) : SLUICE_OK;
    if (transparent && !args->quiet) say_note("%s: its transparency is not used", name);
    return status;
}

int pictures_read(const struct args *args, struct pictures *pictures, struct sluice_error *e) {
    int status = read_one(args, args->init_image, &pictures->init, e);
    if (!status) status = read_one(args, args->mask, &pictures->mask, e);
    for (int i = 0; i < args->references.n && !status; i++) {
        status = read_one(args, args->references.at[i], &pictures->references[i], e);
        pictures->reference_list[i] = &pictures->references[i];
        pictures->n_references = i + 1;
    }
    return status;
}

void pictures_free(struct pictures *pictures) {
    picture_free(&pictures->init);
    picture_free(&pictures->mask);
    for (int i = 0; i < pictures->n_references; i++) picture_free(&pictures->references[i]);
}

void pictures_fill(const struct pictures *pictures, struct sluice_request *request) {
    if (pictures->init.rgb) request->init_image = &pictures->init;
    if (pictures->mask.rgb) request->mask = &pictures->mask;
    if (pictures->n_references) request->references = pictures->reference_list;
    request->n_references = pictures->n_references;
}
