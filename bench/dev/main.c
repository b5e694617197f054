/* Main program of sluice-dev, a developer tool that is neither installed nor part of the library.
 *
 * Exit codes and error lines are those of sluice: with an exit code other than 0 the last line on stderr,
 * and no other, begins with "sluice: ". */
#include "bench/dev/dev.h"

#include "bench/dev/checkpoint.h"
#include "cli/fail.h"
#include "cli/messages.h"
#include "cli/outfile.h"
#include "engine/sluice_bench.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char help[] =
    "usage: sluice-dev checkpoint FAMILY DIR [flags]\n"
    "       sluice-dev checkpoint FAMILY FILE.safetensors --adapter DIALECT [flags]\n"
    "       sluice-dev checkpoint help\n"
    "       sluice-dev stream [flags]\n"
    "\n"
    "checkpoint writes a model or an adapter (LoRA) of random weights; `checkpoint help` lists families and\n"
    "dimensions. stream prints the time of a streamed step against its lower bound and other layouts.\n"
    "\n"
    "  --dims LIST        model sizes name=value,... instead of the published ones; clip_g.name=value "
    "changes\n"
    "                     one part, dtype=TYPE[/TYPE...] the type of the weights\n"
    "  --seed N           seed of the weights; default 0, -1 picks a random seed and prints it\n"
    "  --adapter DIALECT  write an adapter with key names as of diffusers, kohya, comfy ...; an unknown "
    "name\n"
    "                     lists all\n"
    "  --rank N           rank of the adapter; default 16\n"
    "  --text-encoders    the adapter changes the text encoders too\n"
    "  --clock WHICH      timed: virtual, equal results on every machine (takes seconds; default); paced: "
    "real\n"
    "                     time, the CPU behind a simulated bus (takes minutes)\n"
    "  -t, --threads N    CPU threads of the paced clock; default: the physical cores\n"
    "  --json             print JSON instead of the table\n"
    "  -q, --quiet        print only warnings and errors\n"
    "  --no-progress      print no progress line\n";

enum {
    FLAG_DIMS = 256,
    FLAG_SEED,
    FLAG_ADAPTER,
    FLAG_RANK,
    FLAG_TEXTS,
    FLAG_CLOCK,
    FLAG_JSON,
    FLAG_NO_PROGRESS
};
static const struct option flags[] = {
    {"dims", required_argument, NULL, FLAG_DIMS},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"adapter", required_argument, NULL, FLAG_ADAPTER},
    {"rank", required_argument, NULL, FLAG_RANK},
    {"text-encoders", no_argument, NULL, FLAG_TEXTS},
    {"clock", required_argument, NULL, FLAG_CLOCK},
    {"threads", required_argument, NULL, 't'},
    {"json", no_argument, NULL, FLAG_JSON},
    {"quiet", no_argument, NULL, 'q'},
    {"no-progress", no_argument, NULL, FLAG_NO_PROGRESS},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};
static const struct dev_command {
    const char *name;
    int (*run)(const struct dev_args *args, struct sluice_error *e);
    int n_operands;  /* largest number of positional arguments */
    int allowed[16]; /* allowed flags besides -q, --no-progress and --help; the list ends with 0 */
} commands[] = {
    {"checkpoint", checkpoint_command, 2, {FLAG_DIMS, FLAG_SEED, FLAG_ADAPTER, FLAG_RANK, FLAG_TEXTS}},
    {"stream", stream_command, 0, {FLAG_CLOCK, 't', FLAG_JSON}},
};

static int read_number(const char *flag, const char *text, long long least, long long most, long long *out,
                       struct sluice_error *e) {
    char *end, expected[80];
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end > text && !*end && !errno && *out >= least && *out <= most) return SLUICE_OK;
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", least, most);
    return fail_value(e, flag, text, expected);
}

static int read_flag(struct dev_args *args, int flag, struct sluice_error *e) {
    long long number = 0;
    int status = SLUICE_OK;
    switch (flag) {
    case FLAG_DIMS:
        args->dimensions = optarg;
        break;
    case FLAG_ADAPTER:
        args->adapter = optarg;
        break;
    case FLAG_TEXTS:
        args->text_encoders = true;
        break;
    case FLAG_JSON:
        args->json = true;
        break;
    case 'q':
        args->quiet = true;
        break;
    case FLAG_NO_PROGRESS:
        args->no_progress = true;
        break;
    case FLAG_CLOCK:
        args->clock = optarg;
        if (strcmp(optarg, "timed") != 0 && strcmp(optarg, "paced") != 0)
            return fail_value(e, "--clock", optarg, "timed or paced");
        break;
    case FLAG_RANK:
        status = read_number("--rank", optarg, 1, SLUICE_ADAPTER_RANK_MAX, &number, e);
        args->rank = (int)number;
        break;
    case 't':
        status = read_number("--threads", optarg, 1, SLUICE_THREADS_MAX, &number, e);
        args->threads = (int)number;
        break;
    case FLAG_SEED:
        status = read_number("--seed", optarg, -1, LLONG_MAX, &number, e);
        args->seed = (uint64_t)number;
        if (number >= 0 || status) break;
        args->seed = 0;
        if (getrandom(&args->seed, 4, 0) != 4) return fail(e, SLUICE_INTERNAL, "no random numbers");
        message_note("seed %llu", (unsigned long long)args->seed);
        break;
    }
    return status;
}

static int run_command(int argc, char **argv, struct sluice_error *e) {
    struct dev_args args = {0};
    const struct dev_command *command = NULL;
    int flag;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (argc > 1 && strcmp(argv[1], commands[i].name) == 0) command = &commands[i];
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return fputs(help, stdout), 0;
    if (!command)
        return fail_value(e, "sluice-dev", argc > 1 ? argv[1] : "nothing",
                          "checkpoint or stream (see --help)");
    argc--, argv++;
    opterr = 0;
    while ((flag = getopt_long(argc, argv, ":t:qh", flags, NULL)) != -1) {
        const char *typed = argv[optind - 1];
        bool known = flag == 'q' || flag == FLAG_NO_PROGRESS;
        if (flag == 'h') return fputs(help, stdout), 0;
        if (flag == ':') return fail(e, SLUICE_USAGE, "a value is missing" WHERE "%s", typed);
        for (const int *f = command->allowed; *f; f++) known = known || *f == flag;
        if (!known)
            return fail(e, SLUICE_USAGE,
                        "unknown flag" WHERE "sluice-dev %s" FOUND "%s" EXPECTED "see --help", command->name,
                        typed);
        int status = read_flag(&args, flag, e);
        if (status) return status;
    }
    for (; optind < argc; optind++) {
        if (args.n_operands == command->n_operands)
            return fail(e, SLUICE_USAGE, "unexpected argument" WHERE "sluice-dev %s" FOUND "\"%s\"",
                        command->name, argv[optind]);
        args.operands[args.n_operands++] = argv[optind];
    }
    return command->run(&args, e);
}

int main(int argc, char **argv) {
    struct sluice_error error = {0}, unwritten;
    interrupt_install();
    int status = run_command(argc, argv, &error);
    if (outfile_flush_text(&unwritten) && !status) {
        error = unwritten;
        status = error.code;
    }
    if (!status) return 0;
    message_failure(&error);
    return error.exit_code;
}
