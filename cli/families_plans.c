#include "cli/families_plans.h"

#include "cli/args.h"
#include "cli/generation.h"
#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/messages.h"

#include <stdio.h>
#include <string.h>

#define GIB (1LL << 30)

/* Devices and budgets to plan for. GPUs: nearly all VRAM, and 20 GiB of RAM, which most machines with such a
 * card have free. CPU: two cores and 16 GiB of RAM, the least that WAN's decoder needs. */
static const struct place {
    const char *device;
    int vram_gib, ram_gib;
} places[] = {{"cuda:3060", 11, 20},
              {"cuda:4060ti", 15, 20},
              {"cuda:4090", 22, 20},
              {"cuda:h100", 76, 20},
              {"cpu", 0, 16}};
enum { N_PLACES = sizeof places / sizeof *places, PLACE_THREADS = 2 };

static json_t *command_of(const json_t *family, const struct place *place) {
    char line[192];
    bool card = place->vram_gib > 0;
    int n = snprintf(line, sizeof line, "sluice plan --family %s%s --device %s", field_string(family, "name"),
                     field_flag(family, "guides_if_negative") ? " -n \" \"" : "", place->device);
    n += card ? snprintf(line + n, sizeof line - (size_t)n, " --max-vram %dG", place->vram_gib)
              : snprintf(line + n, sizeof line - (size_t)n, " -t %d", PLACE_THREADS);
    snprintf(line + n, sizeof line - (size_t)n, " --max-ram %dG --direct-io on", place->ram_gib);
    return json_string(line);
}

/* Seconds per sampler step, summed over all denoiser stages. */
static double step_seconds(const json_t *plan) {
    double seconds = 0, steps = field_number(json_object_get(plan, "request"), "steps");
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        if (!strncmp(field_string(stage, "name"), "denoise", 7)) seconds += field_number(stage, "seconds");
    }
    return steps > 0 ? seconds / steps : 0;
}

static json_t *outcome_of(const json_t *family, const struct place *place, const json_t *plan) {
    static const char *const keys[] = {"card", "budget", "least", "peak", "seconds", "bound"};
    json_t *outcome = json_object();
    json_object_set_new(outcome, "device", json_string(place->device));
    json_object_set_new(outcome, "command", command_of(family, place));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(plan, keys[i]);
        json_object_set(outcome, keys[i], value ? value : json_null());
    }
    json_object_set_new(outcome, "step_seconds", json_real(step_seconds(plan)));
    return outcome;
}

/* Adds the plan of a family for one device and budget, as `sluice plan` computes it. A model that uses
 * guidance only with a negative prompt is planned with a negative prompt. --direct-io on makes plans
 * independent of this machine's page cache and RAM. */
static int plan_at(json_t *family, const struct place *place, struct sluice_error *e) {
    char blank[] = " ";
    struct args args = {
        .command = command_find("plan"),
        .model = {.struct_size = sizeof args.model, .family = field_string(family, "name")},
        .device = place->device,
        .threads = PLACE_THREADS,
        .max_vram = {place->vram_gib * GIB, 0},
        .max_ram_bytes = place->ram_gib * GIB,
        .direct_io = "on",
        .quiet = true,
    };
    struct generation generation = {.args = &args};
    char *text = NULL;
    bool fits;
    if (field_flag(family, "guides_if_negative")) args.negative_prompt = (struct prompt_text){NULL, blank, 1};
    int status = generation_open(&generation, e);
    if (!status) status = sluice_plan_query(generation.session, &generation.request, NULL, &text, &fits, e);
    json_t *plan = status ? NULL : json_loads(text, 0, NULL);
    if (!status && !plan) status = fail(e, SLUICE_MEMORY, "no memory for a plan");
    if (plan) json_array_append_new(json_object_get(family, "plans"), outcome_of(family, place, plan));
    json_decref(plan);
    sluice_free(text);
    generation_close(&generation);
    return status;
}

static int plan_family(json_t *family, struct sluice_error *e) {
    int status = SLUICE_OK;
    json_object_set_new(family, "plans", json_array());
    for (int i = 0; i < N_PLACES && !status; i++) status = plan_at(family, &places[i], e);
    return status;
}

int families_plans_add(json_t *families, bool shows, struct sluice_error *e) {
    size_t i;
    json_t *family;
    int status = SLUICE_OK;
    bool live = shows && message_on_terminal();
    json_array_foreach(families, i, family) {
        char line[80];
        snprintf(line, sizeof line, "plan %d of %d: %s", (int)i + 1, (int)json_array_size(families),
                 field_string(family, "name"));
        if (live) message_live(line);
        if (!status) status = plan_family(family, e);
    }
    if (live) message_live("");
    return status;
}
