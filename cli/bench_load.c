/* `sluice bench load`: how fast a model comes to memory, beside dd. Every number is the library's. */
#include "cli/bench.h"

#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/say.h"

#include <stdio.h>

static void print_load(json_t *root) {
    size_t i;
    json_t *row;
    char bytes[32];
    printf("headers opened in %.1f ms; the whole model, tokenizer included, in %.1f\n",
           1e3 * field_number(root, "header_seconds"), 1e3 * field_number(root, "open_seconds"));
    printf("%-12s %10s %8s %8s %8s %8s\n", "page cache", "read", "threads", "GB/s", "dd", "of dd");
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        printf("%-12s %10s %8.0f %8.2f %8.2f %6.0f %%\n", field_string(row, "page_cache"),
               progress_bytes(field_number(row, "bytes"), bytes), field_number(row, "threads"),
               field_number(row, "gbytes_per_second"), field_number(row, "dd_gbytes_per_second"),
               100 * field_number(row, "share"));
    }
}

int bench_load(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    if (!args->model.model && !args->model.diffusion_model) {
        fail(e, SLUICE_USAGE, "which model?");
        fail_where(e, "sluice bench load");
        return fail_expected(e, "-m DIR");
    }
    interrupt_gracefully();
    struct sluice_bench_options options = {.struct_size = sizeof options,
                                           .model = &args->model,
                                           .on_progress = bench_on_progress,
                                           .user = (void *)args};
    int status = sluice_bench_load(&options, &json, e);
    say_live_end();
    if (!status) status = bench_show(args, json, print_load, e);
    sluice_free(json);
    return status;
}
