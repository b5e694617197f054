/* Groups of tensors: see inspect_groups.h. Names alone decide, so that files of unknown models are shown too.
 */
#include "engine/api/inspect_groups.h"
#include "loaders/json.h"

#include <stdio.h>
#include <string.h>

enum { GROUP_NAME_BYTES = 256 };

/* "layers.12.attention.to_k.weight" is of "layers.N". */
static const char *group_name(const char *tensor, char name[GROUP_NAME_BYTES]) {
    for (const char *dot = strchr(tensor, '.'); dot; dot = strchr(dot + 1, '.')) {
        size_t digits = strspn(dot + 1, "0123456789");
        if (!digits || dot[1 + digits] != '.') continue;
        snprintf(name, GROUP_NAME_BYTES, "%.*s.N", (int)(dot - tensor), tensor);
        return name;
    }
    return "others";
}

static void count_up(json_t *group, const char *key, json_int_t n) {
    json_put(group, key, json_integer(json_integer_value(json_object_get(group, key)) + n));
}

static json_int_t values_of(const struct index_entry *entry) {
    json_int_t values = 1;
    if (entry->beside || !entry->bytes) return 0;
    for (int i = 0; i < entry->rank; i++) values *= entry->dim[i];
    return values;
}

static void count_tensor(json_t *group, const struct index_entry *entry) {
    count_up(group, "tensors", 1);
    count_up(group, "bytes", (json_int_t)entry->bytes);
    count_up(group, "values", values_of(entry));
    count_up(json_object_get(group, "types"), index_type_name(entry), (json_int_t)entry->bytes);
}

static void set_bits(json_t *counted) {
    double values = (double)json_integer_value(json_object_get(counted, "values"));
    double bits = 8 * (double)json_integer_value(json_object_get(counted, "bytes"));
    json_put(counted, "bits_per_weight", json_real(values > 0 ? bits / values : 0));
}

void inspect_add_groups(const struct tensor_index *index, json_t *component) {
    json_t *list = json_array(), *by_name = json_object(), *group;
    json_int_t values = 0;
    const char *key;
    for (int i = 0; i < index->n_entries; i++) {
        char buffer[GROUP_NAME_BYTES];
        const struct index_entry *entry = &index->entries[i];
        if (!index_has(index, entry)) continue;
        const char *name = group_name(index_name(index, entry), buffer);
        if (!json_object_get(by_name, name))
            json_put(by_name, name, json_pack("{s:s, s:{}}", "name", name, "types"));
        count_tensor(json_object_get(by_name, name), entry);
        values += values_of(entry);
    }
    json_object_foreach(by_name, key, group) {
        set_bits(group);
        json_watch(json_array_append(list, group));
    }
    json_decref(by_name);
    json_put(component, "values", json_integer(values));
    set_bits(component);
    json_put(component, "groups", list);
}
