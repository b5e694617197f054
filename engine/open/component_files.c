/* The components of a model: see components.h. */
#include "engine/open/component_files.h"

#include "engine/open/paths.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- flags ---- */

static bool has_flag(const struct slot *slot, const char *flag) {
    return slot->flag && !strcmp(slot->flag, flag);
}

static bool has_with(const struct slot *slot, const char *flag) {
    return slot->with && !strcmp(slot->with, flag);
}

static bool is_first(int i_slot) {
    for (int i = 0; i < i_slot; i++)
        if (has_flag(models_slot(i), models_slot(i_slot)->flag)) return false;
    return true;
}

const char *part_flag(int i) {
    static const enum family_kind order[] = {FAMILY_DENOISER, FAMILY_TEXT, FAMILY_VISION, FAMILY_DECODER,
                                             FAMILY_TINY_DECODER};
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

bool part_flag_optional(const char *flag) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (has_flag(slot, flag) && slot->optional) return true;
    return false;
}

/* What people call what that flag chooses of that family. */
static const char *word_of(const char *flag, const struct family *family) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (has_flag(slot, flag) && slot->family == family && slot->word) return slot->word;
    return family->word;
}

void part_flag_families(const char *flag, char *list, size_t bytes) {
    const struct family *last = NULL;
    size_t n = 0;
    *list = 0;
    for (const struct family *const *f = families; *f; f++)
        if (part_flag_takes(flag, *f)) last = *f;
    for (const struct family *const *f = families; *f && n < bytes; f++) {
        if (!part_flag_takes(flag, *f)) continue;
        const char *before = !n ? word_of(flag, *f) : *f == last ? " or " : ", ";
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

bool part_left_out(const struct sluice_model_options *o, const struct slot *slot) {
    for (int i = 0; o && slot->flag && i < o->n_parts; i++)
        if (part_is_none(&o->parts[i]) && has_flag(slot, o->parts[i].flag)) return true;
    return false;
}

/* ---- which counts ---- */

enum { RANK_NONE, RANK_FOUND, RANK_FOLDER, RANK_WITH, RANK_FLAG };

/* How much a component is worth where several are of a kind. */
static int rank_of(const struct component_file *file) {
    if (!file->family || file->misplaced) return RANK_NONE;
    if (file->flag) return file->with ? RANK_WITH : RANK_FLAG;
    return file->folder ? RANK_FOLDER : RANK_FOUND;
}

const struct component_file *component_files_find(const struct component_files *files,
                                                  const struct family *family) {
    const struct component_file *found = NULL;
    for (int i = 0; i < files->n_files; i++) {
        const struct component_file *file = &files->file[i];
        if (file->family == family && rank_of(file) > (found ? rank_of(found) : 0)) found = file;
    }
    return found;
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

/* ---- slots ---- */

enum { FITS_BY_ORDER = 1, FITS_BY_NAME, FITS_BY_PREFIX, FITS_BY_FOLDER, FITS_BY_FLAG };

/* Does it lie in the folder that -m names? */
static bool is_below(const struct component_files *files, const char *path) {
    size_t folder = files->model ? strlen(files->model) : 0;
    if (!folder || strncmp(path, files->model, folder) != 0) return false;
    return path[folder] == '/' || (path[folder] && path[folder - 1] == '/');
}

/* What -m's own path says is about all of its files. */
static const char *name_below(const struct component_files *files, const struct component_file *file) {
    const char *path = component_files_path(files, file);
    return is_below(files, path) ? path + strlen(files->model) : path_last_part(path);
}

static bool is_called(const struct component_files *files, const struct component_file *file,
                      const struct slot *slot) {
    for (const char *const *word = slot->called; *word; word++)
        if (path_has_word(name_below(files, file), *word)) return true;
    return false;
}

/* Of what -m names the last part; in the cache of huggingface_hub, whose folders of one version are called by
 * a number, from the model's name on. */
static const char *model_part(const char *model) {
    static const char between[] = "/snapshots/";
    const char *part = path_last_part(model), *name = part;
    size_t n = sizeof between - 1;
    if ((size_t)(part - model) < n || strncmp(part - n, between, n) != 0) return part;
    for (name = part - n; name > model && name[-1] != '/'; name--) {
    }
    return name;
}

/* Of "." and ".." the folder's own name says it. */
static bool model_name_says(const char *model, const char *word) {
    char real[PATH_MAX];
    const char *part = path_last_part(model);
    size_t dots = strspn(part, ".");
    bool nameless = dots && dots <= 2 && (!part[dots] || part[dots] == '/');
    return path_has_word(model_part(nameless && realpath(model, real) ? real : model), word);
}

bool parts_name_says(const struct component_files *files, const struct component_file *file,
                     const char *word) {
    const char *path = component_files_path(files, file);
    return (is_below(files, path) && model_name_says(files->model, word)) ||
           path_has_word(path_last_part(path), word);
}

/* A file of its own, as ComfyUI's are called: "clip_g.safetensors" is for --clip_g. */
static bool is_named_as_flag(const struct component_files *files, const struct component_file *file,
                             const struct slot *slot) {
    return !file->prefix && slot->flag &&
           path_has_word(name_below(files, file), slot->flag + strspn(slot->flag, "-"));
}

const char *parts_misnamed(const struct component_files *files, const struct component_file *file,
                           const struct slot *slot) {
    const char *path = component_files_path(files, file);
    const struct slot *other;
    if (!slot->known_as || path_has_word(path, slot->known_as)) return NULL;
    for (int i = 0; (other = models_slot(i)); i++)
        if (other->known_as && path_has_word(path, other->known_as)) return other->known_as;
    return NULL;
}

const struct slot *parts_called(const struct component_files *files, const struct component_file *file) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (slot->family == file->family && is_called(files, file, slot)) return slot;
    return NULL;
}

/* Is it called as the flag of another slot, which its content fits? */
static bool is_named_as_other_flag(const struct component_files *files, const struct component_file *file,
                                   const struct slot *slot) {
    struct tensor_index view = parts_view(files, file);
    const struct slot *other;
    if (*slot->called || is_named_as_flag(files, file, slot)) return false;
    for (int i = 0; (other = models_slot(i)); i++)
        if (other->family == file->family && is_named_as_flag(files, file, other) &&
            (!other->is || other->is(&view)))
            return true;
    return false;
}

bool parts_is_called_otherwise(const struct component_files *files, const struct component_file *file,
                               const struct slot *slot) {
    if (is_named_as_other_flag(files, file, slot)) return true;
    return *slot->called && !is_called(files, file, slot) && parts_called(files, file);
}

/* How surely a component is for that slot; 0: it is not. */
static int component_files_fits(const struct component_files *files, const struct component_file *file,
                                const struct slot *slot, bool alone) {
    if (file->family != slot->family || !rank_of(file)) return 0;
    if (slot_is_extra(slot) && !file->flag) return 0;
    struct tensor_index view = parts_view(files, file);
    if (slot->is && !slot->is(&view)) return 0;
    if (alone) return rank_of(file);
    if (file->flag) return (file->with ? has_with : has_flag)(slot, file->flag) ? FITS_BY_FLAG : 0;
    if (file->folder) return !strcmp(file->folder, slot->folder) ? FITS_BY_FOLDER : 0;
    if (*slot->called ? is_called(files, file, slot) : is_named_as_flag(files, file, slot))
        return FITS_BY_NAME;
    if (parts_is_called_otherwise(files, file, slot)) return 0;
    if (!file->prefix || *slot->called) return FITS_BY_ORDER;
    return slot_takes(slot, file->family, file->prefix) ? FITS_BY_PREFIX : 0;
}

static const struct component_file *best_left(const struct component_files *files, const struct slot *slot,
                                              bool alone, int surely, const bool given[COMPONENT_FILES_MAX]) {
    for (int i = 0; i < files->n_files; i++)
        if (!given[i] && component_files_fits(files, &files->file[i], slot, alone) == surely)
            return &files->file[i];
    return NULL;
}

/* Slots that only names tell apart: a file without one goes where a flag has left one place. Who gives the
 * last of them alone by its flag gives the only one, of a pipeline that has one. */
static bool is_open(const struct recipe *recipe, const struct component_file *const in[SLOTS_MAX], int slot,
                    int surely) {
    bool by_flag = false;
    if (!*recipe->slot[slot].called || surely > FITS_BY_NAME) return true;
    for (int i = 0; recipe->slot[i].family; i++) {
        bool sibling = i != slot && recipe->slot[i].family == recipe->slot[slot].family;
        if (sibling && i > slot && in[i] && in[i]->flag) return false;
        by_flag |= sibling && in[i] && in[i]->flag;
    }
    return surely == FITS_BY_NAME || by_flag;
}

void parts_assign(const struct component_files *files, const struct recipe *recipe,
                  const struct component_file *in[SLOTS_MAX]) {
    bool given[COMPONENT_FILES_MAX] = {0};
    memset(in, 0, SLOTS_MAX * sizeof *in);
    for (int surely = FITS_BY_FLAG; surely > 0; surely--)
        for (int i = 0; recipe->slot[i].family; i++) {
            bool alone = recipe_count(recipe, recipe->slot[i].family) == 1;
            if (!in[i] && !part_left_out(files->options, &recipe->slot[i]) && is_open(recipe, in, i, surely))
                in[i] = best_left(files, &recipe->slot[i], alone, surely, given);
            if (in[i]) given[in[i] - files->file] = true;
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

/* ---- files ---- */

const char *component_files_path(const struct component_files *files, const struct component_file *file) {
    return files->opened[file->opened].path;
}

struct tensor_index parts_view(const struct component_files *files, const struct component_file *file) {
    return index_view(&files->opened[file->opened].index, file->prefix, file->view);
}

static enum status too_many(const char *path, struct error *e) {
    error_set(e, LIMIT, "too many parts of a model");
    error_where(e, "%s", path);
    return error_expected(e, "at most %d", COMPONENT_FILES_MAX);
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
    *whole = index_view(whole, NULL, 0); /* those that take later borrow */
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
