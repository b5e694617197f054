#include "test/lib/plans.h"

#include "test/lib/rig.h"

json_t *query(struct rig *rig, const struct sluice_request *request, bool *fits) {
    char *text = NULL;
    struct sluice_error e = {0};
    bool yes = false;
    int code = sluice_plan_query(rig->session, request, NULL, &text, &yes, &e);
    check(code == SLUICE_OK, "plan: %s", e.what);
    if (fits) *fits = yes;
    json_t *plan = text ? rig_own(rig, json_loads(text, 0, NULL)) : NULL;
    sluice_free(text);
    return plan;
}

const char *plan_text(struct rig *rig, json_t *plan) {
    char *text = json_dumps(plan, 0);
    json_t *owned = rig_own(rig, json_string(text));
    free(text);
    return json_string_value(owned);
}

json_int_t number(json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

double real(json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

const char *word(json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

json_int_t ram(json_t *plan, const char *which) {
    return number(json_object_get(plan, which), "ram_bytes");
}

json_t *stage_at(json_t *plan, size_t i) {
    return json_array_get(json_object_get(plan, "stages"), i);
}

json_t *block_at(json_t *stage, size_t i) {
    return json_array_get(json_object_get(stage, "blocks"), i);
}

json_t *stage_of(json_t *plan, const char *name) {
    json_t *stage;
    for (size_t i = 0; (stage = stage_at(plan, i)); i++)
        if (!strcmp(word(stage, "name"), name)) return stage;
    return NULL;
}

json_int_t blocks_bytes(json_t *plan, const char *name) {
    json_t *block;
    json_int_t bytes = 0;
    for (size_t i = 0; (block = block_at(stage_of(plan, name), i)); i++) bytes += number(block, "bytes");
    return bytes;
}

json_int_t streamed(json_t *plan, const char *name) {
    return number(stage_of(plan, name), "streamed_bytes_per_evaluation");
}

void bounds(struct rig *rig, struct sluice_request request, json_int_t *least, json_int_t *all) {
    request.plan = NULL;
    request.max_ram_bytes = plenty;
    json_t *plan = query(rig, &request, NULL);
    *least = ram(plan, "least");
    *all = ram(plan, "peak");
}

json_int_t planned_store(json_t *plan) {
    json_int_t most = 0, kept = 0;
    json_t *stage;
    bool keep = json_is_true(json_object_get(plan, "keep"));
    for (size_t i = 0; (stage = stage_at(plan, i)); i++) kept += number(stage, "resident_bytes");
    for (size_t i = 0; (stage = stage_at(plan, i)); i++) {
        json_int_t here = number(stage, "ring_bytes") + (keep ? kept : number(stage, "resident_bytes"));
        if (here > most) most = here;
    }
    return most + number(plan, "bounce_bytes");
}
