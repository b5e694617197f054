/* `sluice-dev checkpoint`: writes a model or an adapter of random weights. During the writing the model's
 * folder is DIR.tmp.PID with a lock file, so that the functions of outfile.h can remove the folder of a
 * killed process. */
#include "bench/dev/checkpoint.h"

#include "bench/dev/dev.h"
#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/messages.h"
#include "cli/outfile.h"
#include "engine/open/model.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct writing {
    const struct dev_args *args;
    int percent; /* percentage in the most recent progress line */
};

static bool on_progress(void *user, double fraction) {
    struct writing *writing = user;
    char line[64];
    int percent = (int)(100 * fraction);
    if (!writing->args->quiet && !writing->args->no_progress && percent != writing->percent) {
        snprintf(line, sizeof line, "writing %d %%", percent);
        if (message_on_terminal()) {
            message_live(line);
        } else if (percent / 10 != writing->percent / 10) {
            message_note("%s", line);
        }
        writing->percent = percent;
    }
    return !interrupt_pending();
}

/* Creates and locks the temporary folder. The output folder must be absent or empty: rename(2) replaces only
 * empty folders. */
static int make_temporary(const char *folder, char temporary[PATH_MAX], int *lock_file,
                          struct sluice_error *e) {
    size_t length = strlen(folder);
    DIR *dir = opendir(folder);
    int n = 0;
    if (!dir && errno != ENOENT) return fail_output(e, folder, errno);
    while (dir && n < 3 && readdir(dir)) n++;
    if (dir) closedir(dir);
    if (n == 3) return fail_output(e, folder, ENOTEMPTY);
    while (length > 1 && folder[length - 1] == '/') length--;
    int bytes = snprintf(temporary, PATH_MAX, "%.*s.tmp.%ld", (int)length, folder, (long)getpid());
    if (bytes < 0 || bytes >= PATH_MAX) return fail_output(e, folder, ENAMETOOLONG);
    leftovers_clear(temporary);
    leftovers_remove_tree(temporary);
    if (mkdir(temporary, 0777)) return fail_output(e, folder, errno);
    *lock_file = leftovers_lock(temporary);
    if (*lock_file >= 0) return SLUICE_OK;
    int failed = errno;
    leftovers_remove_tree(temporary);
    return fail_output(e, folder, failed);
}

static int write_model(const struct dev_args *args, const struct checkpoint_options *options,
                       struct sluice_error *e) {
    const char *folder = args->operands[1];
    char temporary[PATH_MAX];
    struct error error = {0};
    int lock_file = -1, status = make_temporary(folder, temporary, &lock_file, e);
    if (status) return status;
    interrupt_gracefully();
    if (checkpoint_write(options, temporary, &error) != OK) status = publish_error(&error, e);
    message_live_end();
    if (!status && (leftovers_unlock(temporary) || rename(temporary, folder)))
        status = fail_output(e, folder, errno);
    close(lock_file);
    if (status) leftovers_remove_tree(temporary);
    return status;
}

static int write_adapter(const struct dev_args *args, const struct checkpoint_options *options,
                         struct sluice_error *e) {
    struct adapter_options adapter = {.base = *options,
                                      .dialect = args->adapter,
                                      .rank = args->rank ? args->rank : 16,
                                      .text_encoders = args->text_encoders};
    struct error error = {0};
    interrupt_gracefully();
    outfile_set_library_path(args->operands[1]);
    adapter_write(&adapter, args->operands[1], &error);
    outfile_set_library_path(NULL);
    return error.code == OK ? SLUICE_OK : publish_error(&error, e);
}

static int print_families(struct sluice_error *e) {
    size_t i, k;
    json_t *family, *d, *list = checkpoint_families();
    if (!list) return fail(e, SLUICE_MEMORY, "no memory for a list of families");
    json_array_foreach(list, i, family) {
        printf("%s: --dims NAME=VALUE,... with these names, and dtype=TYPE[/TYPE...] (published: bf16)\n",
               field_string(family, "name"));
        printf("  %-16s %-14s %9s %7s %7s\n", "dimension", "part", "published", "min", "max");
        json_array_foreach(json_object_get(family, "dimensions"), k, d)
            printf("  %-16s %-14s %9.0f %7.0f %7.0f\n", field_string(d, "name"), field_string(d, "component"),
                   field_number(d, "published"), field_number(d, "least"), field_number(d, "most"));
    }
    json_decref(list);
    return SLUICE_OK;
}

int checkpoint_command(const struct dev_args *args, struct sluice_error *e) {
    struct writing writing = {.args = args, .percent = -1};
    struct checkpoint_options options = {.family = args->operands[0],
                                         .dimensions = args->dimensions,
                                         .seed = args->seed,
                                         .on_progress = on_progress,
                                         .user = &writing};
    if (args->n_operands == 1 && strcmp(args->operands[0], "help") == 0) return print_families(e);
    if (args->n_operands < 2)
        return fail(e, SLUICE_USAGE,
                    "family and folder are missing" WHERE "sluice-dev checkpoint" EXPECTED
                    "FAMILY DIR (sluice-dev checkpoint help lists families and dimensions)");
    if (!args->adapter && (args->rank || args->text_encoders))
        return fail(e, SLUICE_USAGE,
                    "--rank and --text-encoders need --adapter" WHERE "sluice-dev checkpoint" EXPECTED
                    "--adapter DIALECT too");
    int status = args->adapter ? write_adapter(args, &options, e) : write_model(args, &options, e);
    if (!status && !args->quiet)
        message_note("wrote %s (seed %llu)", args->operands[1], (unsigned long long)args->seed);
    return status;
}
