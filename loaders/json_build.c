/* Documents that we build: see json.h. */
#include <stdlib.h>

#include "loaders/json.h"

static _Thread_local unsigned losses;

unsigned failed_json_allocations(void) {
    return losses;
}

void json_put(json_t *object, const char *name, json_t *value) {
    json_watch(json_object_set_new(object, name, value));
}

void json_push(json_t *array, json_t *value) {
    json_watch(json_array_append_new(array, value));
}

void json_watch(int failed) {
    losses += failed != 0;
}

char *json_hand_out(json_t *root, size_t flags, unsigned losses_before) {
    size_t bytes = root && losses == losses_before ? json_dumpb(root, NULL, 0, flags) : 0;
    char *text = bytes ? malloc(bytes + 1) : NULL;
    if (text && json_dumpb(root, text, bytes, flags) != bytes) {
        free(text);
        text = NULL;
    }
    if (text) text[bytes] = 0;
    json_decref(root);
    return text;
}
