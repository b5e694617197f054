/* Free memory on Linux: see free_memory.h. */
#include "engine/base/free_memory.h"

#include "engine/base/control_groups.h"

uint64_t free_memory_bytes(const char *root) {
    char text[CONTROL_GROUPS_TEXT];
    uint64_t bytes = control_groups_number(control_groups_text(root, "/proc/meminfo", text), "MemAvailable:")
                     << 10;
    if (!bytes) return 0;
    uint64_t left = control_groups_memory_left(root);
    if (left < bytes) bytes = left;
    return bytes ? bytes : 1;
}
