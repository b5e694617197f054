/* `sluice plan`: prints the plan of a run without running it. */
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/output.h"
#include "cli/messages.h"
#include "cli/plan_table.h"
#include "cli/plan_types.h"
#include "cli/report.h"
#include "cli/request.h"

#include <stdio.h>

/* Error of a plan over the budget, as the run reports it; the plan itself is printed nevertheless. */
static int does_not_fit(const char *json, struct sluice_error *e) {
    json_t *plan = json_loads(json, 0, NULL);
    const json_t *least = json_object_get(plan, "least"), *budget = json_object_get(plan, "budget"),
                 *peak = json_object_get(plan, "peak");
    bool ram = field_number(peak, "ram_bytes") > field_number(budget, "ram_bytes");
    bool vram = field_number(peak, "vram_bytes") > field_number(budget, "vram_bytes");
    const char *key = ram ? "ram_bytes" : "vram_bytes", *flag = ram ? "--max-ram" : "--max-vram";
    char text[32];
    if (!ram && !vram) { /* a plan within both budgets that does not fit came from --plan FILE */
        fail(e, SLUICE_BUDGET,
             "this plan cannot run the request: a block does not fit the ring or staging buffer" WHERE
             "--plan");
        json_decref(plan);
        return fail_expected(e, "a plan that was made for this request");
    }
    fail(e, SLUICE_BUDGET, "this request does not fit the budget" WHERE "%s", flag);
    double needed = field_number(least, key);
    fail_found(e, "%s", progress_bytes(field_number(budget, key), text));
    fail_expected(e, "at least %s (%s %.0fB)", progress_bytes(needed, text), flag, needed);
    json_decref(plan);
    return e->code;
}

static int print_plan(struct generation *generation, char **json, struct sluice_error *e) {
    bool fits = true;
    int status =
        sluice_plan_query(generation->session, &generation->request, generation->latent, json, &fits, e);
    if (!status && generation->args->types) status = plan_types_add(generation, json, e);
    if (status) return status;
    if (generation->args->json) {
        sanitize_print_json(stdout, *json);
    } else {
        status = plan_table_print(stdout, *json, generation->args->verbose, e);
        plan_types_print(stdout, *json);
    }
    if (!status && !fits) status = does_not_fit(*json, e);
    return status;
}

int plan_command(const struct args *args, struct sluice_error *e) {
    struct generation generation = {.args = args, .latent = args->operands[0]};
    char *json = NULL;
    if (output_check_report(args, (struct output_item){1, 1, 0, args->frames, 0}, e)) return e->code;
    int status = request_check(args, e);
    if (!status) status = plan_types_check(args, e);
    if (!status) status = request_seed(args, &generation.seed, e);
    if (!status && args->seed.random) message_note("seed %llu", (unsigned long long)generation.seed);
    if (!status) status = generation_open(&generation, e);
    const char *unread = args->model.family ? "no tokenizer" : args->prompt.text ? NULL : "no prompt";
    if (!status && unread && !generation.latent && !args->quiet)
        message_note("%s: planned for the longest prompt", unread);
    if (!status) status = print_plan(&generation, &json, e);
    struct report report = {.name = args->report, .plan_json = json, .seed = generation.seed};
    status = report_write(&report, e);
    sluice_free(json);
    generation_close(&generation);
    return status;
}
