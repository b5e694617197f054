/* `sluice-dev stream`: measures synthetic models of published sizes. Compares the time of a step with its
 * lower bound (the longer of computing and bus transfer), for this engine's and for other weight layouts.
 *
 * timed: the real plan, store and executor under a virtual clock, equal results on every machine. paced:
 * small models on the CPU behind a bus thread of fixed rates, in real time; at most 300 MiB. */
#include "bench/dev/dev.h"
#include "bench/dev/stream_async.h"
#include "cli/fail.h"
#include "cli/messages.h"
#include "cli/outfile.h"
#include "engine/machine/machine.h"
#include "engine/open/model.h"
#include "kernels/cpu/cpu.h"
#include "loaders/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stream_report {
    const struct dev_args *args;
    const char *clock;
    struct sys sys;
    struct stream_table table;
    struct stream_async_table async; /* results with asynchronous launches; only for the virtual clock */
    double last_progress;            /* time of the last progress line, in seconds */
};

/* Shows progress at most ten times per second. */
static bool on_progress(void *user, double fraction) {
    struct stream_report *report = user;
    char line[64];
    double now = report->sys.clock(&report->sys);
    if (now < report->last_progress + 0.1) return true;
    report->last_progress = now;
    if (!report->args->quiet && !report->args->no_progress && message_on_terminal()) {
        snprintf(line, sizeof line, "measuring %.0f %%  %s", 100 * fraction, report->clock);
        message_live(line);
    }
    return !interrupt_pending();
}

static double efficiency(double floor_seconds, double seconds) {
    return seconds > 0 ? floor_seconds / seconds : 0;
}

/* Returns the text of the JSON report, to be freed; NULL: no memory. */
static char *report_json(const struct stream_report *report) {
    unsigned json_failures = failed_json_allocations();
    json_t *rows = json_array(), *ahead = json_array();
    for (int i = 0; i < report->table.n_rows; i++) {
        const struct stream_row *r = &report->table.rows[i];
        json_push(rows, json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "blocks", r->blocks, "layout",
                                  r->layout, "resident_percent", r->resident_percent, "bus_gbytes_per_second",
                                  r->bus / 1e9, "seconds", r->seconds, "floor_seconds", r->floor_seconds,
                                  "efficiency", efficiency(r->floor_seconds, r->seconds)));
    }
    for (int i = 0; i < report->async.n_rows; i++) {
        const struct stream_async_row *r = &report->async.rows[i];
        json_push(ahead,
                  json_pack("{s:s, s:i, s:f, s:f, s:b, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "blocks",
                            r->blocks, "resident_percent", r->resident_percent, "bus_gbytes_per_second",
                            r->bus / 1e9, "disk_gbytes_per_second", r->disk / 1e9, "pooled", r->pooled,
                            "readers", r->readers, "host_seconds_per_visit", r->host_seconds,
                            "reader_seconds_per_piece", r->reader_seconds, "first_seconds", r->first_seconds,
                            "pinning_seconds", r->pinning_seconds, "seconds", r->seconds, "floor_seconds",
                            r->floor_seconds, "efficiency", efficiency(r->floor_seconds, r->seconds)));
    }
    json_t *root = json_pack("{s:i, s:o, s:s}", "version", 1, "rows", rows, "clock", report->clock);
    if (json_array_size(ahead))
        json_put(root, "ahead", ahead);
    else
        json_decref(ahead);
    return json_to_text(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6), json_failures);
}

static bool on_one_line(const struct stream_row *a, const struct stream_row *b) {
    return strcmp(a->blocks, b->blocks) == 0 && a->bus == b->bus &&
           a->resident_percent == b->resident_percent;
}

/* Prints one line per model, bus rate and resident share, and one column per memory layout, "ours" first. */
static void print_table(const struct stream_table *table) {
    printf("%-10s %6s %5s  %8s %8s %6s ", "blocks", "GB/s", "res.", "ours, s", "bound, s", "eff.");
    for (int i = 0; i < table->n_rows && on_one_line(&table->rows[i], &table->rows[0]); i++)
        if (strcmp(table->rows[i].layout, "ours") != 0) printf(" %7s", table->rows[i].layout);
    puts("");
    for (int i = 0; i < table->n_rows; i++) {
        const struct stream_row *r = &table->rows[i];
        int width = (int)strlen(r->layout);
        if (strcmp(r->layout, "ours") == 0)
            printf("%s%-10s %6.4g %3d %%  %8.4g %8.4g %4.0f %% ", i ? "\n" : "", r->blocks, r->bus / 1e9,
                   r->resident_percent, r->seconds, r->floor_seconds,
                   100 * efficiency(r->floor_seconds, r->seconds));
        else
            printf(" %*.4g", width < 7 ? 7 : width, r->seconds);
    }
    puts("\n\nSeconds per step. ours: the solver's plan with the same memory as the other layouts; eff.: "
         "bound / ours.\nbranches_apart computes two sequences, so its lower bound may be higher (see "
         "--json).");
}

static void print_async(const struct stream_async_table *table) {
    if (!table->n_rows) return;
    printf("\nWith a host that runs ahead of the device, as with CUDA:\n%-12s %6s %5s %11s %8s %9s  %8s %8s "
           "%6s\n",
           "blocks", "GB/s", "res.", "from", "ms/visit", "us/piece", "ours, s", "bound, s", "eff.");
    for (int i = 0; i < table->n_rows; i++) {
        const struct stream_async_row *r = &table->rows[i], *next = r + 1;
        char from[32] = "memory";
        /* Of consecutive rows that differ only in their host times, only the last is printed. */
        if (i + 1 < table->n_rows && strcmp(r->blocks, next->blocks) == 0 && r->bus == next->bus &&
            r->resident_percent == next->resident_percent && r->pooled == next->pooled &&
            r->disk == next->disk)
            continue;
        if (!r->pooled) snprintf(from, sizeof from, "%.3g GB/s", r->disk / 1e9);
        printf("%-12s %6.4g %3d %% %11s %8.2g %9.2g  %8.4g %8.4g %4.0f %%\n", r->blocks, r->bus / 1e9,
               r->resident_percent, from, 1e3 * r->host_seconds, 1e6 * r->reader_seconds, r->seconds,
               r->floor_seconds, 100 * efficiency(r->floor_seconds, r->seconds));
    }
}

int stream_command(const struct dev_args *args, struct sluice_error *e) {
    struct stream_report *report = calloc(1, sizeof *report);
    struct error error = {0};
    char *json = NULL;
    if (!report) return fail(e, SLUICE_MEMORY, "no memory for a table");
    struct stream_watch watch = {.go_on = on_progress, .user = report};
    report->args = args;
    report->clock = args->clock ? args->clock : "timed";
    sys_init_machine(&report->sys);
    interrupt_gracefully();
    if (strcmp(report->clock, "timed") == 0) {
        if (stream_timed(&report->table, &watch, &error) == OK) stream_async(&report->async, &watch, &error);
    } else {
        struct device *device =
            cpu_open(&report->sys, args->threads ? args->threads : machine_threads(""), &error);
        if (device) {
            stream_paced(device, &report->table, &watch, &error);
            device->destroy(device);
        }
    }
    message_live_end();
    if (error.code == OK && args->json && !(json = report_json(report)))
        error_set(&error, MEMORY, "no memory for the table's text");
    if (json) {
        puts(json);
    } else if (error.code == OK) {
        print_table(&report->table);
        print_async(&report->async);
    }
    free(json);
    free(report);
    return error.code == OK ? SLUICE_OK : publish_error(&error, e);
}
