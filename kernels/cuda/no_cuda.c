/* Implements cuda.h in builds without CUDA: there are no GPUs. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>

static const char reason[] = "this program was built without CUDA";

int cuda_count(char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "%s", reason);
    return 0;
}

bool cuda_usable(int ordinal) {
    (void)ordinal;
    return false;
}

enum status cuda_describe(int ordinal, struct cuda_info *info, struct error *e) {
    (void)info;
    return error_set(e, USAGE, "%s" FOUND "cuda:%d" EXPECTED "cpu", reason, ordinal);
}

const char *cuda_path_name(enum cuda_path path) {
    (void)path;
    return "";
}

enum status cuda_bus_rate(struct sys *sys, int ordinal, enum cuda_path path, uint64_t bytes,
                          double *bytes_per_second, struct error *e) {
    struct cuda_info info;
    (void)sys, (void)path, (void)bytes;
    *bytes_per_second = 0;
    return cuda_describe(ordinal, &info, e);
}

enum status cuda_pinnable(int ordinal, uint64_t bytes, uint64_t *pinnable, struct error *e) {
    struct cuda_info info;
    (void)bytes;
    *pinnable = 0;
    return cuda_describe(ordinal, &info, e);
}

struct device *cuda_open(struct sys *sys, int ordinal, struct error *e) {
    struct cuda_info info;
    (void)sys;
    cuda_describe(ordinal, &info, e);
    return NULL;
}
