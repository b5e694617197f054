/* Types of weights in a plan: see plan_types.h. */
#include "cli/plan_types.h"

#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/progress.h"

#include <stdlib.h>
#include <string.h>

static const char *const types[] = {"f8_e4m3", "q8_0", "q6_k", "q5_k", "q4_k"};

/* Pictures are neither encoded nor decoded with weights that a type is for. */
static double weights_bytes(const json_t *plan) {
    size_t i, k;
    json_t *stage, *block;
    double bytes = 0;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        const char *name = field_string(stage, "name");
        if (!strcmp(name, "encode") || !strcmp(name, "decode")) continue;
        json_array_foreach(json_object_get(stage, "blocks"), k, block) {
            bytes += field_number(block, "bytes");
        }
    }
    return bytes;
}

static json_t *row(const char *type, const json_t *plan, bool fits) {
    json_t *seconds = json_object_get(plan, "seconds");
    return json_pack("{s:s?, s:I, s:O, s:b}", "type", type, "bytes", (json_int_t)weights_bytes(plan),
                     "seconds", seconds ? seconds : json_null(), "fits", (int)fits);
}

static int add_type(struct drawing *drawing, const char *type, json_t *rows, struct sluice_error *e) {
    struct sluice_request request = drawing->request;
    char *text = NULL;
    bool fits = false;
    request.type = type;
    int status = sluice_plan_query(drawing->session, &request, NULL, &text, &fits, e);
    if (status) return status;
    json_t *plan = json_loads(text, 0, NULL);
    json_array_append_new(rows, row(type, plan, fits));
    json_decref(plan);
    sluice_free(text);
    return SLUICE_OK;
}

int plan_types_add(struct drawing *drawing, char **json, struct sluice_error *e) {
    if (drawing->request.type || drawing->request.plan || drawing->latent) return SLUICE_OK;
    json_t *plan = json_loads(*json, 0, NULL), *rows = json_array();
    const json_t *peak = json_object_get(plan, "peak"), *budget = json_object_get(plan, "budget");
    bool fits = field_number(peak, "ram_bytes") <= field_number(budget, "ram_bytes") &&
                field_number(peak, "vram_bytes") <= field_number(budget, "vram_bytes");
    int status = SLUICE_OK;
    json_array_append_new(rows, row(NULL, plan, fits));
    for (size_t i = 0; i < sizeof types / sizeof *types && !status; i++)
        status = add_type(drawing, types[i], rows, e);
    json_object_set_new(plan, "types", rows);
    char *text = status ? NULL : json_dumps(plan, JSON_INDENT(1));
    json_decref(plan);
    if (!status && !text) status = fail(e, SLUICE_MEMORY, "no memory for the plan's text");
    if (status) return status;
    sluice_free(*json);
    *json = text;
    return SLUICE_OK;
}

void plan_types_print(FILE *to, const char *json) {
    json_t *plan = json_loads(json, 0, NULL), *type;
    const json_t *rows = json_object_get(plan, "types");
    size_t i;
    if (rows) fprintf(to, "\n%-10s %14s %9s\n", "--type", "weights", "seconds");
    json_array_foreach(rows, i, type) {
        char bytes[32];
        const char *name = json_string_value(json_object_get(type, "type"));
        const json_t *seconds = json_object_get(type, "seconds");
        fprintf(to, "%-10s %14s", name ? name : "as stored",
                progress_bytes(field_number(type, "bytes"), bytes));
        if (json_is_number(seconds)) fprintf(to, " %9.1f", json_number_value(seconds));
        fputs(json_is_true(json_object_get(type, "fits")) ? "\n" : "  does not fit\n", to);
    }
    json_decref(plan);
}
