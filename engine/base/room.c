/* Room: see room.h. */
#include "engine/base/room.h"

#include "engine/base/text.h"

#include <inttypes.h>

/* Descriptors of a small request: a budget that holds a header has to hold these, too. */
enum { DESCRIPTORS = 4 << 20 };

enum status room_check(struct sys *sys, const char *path, uint64_t bytes, struct error *e) {
    uint64_t budget = sys->room.budget_bytes, beside = sys->room.beside_bytes;
    uint64_t least = beside + (uint64_t)sys_memory_use(sys).live_bytes[LINE_HOST] + bytes;
    char size[SIZE_TEXT_BYTES];
    if (!budget || least <= budget || least <= beside + ROOM_ANYWAY) return OK;
    least += DESCRIPTORS;
    error_set(e, BUDGET,
              "does not fit the memory budget: the least that would do is --max-ram %" PRIu64 "B (%s)", least,
              size_text(least, size));
    error_where(e, "%s", path);
    error_found(e, "a budget of %s", size_text(budget, size));
    return error_expected(e, "room for %s of this file", size_text(bytes, size));
}
