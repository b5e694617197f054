/* `sluice bench checkpoint`: writes a model of random weights. Until it is complete, the folder is
 * DIR.tmp.PID and has a lock file, so that leftovers.h removes the folder of a killed process. */
#include "cli/bench.h"

#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/outfile.h"
#include "cli/request.h"
#include "cli/messages.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct writing {
    const struct args *args;
    char temporary[PATH_MAX];
    int lock_file; /* lock file, open while the folder is written */
    int percent;   /* percent that was printed last */
};

/* sluice_checkpoint_write cannot be cancelled, so Ctrl-C exits from its callback. */
static void end_if_interrupted(const struct writing *writing) {
    struct sluice_error cancelled;
    if (!interrupt_pending()) return;
    leftovers_remove_tree(writing->temporary);
    interrupt_error(&cancelled);
    message_failure(&cancelled);
    _exit(cancelled.exit_code);
}

static void checkpoint_on_progress(void *user, double fraction) {
    struct writing *writing = user;
    char line[64];
    int percent = (int)(100 * fraction);
    end_if_interrupted(writing);
    if (writing->args->quiet || writing->args->no_progress || percent == writing->percent) return;
    snprintf(line, sizeof line, "writing %d %%", percent);
    if (message_on_terminal()) {
        message_live(line);
    } else if (percent / 10 != writing->percent / 10) {
        message_note("%s", line);
    }
    writing->percent = percent;
}

/* Requires a folder that is absent or empty; rename(2) replaces an empty folder. */
static int check_empty(const char *folder, struct sluice_error *e) {
    DIR *dir = opendir(folder);
    int n = 0;
    if (!dir) return errno == ENOENT ? SLUICE_OK : fail_output(e, folder, errno);
    while (n < 3 && readdir(dir)) n++;
    closedir(dir);
    return n < 3 ? SLUICE_OK : fail_output(e, folder, ENOTEMPTY);
}

static int make_temporary(const char *folder, struct writing *writing, struct sluice_error *e) {
    size_t length = strlen(folder), out_bytes = sizeof writing->temporary;
    while (length > 1 && folder[length - 1] == '/') length--;
    int bytes = snprintf(writing->temporary, out_bytes, "%.*s.tmp.%ld", (int)length, folder, (long)getpid());
    if (bytes < 0 || (size_t)bytes >= out_bytes) return fail_output(e, folder, ENAMETOOLONG);
    leftovers_clear(writing->temporary);
    leftovers_remove_tree(writing->temporary);
    if (mkdir(writing->temporary, 0777)) return fail_output(e, folder, errno);
    writing->lock_file = leftovers_lock(writing->temporary);
    if (writing->lock_file >= 0) return SLUICE_OK;
    int failed = errno;
    leftovers_remove_tree(writing->temporary);
    return fail_output(e, folder, failed);
}

static int write_checkpoint(const struct args *args, uint64_t seed, struct sluice_error *e) {
    struct writing writing = {.args = args, .percent = -1};
    const char *folder = args->operands[2];
    int status = check_empty(folder, e);
    if (!status) status = make_temporary(folder, &writing, e);
    if (status) return status;
    interrupt_gracefully();
    status = sluice_checkpoint_write(args->operands[1], writing.temporary, args->dimensions, seed,
                                     checkpoint_on_progress, &writing, e);
    message_live_end();
    if (!status && (leftovers_unlock(writing.temporary) || rename(writing.temporary, folder)))
        status = fail_output(e, folder, errno);
    close(writing.lock_file);
    if (status) {
        leftovers_remove_tree(writing.temporary);
    } else if (!args->quiet) {
        message_note("wrote %s (seed %llu)", folder, (unsigned long long)seed);
    }
    return status;
}

static bool adapter_on_progress(void *user, double fraction) {
    (void)user;
    (void)fraction;
    return !interrupt_pending();
}

static int cli_write_adapter(const struct args *args, uint64_t seed, struct sluice_error *e) {
    const char *path = args->operands[2];
    struct sluice_adapter_options options = {.struct_size = sizeof options,
                                             .family = args->operands[1],
                                             .dimensions = args->dimensions,
                                             .dialect = args->adapter,
                                             .rank = args->rank ? args->rank : 16,
                                             .text_encoders = args->text_encoders,
                                             .seed = seed,
                                             .on_progress = adapter_on_progress};
    interrupt_gracefully();
    outfile_set_library_path(path);
    int status = sluice_adapter_write(&options, path, e);
    outfile_set_library_path(NULL);
    if (!status && !args->quiet) message_note("wrote %s (seed %llu)", path, (unsigned long long)seed);
    return status;
}

static int check_adapter_flags(const struct args *args, struct sluice_error *e) {
    if (args->adapter || (!args->rank && !args->text_encoders)) return SLUICE_OK;
    return fail(e, SLUICE_USAGE,
                "--rank and --text-encoders need --adapter" WHERE "sluice bench checkpoint" EXPECTED
                "--adapter DIALECT too");
}

static void print_family(const json_t *family) {
    size_t i;
    json_t *d;
    printf("%s: --dims NAME=VALUE,... with these names, and dtype=TYPE[/TYPE...] (published: bf16)\n",
           field_string(family, "name"));
    printf("  %-16s %-14s %9s %7s %7s\n", "dimension", "part", "published", "min", "max");
    json_array_foreach(json_object_get(family, "dimensions"), i, d)
        printf("  %-16s %-14s %9.0f %7.0f %7.0f\n", field_string(d, "name"), field_string(d, "component"),
               field_number(d, "published"), field_number(d, "least"), field_number(d, "most"));
}

static int print_families(struct sluice_error *e) {
    size_t i;
    json_t *family, *root;
    char *json = NULL;
    if (sluice_checkpoint_families(&json, e)) return e->code;
    root = json_loads(json, 0, NULL);
    sluice_free(json);
    if (!root) return fail(e, SLUICE_INTERNAL, "the library's list of families is not JSON");
    json_array_foreach(json_object_get(root, "families"), i, family) print_family(family);
    json_decref(root);
    return SLUICE_OK;
}

int bench_checkpoint(const struct args *args, struct sluice_error *e) {
    uint64_t seed = 0;
    bool help = args->n_operands == 2 && strcmp(args->operands[1], "help") == 0;
    if (help) return print_families(e);
    if (args->n_operands < 3) {
        return fail(e, SLUICE_USAGE,
                    "family and folder are missing" WHERE "sluice bench checkpoint" EXPECTED
                    "FAMILY DIR (sluice bench checkpoint help lists families and dimensions)");
    }
    int status = check_adapter_flags(args, e);
    if (!status) status = request_seed(args, &seed, e);
    if (!status && args->seed.random) message_note("seed %llu", (unsigned long long)seed);
    if (status) return status;
    return args->adapter ? cli_write_adapter(args, seed, e) : write_checkpoint(args, seed, e);
}
