/* Finds components by flag, by folder, and by content: implements component_search.h. */
#include "engine/open/component_search.h"

#include "engine/base/text.h"
#include "engine/open/paths.h"
#include "engine/open/pipeline.h"
#include "loaders/loaders.h"
#include "models/models.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* True if a folder directly contains a file. ComfyUI's placeholders ("put_unet_files_here") and hidden files
 * do not count. True also if the path is not a readable folder: the later attempt to open the path reports
 * the reason. */
static bool has_files(struct sys *sys, const char *path) {
    DIR *folder = path_is_folder(path) ? opendir(path) : NULL;
    bool found = !folder;
    for (struct dirent *file; !found && (file = readdir(folder));) {
        bool placeholder = !strncmp(file->d_name, "put_", 4) && ends_with(file->d_name, "_here");
        if (*file->d_name == '.' || placeholder) continue;
        char *inner = path_join(sys, path, file->d_name);
        found = !inner || !path_is_folder(inner);
        sys->release(sys, inner);
    }
    if (folder) closedir(folder);
    return found;
}

static const struct sluice_part *first_part_option(const struct sluice_model_options *o, const char *flag) {
    for (int i = 0; i < o->n_parts; i++)
        if (o->parts[i].path && !strcmp(o->parts[i].flag, flag)) return &o->parts[i];
    return NULL;
}

/* Returns the path given by a component flag; NULL: the flag is absent, or has the value "none". */
static const char *part_option_path(const struct sluice_model_options *o, const char *flag) {
    const struct sluice_part *part = first_part_option(o, flag);
    return part && !part_is_none(part) ? part->path : NULL;
}

static enum status check_part_options(const struct sluice_model_options *o, struct error *e) {
    bool any = o->model != NULL;
    int n_networks = 0;
    for (int i = 0; i < o->n_parts; i++) {
        const char *known, *flag = o->parts[i].flag;
        char list[256];
        if (!o->parts[i].path) continue;
        for (int k = 0; (known = part_flag(k)) && strcmp(known, flag);) k++;
        any |= known && part_option_path(o, flag) && !part_flag_chooses(flag, FAMILY_CONTROL);
        if (known && part_is_none(&o->parts[i]) && !part_flag_optional(flag)) {
            return error_set(
                e, USAGE, "%s" WHERE "%s" FOUND "\"none\"" EXPECTED "the path of a file or folder",
                part_flag_chooses(flag, FAMILY_CONTROL)
                    ? "a model runs without control networks if this flag is absent"
                : part_flag_chooses(flag, FAMILY_UPSCALER) || part_flag_chooses(flag, FAMILY_LATENT_UPSCALER)
                    ? "without this flag no network enlarges images or latents"
                    : "every model needs this component",
                flag);
        }
        if (known && part_flag_chooses(flag, FAMILY_CONTROL)) {
            if (++n_networks <= CONTROLS_MAX) continue;
            return error_set(e, USAGE,
                             "too many control networks" WHERE "%s" FOUND "\"%s\"" EXPECTED "at most %d",
                             flag, o->parts[i].path, CONTROLS_MAX);
        }
        if (known && first_part_option(o, flag) == &o->parts[i]) continue;
        error_set(e, USAGE, "%s" WHERE "%s" FOUND "\"%s\"",
                  known ? "flag given twice" : "unknown component flag", flag, o->parts[i].path);
        part_flag_list(list, sizeof list);
        return known ? error_expected(e, "one path") : error_expected(e, "one of %s", list);
    }
    if (any) return OK;
    return error_set(e, USAGE,
                     "no model was given" EXPECTED
                     "-m with a model folder or file; `sluice families` lists where to download one");
}

static bool is_last_part(const char *path, const char *name) {
    const char *part = path_last_part(path);
    size_t bytes = strcspn(part, "/");
    return strlen(name) == bytes && !strncasecmp(part, name, bytes);
}

/* Fails because the model path does not exist. If the path ends in the name of a published repository or of a
 * file in a published repository, the error includes the download command. */
static enum status fail_no_model(const char *model, struct error *e) {
    error_set(e, MISSING, "there is no such model file or folder" WHERE "%s", model);
    const struct hf_source *s;
    for (const struct recipe *const *r = recipes; *r; r++)
        for (int i = 0; (s = recipe_source(*r, i)); i++) {
            if (s->flag) continue;
            if (!s->files && is_last_part(model, path_last_part(s->repository)))
                return error_expected(
                    e, "an existing path; get it by: hf download %s --local-dir %s (see `sluice families`)",
                    s->repository, path_last_part(s->repository));
            if (s->files && is_last_part(model, s->files))
                return error_expected(
                    e, "an existing path; get it by: hf download %s %s --local-dir . (see `sluice families`)",
                    s->repository, s->files);
        }
    return error_expected(
        e, "an existing path; `sluice families` lists published models and where to download them");
}

enum status component_files_locate(struct sys *sys, const struct sluice_model_options *o,
                                   struct component_files *files, struct error *e) {
    *files = (struct component_files){.options = o, .model = o->model, .decodes_only = o->decodes_only};
    if (check_part_options(o, e) != OK) return e->code;
    if (o->model && !path_exists(o->model)) return fail_no_model(o->model, e);
    if (o->model && path_same(o->model, "/")) {
        return error_set(e, USAGE,
                         "the model is the root of the file system" WHERE "%s" EXPECTED
                         "the folder of one model",
                         o->model);
    }
    if (!o->model || !path_is_folder(o->model)) return OK;
    /* Hugging Face's layout has model_index.json, or a component's folder whose name occurs only in this
     * layout. The folder must have files, because ComfyUI's `models` folder has an empty folder `unet`. */
    static const char *const signs[] = {"model_index.json", "modular_model_index.json", "transformer", "unet",
                                        "text_encoder"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs && !files->by_name; i++) {
        char *sign = path_existing(sys, o->model, signs[i], e);
        files->by_name = sign && has_files(sys, sign);
        sys->release(sys, sign);
    }
    files->pipeline = path_existing(sys, o->model, "model_index.json", e);
    if (!files->pipeline) files->pipeline = path_existing(sys, o->model, "modular_model_index.json", e);
    if (!o->decodes_only) {
        files->scheduler = path_existing(sys, o->model, "scheduler/scheduler_config.json", e);
        files->defaults = path_existing(sys, o->model, "sluice.json", e);
    }
    if (e->code != OK) component_files_destroy(sys, files);
    return e->code;
}

const char *part_path_of_kind(const struct sluice_model_options *o, enum family_kind kind) {
    const char *flag, *path = NULL;
    for (int i = 0; (flag = part_flag(i)) && !path; i++)
        if (part_flag_chooses(flag, kind)) path = part_option_path(o, flag);
    return path;
}

/* True if a component of the family may come from the given flag or folder. A folder accepts any family of
 * its kind (text encoder, ...); the pipeline checks compare the family with the recipe later. */
static bool belongs_to(const struct component_file *place, enum family_kind kind,
                       const struct tensor_index *whole, const struct family *family, const char *prefix) {
    const struct slot *slot;
    struct tensor_index view = index_view(whole, prefix, place->view);
    if (!place->flag && family->kind == kind) return true;
    for (int i = 0; (slot = models_slot(i)); i++) {
        if (!slot_takes(slot, family, prefix) || (slot->matches && !slot->matches(&view))) continue;
        if (place->flag && slot->flag && !strcmp(place->flag, slot->flag)) return true;
        if (place->folder && !strcmp(place->folder, slot->folder)) return true;
    }
    return false;
}

/* For decoding alone: records a denoiser in the file added last, because a denoiser next to a decoder
 * identifies the model. */
static void note_bundled_denoiser(struct component_files *files, const struct contents *contents) {
    for (int i = 0; i < contents->n && files->decodes_only; i++)
        if (contents->component[i].family->kind == FAMILY_DENOISER)
            files->bundled_denoiser = (struct component_file){.family = contents->component[i].family,
                                                              .opened = files->n_opened - 1,
                                                              .prefix = contents->component[i].prefix,
                                                              .view = i};
}

/* Passes an error other than MEMORY to files->on_failure and clears the error, if the caller set
 * on_failure. */
static enum status report_failure(const struct component_files *files, struct error *e) {
    if (e->code == OK || e->code == MEMORY || !files->on_failure) return e->code;
    files->on_failure(files->user, e);
    *e = (struct error){0};
    return OK;
}

/* Opens the file of a flag or folder and adds the components meant by the flag or folder. If the file has
 * none of these, adds the file's first component, or an entry without family, as misplaced. */
static enum status open_located(struct sys *sys, struct component_files *files, const char *path,
                                struct component_file place, enum family_kind kind, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    bool found = false;
    if (contents_open(sys, path, &whole, &contents, e) != OK) return e->code;
    const struct tensor_index view = index_view(&whole, NULL, 0);
    if (component_files_add_file(sys, files, path, &whole, e) != OK) return e->code;
    for (int i = contents.n; i-- > 0 && e->code == OK;) {
        place.family = contents.component[i].family;
        place.prefix = contents.component[i].prefix;
        place.view = i;
        place.bundled = false;
        bool belongs = belongs_to(&place, kind, &view, place.family, place.prefix);
        /* the file that a flag chose may also hold a component of another flag */
        const struct slot *slot;
        for (int k = 0; !belongs && place.flag && (slot = models_slot(k)); k++)
            place.bundled |= slot->shares_file_with && !strcmp(slot->shares_file_with, place.flag) &&
                             slot_takes(slot, place.family, place.prefix);
        if (!belongs && !place.bundled) continue;
        found |= belongs;
        component_files_add(files, place, e);
    }
    if (found) note_bundled_denoiser(files, &contents);
    place.misplaced = true;
    place.bundled = false;
    return found ? e->code : component_files_add(files, place, e);
}

/* Opens the path of a flag. If an extra part has this flag, the path may be a pipeline's folder
 * (FLUX.1-Redux-dev). Its subfolders then hold the part (image_embedder) and the part that shares its file
 * (image_encoder), unless the other part has a flag too. */
static enum status open_flag(struct sys *sys, const struct sluice_model_options *o,
                             struct component_files *files, const char *flag, const char *path,
                             struct error *e) {
    const struct slot *slot, *own = NULL;
    char *folder = NULL;
    for (int i = 0; (slot = models_slot(i)) && !own; i++)
        if (slot->extra && !strcmp(slot->flag, flag)) own = slot;
    if (own && path_is_folder(path)) folder = path_existing(sys, path, own->folder, e);
    if (e->code == OK && !folder)
        return open_located(sys, files, path, (struct component_file){.flag = flag}, FAMILY_TEXT, e);
    if (folder) open_located(sys, files, folder, (struct component_file){.flag = flag}, FAMILY_TEXT, e);
    sys->release(sys, folder);
    for (int i = 0; (slot = models_slot(i)) && e->code == OK; i++) {
        bool shares = slot->extra && slot->shares_file_with && !strcmp(slot->shares_file_with, flag);
        if (!shares || first_part_option(o, slot->flag)) continue;
        folder = path_existing(sys, path, slot->folder, e);
        if (folder)
            open_located(sys, files, folder, (struct component_file){.flag = slot->flag}, FAMILY_TEXT, e);
        sys->release(sys, folder);
        break;
    }
    return e->code;
}

static enum status open_flags(struct sys *sys, const struct sluice_model_options *o,
                              struct component_files *files, struct error *e) {
    const char *flag;
    for (int i = 0; (flag = part_flag(i)) && e->code == OK; i++) {
        const char *path = part_option_path(o, flag);
        bool decodes =
            part_flag_chooses(flag, FAMILY_DECODER) || part_flag_chooses(flag, FAMILY_TINY_DECODER);
        if (part_flag_chooses(flag, FAMILY_CONTROL)) continue;
        if (path && (!o->decodes_only || decodes)) open_flag(sys, o, files, flag, path, e);
        /* Training checkpoints hold the weights in params_ema or params. */
        if (e->code == BADMAGIC && strstr(e->found, "pickle") && part_flag_chooses(flag, FAMILY_UPSCALER)) {
            *e->expected = 0;
            error_expected(e, "safetensors; to convert: python -c \"import torch,safetensors.torch as s;"
                              "d=torch.load('IN.pth');"
                              "s.save_file(d.get('params_ema',d.get('params',d)),'OUT')\"");
        }
        report_failure(files, e);
    }
    for (int i = 0; i < o->n_parts && e->code == OK; i++) { /* --control-net may be given several times */
        const struct sluice_part *part = &o->parts[i];
        if (!part->path || o->decodes_only || !part_flag_chooses(part->flag, FAMILY_CONTROL)) continue;
        open_located(sys, files, part->path, (struct component_file){.flag = part->flag}, FAMILY_TEXT, e);
        report_failure(files, e);
    }
    return e->code;
}

static int list_folders(enum family_kind kind, const char *folders[SLOTS_MAX]) {
    const struct slot *slot;
    int n = 0;
    for (int k = 0; (slot = models_slot(k)); k++) {
        bool listed = slot->family->kind != kind || slot->extra || n == SLOTS_MAX;
        for (int i = 0; i < n && !listed; i++) listed = !strcmp(folders[i], slot->folder);
        if (!listed) folders[n++] = slot->folder;
    }
    return n;
}

struct model_folder {
    struct sys *sys;
    const char *path;
    bool has_index;      /* model_index.json exists */
    struct config index; /* content of model_index.json */
};

/* True if model_index.json has [null, null] for a folder: the pipeline has no such component, even if the
 * folder exists. In modular_model_index.json these elements are null for every component; a component
 * that exists has a third element with its location. */
static bool is_declared_null(const struct model_folder *model, const char *folder) {
    char key[64];
    size_t n = (size_t)snprintf(key, sizeof key, "%s.2.", folder);
    for (int i = 0; i < model->index.n_values; i++)
        if (!strncmp(model->index.values[i].key, key, n)) return false;
    snprintf(key, sizeof key, "%s.0", folder);
    const struct config_value *library = config_find(&model->index, key);
    return library && library->kind == CONFIG_NULL;
}

static bool folder_exists(const struct model_folder *model, const char *folder) {
    struct error e = {0};
    char *path = path_existing(model->sys, model->path, folder, &e);
    bool exists = path && (model->has_index || has_files(model->sys, path));
    model->sys->release(model->sys, path);
    return exists && !is_declared_null(model, folder);
}

/* True if model_index.json names a class for a component folder, whether the folder exists or not. */
static bool is_declared(const struct model_folder *model, const char *folder) {
    char key[64];
    snprintf(key, sizeof key, "%s.0", folder);
    return *config_string(&model->index, key, "");
}

/* True if a denoiser should be opened from the given folder: no denoiser is open yet, or a flag chose one of
 * two denoisers and the folder has the other denoiser. */
static bool should_open_denoiser(const struct model_folder *model, const struct component_files *files,
                                 const char *folder) {
    const struct component_file *found = component_files_find_kind(files, FAMILY_DENOISER), *in[SLOTS_MAX];
    if (!found) return true;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_count_slots(*r, found->family) < 2) continue;
        bool has_all = true; /* the folder has all denoisers of the recipe, or model_index.json lists them */
        for (const struct slot *s = (*r)->slot; s->family; s++)
            has_all &= s->family->kind != FAMILY_DENOISER || folder_exists(model, s->folder) ||
                       is_declared(model, s->folder);
        if (!has_all) continue;
        parts_assign(files, *r, in);
        for (int i = 0; (*r)->slot[i].family; i++)
            if ((*r)->slot[i].family == found->family && !in[i] && !strcmp((*r)->slot[i].folder, folder))
                return true;
    }
    return false;
}

/* True if a component should be opened from the given folder: no flag and no other folder has filled the
 * component's slot. */
static bool should_open_folder(const struct model_folder *model, const struct component_files *files,
                               enum family_kind kind, const char *folder) {
    const struct component_file *in[SLOTS_MAX];
    const struct recipe *recipe = pipeline_guess(files);
    if (files->decodes_only && kind != FAMILY_DECODER) return false;
    if (kind == FAMILY_DENOISER) return should_open_denoiser(model, files, folder);
    if (!recipe) return kind == FAMILY_TEXT || !component_files_find_kind(files, kind);
    parts_assign(files, recipe, in);
    for (int i = 0; recipe->slot[i].family; i++)
        if (recipe->slot[i].family->kind == kind && !strcmp(recipe->slot[i].folder, folder))
            return !in[i] && !part_disabled(files->options, &recipe->slot[i]);
    return false;
}

/* Opens the denoiser's folder first: the denoiser determines which encoders the pipeline has. */
static enum status open_each_folder(const struct model_folder *model, struct component_files *files,
                                    struct error *e) {
    static const enum family_kind order[] = {FAMILY_DENOISER, FAMILY_TEXT,          FAMILY_VISION,
                                             FAMILY_DECODER,  FAMILY_SOUND_DECODER, FAMILY_VOCODER};
    const char *folders[SLOTS_MAX];
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        for (int i = 0, n = list_folders(order[k], folders); i < n && e->code == OK; i++) {
            if (!folder_exists(model, folders[i]) || !should_open_folder(model, files, order[k], folders[i]))
                continue;
            char *path = path_existing(model->sys, model->path, folders[i], e);
            if (path)
                open_located(model->sys, files, path, (struct component_file){.folder = folders[i]}, order[k],
                             e);
            report_failure(files, e);
            model->sys->release(model->sys, path);
        }
        pipeline_detect_variant(model->sys, files);
    }
    return e->code;
}

/* Lists the encoder folders that the model must have, to detect incomplete downloads, and the folders that
 * model_index.json declares absent. */
static void list_declared_folders(const struct model_folder *model, struct component_files *files) {
    static const enum family_kind kinds[] = {FAMILY_TEXT, FAMILY_VISION, FAMILY_SOUND_DECODER,
                                             FAMILY_VOCODER};
    const char *folders[SLOTS_MAX];
    int n_declared = 0, n_absent = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = 0, n = list_folders(kinds[k], folders); i < n; i++) {
            bool declared = is_declared(model, folders[i]) || folder_exists(model, folders[i]);
            if (declared && n_declared < SLOTS_MAX) files->declared[n_declared++] = folders[i];
            if (is_declared_null(model, folders[i]) && n_absent < SLOTS_MAX)
                files->declared_absent[n_absent++] = folders[i];
        }
}

static enum status open_folders(struct sys *sys, const char *path, struct component_files *files,
                                struct error *e) {
    struct model_folder model = {.sys = sys, .path = path, .has_index = files->pipeline != NULL};
    /* class names in model_index.json are read, except for decoding alone */
    bool reads = files->pipeline && !files->decodes_only;
    if (reads) config_read(sys, files->pipeline, &model.index, e);
    if (report_failure(files, e) == OK) open_each_folder(&model, files, e);
    const char *folders[SLOTS_MAX];
    for (int i = 0, n = list_folders(FAMILY_DENOISER, folders); i < n; i++)
        files->n_declared_denoisers += is_declared(&model, folders[i]);
    list_declared_folders(&model, files);
    config_destroy(&model.index);
    return e->code;
}

/* Limits of the search for weight files: depth of folders, possible weight files, and directory entries.
 * Depth 3 reaches split_files/vae/ae.safetensors in ComfyUI's repositories. The limit of entries ends a
 * search of `/` or of a home folder early. */
enum { FOLDERS_DOWN = 3, CANDIDATES_MAX = 256, ENTRIES_MAX = 100000 };

struct search {
    struct sys *sys;
    const char *model;
    struct component_files *files;
    char *candidate[CANDIDATES_MAX]; /* paths of possible weight files; owned */
    int n_candidates, n_entries;
};

static int most_slots(const struct family *family) {
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        int n = recipe_count_slots(*r, family);
        if (n > most) most = n;
    }
    return most;
}

/* True if a component of the family, found by content, should be added: a slot of the family is still empty,
 * or the component is the first surplus one, which the error about duplicates reports. An extra component
 * (slot_is_extra) is added only if no other component was found, for `inspect` and for errors. */
static bool is_needed(const struct component_files *files, const struct family *family) {
    if (files->decodes_only && !family_decodes(family)) return false;
    int slot;
    if (models_find_extra(family->name, &slot)) return !files->n_files;
    int n = 0, located = 0;
    for (int i = 0; i < files->n_files; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->family || file->misplaced || !contents_exclusive(file->family, family)) continue;
        bool is_located = file->flag || file->folder;
        if (is_located && file->family != family) return false;
        located += is_located;
        n += file->family == family;
    }
    return located < most_slots(family) && n <= most_slots(family);
}

/* Adds the needed components of a file. A component may have been added already: a flag or folder may choose
 * a file under -m, and a file may have several names (links). */
static enum status take_contents(struct search *s, const char *path, struct tensor_index *whole,
                                 const struct contents *contents, struct error *e) {
    bool taken = false;
    for (int i = 0; i < contents->n && e->code == OK; i++) {
        if (!is_needed(s->files, contents->component[i].family)) continue;
        bool is_known = false;
        for (int k = 0; k < s->files->n_files && !is_known; k++) {
            const struct component_file *known = &s->files->file[k];
            is_known = known->family == contents->component[i].family &&
                       !strcmp(known->prefix ? known->prefix : "", contents->component[i].prefix) &&
                       path_same(component_files_path(s->files, known), path);
        }
        if (is_known) continue;
        if (!taken && component_files_add_file(s->sys, s->files, path, whole, e) != OK) return e->code;
        taken = true;
        struct component_file file = {
            .family = contents->component[i].family, .prefix = contents->component[i].prefix, .view = i};
        component_files_add(s->files, file, e);
    }
    if (taken) note_bundled_denoiser(s->files, contents);
    if (!taken) index_destroy(whole);
    return e->code;
}

/* Counts tensors that belong to no component by their prefix, and that no component's family ignores. */
static void count_unknown_tensors(struct component_files *files, const struct tensor_index *whole,
                                  const struct contents *contents) {
    for (int i = 0; i < whole->n_entries; i++) {
        const char *name = whole->entries[i].name;
        bool is_known = false;
        for (int k = 0; k < contents->n && !is_known; k++) {
            const char *prefix = contents->component[k].prefix;
            is_known =
                !strncmp(name, prefix, strlen(prefix)) || family_ignores(contents->component[k].family, name);
        }
        if (is_known) continue;
        if (!files->unknown_tensors.n++)
            snprintf(files->unknown_tensors.first, sizeof files->unknown_tensors.first, "%s", name);
    }
}

static enum status search_file(struct search *s, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    if (contents_open(s->sys, s->model, &whole, &contents, e) != OK) return e->code;
    count_unknown_tensors(s->files, &whole, &contents);
    if (contents.n) return take_contents(s, s->model, &whole, &contents, e);
    index_check_quantised(&whole, &s->files->failure);
    if (component_files_add_file(s->sys, s->files, s->model, &whole, e) == OK)
        component_files_add(s->files, (struct component_file){0}, e);
    return e->code;
}

/* Opens one file of a folder. An error, such as a damaged file or unknown quantisation, is kept for a later
 * error about missing components; only lack of memory ends the search. */
static enum status try_candidate(struct search *s, const char *path, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    struct error failure = {0};
    if (contents_open(s->sys, path, &whole, &contents, &failure) == OK) {
        if (!contents.n) index_check_quantised(&whole, &failure);
        count_unknown_tensors(s->files, &whole, &contents);
        take_contents(s, path, &whole, &contents, e);
    }
    if (failure.code == MEMORY) *e = failure;
    if (s->files->failure.code == OK) s->files->failure = failure;
    report_failure(s->files, &failure);
    return e->code;
}

/* True if the folder has been opened as the folder of a component. The search skips such folders: they hold
 * no further components. */
static bool is_located(const struct search *s, const char *path) {
    for (int i = 0; i < s->files->n_opened; i++)
        if (path_same(s->files->opened[i].path, path)) return true;
    return false;
}

/* True for folders directly below -m that the search skips: ComfyUI's folders without pipeline components
 * (loras, controlnet, ...), often with hundreds of files, and folders that model_index.json declares
 * absent. */
static bool is_unrelated(const struct search *s, const char *name) {
    static const char *const folders[] = {
        "loras",         "controlnet",     "embeddings",           "hypernetworks", "upscale_models",
        "model_patches", "gligen",         "photomaker",           "style_models",  "vae_approx",
        "configs",       "audio_encoders", "latent_upscale_models"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (!strcmp(folders[i], name)) return true;
    for (const char *const *absent = s->files->declared_absent; *absent; absent++)
        if (!strcmp(*absent, name)) return true;
    return false;
}

static enum status list_folder(struct search *s, const char *path, int down, struct error *e);

static enum status list_file(struct search *s, const char *folder, const char *name, int down,
                             struct error *e) {
    char *path = path_join(s->sys, folder, name);
    if (!path) return error_set(e, MEMORY, "no memory for a path");
    bool is_folder = path_is_folder(path), candidate = !is_folder && component_is_candidate(name);
    if (is_folder && down > 0 && !is_located(s, path) && !(down == FOLDERS_DOWN && is_unrelated(s, name)) &&
        !path_is_on_kernel_files(path))
        list_folder(s, path, down - 1, e);
    if (++s->n_entries > ENTRIES_MAX) {
        error_set(e, LIMIT,
                  "too many files to search for the model's components" WHERE "%s" FOUND
                  "more than %d files and folders" EXPECTED
                  "the folder of one model, or a flag for each component",
                  s->model, ENTRIES_MAX);
    } else if (candidate && s->n_candidates == CANDIDATES_MAX) {
        error_set(e, LIMIT,
                  "too many weight files in the model's folder" WHERE "%s" FOUND "more than %d" EXPECTED
                  "the folder of one model, or a flag for each component",
                  s->model, CANDIDATES_MAX);
    } else if (candidate) {
        s->candidate[s->n_candidates++] = path;
        return OK;
    }
    s->sys->release(s->sys, path);
    return e->code;
}

/* Lists a folder, skipping hidden files and folders: downloads keep their caches there. */
static enum status list_folder(struct search *s, const char *path, int down, struct error *e) {
    DIR *folder = opendir(path);
    if (!folder) {
        const char *problem = strerror(errno);
        error_set(&s->files->failure, IO, "the folder cannot be read" WHERE "%s" FOUND "%s", path, problem);
        return OK;
    }
    for (struct dirent *file; e->code == OK && (file = readdir(folder));)
        if (*file->d_name != '.') list_file(s, path, file->d_name, down, e);
    closedir(folder);
    return e->code;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Searches -m by content. In a folder only MEMORY and LIMIT end the search: a damaged file is reported
 * (files->failure) only if a component is missing in the end. */
static enum status search(struct sys *sys, const char *model, struct component_files *files,
                          struct error *e) {
    struct search *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    if (!s) return error_set(e, MEMORY, "no memory to search for the model's components");
    *s = (struct search){.sys = sys, .model = model, .files = files};
    if (path_is_folder(model)) {
        list_folder(s, model, FOLDERS_DOWN, e);
        qsort(s->candidate, (size_t)s->n_candidates, sizeof *s->candidate, compare_paths);
        for (int i = 0; i < s->n_candidates; i++) {
            if (e->code == OK) try_candidate(s, s->candidate[i], e);
            sys->release(sys, s->candidate[i]);
        }
    } else {
        search_file(s, e);
    }
    sys->release(sys, s);
    return e->code;
}

/* True if optional components are missing, and model_index.json does not declare them absent: a search may
 * find them. The autoencoder counts as optional if a tiny decoder replaces its decoder, because input images
 * still need its encoder. */
static bool misses_optional(const struct component_files *files, const struct recipe *recipe) {
    const struct component_file *in[SLOTS_MAX];
    if (!recipe || files->decodes_only || files->by_name) return false;
    parts_assign(files, recipe, in);
    for (int i = 0; recipe->slot[i].family; i++) {
        const struct slot *slot = &recipe->slot[i];
        bool needless = slot->optional || slot->family->kind == FAMILY_DECODER;
        if (in[i] || slot_is_extra(slot) || part_disabled(files->options, slot)) continue;
        if (needless) return true;
    }
    return false;
}

enum status component_files_open(struct sys *sys, const struct sluice_model_options *o,
                                 struct component_files *files, const struct recipe **guess,
                                 struct error *e) {
    struct missing_part missing[SLOTS_MAX];
    if (open_flags(sys, o, files, e) != OK) return e->code;
    pipeline_detect_variant(sys, files);
    if (files->by_name && open_folders(sys, o->model, files, e) != OK) return e->code;
    *guess = pipeline_guess(files);
    bool looks = pipeline_missing(files, *guess, missing) || misses_optional(files, *guess);
    if (o->model && looks) search(sys, o->model, files, e);
    pipeline_detect_variant(sys, files);
    *guess = pipeline_guess(files);
    return e->code == OK ? pipeline_check_duplicates(files, *guess, o->model, e) : e->code;
}
