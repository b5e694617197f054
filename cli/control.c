#include "cli/control.h"

#include "cli/fail.h"
#include "cli/picture.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_frame(const struct dirent *entry) {
    return entry->d_name[0] != '.' && picture_has_extension(entry->d_name);
}

static int refuse_folder(const char *folder, const char *problem, const char *expected,
                         struct sluice_error *e) {
    return fail(e, SLUICE_IO, "cannot use the control video: %s" WHERE "%s" EXPECTED "%s", problem, folder,
                expected);
}

static int take_names(const char *folder, struct dirent **entries, int n, struct control *control,
                      struct sluice_error *e) {
    control->names = calloc((size_t)n, sizeof *control->names);
    control->frames = calloc((size_t)n, sizeof *control->frames);
    control->list = calloc((size_t)n, sizeof *control->list);
    if (!control->names || !control->frames || !control->list) return fail(e, SLUICE_MEMORY, "no memory");
    for (; control->n < n; control->n++)
        if (asprintf(&control->names[control->n], "%s/%s", folder, entries[control->n]->d_name) < 0)
            return fail(e, SLUICE_MEMORY, "no memory");
    return SLUICE_OK;
}

int control_open(const char *folder, struct control *control, unsigned *notes, struct sluice_error *e) {
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, is_frame, versionsort), status = SLUICE_OK;
    if (n < 0)
        status = refuse_folder(folder, strerror(errno), "a folder of images", e);
    else if (!n || n > CONTROL_FRAMES_MAX)
        status = refuse_folder(folder, n ? "too many images" : "no images",
                               "the frames of a video, as f-1.png, f-2.png ...", e);
    else
        status = take_names(folder, entries, n, control, e);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    for (int i = 0; i < control->n && !status; i++) {
        unsigned lost = 0;
        status = picture_open(control->names[i], &control->frames[i], &lost, e);
        control->list[i] = &control->frames[i];
        *notes |= lost;
    }
    return status;
}

void control_destroy(struct control *control) {
    for (int i = 0; i < control->n; i++) free(control->names[i]);
    free(control->names);
    free(control->frames);
    free(control->list);
    *control = (struct control){0};
}
