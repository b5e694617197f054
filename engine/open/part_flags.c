/* Flags of parts: see part_flags.h. */
#include "engine/open/part_flags.h"

#include <stdio.h>
#include <string.h>

static bool has_flag(const struct slot *slot, const char *flag) {
    return slot->flag && !strcmp(slot->flag, flag);
}

static bool is_first(int i_slot) {
    for (int i = 0; i < i_slot; i++)
        if (has_flag(models_slot(i), models_slot(i_slot)->flag)) return false;
    return true;
}

const char *part_flag(int i) {
    static const enum family_kind order[] = {FAMILY_DENOISER, FAMILY_TEXT, FAMILY_VISION, FAMILY_DECODER};
    const struct slot *slot;
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (int n = 0; (slot = models_slot(n)); n++)
            if (slot->family->kind == order[k] && slot->flag && is_first(n) && !i--) return slot->flag;
    return NULL;
}

bool part_flag_chooses(const char *flag, enum family_kind kind) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (has_flag(slot, flag) && slot->family->kind == kind) return true;
    return false;
}

bool part_flag_takes(const char *flag, const struct family *family) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (has_flag(slot, flag) && slot->family == family) return true;
    return false;
}

void part_flag_families(const char *flag, char *list, size_t bytes) {
    const struct family *last = NULL;
    size_t n = 0;
    *list = 0;
    for (const struct family *const *f = families; *f; f++)
        if (part_flag_takes(flag, *f)) last = *f;
    for (const struct family *const *f = families; *f && n < bytes; f++) {
        if (!part_flag_takes(flag, *f)) continue;
        const char *before = !n ? (*f)->word : *f == last ? " or " : ", ";
        n += (size_t)snprintf(list + n, bytes - n, "%s%s%s", before, n ? "" : " (", (*f)->name);
    }
    if (n < bytes) snprintf(list + n, bytes - n, ")");
}

void part_flag_list(char *list, size_t bytes) {
    const char *flag;
    size_t n = 0;
    *list = 0;
    for (int i = 0; (flag = part_flag(i)) && n < bytes; i++)
        n += (size_t)snprintf(list + n, bytes - n, "%s%s", i ? ", " : "", flag);
}
