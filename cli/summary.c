/* The summary: see summary.h. Must not compute anything but sums: every number is the library's report. */
#include "cli/summary.h"

#include "cli/fields.h"
#include "cli/progress.h"
#include "cli/messages.h"

#include <stdio.h>
#include <string.h>

static const json_t *planned_stage(const json_t *report, size_t i_stage) {
    return json_array_get(json_object_get(json_object_get(report, "plan"), "stages"), i_stage);
}

/* What a stage waits for when it waits. */
static const char *stall_source(const json_t *report, size_t i_stage) {
    return strcmp(field_string(planned_stage(report, i_stage), "bound"), "bus") ? "disk" : "bus";
}

/* Of its evaluations all but the first would have needed no byte, had there been memory for all blocks. */
static bool rereads_weights(const json_t *stage) {
    return field_number(stage, "evaluations") > 1 && field_number(stage, "streamed_bytes_per_evaluation") > 0;
}

/* A twentieth of the time is worth a line, where more memory or smaller weights would save it. */
static void print_advice(const json_t *report) {
    size_t i, worst = 0;
    json_t *stage, *stages = json_object_get(report, "stages");
    double waited = 0, most = 0, seconds = field_number(report, "seconds");
    char all[32], of_it[32];
    json_array_foreach(stages, i, stage) {
        double stall = field_number(stage, "stall_seconds");
        if (!rereads_weights(planned_stage(report, i))) continue;
        waited += stall;
        if (stall > most) worst = i;
        if (stall > most) most = stall;
    }
    if (!(waited >= 0.05 * seconds) || waited <= 0) return;
    bool bus = strcmp(stall_source(report, worst), "bus") == 0;
    message_note("%s of %s went by waiting for the %s: more memory (%s) or smaller weights (--type) would "
                 "help, and `sluice plan` says how much",
                 progress_duration(waited, of_it), progress_duration(seconds, all), bus ? "bus" : "disk",
                 bus ? "--max-vram" : "--max-ram");
}

static void print_longest_stalls(const json_t *report) {
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(report, "stages"), i, stage) {
        if (field_number(stage, "stall_block_seconds") > 0)
            message_note("stage %s waited %.2f s for the %s, longest for block %s (%.2f s)",
                         field_string(stage, "name"), field_number(stage, "stall_seconds"),
                         stall_source(report, i), field_string(stage, "stall_block"),
                         field_number(stage, "stall_block_seconds"));
    }
}

static void print_stage(const json_t *stage) {
    char read[32], planned[32], measured[32], best[48] = "";
    const json_t *efficiency = json_object_get(stage, "efficiency");
    if (json_is_number(efficiency))
        snprintf(best, sizeof best, ", floor %.2f s (%.0f %%)", field_number(stage, "floor_seconds"),
                 100 * json_number_value(efficiency));
    message_note("stage %s: %.2f s, computing %.2f s, waiting %.2f s, processors %.2f s and %.2f s in the "
                 "system, %s at %.2f GB/s%s; peak so far %s, planned %s",
                 field_string(stage, "name"), field_number(stage, "seconds"),
                 field_number(stage, "compute_seconds"), field_number(stage, "stall_seconds"),
                 field_number(stage, "user_seconds"), field_number(stage, "system_seconds"),
                 progress_bytes(field_number(stage, "bytes_moved"), read),
                 field_number(stage, "gbytes_per_second"), best,
                 progress_bytes(field_number(stage, "measured_ram_bytes"), measured),
                 progress_bytes(field_number(stage, "planned_ram_bytes"), planned));
}

void summary_print(const struct summary *summary) {
    char spent[32], *text = NULL;
    struct sluice_error ignored;
    message_note("done: %d %s%s in %s", summary->n_pictures, summary->are_videos ? "video" : "picture",
                 summary->n_pictures == 1 ? "" : "s", progress_duration(summary->seconds, spent));
    if (sluice_report(summary->session, &text, &ignored) || !text) return;
    json_t *report = json_loads(text, 0, NULL), *stage;
    size_t i;
    sluice_free(text);
    if (report) print_advice(report);
    if (report && summary->verbose) print_longest_stalls(report);
    json_array_foreach(json_object_get(report, "stages"), i, stage) {
        if (summary->verbose) print_stage(stage);
    }
    json_decref(report);
}
