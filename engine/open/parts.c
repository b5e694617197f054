/* The parts of a model: see parts.h. */
#include "engine/open/parts.h"

#include "engine/open/paths.h"

#include <stdio.h>
#include <string.h>

/* ---- flags ---- */

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

/* ---- which counts ---- */

/* How much a part is worth where several are of a kind: 0 where it does not count. */
static int rank_of(const struct part *part) {
    if (!part->family || part->misplaced) return 0;
    return part->flag ? 3 : part->folder ? 2 : 1;
}

const struct part *parts_find(const struct model_parts *parts, const struct family *family) {
    const struct part *found = NULL;
    for (int i = 0; i < parts->n_parts; i++) {
        const struct part *part = &parts->part[i];
        if (part->family == family && rank_of(part) > (found ? rank_of(found) : 0)) found = part;
    }
    return found;
}

const struct part *parts_find_kind(const struct model_parts *parts, enum family_kind kind) {
    const struct part *found = NULL;
    for (int i = 0; i < parts->n_parts; i++) {
        const struct part *part = &parts->part[i];
        bool is = part->family && part->family->kind == kind;
        if (is && rank_of(part) > (found ? rank_of(found) : 0)) found = part;
    }
    return found;
}

/* ---- slots ---- */

enum { FITS_BY_ORDER = 1, FITS_BY_PREFIX, FITS_BY_FOLDER, FITS_BY_FLAG };

/* How surely a part is for that slot; 0: it is not. */
static int fits(const struct model_parts *parts, const struct part *part, const struct slot *slot,
                bool alone) {
    if (part->family != slot->family || !rank_of(part)) return 0;
    struct tensor_index view = parts_view(parts, part);
    if (slot->is && !slot->is(&view)) return 0;
    if (alone) return rank_of(part);
    if (part->flag) return slot->flag && !strcmp(part->flag, slot->flag) ? FITS_BY_FLAG : 0;
    if (part->folder) return !strcmp(part->folder, slot->folder) ? FITS_BY_FOLDER : 0;
    if (!part->prefix) return FITS_BY_ORDER;
    return slot_takes(slot, part->family, part->prefix) ? FITS_BY_PREFIX : 0;
}

static const struct part *best_left(const struct model_parts *parts, const struct slot *slot, bool alone,
                                    int surely, const bool given[PARTS_MAX]) {
    for (int i = 0; i < parts->n_parts; i++)
        if (!given[i] && fits(parts, &parts->part[i], slot, alone) == surely) return &parts->part[i];
    return NULL;
}

void parts_assign(const struct model_parts *parts, const struct recipe *recipe,
                  const struct part *in[SLOTS_MAX]) {
    bool given[PARTS_MAX] = {0};
    memset(in, 0, SLOTS_MAX * sizeof *in);
    for (int surely = FITS_BY_FLAG; surely > 0; surely--)
        for (int i = 0; recipe->slot[i].family; i++) {
            bool alone = recipe_count(recipe, recipe->slot[i].family) == 1;
            if (!in[i]) in[i] = best_left(parts, &recipe->slot[i], alone, surely, given);
            if (in[i]) given[in[i] - parts->part] = true;
        }
}

const struct part *parts_in_slot(const struct model_parts *parts, const struct recipe *recipe, int slot) {
    const struct part *in[SLOTS_MAX];
    parts_assign(parts, recipe, in);
    return in[slot];
}

/* ---- files ---- */

const char *parts_path(const struct model_parts *parts, const struct part *part) {
    return parts->file[part->file].path;
}

struct tensor_index parts_view(const struct model_parts *parts, const struct part *part) {
    return index_view(&parts->file[part->file].index, part->prefix, part->view);
}

static enum status too_many(const char *path, struct error *e) {
    error_set(e, LIMIT, "too many parts of a model");
    error_where(e, "%s", path);
    return error_expected(e, "at most %d", PARTS_MAX);
}

enum status parts_add_file(struct sys *sys, struct model_parts *parts, const char *path,
                           struct tensor_index *index, struct error *e) {
    if (parts->n_files == PARTS_MAX) {
        index_destroy(index);
        return too_many(path, e);
    }
    struct part_file *file = &parts->file[parts->n_files++];
    *file = (struct part_file){.path = path_copy(sys, path, e), .index = *index};
    return e->code;
}

enum status parts_add(struct model_parts *parts, struct part part, struct error *e) {
    part.file = parts->n_files - 1;
    if (parts->n_parts == PARTS_MAX) return too_many(parts->file[part.file].path, e);
    if (part.prefix && !*part.prefix) part.prefix = NULL;
    parts->part[parts->n_parts++] = part;
    return OK;
}

struct tensor_index parts_take(struct model_parts *parts, const struct part *part) {
    struct tensor_index *whole = &parts->file[part->file].index, taken = *whole;
    *whole = index_view(whole, NULL, 0); /* those that take later borrow */
    taken.prefix = part->prefix;
    taken.view = part->view;
    return taken;
}

void parts_destroy(struct sys *sys, struct model_parts *parts) {
    for (int i = 0; i < parts->n_files; i++) {
        sys->release(sys, parts->file[i].path);
        index_destroy(&parts->file[i].index);
    }
    sys->release(sys, parts->scheduler);
    sys->release(sys, parts->pipeline);
    sys->release(sys, parts->defaults);
    *parts = (struct model_parts){0};
}
