/* Finding the components of a model: see component_search.h. */
#include "engine/open/component_search.h"

#include "engine/open/paths.h"
#include "engine/open/pipeline.h"
#include "loaders/loaders.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* A Hugging Face folder says so by its pipeline or by names that no other layout has. */
static bool is_hugging_face(struct sys *sys, const char *model, struct error *e) {
    static const char *const signs[] = {"model_index.json", "transformer", "unet", "text_encoder"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        char *sign = path_existing(sys, model, signs[i], e);
        sys->release(sys, sign);
        if (sign) return true;
    }
    return false;
}

/* What a flag was given first; NULL: nothing. */
static const struct sluice_part *part_given(const struct sluice_model_options *o, const char *flag) {
    for (int i = 0; i < o->n_parts; i++)
        if (o->parts[i].path && !strcmp(o->parts[i].flag, flag)) return &o->parts[i];
    return NULL;
}

/* Its path; NULL also where that part is left out. */
static const char *path_given(const struct sluice_model_options *o, const char *flag) {
    const struct sluice_part *part = part_given(o, flag);
    return part && !part_is_none(part) ? part->path : NULL;
}

static enum status check_given(const struct sluice_model_options *o, struct error *e) {
    bool any = o->model != NULL;
    for (int i = 0; i < o->n_parts; i++) {
        const char *known, *flag = o->parts[i].flag;
        char list[160];
        if (!o->parts[i].path) continue;
        for (int k = 0; (known = part_flag(k)) && strcmp(known, flag);) k++;
        any |= known && path_given(o, flag);
        if (known && part_is_none(&o->parts[i]) && !part_flag_optional(flag)) {
            error_set(e, USAGE, "no model can be without this part");
            error_where(e, "%s", flag);
            error_found(e, "\"none\"");
            return error_expected(e, "a path");
        }
        if (known && part_given(o, flag) == &o->parts[i]) continue;
        error_set(e, USAGE, known ? "given twice" : "no model has such a part");
        error_where(e, "%s", flag);
        error_found(e, "\"%s\"", o->parts[i].path);
        part_flag_list(list, sizeof list);
        return known ? error_expected(e, "one path") : error_expected(e, "one of %s", list);
    }
    return any ? OK : error_set(e, USAGE, "no model was given");
}

enum status component_files_locate(struct sys *sys, const struct sluice_model_options *o,
                                   struct component_files *files, struct error *e) {
    *files = (struct component_files){.options = o, .model = o->model, .decodes_only = o->decodes_only};
    if (check_given(o, e) != OK) return e->code;
    if (o->model && !path_exists(o->model)) {
        error_set(e, MISSING, "there is no such model");
        return error_where(e, "%s", o->model);
    }
    if (!o->model || !path_is_folder(o->model)) return OK;
    files->by_name = is_hugging_face(sys, o->model, e);
    files->pipeline = path_existing(sys, o->model, "model_index.json", e);
    if (!o->decodes_only) {
        files->scheduler = path_existing(sys, o->model, "scheduler/scheduler_config.json", e);
        files->defaults = path_existing(sys, o->model, "sluice.json", e);
    }
    if (e->code != OK) component_files_destroy(sys, files);
    return e->code;
}

const char *parts_given(const struct sluice_model_options *o, enum family_kind kind) {
    const char *flag, *path = NULL;
    for (int i = 0; (flag = part_flag(i)) && !path; i++)
        if (part_flag_chooses(flag, kind)) path = path_given(o, flag);
    return path;
}

/* ---- by flags and by names ---- */

/* Is it right where it was looked for? A folder may hold any of its kind: the pipeline says if it is its own.
 */
static bool component_search_belongs(const struct component_file *place, enum family_kind kind,
                                     const struct tensor_index *whole, const struct family *family,
                                     const char *prefix) {
    const struct slot *slot;
    struct tensor_index view = index_view(whole, prefix, place->view);
    if (!place->flag && family->kind == kind) return true;
    for (int i = 0; (slot = models_slot(i)); i++) {
        if (!slot_takes(slot, family, prefix) || (slot->is && !slot->is(&view))) continue;
        if (place->flag && slot->flag && !strcmp(place->flag, slot->flag)) return true;
        if (place->folder && !strcmp(place->folder, slot->folder)) return true;
    }
    return false;
}

/* Is it looked for in the file that this flag chooses for another part? */
static bool component_search_lies_with(const struct component_file *place, const struct family *family,
                                       const char *prefix) {
    const struct slot *slot;
    for (int i = 0; place->flag && (slot = models_slot(i)); i++)
        if (slot->with && !strcmp(slot->with, place->flag) && slot_takes(slot, family, prefix)) return true;
    return false;
}

/* What else the file added last holds: where only its decoder is looked for. */
static void note_beside(struct component_files *files, const struct contents *contents) {
    for (int i = 0; i < contents->n && files->decodes_only; i++)
        if (contents->component[i].family->kind == FAMILY_DENOISER)
            files->beside = (struct component_file){.family = contents->component[i].family,
                                                    .opened = files->n_opened - 1,
                                                    .prefix = contents->component[i].prefix,
                                                    .view = i};
}

/* Of a file that one place names the components for it; else whatever else it holds, which is misplaced. */
static enum status open_located(struct sys *sys, struct component_files *files, const char *path,
                                struct component_file place, enum family_kind kind, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    bool found = false;
    if (contents_open(sys, path, &whole, &contents, e) != OK) return e->code;
    const struct tensor_index seen = index_view(&whole, NULL, 0);
    if (component_files_add_file(sys, files, path, &whole, e) != OK) return e->code;
    for (int i = contents.n; i-- > 0 && e->code == OK;) {
        place.family = contents.component[i].family;
        place.prefix = contents.component[i].prefix;
        place.view = i;
        place.with = false;
        bool belongs = component_search_belongs(&place, kind, &seen, place.family, place.prefix);
        place.with = !belongs && component_search_lies_with(&place, place.family, place.prefix);
        if (!belongs && !place.with) continue;
        found |= belongs;
        component_files_add(files, place, e);
    }
    if (found) note_beside(files, &contents);
    place.misplaced = true;
    place.with = false;
    return found ? e->code : component_files_add(files, place, e);
}

static enum status open_flags(struct sys *sys, const struct sluice_model_options *o,
                              struct component_files *files, struct error *e) {
    const char *flag;
    for (int i = 0; (flag = part_flag(i)) && e->code == OK; i++) {
        const char *path = path_given(o, flag);
        bool decodes =
            part_flag_chooses(flag, FAMILY_DECODER) || part_flag_chooses(flag, FAMILY_TINY_DECODER);
        if (path && (!o->decodes_only || decodes))
            open_located(sys, files, path, (struct component_file){.flag = flag}, FAMILY_TEXT, e);
    }
    return e->code;
}

/* Folders of one kind, in the order of the recipes that have them, each once. */
static int list_folders(enum family_kind kind, const char *folders[SLOTS_MAX]) {
    const struct slot *slot;
    int n = 0;
    for (int k = 0; (slot = models_slot(k)); k++) {
        bool listed = slot->family->kind != kind || n == SLOTS_MAX;
        for (int i = 0; i < n && !listed; i++) listed = !strcmp(folders[i], slot->folder);
        if (!listed) folders[n++] = slot->folder;
    }
    return n;
}

/* Hugging Face's layout. */
struct model_folder {
    struct sys *sys;
    const char *path;
    struct config index; /* model_index.json */
};

/* A component [null, null] is absent, whatever lies there. */
static bool is_nulled(const struct model_folder *model, const char *folder) {
    char key[64];
    snprintf(key, sizeof key, "%s.0", folder);
    const struct config_value *library = config_find(&model->index, key);
    return library && library->kind == CONFIG_NULL;
}

static bool is_there(const struct model_folder *model, const char *folder) {
    struct error e = {0};
    char *path = path_existing(model->sys, model->path, folder, &e);
    model->sys->release(model->sys, path);
    return path && !is_nulled(model, folder);
}

/* Does model_index.json have something for that folder, whether it is there or not? */
static bool is_named(const struct model_folder *model, const char *folder) {
    char key[64];
    snprintf(key, sizeof key, "%s.0", folder);
    return *config_string(&model->index, key, "");
}

/* Has it all denoisers of that recipe, or says so? One of several that a flag chooses leaves the others. */
static bool has_denoisers(const struct model_folder *model, const struct recipe *recipe) {
    for (const struct slot *s = recipe->slot; s->family; s++)
        if (s->family->kind == FAMILY_DENOISER && !is_there(model, s->folder) && !is_named(model, s->folder))
            return false;
    return true;
}

static bool looks_for_denoiser(const struct model_folder *model, const struct component_files *files,
                               const char *folder) {
    const struct component_file *found = component_files_find_kind(files, FAMILY_DENOISER), *in[SLOTS_MAX];
    if (!found) return true;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_count(*r, found->family) < 2 || !has_denoisers(model, *r)) continue;
        parts_assign(files, *r, in);
        for (int i = 0; (*r)->slot[i].family; i++)
            if ((*r)->slot[i].family == found->family && !in[i] && !strcmp((*r)->slot[i].folder, folder))
                return true;
    }
    return false;
}

/* Unless a flag, or another folder's file, has said so already. */
static bool looks_in_folder(const struct model_folder *model, const struct component_files *files,
                            enum family_kind kind, const char *folder) {
    const struct component_file *in[SLOTS_MAX];
    const struct recipe *recipe = pipeline_guess(files);
    if (files->decodes_only && kind != FAMILY_DECODER) return false;
    if (kind == FAMILY_DENOISER) return looks_for_denoiser(model, files, folder);
    if (!recipe) return kind == FAMILY_TEXT || !component_files_find_kind(files, kind);
    parts_assign(files, recipe, in);
    for (int i = 0; recipe->slot[i].family; i++)
        if (recipe->slot[i].family->kind == kind && !strcmp(recipe->slot[i].folder, folder))
            return !in[i] && !part_left_out(files->options, &recipe->slot[i]);
    return false;
}

/* The denoiser's first: it tells which encoders there are. */
static enum status open_each_folder(const struct model_folder *model, struct component_files *files,
                                    struct error *e) {
    static const enum family_kind order[] = {FAMILY_DENOISER, FAMILY_TEXT, FAMILY_VISION, FAMILY_DECODER};
    const char *folders[SLOTS_MAX];
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        for (int i = 0, n = list_folders(order[k], folders); i < n && e->code == OK; i++) {
            if (!is_there(model, folders[i]) || !looks_in_folder(model, files, order[k], folders[i]))
                continue;
            char *path = path_existing(model->sys, model->path, folders[i], e);
            if (path)
                open_located(model->sys, files, path, (struct component_file){.folder = folders[i]}, order[k],
                             e);
            model->sys->release(model->sys, path);
        }
        pipeline_look(model->sys, files);
    }
    return e->code;
}

static int count_denoisers(const struct model_folder *model) {
    const char *folders[SLOTS_MAX];
    int named = 0;
    for (int i = 0, n = list_folders(FAMILY_DENOISER, folders); i < n; i++)
        named += is_named(model, folders[i]);
    return named;
}

/* What is promised must be there: where its folder is not, its download has not ended, perhaps. */
static void list_named(const struct model_folder *model, struct component_files *files) {
    static const enum family_kind kinds[] = {FAMILY_TEXT, FAMILY_VISION};
    const char *folders[SLOTS_MAX];
    int n_named = 0, n_nulled = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0, n = list_folders(kinds[k], folders); i < n; i++) {
            bool named = is_named(model, folders[i]) || is_there(model, folders[i]);
            if (named && n_named < SLOTS_MAX) files->named[n_named++] = folders[i];
            if (is_nulled(model, folders[i]) && n_nulled < SLOTS_MAX) files->nulled[n_nulled++] = folders[i];
        }
}

static enum status open_folders(struct sys *sys, const char *path, struct component_files *files,
                                struct error *e) {
    struct model_folder model = {.sys = sys, .path = path};
    bool reads = files->pipeline && !files->decodes_only; /* a decoder is there or not, whatever is said */
    if (!reads || config_read(sys, files->pipeline, &model.index, e) == OK)
        open_each_folder(&model, files, e);
    files->denoisers_named = count_denoisers(&model);
    list_named(&model, files);
    config_destroy(&model.index);
    return e->code;
}

/* ---- by content: one file ---- */

/* Repositories of components have them two folders down (split_files/vae/ae.safetensors). */
enum { FOLDERS_DOWN = 3, CANDIDATES_MAX = 256 };

struct search {
    struct sys *sys;
    const char *model;
    struct component_files *files;
    char *candidate[CANDIDATES_MAX];
    int n_candidates;
};

/* The most slots that a recipe has for that family. */
static int most_slots(const struct family *family) {
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        int n = recipe_count(*r, family);
        if (n > most) most = n;
    }
    return most;
}

/* Is the family still looked for, or one more of it than there are slots worth knowing of? A tiny decoder is
 * worth knowing of where there is nothing else: for whoever asks what that is. */
static bool is_wanted(const struct component_files *files, const struct family *family) {
    if (files->decodes_only && !family_decodes(family)) return false;
    if (family->kind == FAMILY_TINY_DECODER) return !files->n_files;
    int n = 0, located = 0;
    for (int i = 0; i < files->n_files; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->family || file->misplaced || !contents_alike(file->family, family)) continue;
        bool is_located = file->flag || file->folder;
        if (is_located && file->family != family) return false;
        located += is_located;
        n += file->family == family;
    }
    return located < most_slots(family) && n <= most_slots(family);
}

/* A flag, or a folder, may have chosen a file that lies under -m too, and a file may have several names. */
static bool is_taken(const struct component_files *files, const char *path, const char *prefix) {
    for (int i = 0; i < files->n_files; i++) {
        const char *taken = files->file[i].prefix ? files->file[i].prefix : "";
        if (!strcmp(taken, prefix) && path_same(component_files_path(files, &files->file[i]), path))
            return true;
    }
    return false;
}

static enum status take_contents(struct search *s, const char *path, struct tensor_index *whole,
                                 const struct contents *contents, struct error *e) {
    bool taken = false;
    for (int i = 0; i < contents->n && e->code == OK; i++) {
        if (!is_wanted(s->files, contents->component[i].family)) continue;
        if (is_taken(s->files, path, contents->component[i].prefix)) continue;
        if (!taken && component_files_add_file(s->sys, s->files, path, whole, e) != OK) return e->code;
        taken = true;
        struct component_file file = {
            .family = contents->component[i].family, .prefix = contents->component[i].prefix, .view = i};
        component_files_add(s->files, file, e);
    }
    if (taken) note_beside(s->files, contents);
    if (!taken) index_destroy(whole);
    return e->code;
}

/* Does a component's prefix explain the name, or does its family know that it may stand there? */
static bool is_explained(const char *name, const struct contents *contents) {
    for (int k = 0; k < contents->n; k++) {
        if (!strncmp(name, contents->component[k].prefix, strlen(contents->component[k].prefix))) return true;
        if (family_ignores(contents->component[k].family, name)) return true;
    }
    return false;
}

static void count_strangers(struct component_files *files, const struct tensor_index *whole,
                            const struct contents *contents) {
    for (int i = 0; i < whole->n_entries; i++) {
        const char *name = whole->entries[i].name;
        if (is_explained(name, contents)) continue;
        if (!files->strangers.n++)
            snprintf(files->strangers.first, sizeof files->strangers.first, "%s", name);
    }
}

static enum status search_file(struct search *s, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    if (contents_open(s->sys, s->model, &whole, &contents, e) != OK) return e->code;
    count_strangers(s->files, &whole, &contents);
    if (contents.n) return take_contents(s, s->model, &whole, &contents, e);
    index_check_quantised(&whole, &s->files->failure);
    if (component_files_add_file(s->sys, s->files, s->model, &whole, e) == OK)
        component_files_add(s->files, (struct component_file){0}, e);
    return e->code;
}

/* A quantised file whose names nobody knows is a failure too. */
static enum status try_candidate(struct search *s, const char *path, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    struct error failure = {0};
    if (contents_open(s->sys, path, &whole, &contents, &failure) == OK) {
        if (!contents.n) index_check_quantised(&whole, &failure);
        count_strangers(s->files, &whole, &contents);
        take_contents(s, path, &whole, &contents, e);
    }
    if (failure.code == MEMORY) *e = failure;
    if (s->files->failure.code == OK) s->files->failure = failure;
    return e->code;
}

/* ---- by content: a folder ---- */

/* A folder of one component holds no other. */
static bool is_located(const struct search *s, const char *path) {
    for (int i = 0; i < s->files->n_opened; i++)
        if (path_same(s->files->opened[i].path, path)) return true;
    return false;
}

/* What model_index.json says is not there. */
static bool is_left_alone(const struct search *s, const char *name, int down) {
    for (const char *const *nulled = s->files->nulled; *nulled && down == FOLDERS_DOWN; nulled++)
        if (!strcmp(*nulled, name)) return true;
    return false;
}

static enum status list_folder(struct search *s, const char *path, int down, struct error *e);

static enum status list_file(struct search *s, const char *folder, const char *name, int down,
                             struct error *e) {
    char *path = path_join(s->sys, folder, name);
    if (!path) return error_set(e, MEMORY, "no memory for a path");
    bool is_folder = path_is_folder(path), candidate = !is_folder && component_is_candidate(name);
    if (is_folder && down > 0 && !is_located(s, path) && !is_left_alone(s, name, down))
        list_folder(s, path, down - 1, e);
    if (candidate && s->n_candidates == CANDIDATES_MAX) {
        error_set(e, LIMIT, "too many files that could be a part of the model");
        error_where(e, "%s", s->model);
        error_expected(e, "at most %d, or a flag for each part", CANDIDATES_MAX);
    } else if (candidate) {
        s->candidate[s->n_candidates++] = path;
        return OK;
    }
    s->sys->release(s->sys, path);
    return e->code;
}

/* It matters if a component is missing. */
static enum status note_unreadable(struct search *s, const char *path, int problem) {
    struct error *failure = &s->files->failure;
    if (failure->code != OK) return OK;
    error_set(failure, IO, "a folder cannot be read");
    error_where(failure, "%s", path);
    error_found(failure, "%s", strerror(problem));
    return OK;
}

/* Hidden files are caches of downloads. */
static enum status list_folder(struct search *s, const char *path, int down, struct error *e) {
    DIR *folder = opendir(path);
    if (!folder) return note_unreadable(s, path, errno);
    for (struct dirent *file; e->code == OK && (file = readdir(folder));)
        if (*file->d_name != '.') list_file(s, path, file->d_name, down, e);
    closedir(folder);
    return e->code;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum status search_folder(struct search *s, struct error *e) {
    list_folder(s, s->model, FOLDERS_DOWN, e);
    qsort(s->candidate, (size_t)s->n_candidates, sizeof *s->candidate, compare_paths);
    for (int i = 0; i < s->n_candidates; i++) {
        if (e->code == OK) try_candidate(s, s->candidate[i], e);
        s->sys->release(s->sys, s->candidate[i]);
    }
    return e->code;
}

/* Of a folder only lack of memory, and too many files, end the search: one damaged file among many matters if
 * a component is missing, and then it is named (files->failure). */
static enum status search(struct sys *sys, const char *model, struct component_files *files,
                          struct error *e) {
    struct search *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    if (!s) return error_set(e, MEMORY, "no memory for a search");
    *s = (struct search){.sys = sys, .model = model, .files = files};
    path_is_folder(model) ? search_folder(s, e) : search_file(s, e);
    sys->release(sys, s);
    return e->code;
}

/* Parts that a model may be without are looked for, too, where no layout says that they are not there: also
 * the autoencoder that a tiny decoder stands for, whose encoder reads pictures. */
static bool lacks_any(const struct component_files *files, const struct recipe *recipe) {
    const struct component_file *in[SLOTS_MAX];
    if (!recipe || files->decodes_only || files->by_name) return false;
    parts_assign(files, recipe, in);
    for (int i = 0; recipe->slot[i].family; i++) {
        const struct slot *slot = &recipe->slot[i];
        bool needless = slot->optional || slot->family->kind == FAMILY_DECODER;
        if (in[i] || slot_is_extra(slot) || part_left_out(files->options, slot)) continue;
        if (needless) return true;
    }
    return false;
}

enum status component_files_open(struct sys *sys, const struct sluice_model_options *o,
                                 struct component_files *files, const struct recipe **guess,
                                 struct error *e) {
    struct missing_part missing[SLOTS_MAX];
    if (open_flags(sys, o, files, e) != OK) return e->code;
    pipeline_look(sys, files);
    if (files->by_name && open_folders(sys, o->model, files, e) != OK) return e->code;
    *guess = pipeline_guess(files);
    bool looks = pipeline_missing(files, *guess, missing) || lacks_any(files, *guess);
    if (o->model && looks) search(sys, o->model, files, e);
    pipeline_look(sys, files);
    *guess = pipeline_guess(files);
    return e->code == OK ? pipeline_check_twice(files, *guess, o->model, e) : e->code;
}
