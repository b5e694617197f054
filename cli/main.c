/* main: runs the command and prints its error. With an exit code other than 0 the last line on stderr, and
 * no other, begins with "sluice: ". Only main and a second Ctrl-C (outfile.c) print it. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/outfile.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static int run_command(const struct command *command, int argc, char **argv, struct sluice_error *e) {
    struct args args;
    int status = args_parse(&args, command, argc, argv, e);
    if (args.help) {
        help_command(command, args.help_all);
    } else if (status) {
        /* A run refused for an invalid flag also writes its report, because scripts wait for the file. */
        struct output_item item = {1, args.batch ? args.batch : 1, args.seed.value, args.frames, 0};
        struct sluice_error shared;
        if (output_check_report(&args, item, &shared) == SLUICE_OK)
            report_write(&(struct report){.name = args.report, .seed = args.seed.value}, e);
    } else {
        status = command->run(&args, e);
    }
    args_destroy(&args);
    return status;
}

static int main_dispatch(int argc, char **argv, struct sluice_error *e) {
    const char *first = argc > 1 ? argv[1] : "";
    const struct command *command = command_find(first);
    if (command && command->bit == BENCH && argc > 2 && bench_check_moved(argv[2], e)) return e->code;
    if (command) return run_command(command, argc - 2, argv + 2, e);
    if (strcmp(first, "--version") == 0) {
        printf("sluice %s\n", sluice_version());
    } else if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || strcmp(first, "help") == 0) {
        command = command_find(argc > 2 ? argv[2] : "");
        command ? help_command(command, false) : help_program();
    } else if (strcmp(first, "--help-all") == 0) {
        help_everything();
    } else {
        const char *nearest = command_nearest(first);
        char what[96] = "no command is given";
        if (nearest)
            snprintf(what, sizeof what, "unknown command, did you mean %s?", nearest);
        else if (*first && *first != '-')
            snprintf(what, sizeof what, "unknown command");
        if (*first == '-')
            return fail(e, SLUICE_USAGE,
                        "%s" FOUND "%s" EXPECTED "a command before the flags, such as sluice generate %s ...",
                        what, first, first);
        return fail(e, SLUICE_USAGE, "%s" FOUND "%s" EXPECTED "a command that sluice --help lists", what,
                    first);
    }
    return SLUICE_OK;
}

int main(int argc, char **argv) {
    struct sluice_error error = {0};
    /* Opens /dev/null for closed descriptors 0, 1 and 2; an output file could otherwise become stderr and
     * receive messages. A closed stdout is opened read-only, so that writes to it still fail. */
    for (int file = 0; file < 3; file++)
        if (fcntl(file, F_GETFD) == -1 && errno == EBADF) open("/dev/null", file == 2 ? O_WRONLY : O_RDONLY);
    flags_init();
    interrupt_install();
    int status = main_dispatch(argc, argv, &error);
    struct sluice_error unwritten;
    if (outfile_flush_text(&unwritten) && !status) {
        error = unwritten;
        status = error.code;
    }
    if (!status) return 0;
    char cwd[PATH_MAX]; /* the path of a model may be relative to a current folder that was deleted */
    if (error.exit_code == 3 && error.where[0] != '/' && !getcwd(cwd, sizeof cwd) && errno == ENOENT)
        message_note("note: the current folder no longer exists");
    message_failure(&error);
    return error.exit_code;
}
