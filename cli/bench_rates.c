/* `sluice bench bus` and `bench ops`: print the measured rates and write the file for --rates. */
#include "cli/bench.h"

#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/output.h"
#include "cli/outfile.h"
#include "cli/messages.h"
#include "cli/args.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Result of find_file, static because nftw has no argument for its callback. */
static char largest[PATH_MAX];
static off_t largest_bytes;

static int look_at_file(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)place;
    if (kind != FTW_F || !S_ISREG(info->st_mode) || info->st_size <= largest_bytes) return 0;
    if (strlen(path) >= sizeof largest) return 0;
    strcpy(largest, path);
    largest_bytes = info->st_size;
    return 0;
}

/* Finds the largest file of a model. Follows links, of which the Hugging Face cache consists. */
static int find_file(const char *model, struct sluice_error *e) {
    largest[0] = 0;
    largest_bytes = 0;
    if (!nftw(model, look_at_file, 16, 0) && largest[0]) return SLUICE_OK;
    return fail(e, SLUICE_MISSING, "the model has no files" WHERE "%s", model);
}

static void print_bus(json_t *root) {
    size_t i;
    json_t *row;
    char piece[32];
    printf("%-12s %10s %8s %8s  %s\n", "path", "piece", "threads", "GB/s", "page cache");
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        printf("%-12s %10s %8.0f %8.2f  %s\n", field_string(row, "path"),
               progress_bytes(field_number(row, "bytes"), piece), field_number(row, "threads"),
               field_number(row, "gbytes_per_second"), field_string(row, "page_cache"));
    }
    const char *path;
    json_t *link;
    json_object_foreach(json_object_get(root, "links"), path, link) {
        printf("%s: looks like %s\n", path, json_string_value(link));
    }
    const json_t *pinned = json_object_get(root, "pinned");
    char tried[32];
    if (pinned)
        printf("pinned memory: %s could be allocated, %s were tried\n",
               progress_bytes(field_number(pinned, "bytes"), piece),
               progress_bytes(field_number(pinned, "tried_bytes"), tried));
    json_array_foreach(json_object_get(root, "absent"), i, row)
        printf("%s: %s\n", field_string(row, "name"), field_string(row, "reason"));
}

static void print_ops(json_t *root) {
    size_t i;
    json_t *row, *slower = json_object_get(root, "slower");
    printf("%-11s %-36s %-8s %8s %12s\n", "op", "shape", "weights", "threads", "a second");
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        double flops = field_number(row, "flops_per_second"), bytes = field_number(row, "bytes_per_second");
        printf("%-11s %-36s %-8s %8.0f %6.1f %s\n", field_string(row, "op"), field_string(row, "shape"),
               field_string(row, "dtype"), field_number(row, "threads"), (flops > 0 ? flops : bytes) / 1e9,
               flops > 0 ? "GFLOP" : "GB");
    }
    /* the operators that are slower with all threads than with one thread */
    json_array_foreach(slower, i, row) {
        if (i == 0) printf("slower with %.0f threads than with one", field_number(row, "threads"));
        printf("%s %s at %.2f of its one-thread rate", i ? "," : ":", field_string(row, "op"),
               field_number(row, "of_one_thread"));
    }
    if (json_array_size(slower))
        printf("; if other programs or a quota took cores, measure again, else use -t 1\n");
}

typedef int measuring(const struct sluice_bench_options *options, char **json, char **rates,
                      struct sluice_error *error);

/* Checks the --save file before measuring. Writes the file last, so that a failure keeps the old file. */
static int measure_rates(const struct args *args, measuring *measure, void (*print)(json_t *),
                         struct sluice_error *e) {
    char *saved = NULL, *json = NULL, *rates = NULL;
    struct stat info;
    interrupt_gracefully();
    int status = SLUICE_OK;
    if (args->save)
        status = strcmp(args->save, "-") ? outfile_probe(args->save, e)
                                         : fail_value(e, "--save", "-", "a file: stdout takes the table");
    /* New rates are merged into those of an existing regular file; a pipe or device is only written. */
    if (!status && args->save && !stat(args->save, &info) && S_ISREG(info.st_mode))
        status = textfile_read(args->save, &(struct textfile_kind){"the rates file", 1 << 20, SLUICE_IO},
                               &saved, e);
    struct sluice_bench_options options = bench_options(args);
    options.file = largest[0] ? largest : NULL;
    options.saved = saved;
    if (!status) status = measure(&options, &json, &rates, e);
    message_live_end();
    if (!status) status = answer_show(args, json, "table", print, e);
    if (!status && args->save) {
        status = outfile_write_text(args->save, rates, e);
        if (!status && !args->quiet) message_note("rates saved to %s", args->save);
    }
    sluice_free(json);
    sluice_free(rates);
    free(saved);
    return status;
}

int bench_bus(const struct args *args, struct sluice_error *e) {
    if (args->model.model && args->folder) {
        return fail(e, SLUICE_USAGE,
                    "--dir and --model contradict each other" WHERE "sluice bench bus" EXPECTED
                    "one of them");
    }
    int status = output_check_inputs(args, "--save", args->save, e);
    if (!status && args->model.model) status = find_file(args->model.model, e);
    return status ? status : measure_rates(args, sluice_bench_bus, print_bus, e);
}

int bench_ops(const struct args *args, struct sluice_error *e) {
    return measure_rates(args, sluice_bench_ops, print_ops, e);
}
