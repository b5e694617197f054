/* Every number comes from the library's report; only sums are computed here. */
#include "cli/summary.h"

#include "cli/fields.h"
#include "cli/progress.h"
#include "cli/messages.h"

#include <stdio.h>
#include <string.h>

static const json_t *planned_stage(const json_t *report, size_t i_stage) {
    return json_array_get(json_object_get(json_object_get(report, "plan"), "stages"), i_stage);
}

/* Where a stage reads its weights from: "disk" or "bus" (PCIe). */
static const char *stall_source(const json_t *report, size_t i_stage) {
    return strcmp(field_string(planned_stage(report, i_stage), "bound"), "bus") ? "disk" : "bus";
}

/* True if the stage read weights in every evaluation, which more memory would have avoided. */
static bool rereads_weights(const json_t *stage) {
    return field_number(stage, "evaluations") > 1 && field_number(stage, "streamed_bytes_per_evaluation") > 0;
}

/* Prints advice if at least 5 % of the time was spent rereading weights. */
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
    message_note("%s of %s were spent waiting for the %s. More memory (%s) or smaller weights (--type) would "
                 "help; `sluice plan` shows how much",
                 progress_duration(waited, of_it), progress_duration(seconds, all), bus ? "PCIe bus" : "disk",
                 bus ? "--max-vram" : "--max-ram");
}

static void print_longest_stalls(const json_t *report) {
    size_t i;
    json_t *stage;
    char name[32];
    json_array_foreach(json_object_get(report, "stages"), i, stage) {
        if (field_number(stage, "stall_block_seconds") > 0)
            message_note("stage %s waited %.2f s for the %s, longest for block %s (%.2f s)",
                         field_stage_name(stage, name), field_number(stage, "stall_seconds"),
                         stall_source(report, i), field_string(stage, "stall_block"),
                         field_number(stage, "stall_block_seconds"));
    }
}

static void print_stage(const json_t *stage) {
    char name[32], read[32], planned[32], measured[32], best[48] = "";
    const json_t *efficiency = json_object_get(stage, "efficiency");
    if (json_is_number(efficiency))
        snprintf(best, sizeof best, ", lower bound %.2f s (efficiency %.0f %%)",
                 field_number(stage, "floor_seconds"), 100 * json_number_value(efficiency));
    message_note("stage %s: %.2f s (computing %.2f s, waiting %.2f s; CPU time %.2f s user, %.2f s system), "
                 "read %s at "
                 "%.2f GB/s%s; peak RAM so far %s, planned %s",
                 field_stage_name(stage, name), field_number(stage, "seconds"),
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
    message_note("done: %d %s%s in %s", summary->n_pictures, summary->are_videos ? "video" : "image",
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
