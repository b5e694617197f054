#include "cli/answer.h"

#include "cli/fail.h"
#include "cli/messages.h"

#include <stdio.h>

int answer_show(const struct args *args, const char *json, const char *what, void (*print)(json_t *root),
                struct sluice_error *e) {
    if (args->json) {
        sanitize_print_json(stdout, json);
        return SLUICE_OK;
    }
    json_t *root = json_loads(json, 0, NULL);
    if (!root) return fail(e, SLUICE_INTERNAL, "the library's %s is not JSON", what);
    sanitize_json(root);
    print(root);
    json_decref(root);
    return SLUICE_OK;
}

int answer_print(const struct args *args, int status, char *json, const char *what,
                 void (*print)(json_t *root), struct sluice_error *e) {
    if (!status) status = answer_show(args, json, what, print, e);
    sluice_free(json);
    return status;
}
