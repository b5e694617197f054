#ifndef SLUICE_OPEN_ADAPTER_VALUES_H
#define SLUICE_OPEN_ADAPTER_VALUES_H

#include "engine/base/source.h"
#include "engine/base/tensor.h"

/* Reads n values, from index `first`, of a tensor at byte `offset` of the file, of type F32, F16 or BF16, as
 * f32. UNSUPPORTED: another type. Also errors of source_read. */
enum status adapter_read_values(const struct byte_source *source, uint64_t offset, enum dtype dtype,
                                int64_t first, int64_t n, float *to, struct error *e);

#endif
