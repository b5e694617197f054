/* The summary: see summary.h. Must not compute anything but sums: every number is the library's report. */
#include "cli/summary.h"

#include "cli/fields.h"
#include "cli/progress.h"
#include "cli/say.h"

#include <stdio.h>
#include <string.h>

/* What a stage waits for when it waits. */
static const char *source_of(const json_t *report, size_t i_stage) {
    const json_t *plan = json_object_get(report, "plan");
    const json_t *stage = json_array_get(json_object_get(plan, "stages"), i_stage);
    return strcmp(field_string(stage, "bound"), "bus") ? "disk" : "bus";
}

/* Under a fiftieth of the time nobody would gain from less. */
static void say_bound(const json_t *report) {
    size_t i, worst = 0;
    json_t *stage, *stages = json_object_get(report, "stages");
    double waited = 0;
    json_array_foreach(stages, i, stage) {
        waited += field_number(stage, "stall_seconds");
        if (field_number(stage, "stall_seconds") >
            field_number(json_array_get(stages, worst), "stall_seconds"))
            worst = i;
    }
    if (waited < 0.02 * field_number(report, "seconds")) {
        say_note("computing set the time: it waited %.2f s for weights", waited);
        return;
    }
    stage = json_array_get(stages, worst);
    say_note("waited %.2f s for the %s, most in stage %s (%.2f s), longest for block %s (%.2f s)", waited,
             source_of(report, worst), field_string(stage, "name"), field_number(stage, "stall_seconds"),
             field_string(stage, "stall_block"), field_number(stage, "stall_block_seconds"));
}

static void say_stage(const json_t *stage) {
    char read[32], planned[32], measured[32], best[48] = "";
    const json_t *efficiency = json_object_get(stage, "efficiency");
    if (json_is_number(efficiency))
        snprintf(best, sizeof best, ", floor %.2f s (%.0f %%)", field_number(stage, "floor_seconds"),
                 100 * json_number_value(efficiency));
    say_note(
        "stage %s: %.2f s, computing %.2f s, waiting %.2f s, %s at %.2f GB/s%s; peak so far %s, planned %s",
        field_string(stage, "name"), field_number(stage, "seconds"), field_number(stage, "compute_seconds"),
        field_number(stage, "stall_seconds"), progress_bytes(field_number(stage, "bytes_moved"), read),
        field_number(stage, "gbytes_per_second"), best,
        progress_bytes(field_number(stage, "measured_ram_bytes"), measured),
        progress_bytes(field_number(stage, "planned_ram_bytes"), planned));
}

void summary_say(const struct summary *summary) {
    char spent[32], read[32], *text = NULL;
    struct sluice_error ignored;
    const struct sluice_progress *last = summary->last;
    double waiting = last->seconds > 0 ? 100 * last->stall_seconds / last->seconds : 0;
    say_note("done: %d picture%s in %s, %s read, %.0f %% of the time waiting for weights",
             summary->n_pictures, summary->n_pictures == 1 ? "" : "s",
             progress_duration(summary->seconds, spent), progress_bytes((double)last->bytes_read, read),
             waiting);
    if (sluice_report(summary->session, &text, &ignored) || !text) return;
    json_t *report = json_loads(text, 0, NULL), *stage;
    size_t i;
    sluice_free(text);
    if (report) say_bound(report);
    json_array_foreach(json_object_get(report, "stages"), i, stage) {
        if (summary->verbose) say_stage(stage);
    }
    json_decref(report);
}
