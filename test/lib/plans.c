#include "test/lib/plans.h"

#include "test/lib/rig.h"

json_t *query(struct rig *rig, const struct sluice_request *request, bool *fits) {
    char *text = NULL;
    struct sluice_error e = {0};
    bool yes = false;
    int code = sluice_plan_query(rig->session, request, NULL, &text, &yes, &e);
    check(code == SLUICE_OK, "plan: %s", e.what);
    if (fits) *fits = yes;
    json_t *plan = text ? json_loads(text, 0, NULL) : NULL;
    sluice_free(text);
    return plan;
}

json_int_t number(json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

json_int_t ram(json_t *plan, const char *which) {
    return number(json_object_get(plan, which), "ram_bytes");
}

json_t *stage_of(json_t *plan, const char *name) {
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        if (!strcmp(json_string_value(json_object_get(stage, "name")), name)) return stage;
    }
    return NULL;
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
    json_decref(plan);
}

json_int_t planned_store(json_t *plan) {
    json_int_t most = 0, kept = 0;
    size_t i;
    json_t *stage, *stages = json_object_get(plan, "stages");
    bool keep = json_is_true(json_object_get(plan, "keep"));
    json_array_foreach(stages, i, stage) kept += number(stage, "resident_bytes");
    json_array_foreach(stages, i, stage) {
        json_int_t here = number(stage, "ring_bytes") + (keep ? kept : number(stage, "resident_bytes"));
        if (here > most) most = here;
    }
    return most + number(plan, "bounce_bytes");
}
