#include "cli/frames.h"

#include "cli/fail.h"
#include "cli/outfile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int name_both(const struct frames *frames, int frame, char name[PATH_MAX], char temporary[PATH_MAX],
                     struct sluice_error *e) {
    struct output_item item = frames->item;
    item.frame = frame;
    if (output_name(frames->pattern, &item, name, e)) return e->code;
    const char *slash = strrchr(name, '/');
    int bytes = snprintf(temporary, PATH_MAX, "%s/%s", frames->temporary, slash ? slash + 1 : name);
    return bytes < PATH_MAX ? SLUICE_OK : fail_output(e, name, ENAMETOOLONG);
}

/* Creates the target folder, and the temporary folder next to the first frame. */
static int make_folder(struct frames *frames, struct sluice_error *e) {
    char first[PATH_MAX];
    if (output_name(frames->pattern, &frames->item, first, e)) return e->code;
    const char *base = leftovers_folder(first, frames->target);
    int bytes = snprintf(frames->temporary, PATH_MAX, "%s.tmp.%ld", first, (long)getpid());
    if (!base || bytes >= PATH_MAX) return fail_output(e, first, ENAMETOOLONG);
    frames->made = mkdir(frames->target, 0777) == 0;
    leftovers_clear(frames->temporary);
    if (!mkdir(frames->temporary, 0777)) frames->lock_file = leftovers_lock(frames->temporary);
    return frames->lock_file >= 0 ? SLUICE_OK : fail_output(e, frames->target, errno);
}

static int release_lock(struct frames *frames) {
    int problem = leftovers_unlock(frames->temporary) || rmdir(frames->temporary) ? errno : 0;
    close(frames->lock_file);
    frames->pattern = NULL;
    return problem;
}

/* Renames all frames to their final names. On failure removes the frames that already have final names. */
static int rename_all(struct frames *frames, struct sluice_error *e) {
    char name[PATH_MAX], temporary[PATH_MAX];
    struct sluice_error ignored;
    int n = 0, status = SLUICE_OK;
    for (; n < frames->item.frames && !status; n++) {
        status = name_both(frames, n + 1, name, temporary, e);
        if (!status && rename(temporary, name)) status = fail_output(e, name, errno);
    }
    for (; status && n > 1; n--)
        if (!name_both(frames, n - 1, name, temporary, &ignored)) unlink(name);
    if (status) return status;
    int problem = release_lock(frames);
    return problem ? fail_output(e, name, problem) : SLUICE_OK;
}

int frames_put(struct frames *frames, const char *pattern, struct output_item item,
               const struct picture_content *content, struct sluice_error *e) {
    char name[PATH_MAX], temporary[PATH_MAX];
    int status = SLUICE_OK;
    if (!frames->pattern) {
        *frames = (struct frames){.pattern = pattern, .lock_file = -1};
        frames->item = item;
        status = make_folder(frames, e);
    }
    frames->item.frame = item.frame;
    if (!status) status = name_both(frames, item.frame, name, temporary, e);
    if (!status && (status = picture_write(temporary, content, e))) fail_where(e, "%s", name);
    if (!status && item.frame == item.frames) status = rename_all(frames, e);
    if (status) frames_abandon(frames);
    return status;
}

void frames_abandon(struct frames *frames) {
    if (!frames->pattern) return;
    leftovers_remove_tree(frames->temporary);
    if (frames->lock_file >= 0) close(frames->lock_file);
    if (frames->made) rmdir(frames->target);
    frames->pattern = NULL;
}
