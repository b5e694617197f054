/* The library's report lacks failures of the program itself, such as an image that
 * could not be written; "exit" and "error" are therefore corrected here. */
#include "cli/report.h"

#include "cli/fail.h"
#include "cli/outfile.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A JSON string; if text (a path) is not UTF-8, with '?' for each byte above 127. */
static json_t *string_json(const char *text) {
    char ascii[512];
    json_t *string = json_string(text);
    if (string) return string;
    snprintf(ascii, sizeof ascii, "%s", text);
    for (char *c = ascii; *c; c++) {
        if (*c & 0x80) *c = '?';
    }
    return json_string(ascii);
}

static json_t *error_json(const struct sluice_error *error) {
    return json_pack("{s:s, s:o, s:o, s:o, s:o}", "code", sluice_code_name(error->code), "what",
                     string_json(error->what), "where", string_json(error->where), "found",
                     string_json(error->found), "expected", string_json(error->expected));
}

static char *minimal_report(const struct report *report, const struct sluice_error *error) {
    json_t *plan = report->plan_json ? json_loads(report->plan_json, 0, NULL) : NULL;
    json_t *json = json_pack(
        "{s:i, s:i, s:o, s:I, s:f, s:[], s:[], s:{s:n, s:n, s:n, s:n}, s:[], s:[], s:[]}", "version", 1,
        "exit", error->exit_code, "plan", plan ? plan : json_null(), "seed", (json_int_t)report->seed,
        "seconds", report->seconds, "latent_sha256", "image_sha256", "measured", "vram_bytes", "ram_bytes",
        "base_bytes", "library_bytes", "stages", "steps", "replanned");
    if (error->code) json_object_set_new(json, "error", error_json(error));
    char *text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    return text;
}

/* The library's report, unchanged if exit code and error agree, so that numbers keep their formatting. NULL:
 * no report. */
static char *session_report(const struct report *report, const struct sluice_error *error) {
    struct sluice_error ignored;
    char *text = NULL;
    if (!report->session || sluice_report(report->session, &text, &ignored) || !text) return NULL;
    json_t *json = json_loads(text, 0, NULL);
    json_int_t code = json_integer_value(json_object_get(json, "exit"));
    char *out = NULL;
    bool has_error = json_object_get(json, "error") || !error->code;
    if (json && code == error->exit_code && has_error) {
        out = strdup(text);
    } else if (json) {
        json_object_set_new(json, "exit", json_integer(error->exit_code));
        if (error->code) json_object_set_new(json, "error", error_json(error));
        out = json_dumps(json, JSON_INDENT(1));
    }
    json_decref(json);
    sluice_free(text);
    return out;
}

int report_write(const struct report *report, struct sluice_error *error) {
    struct sluice_error problem = {0};
    if (!report->name) return error->code;
    char *text = session_report(report, error);
    if (!text) text = minimal_report(report, error);
    if (text) {
        outfile_write_text(report->name, text, &problem);
    } else {
        fail(&problem, SLUICE_MEMORY, "no memory for the report");
    }
    free(text);
    if (problem.code && !error->code) *error = problem;
    return error->code;
}
