/* `sluice plan`: prints the plan of a run without running it; with --types also for several types of the
 * weights, as a table below the plan or as `types` in its JSON. */
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/generation.h"
#include "cli/messages.h"
#include "cli/output.h"
#include "cli/plan_table.h"
#include "cli/report.h"
#include "cli/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- --types ---- */

static const char *const types[] = {"int8_convrot", "f8_e4m3", "q8_0", "q6_k", "q5_k", "q4_k"};

/* Returns as JSON: the bytes of the weights whose type --type can change (all but the VAE's), the plan's
 * seconds, and whether the plan fits. */
static json_t *outcome(const json_t *plan, bool fits) {
    size_t i, k;
    json_t *stage, *block, *seconds = json_object_get(plan, "seconds");
    double bytes = 0;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        const char *name = field_string(stage, "name");
        if (!strcmp(name, "encode") || !strcmp(name, "decode")) continue;
        json_array_foreach(json_object_get(stage, "blocks"), k, block) bytes += field_number(block, "bytes");
    }
    return json_pack("{s:I, s:O, s:b}", "bytes", (json_int_t)bytes, "seconds",
                     seconds ? seconds : json_null(), "fits", (int)fits);
}

static int plan_type(struct generation *generation, const char *type, bool converted, json_t **out,
                     struct sluice_error *e) {
    struct sluice_request request = generation->request;
    char *text = NULL;
    bool fits = false;
    request.type = type;
    request.converted = converted;
    int status = sluice_plan_query(generation->session, &request, NULL, &text, &fits, e);
    if (status) return status;
    json_t *plan = json_loads(text, 0, NULL);
    *out = outcome(plan, fits);
    json_decref(plan);
    sluice_free(text);
    return SLUICE_OK;
}

static int add_type(struct generation *generation, const char *type, json_t *rows, struct sluice_error *e) {
    json_t *row = NULL, *convert = NULL;
    int status = plan_type(generation, type, false, &row, e);
    if (!status) status = plan_type(generation, type, true, &convert, e);
    if (status) {
        json_decref(row);
        return status;
    }
    json_object_set_new(row, "type", json_string(type));
    json_object_set_new(row, "convert", convert);
    json_array_append_new(rows, row);
    return SLUICE_OK;
}

/* Plans the request with transformer and text encoders in several types, and adds to the plan's JSON:
 * "types": [{"type", "bytes" (of these weights), "seconds", "fits", "convert": {"bytes", "seconds",
 * "fits"}}]. Outer values: conversion while reading; "convert": files converted beforehand. The first
 * entry, with type and convert null, is for the types in the files. Replaces *json. */
static int add_types(struct generation *generation, char **json, bool fits, struct sluice_error *e) {
    json_t *plan = json_loads(*json, 0, NULL), *rows = json_array();
    int status = SLUICE_OK;
    json_t *stored = outcome(plan, fits);
    json_object_set_new(stored, "type", json_null());
    json_object_set_new(stored, "convert", json_null());
    json_array_append_new(rows, stored);
    for (size_t i = 0; i < sizeof types / sizeof *types && !status; i++)
        status = add_type(generation, types[i], rows, e);
    json_object_set_new(plan, "types", rows);
    char *text = status ? NULL : json_dumps(plan, JSON_INDENT(1));
    json_decref(plan);
    if (!status && !text) status = fail(e, SLUICE_MEMORY, "no memory for the plan's text");
    if (status) return status;
    sluice_free(*json);
    *json = text;
    return SLUICE_OK;
}

static void print_outcome(FILE *to, const json_t *outcome) {
    const json_t *seconds = json_object_get(outcome, "seconds");
    if (!field_flag(outcome, "fits"))
        fprintf(to, " %14s", "does not fit");
    else if (json_is_number(seconds))
        fprintf(to, " %12.1f s", json_number_value(seconds));
    else
        fprintf(to, " %14s", "fits");
}

static void print_types(FILE *to, const char *json) {
    json_t *plan = json_loads(json, 0, NULL), *row;
    const json_t *rows = json_object_get(plan, "types");
    size_t i;
    if (rows) fprintf(to, "\n%-12s %14s %14s %14s\n", "--type", "weights", "while reading", "by convert");
    json_array_foreach(rows, i, row) {
        char bytes[32];
        const char *name = json_string_value(json_object_get(row, "type"));
        const json_t *convert = json_object_get(row, "convert");
        fprintf(to, "%-12s %14s", name ? name : "as stored",
                progress_bytes(field_number(row, "bytes"), bytes));
        print_outcome(to, row);
        if (json_is_object(convert)) print_outcome(to, convert);
        fputc('\n', to);
    }
    json_decref(plan);
}

/* ---- the command ---- */

/* Fills the error of a plan over the budget, as the run reports it. The plan is printed nevertheless. */
static int does_not_fit(const struct sluice_plan *plan, struct sluice_error *e) {
    bool ram = plan->ram_peak_bytes > plan->ram_budget_bytes;
    const char *flag = ram ? "--max-ram" : "--max-vram";
    char found[32], expected[32];
    double budget = (double)(ram ? plan->ram_budget_bytes : plan->vram_budget_bytes);
    double needed = (double)(ram ? plan->ram_least_bytes : plan->vram_least_bytes);
    if (!ram && plan->vram_peak_bytes <= plan->vram_budget_bytes)
        /* within both budgets: a block does not fit the plan file's ring or staging buffer */
        return fail(e, SLUICE_BUDGET,
                    "this plan cannot run the request: a block does not fit the ring or staging buffer" WHERE
                    "--plan" EXPECTED "a plan that was made for this request");
    return fail(e, SLUICE_BUDGET,
                "this request does not fit the budget" WHERE "%s" FOUND "%s" EXPECTED
                "at least %s (%s %.0fB)",
                flag, progress_bytes(budget, found), progress_bytes(needed, expected), flag, needed);
}

static int print_plan(struct generation *generation, char **json, struct sluice_error *e) {
    struct sluice_plan plan = {.struct_size = sizeof plan};
    bool fits = true;
    int status =
        sluice_plan_query(generation->session, &generation->request, generation->latent, json, &fits, e);
    if (!status) status = sluice_plan_summary(generation->session, &plan, e);
    generation->unlogged = true; /* plans in other types log the same */
    if (!status && generation->args->types) status = add_types(generation, json, fits, e);
    if (status) return status;
    if (generation->args->json) {
        sanitize_print_json(stdout, *json);
    } else {
        status = plan_table_print(stdout, *json, generation->args->verbose, e);
        print_types(stdout, *json);
    }
    if (!status && !fits) status = does_not_fit(&plan, e);
    return status;
}

int plan_command(const struct args *typed, struct sluice_error *e) {
    struct args with_image = *typed;
    const struct args *args = &with_image;
    struct generation generation = {.args = args, .upscales = request_upscales(args)};
    if (generation.upscales)
        with_image.init_image = args->operands[0];
    else
        generation.latent = args->operands[0];
    char *json = NULL;
    if (output_check_report(args, (struct output_item){1, 1, 0, args->frames, 0}, e)) return e->code;
    int status = request_check(args, e);
    const char *conflict = args->type            ? "--type"
                           : args->plan          ? "--plan"
                           : generation.upscales ? "an upscaler"
                           : args->operands[0]   ? "a latent"
                                                 : NULL;
    if (!status && args->types && conflict)
        status =
            fail(e, SLUICE_USAGE,
                 "--types cannot be combined with %s" WHERE "--types" EXPECTED "one of the two", conflict);
    if (!status) status = request_seed(args, &generation.seed, e);
    if (!status && args->seed.random) message_note("seed %llu", (unsigned long long)generation.seed);
    if (!status) status = generation_open(&generation, e);
    const char *unread = generation.upscales  ? NULL
                         : args->model.family ? "no tokenizer"
                         : args->prompt.text || args->redux_images.n
                             ? NULL /* without a prompt, images of Redux follow zero embeddings */
                             : "no prompt";
    if (!status && unread && !generation.latent && !args->quiet)
        message_note("%s: planned for the longest prompt", unread);
    if (!status && args->model.family && args->type && !args->quiet)
        message_note("--type %s: planned for files written by `sluice convert --type`", args->type);
    if (!status) status = print_plan(&generation, &json, e);
    struct report report = {.name = args->report, .plan_json = json, .seed = generation.seed};
    status = report_write(&report, e);
    sluice_free(json);
    generation_close(&generation);
    return status;
}
