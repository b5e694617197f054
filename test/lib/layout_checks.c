#include "test/lib/layout_checks.h"

struct result expected_result;
struct sluice_request expected_request;
char captured_log[LOG_BYTES];

static void on_log(void *user, int level, const char *line) {
    size_t n = strlen(captured_log);
    (void)user, (void)level;
    snprintf(captured_log + n, sizeof captured_log - n, "%s\n", line);
}

bool rig_open_paths(struct rig *rig, options from, const char *what) {
    struct error e = {0};
    struct sluice_session_options session = {.threads = 1, .on_log = on_log};
    memset(rig, 0, sizeof *rig);
    captured_log[0] = 0;
    fault_sys_init(&rig->fault_sys, 1);
    char line[1024];
    model_open(&rig->fault_sys.sys, model_options(&from), &rig->model, &e);
    return check(e.code == OK, "%s: %s", what, error_line(&e, line, sizeof line)) &&
           rig_open_session(rig, session);
}

void expect_same_result(options from, const char *what) {
    struct rig rig;
    struct sluice_request r = expected_request;
    json_int_t least = 0, all = 0;
    if (!rig_open_paths(&rig, from, what)) return;
    struct result got = run(&rig, &r);
    same(&expected_result, &got, what);
    bounds(&rig, r, &least, &all);
    r.max_ram_bytes = least;
    got = run(&rig, &r);
    same(&expected_result, &got, what);
    /* If opening the model takes more memory than any stage, even a plan for the least budget keeps
     * residents. */
    check_memory_released(&rig, json_is_true(json_object_get(got.plan, "keep")), what);
    rig_close(&rig);
}

void expect_refused_as(options from, enum status code, int exit_code, const char *what,
                       const char *const *words) {
    struct fault_sys fault_sys;
    struct error e = {0};
    sluice_model *opened = NULL;
    char line[1024];
    fault_sys_init(&fault_sys, 1);
    model_open(&fault_sys.sys, model_options(&from), &opened, &e);
    error_line(&e, line, sizeof line);
    check(e.code == code, "%s: %s: %s", what, status_name(e.code), line);
    check(e.exit == exit_code, "%s: exit %d", what, e.exit);
    for (; *words; words++) check(strstr(line, *words) != NULL, "%s: no '%s' in: %s", what, *words, line);
    model_close(opened);
    check(fault_sys.sys.use.live_bytes[LINE_HOST] == 0, "%s: leaks", what);
}

void expect_refused(options from, enum status code, const char *what, const char *const *words) {
    expect_refused_as(from, code, 3, what, words);
}

json_t *inspect(options from) {
    char *json = NULL;
    struct sluice_error e;
    sluice_inspect(model_options(&from), false, &json, &e);
    json_t *root = json ? json_loads(json, 0, NULL) : NULL;
    sluice_free(json);
    return root;
}

size_t count(json_t *root, const char *key) {
    return json_array_size(json_object_get(root, key));
}

void copy_file(const char *from, const char *to) {
    char command[3 * TENSOR_SET_PATH];
    snprintf(command, sizeof command, "cp -rL '%s' '%s'", from, to);
    check(system(command) == 0, "%s", command);
}

void expect_allocation_failures(options from) {
    long n = 1;
    for (enum status code = MEMORY; code == MEMORY; n += 1 + n / 16) {
        struct fault_sys fault_sys;
        struct error e = {0};
        sluice_model *opened = NULL;
        fault_sys_init(&fault_sys, 1);
        fault_sys_fail(&fault_sys, CALL_ALLOC, n, 0);
        code = model_open(&fault_sys.sys, model_options(&from), &opened, &e);
        check(code == OK || code == MEMORY, "allocation %ld: %s %s", n, status_name(code), e.what);
        model_close(opened);
        check(fault_sys.sys.use.live_bytes[LINE_HOST] == 0, "allocation %ld leaks", n);
    }
    check(n > 20, "%ld allocations", n);
}
