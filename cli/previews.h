/* Shows preview images: those of the first image on a terminal that can display images, else (or with
 * --preview-path) in a file that each preview overwrites. */
#ifndef SLUICE_CLI_PREVIEWS_H
#define SLUICE_CLI_PREVIEWS_H

#include "cli/output.h"
#include "cli/terminal.h"

struct previews {
    struct terminal terminal;
    bool announced; /* the file's name has been printed */
    bool failed;    /* a file could not be written: no more previews */
};

/* Checks that the preview files of all images can be written, and are neither an input nor another output.
 * Exit code 2 or 6. */
int previews_check(const struct args *args, struct output_item item, struct sluice_error *e);
/* Bytes of memory for showing previews, which plans count; the same for all terminals. */
int64_t previews_bytes(const struct args *args);
/* Shows a preview. A failure prints one warning and does not end the run. item: all images of the run. */
void previews_show(struct previews *previews, const struct args *args, struct output_item item,
                   const struct sluice_preview *preview);

#endif
