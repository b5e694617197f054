/* `sluice bench`: the table of its sub-commands and their flags. */
#include "cli/bench.h"

#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/outfile.h"
#include "cli/messages.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *flags; /* flags of the sub-command, each with a space before and after */
    int (*work)(const struct args *args, struct sluice_error *e);
} benches[] = {
    {"bus", " --json --save --threads --dir --model ", bench_bus},
    {"ops", " --json --save --threads ", bench_ops},
    {"load", " --json --model ", bench_load},
    {"block", " --json --threads --type --rank --device --predict --precision ", bench_block},
};
enum { N_BENCHES = sizeof benches / sizeof *benches };

static const char shared_flags[] = " --quiet --no-progress ";

static bool lists(const char *list, const char *name) {
    char word[64];
    int bytes = snprintf(word, sizeof word, " %s ", name);
    return bytes < (int)sizeof word && strstr(list, word);
}

static bool bench_on_progress(void *user, double fraction, const char *what) {
    const struct args *args = user;
    char line[128];
    if (!args->quiet && !args->no_progress && message_on_terminal()) {
        snprintf(line, sizeof line, "measuring %.0f %%  %s", 100 * fraction, what);
        message_live(line);
    }
    return !interrupt_pending();
}

struct sluice_bench_options bench_options(const struct args *args) {
    return (struct sluice_bench_options){.struct_size = sizeof(struct sluice_bench_options),
                                         .threads = args->threads,
                                         .folder = args->folder,
                                         .model = &args->model,
                                         .type = args->type,
                                         .predict = args->predict,
                                         .adapter_rank = args->rank,
                                         .precision = args->precision,
                                         .on_progress = bench_on_progress,
                                         .user = (void *)args};
}

int bench_check_moved(const char *name, struct sluice_error *e) {
    if (strcmp(name, "checkpoint") != 0 && strcmp(name, "stream") != 0) return SLUICE_OK;
    return fail(e, SLUICE_USAGE,
                "this command is in sluice-dev, which `make dev` builds" WHERE "sluice bench %s" EXPECTED
                "sluice-dev %s ...",
                name, name);
}

int bench_command(const struct args *args, struct sluice_error *e) {
    int bench = 0;
    while (bench < N_BENCHES && strcmp(args->operands[0], benches[bench].name) != 0) bench++;
    if (bench == N_BENCHES)
        return fail_value(e, "sluice bench", args->operands[0], "bus, ops, load or block");
    for (int i = 0; i < n_flags; i++) {
        if (!args->is_set[i] || lists(benches[bench].flags, flags[i].name) ||
            lists(shared_flags, flags[i].name))
            continue;
        return fail(e, SLUICE_USAGE,
                    "this flag belongs to other benches" WHERE "sluice bench %s" FOUND "%s" EXPECTED "%s",
                    benches[bench].name, flags[i].name, benches[bench].flags + 1);
    }
    return benches[bench].work(args, e);
}
