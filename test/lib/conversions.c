#include "test/lib/conversions.h"

#include "engine/convert/convert.h"
#include "kernels/cpu/weights.h"

#include <dirent.h>
#include <sys/stat.h>

struct fault_sys convert_sys;

bool file_exists(const char *path) {
    struct stat s;
    return stat(path, &s) == 0;
}

enum status convert(const struct convert_args *args, struct error *e) {
    struct sluice_convert_options options = {.struct_size = sizeof options,
                                             .inputs = args->inputs,
                                             .output = args->output,
                                             .type = args->type,
                                             .part = args->part,
                                             .rules = args->rules,
                                             .loras = args->loras};
    while (options.n_inputs < 4 && args->inputs[options.n_inputs]) options.n_inputs++;
    while (options.n_rules < 4 && args->rules[options.n_rules]) options.n_rules++;
    while (options.n_loras < 2 && args->loras[options.n_loras].path) options.n_loras++;
    *e = (struct error){0};
    return convert_files(&convert_sys.sys, &options, NULL, e);
}

bool expect_converted(const struct convert_args *args) {
    struct error e;
    char line[1200];
    enum status status = convert(args, &e);
    return check(status == OK, "%s: %s", args->output, error_line(&e, line, sizeof line));
}

void check_no_leak(const char *what) {
    DIR *folder = opendir(temporary);
    int n = 0;
    for (struct dirent *file; folder && (file = readdir(folder));) n += strstr(file->d_name, ".tmp.") != NULL;
    if (folder) closedir(folder);
    check(n == 0, "%s: a temporary file remains", what);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        check(convert_sys.sys.use.live_bytes[i] == 0, "%s: memory line %d still holds %lld bytes", what, i,
              (long long)convert_sys.sys.use.live_bytes[i]);
}

void expect_not_converted(const struct convert_args *args, enum status code, const char *word) {
    struct error e;
    char line[1200];
    bool was_there = args->output && file_exists(args->output);
    convert(args, &e);
    error_line(&e, line, sizeof line);
    check(e.code == code, "%s, not %s: %s", status_name(e.code), status_name(code), line);
    check(strstr(line, word) != NULL, "'%s' is missing in: %s", word, line);
    check(!args->output || file_exists(args->output) == was_there, "an output after: %s", line);
    check_no_leak(line);
}

bool open_weights(struct opened *o, const char *path) {
    struct error e = {0};
    char line[1200];
    sys_init_machine(&o->machine);
    return check(component_open(&o->machine, path, &o->index, &e) == OK, "%s: %s", path,
                 error_line(&e, line, sizeof line));
}

int64_t entry_elements(const struct index_entry *entry) {
    struct tensor t = tensor_make(NULL, entry->dtype, entry->rank, entry->dim);
    return tensor_elements(&t);
}

float *numbers_of(const struct opened *o, const struct index_entry *entry) {
    struct error e = {0};
    struct tensor t = tensor_make(malloc(entry->bytes + 1), entry->dtype, entry->rank, entry->dim);
    float *numbers = malloc(((size_t)tensor_elements(&t) + 1) * sizeof *numbers);
    void *scales = malloc(entry->scales.bytes + 1);
    if (!t.data || !scales || !numbers) abort();
    source_read(&o->index.sources[entry->source], t.data, entry->bytes, entry->offset, &e);
    index_read_scales(&o->index, entry, scales, &e);
    check(e.code == OK, "reading %s: %s", entry->name, e.what);
    t.scale = entry->scale;
    t.scales = entry->scales.bytes ? scales : NULL;
    weights_widen(numbers, &t, 0, tensor_rows(&t));
    free(t.data);
    free(scales);
    return numbers;
}
