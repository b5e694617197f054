#include "loaders/alloc_array.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/checked.h"

void *alloc_array(struct sys *sys, uint64_t n, uint64_t element_bytes, struct error *e) {
    uint64_t bytes = 0;
    if (!multiply_u64(n, element_bytes, &bytes) || bytes > SIZE_MAX) {
        error_set(e, OVERFLOW, "array size overflows: %" PRIu64 " elements of %" PRIu64 " bytes", n,
                  element_bytes);
        return NULL;
    }
    void *memory = sys->alloc(sys, LINE_HOST, bytes ? bytes : 1);
    if (!memory) error_set(e, MEMORY, "no memory for %" PRIu64 " bytes of a file's contents", bytes);
    return memory;
}
