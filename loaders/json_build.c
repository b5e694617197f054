/* Builds JSON documents and counts failed allocations: see json.h. */
#include <stdlib.h>

#include "loaders/json.h"

static _Thread_local unsigned json_failures;

unsigned failed_json_allocations(void) {
    return json_failures;
}

void json_put(json_t *object, const char *name, json_t *value) {
    json_count_failure(json_object_set_new(object, name, value));
}

void json_push(json_t *array, json_t *value) {
    json_count_failure(json_array_append_new(array, value));
}

void json_count_failure(int failed) {
    json_failures += failed != 0;
}

char *json_to_text(json_t *root, size_t flags, unsigned failures_before) {
    size_t bytes = root && json_failures == failures_before ? json_dumpb(root, NULL, 0, flags) : 0;
    char *text = bytes ? malloc(bytes + 1) : NULL;
    if (text && json_dumpb(root, text, bytes, flags) != bytes) {
        free(text);
        text = NULL;
    }
    if (text) text[bytes] = 0;
    json_decref(root);
    return text;
}
