/* Appends visits to the visit list: implements visit.h. */
#include "engine/run/visit.h"

#include <string.h>

int lane_first_of_prompt(const struct lane *lanes, int i) {
    int first = 0;
    while (lanes[first].prompt != lanes[i].prompt) first++;
    return first;
}

enum status visit_add(struct visit_list *list, struct visit visit, struct error *e) {
    if (list->n_visits == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 256;
        struct visit *grown = list->sys->alloc(list->sys, LINE_HOST, (size_t)capacity * sizeof *grown);
        if (!grown) return error_set(e, MEMORY, "no memory for a list of %d visits", capacity);
        if (list->n_visits) memcpy(grown, list->visits, (size_t)list->n_visits * sizeof *grown);
        list->sys->release(list->sys, list->visits);
        list->visits = grown;
        list->capacity = capacity;
    }
    list->visits[list->n_visits++] = visit;
    return OK;
}

enum status visit_add_prompts(struct visit_list *list, struct visit visit, const struct lane *lanes,
                              int n_lanes, struct error *e) {
    visit.n_lanes = 1;
    for (visit.first_lane = 0; visit.first_lane < n_lanes; visit.first_lane++)
        if (lane_first_of_prompt(lanes, visit.first_lane) == visit.first_lane) visit_add(list, visit, e);
    return e->code;
}

void visit_list_destroy(struct visit_list *list) {
    if (list->sys) list->sys->release(list->sys, list->visits);
    *list = (struct visit_list){.sys = list->sys};
}
