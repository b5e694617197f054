#include "engine/open/adapter_values.h"

#include "engine/base/half.h"
#include "engine/open/adapter_file.h"
#include "loaders/alloc_array.h"

#include <math.h>
#include <string.h>

static float half_value(enum dtype dtype, uint16_t half) {
    return dtype == DTYPE_BF16 ? half_bf16_f32(half) : half_f16_f32(half);
}

/* Reads 16-bit values into the second half of the f32 output buffer and converts them from the front, so that
 * no conversion overwrites an unconverted value. */
enum status adapter_read_values(const struct byte_source *source, uint64_t offset, enum dtype dtype,
                                int64_t first, int64_t n, float *to, struct error *e) {
    uint64_t size = dtype == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    char *from = (char *)to + (uint64_t)n * (sizeof(float) - size);
    if (dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16) {
        return error_set(e, UNSUPPORTED,
                         "a vector of the model or adapter has an unsupported element type" WHERE "%s" FOUND
                         "%s" EXPECTED "F32, F16 or BF16",
                         source->path, dtype_name(dtype));
    }
    if (source_read(source, from, (uint64_t)n * size, offset + (uint64_t)first * size, e) != OK)
        return e->code;
    for (int64_t i = 0; i < n && size < sizeof(float); i++) {
        uint16_t half;
        memcpy(&half, from + (uint64_t)i * size, sizeof half);
        to[i] = half_value(dtype, half);
    }
    return OK;
}

static enum status check_tensor(const struct adapter *a, const struct index_entry *entry, float *values,
                                int64_t n_max, struct error *e) {
    int64_t all = index_elements(entry);
    for (int64_t first = 0; first < all; first += n_max) {
        int64_t n = all - first < n_max ? all - first : n_max;
        bool finite = true;
        if (adapter_read_values(&a->index.sources[0], entry->offset, entry->dtype, first, n, values, e) != OK)
            return e->code;
        for (int64_t i = 0; i < n; i++) finite &= isfinite(values[i]) != 0;
        if (finite) continue;
        return error_set(e, NONFINITE,
                         "tensor '%s' of the adapter has values that are NaN or infinite" WHERE "%s",
                         entry->name, a->index.sources[0].path);
    }
    return OK;
}

enum status adapter_check_finite(const struct adapter *a, struct error *e) {
    enum { BUFFER_VALUES = 1 << 14 };
    float *values = alloc_array(a->sys, BUFFER_VALUES, sizeof *values, e);
    for (int i = 0; i < a->n_modules && values && e->code == OK; i++)
        for (int role = 0; role < N_ADAPTER_ROLES && e->code == OK; role++) {
            const struct index_entry *entry = a->modules[i].tensor[role];
            if (entry && role != ADAPTER_ALPHA && role != ADAPTER_SCALE)
                check_tensor(a, entry, values, BUFFER_VALUES, e);
        }
    a->sys->release(a->sys, values);
    return e->code;
}
