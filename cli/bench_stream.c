/* `sluice bench stream`: the library's table, one line for a model, a bus and a share of residents, the ways
 * to lay out weights side by side. */
#include "cli/bench.h"

#include "cli/fields.h"
#include "cli/interrupt.h"
#include "cli/say.h"

#include <stdio.h>
#include <string.h>

static bool on_one_line(const json_t *a, const json_t *b) {
    return strcmp(field_string(a, "blocks"), field_string(b, "blocks")) == 0 &&
           field_number(a, "bus_gbytes_per_second") == field_number(b, "bus_gbytes_per_second") &&
           field_number(a, "resident_percent") == field_number(b, "resident_percent");
}

static bool is_ours(const json_t *row) {
    return strcmp(field_string(row, "layout"), "ours") == 0;
}

/* The layouts' names, from the rows of the first line. */
static void print_head(const json_t *rows) {
    size_t i;
    json_t *row;
    printf("%-10s %6s %5s  %8s %8s %6s ", "blocks", "GB/s", "res.", "ours, s", "floor, s", "of it");
    json_array_foreach(rows, i, row) {
        if (!on_one_line(row, json_array_get(rows, 0))) break;
        if (!is_ours(row))
            printf(" %*s", (int)strlen(field_string(row, "layout")) < 7 ? 7 : 0, field_string(row, "layout"));
    }
    puts("");
}

static void print_ours(const json_t *row) {
    printf("%-10s %6.4g %3.0f %%  %8.4g %8.4g %4.0f %% ", field_string(row, "blocks"),
           field_number(row, "bus_gbytes_per_second"), field_number(row, "resident_percent"),
           field_number(row, "seconds"), field_number(row, "floor_seconds"),
           100 * field_number(row, "efficiency"));
}

/* Rows come line by line, ours first. */
static void print_stream(json_t *root) {
    size_t i;
    json_t *row;
    const json_t *rows = json_object_get(root, "rows");
    print_head(rows);
    json_array_foreach(rows, i, row) {
        if (is_ours(row)) {
            if (i) puts("");
            print_ours(row);
        } else {
            int width = (int)strlen(field_string(row, "layout"));
            printf(" %*.4g", width < 7 ? 7 : width, field_number(row, "seconds"));
        }
    }
    puts("\n\nSeconds of a step. ours: what the solver plans in the memory that the others have; of it: "
         "floor / ours. "
         "branches_apart\ncomputes two lanes, so its floor may be higher (--json has it).");
}

int bench_stream(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    interrupt_gracefully();
    struct sluice_bench_options options = {.struct_size = sizeof options,
                                           .threads = args->threads,
                                           .clock = args->clock,
                                           .on_progress = bench_on_progress,
                                           .user = (void *)args};
    int status = sluice_bench_stream(&options, &json, e);
    say_live_end();
    if (!status) status = bench_show(args, json, print_stream, e);
    sluice_free(json);
    return status;
}
