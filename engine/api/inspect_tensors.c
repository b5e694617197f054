#include "engine/api/inspect_tensors.h"

#include "loaders/json.h"

json_t *inspect_tensors(const struct tensor_index *index) {
    json_t *list = json_array();
    for (int i = 0; i < index->n_entries; i++) {
        const struct index_entry *entry = &index->entries[i];
        if (!index_contains(index, entry)) continue;
        json_t *shape = json_array();
        for (int k = 0; k < entry->rank; k++) json_push(shape, json_integer(entry->dim[k]));
        json_push(list,
                  json_pack("{s:s, s:s, s:o, s:I, s:b}", "name", entry->name, "type", index_type_name(entry),
                            "shape", shape, "bytes", (json_int_t)entry->bytes, "used", (int)entry->used));
    }
    return list;
}

json_t *inspect_types(const struct tensor_index *index) {
    json_t *types = json_object();
    for (int i = 0; i < index->n_entries; i++) {
        if (!index_contains(index, &index->entries[i])) continue;
        const char *name = index_type_name(&index->entries[i]);
        json_int_t bytes = json_integer_value(json_object_get(types, name));
        json_put(types, name, json_integer(bytes + (json_int_t)index->entries[i].bytes));
    }
    return types;
}
