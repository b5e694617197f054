/* Component flags, the list of components, and their slots: implements component_files.h. */
#include "engine/open/component_files.h"

#include "engine/open/paths.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_flag(const struct slot *slot, const char *flag) {
    return slot->flag && !strcmp(slot->flag, flag);
}

const char *part_flag(int i) {
    static const enum family_kind order[] = {
        FAMILY_DENOISER, FAMILY_TEXT,         FAMILY_VISION,  FAMILY_DECODER,  FAMILY_SOUND_DECODER,
        FAMILY_VOCODER,  FAMILY_TINY_DECODER, FAMILY_CONTROL, FAMILY_UPSCALER, FAMILY_LATENT_UPSCALER};
    const struct slot *slot;
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (int n = 0; (slot = models_slot(n)); n++) {
            bool listed = slot->family->kind != order[k] || !slot->flag;
            for (int earlier = 0; earlier < n && !listed; earlier++)
                listed = has_flag(models_slot(earlier), slot->flag);
            if (!listed && !i--) return slot->flag;
        }
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

bool part_flag_optional(const char *flag) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (has_flag(slot, flag) && slot->optional) return true;
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
        const char *before = *f == last ? " or " : ", ";
        const struct slot *slot;
        if (!n) before = (*f)->kind == FAMILY_VISION && *f != last ? "vision encoder" : (*f)->display_name;
        for (int i = 0; !n && (slot = models_slot(i)); i++)
            if (has_flag(slot, flag) && slot->family == *f && slot->display_name) {
                before = slot->display_name;
                break;
            }
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

bool part_is_none(const struct sluice_part *part) {
    return part->path && !strcmp(part->path, "none");
}

bool part_disabled(const struct sluice_model_options *o, const struct slot *slot) {
    for (int i = 0; o && slot->flag && i < o->n_parts; i++)
        if (part_is_none(&o->parts[i]) && has_flag(slot, o->parts[i].flag)) return true;
    return false;
}

enum { RANK_NONE, RANK_FOUND, RANK_FOLDER, RANK_WITH, RANK_FLAG };

/* Preference of a component if the model's files have several of one kind; the highest number wins. */
static int rank_of(const struct component_file *file) {
    if (!file->family || file->misplaced) return RANK_NONE;
    if (file->flag) return file->bundled ? RANK_WITH : RANK_FLAG;
    return file->folder ? RANK_FOLDER : RANK_FOUND;
}

const struct component_file *component_files_find_kind(const struct component_files *files,
                                                       enum family_kind kind) {
    const struct component_file *found = NULL;
    for (int i = 0; i < files->n_files; i++) {
        const struct component_file *file = &files->file[i];
        bool is = file->family && file->family->kind == kind;
        if (is && rank_of(file) > (found ? rank_of(found) : 0)) found = file;
    }
    return found;
}

const struct component_file *component_files_find_tiny(const struct component_files *files) {
    const struct component_file *found = component_files_find_kind(files, FAMILY_TINY_DECODER);
    return found && found->flag ? found : NULL;
}

enum { FITS_BY_ORDER = 1, FITS_BY_NAME, FITS_BY_PREFIX, FITS_BY_FOLDER, FITS_BY_FLAG };

static bool is_below(const struct component_files *files, const char *path) {
    size_t folder = files->model ? strlen(files->model) : 0;
    if (!folder || strncmp(path, files->model, folder) != 0) return false;
    return path[folder] == '/' || (path[folder] && path[folder - 1] == '/');
}

/* The file's path below the folder of -m, or only the file's name if the file is elsewhere. Words in the
 * folder's own path are excluded, because they apply to all files in the folder. */
static const char *name_below(const struct component_files *files, const struct component_file *file) {
    const char *path = component_files_path(files, file);
    return is_below(files, path) ? path + strlen(files->model) : path_last_part(path);
}

static bool name_matches_slot(const struct component_files *files, const struct component_file *file,
                              const struct slot *slot) {
    for (const char *const *word = slot->name_words; *word; word++)
        if (path_has_word(name_below(files, file), *word)) return true;
    return false;
}

bool part_name_has_word(const struct component_files *files, const struct component_file *file,
                        const char *word) {
    const char *path = component_files_path(files, file);
    if (path_has_word(path_last_part(path), word)) return true;
    if (!is_below(files, path)) return false;
    /* The model's name is the last part of the path of -m, after "." and ".." are resolved. In
     * huggingface_hub's cache (models--A--B/snapshots/HASH) the name is models--A--B. */
    static const char between[] = "/snapshots/";
    char real[PATH_MAX];
    const char *model = files->model, *part = path_last_part(model);
    size_t dots = strspn(part, "."), n = sizeof between - 1;
    bool nameless = dots && dots <= 2 && (!part[dots] || part[dots] == '/');
    if (nameless && realpath(model, real)) part = path_last_part(model = real);
    if ((size_t)(part - model) >= n && !strncmp(part - n, between, n))
        for (part -= n; part > model && part[-1] != '/';) part--;
    return path_has_word(part, word);
}

/* True for a file with a single component whose file name is the flag's name, as in ComfyUI:
 * clip_g.safetensors for --clip_g. */
static bool is_named_as_flag(const struct component_files *files, const struct component_file *file,
                             const struct slot *slot) {
    return !file->prefix && slot->flag &&
           path_has_word(name_below(files, file), slot->flag + strspn(slot->flag, "-"));
}

const char *part_other_model_word(const struct component_files *files, const struct component_file *file,
                                  const struct slot *slot) {
    const char *path = component_files_path(files, file);
    const struct slot *other;
    if (!slot->weights_name || path_has_word(path, slot->weights_name)) return NULL;
    for (int i = 0; (other = models_slot(i)); i++)
        if (other->weights_name && path_has_word(path, other->weights_name)) return other->weights_name;
    return NULL;
}

const struct slot *part_slot_by_file_name(const struct component_files *files,
                                          const struct component_file *file) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (slot->family == file->family && name_matches_slot(files, file, slot)) return slot;
    return NULL;
}

/* True if the file is named after the flag of another slot (clip_g.safetensors), and the file's content fits
 * the other slot. */
static bool is_named_as_other_flag(const struct component_files *files, const struct component_file *file,
                                   const struct slot *slot) {
    struct tensor_index view = parts_view(files, file);
    const struct slot *other;
    if (*slot->name_words || is_named_as_flag(files, file, slot)) return false;
    for (int i = 0; (other = models_slot(i)); i++)
        if (other->family == file->family && is_named_as_flag(files, file, other) &&
            (!other->matches || other->matches(&view)))
            return true;
    return false;
}

bool part_named_for_other_slot(const struct component_files *files, const struct component_file *file,
                               const struct slot *slot) {
    if (is_named_as_other_flag(files, file, slot)) return true;
    return *slot->name_words && !name_matches_slot(files, file, slot) && part_slot_by_file_name(files, file);
}

/* Rates how well a component fits a slot, by a FITS_BY_ value. If no other slot has the family (alone),
 * returns rank_of instead. 0: the component does not fit. */
static int rate_fit(const struct component_files *files, const struct component_file *file,
                    const struct slot *slot, bool alone) {
    if (!slot_fits_family(slot, file->family) || !rank_of(file)) return 0;
    if (slot_is_extra(slot) && !file->flag) return 0;
    struct tensor_index view = parts_view(files, file);
    if (slot->matches && !slot->matches(&view)) return 0;
    if (alone) return rank_of(file);
    if (file->flag) {
        const char *flag = file->bundled ? slot->shares_file_with : slot->flag;
        return flag && !strcmp(flag, file->flag) ? FITS_BY_FLAG : 0;
    }
    if (file->folder) return !strcmp(file->folder, slot->folder) ? FITS_BY_FOLDER : 0;
    if (*slot->name_words ? name_matches_slot(files, file, slot) : is_named_as_flag(files, file, slot))
        return FITS_BY_NAME;
    if (part_named_for_other_slot(files, file, slot)) return 0;
    if (!file->prefix || *slot->name_words) return FITS_BY_ORDER;
    return slot_takes(slot, file->family, file->prefix) ? FITS_BY_PREFIX : 0;
}

/* False if a slot must stay empty; only for slots that only file names distinguish (WAN's high-noise and
 * low-noise experts). A file whose name has no word for the slot may fill it only if a flag filled the other
 * slot. If a flag fills only the last slot (low noise), the pipeline has one denoiser, and the first slot
 * stays empty. */
static bool is_open(const struct recipe *recipe, const struct component_file *const in[SLOTS_MAX], int slot,
                    int fit) {
    bool by_flag = false;
    if (!*recipe->slot[slot].name_words || fit > FITS_BY_NAME) return true;
    for (int i = 0; recipe->slot[i].family; i++) {
        bool sibling = i != slot && recipe->slot[i].family == recipe->slot[slot].family;
        if (sibling && i > slot && in[i] && in[i]->flag) return false;
        by_flag |= sibling && in[i] && in[i]->flag;
    }
    return fit == FITS_BY_NAME || by_flag;
}

void parts_assign(const struct component_files *files, const struct recipe *recipe,
                  const struct component_file *in[SLOTS_MAX]) {
    bool assigned[COMPONENT_FILES_MAX] = {0};
    memset(in, 0, SLOTS_MAX * sizeof *in);
    for (int fit = FITS_BY_FLAG; fit > 0; fit--)
        for (int i = 0; recipe->slot[i].family; i++) {
            const struct slot *slot = &recipe->slot[i];
            bool alone = recipe_count_slots(recipe, slot->family) == 1;
            if (in[i] || part_disabled(files->options, slot) || !is_open(recipe, in, i, fit)) continue;
            for (int k = 0; k < files->n_files && !in[i]; k++)
                if (!assigned[k] && rate_fit(files, &files->file[k], slot, alone) == fit)
                    in[i] = &files->file[k];
            if (in[i]) assigned[in[i] - files->file] = true;
        }
}

int parts_of_kind(const struct component_files *files, const struct recipe *recipe, enum family_kind kind) {
    const struct component_file *in[SLOTS_MAX];
    int n = 0;
    parts_assign(files, recipe, in);
    for (int i = 0; recipe->slot[i].family; i++)
        n += recipe->slot[i].family->kind == kind && in[i] &&
             (!in[i]->flag || has_flag(&recipe->slot[i], in[i]->flag));
    return n;
}

const struct component_file *parts_in_slot(const struct component_files *files, const struct recipe *recipe,
                                           int slot) {
    const struct component_file *in[SLOTS_MAX];
    parts_assign(files, recipe, in);
    return in[slot];
}

const char *component_files_path(const struct component_files *files, const struct component_file *file) {
    return files->opened[file->opened].path;
}

struct tensor_index parts_view(const struct component_files *files, const struct component_file *file) {
    return index_view(&files->opened[file->opened].index, file->prefix, file->view);
}

static enum status too_many(const char *path, struct error *e) {
    return error_set(e, LIMIT, "too many components in the model's files" WHERE "%s" EXPECTED "at most %d",
                     path, COMPONENT_FILES_MAX);
}

enum status component_files_add_file(struct sys *sys, struct component_files *files, const char *path,
                                     struct tensor_index *index, struct error *e) {
    if (files->n_opened == COMPONENT_FILES_MAX) {
        index_destroy(index);
        return too_many(path, e);
    }
    struct opened_file *opened = &files->opened[files->n_opened++];
    *opened = (struct opened_file){.path = path_copy(sys, path, e), .index = *index};
    return e->code;
}

enum status component_files_add(struct component_files *files, struct component_file file, struct error *e) {
    file.opened = files->n_opened - 1;
    if (files->n_files == COMPONENT_FILES_MAX) return too_many(files->opened[file.opened].path, e);
    if (file.prefix && !*file.prefix) file.prefix = NULL;
    files->file[files->n_files++] = file;
    return OK;
}

struct tensor_index component_files_take(struct component_files *files, const struct component_file *file) {
    struct tensor_index *whole = &files->opened[file->opened].index, taken = *whole;
    /* moves the index to the caller; views that are taken later borrow its memory */
    *whole = index_view(whole, NULL, 0);
    taken.prefix = file->prefix;
    taken.view = file->view;
    return taken;
}

void component_files_destroy(struct sys *sys, struct component_files *files) {
    for (int i = 0; i < files->n_opened; i++) {
        sys->release(sys, files->opened[i].path);
        index_destroy(&files->opened[i].index);
    }
    sys->release(sys, files->scheduler);
    sys->release(sys, files->pipeline);
    sys->release(sys, files->defaults);
    *files = (struct component_files){0};
}
