#include "engine/generate/running.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void log_line(const struct sluice_session_options *options, int level, const char *format, ...) {
    if (!options->on_log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    options->on_log(options->user, level, line);
}

void draw_noise(struct running *r, int image, struct tensor to) {
    generator_normals(&r->generators[image], to.data, tensor_elements(&to));
}

enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e) {
    const float *values = t.data;
    int64_t n = tensor_elements(&t), bad = 0;
    for (int64_t i = 0; i < n; i++) bad += !isfinite(values[i]);
    if (!bad) return OK;
    error_set(e, NONFINITE, "%s contains NaN or infinite values", what);
    step < 0 ? error_where(e, "stage %s", stage) : error_where(e, "stage %s, step %d", stage, step + 1);
    return error_found(e, "%lld of %lld values", (long long)bad, (long long)n);
}
