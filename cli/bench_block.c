/* `sluice bench block`: the library's table of one block and one decoder, a line for each kind of work. */
#include "cli/bench.h"

#include "cli/fields.h"
#include "cli/interrupt.h"
#include "cli/say.h"

#include <stdio.h>
#include <string.h>

static void print_share(const json_t *row, const char *name) {
    if (json_object_get(row, name))
        printf(" %9.0f %%", 100 * field_number(row, name));
    else
        printf(" %11s", "");
}

static void print_block(json_t *root) {
    size_t i;
    json_t *row;
    const json_t *rows = json_object_get(root, "rows");
    json_array_foreach(rows, i, row) {
        if (strcmp(field_string(row, "what"), "all") == 0)
            printf("%s%s: %s, %s weights, %.0f threads\n%-10s %9s %9s %11s %11s\n", i ? "\n" : "",
                   field_string(row, "part"), field_string(row, "shape"), field_string(row, "type"),
                   field_number(row, "threads"), "", "seconds", "GFLOP/s", "of library", "of the time");
        printf("%-10s %9.4f ", field_string(row, "what"), field_number(row, "seconds"));
        if (json_object_get(row, "flops_per_second"))
            printf("%9.1f", field_number(row, "flops_per_second") / 1e9);
        else
            printf("%9s", "");
        print_share(row, "product_rate_share");
        print_share(row, "time_share");
        if (json_object_get(row, "of_bf16"))
            printf("   %.3f of the time with bf16", field_number(row, "of_bf16"));
        puts("");
    }
    puts("\nlibrary: the same products and convolutions as oneDNN does them whole, weights f32 and repacked "
         "before.");
}

int bench_block(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    interrupt_gracefully();
    struct sluice_bench_options options = {.struct_size = sizeof options,
                                           .threads = args->threads,
                                           .type = args->type,
                                           .on_progress = bench_on_progress,
                                           .user = (void *)args};
    int status = sluice_bench_block(&options, &json, e);
    say_live_end();
    if (!status) status = bench_show(args, json, print_block, e);
    sluice_free(json);
    return status;
}
