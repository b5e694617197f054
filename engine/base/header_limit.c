/* Limit on memory for file headers: see header_limit.h. */
#include "engine/base/header_limit.h"

#include "engine/base/text.h"

#include <inttypes.h>

/* Bytes that a small request needs besides file headers; added to the budget that the error recommends. */
enum { DESCRIPTORS = 4 << 20 };

enum status header_limit_check(struct sys *sys, const char *path, uint64_t bytes, struct error *e) {
    uint64_t budget = sys->header_limit.budget_bytes, reserved = sys->header_limit.reserved_bytes;
    uint64_t least = reserved + (uint64_t)sys_memory_use(sys).live_bytes[LINE_HOST] + bytes;
    char size[SIZE_TEXT_BYTES];
    if (!budget || least <= budget || least <= reserved + HEADER_LIMIT_MIN) return OK;
    least += DESCRIPTORS;
    return error_set(
        e, BUDGET,
        "the model does not fit the memory budget; the smallest budget that works is --max-ram %" PRIu64
        "B (%s)" WHERE "%s" FOUND "a budget of %s" EXPECTED "at least %s for the header of this file",
        least, size_text(least, size), path, size_text(budget, size), size_text(bytes, size));
}
