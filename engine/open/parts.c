/* Finding the parts of a model: see parts.h. */
#include "engine/open/parts.h"

#include "engine/open/part_search.h"
#include "engine/open/paths.h"
#include "engine/open/pipeline.h"

#include <string.h>

/* ---- names ---- */

/* A Hugging Face folder says so by its pipeline or by names that no other layout has. */
static bool is_hugging_face(struct sys *sys, const char *model, struct error *e) {
    static const char *const signs[] = {"model_index.json", "transformer", "text_encoder"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        char *sign = path_existing(sys, model, signs[i], e);
        sys->release(sys, sign);
        if (sign) return true;
    }
    return false;
}

enum status parts_locate(struct sys *sys, const struct sluice_model_options *o, struct model_parts *parts,
                         struct error *e) {
    *parts = (struct model_parts){.decodes_only = o->decodes_only};
    if (!o->model && !o->diffusion_model && !o->vae && !o->llm && !o->clip_l && !o->t5xxl)
        return error_set(e, USAGE, "no model was given");
    if (o->model && !path_exists(o->model)) {
        error_set(e, MISSING, "there is no such model");
        return error_where(e, "%s", o->model);
    }
    if (!o->model || !path_is_folder(o->model)) return OK;
    parts->by_name = is_hugging_face(sys, o->model, e);
    if (!o->decodes_only) {
        parts->scheduler = path_existing(sys, o->model, "scheduler/scheduler_config.json", e);
        parts->pipeline = path_existing(sys, o->model, "model_index.json", e);
        parts->defaults = path_existing(sys, o->model, "sluice.json", e);
    }
    if (e->code != OK) parts_destroy(sys, parts);
    return e->code;
}

/* ---- what is found ---- */

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

const char *parts_path(const struct model_parts *parts, const struct part *part) {
    return parts->file[part->file].path;
}

enum status parts_add_file(struct sys *sys, struct model_parts *parts, const char *path,
                           struct tensor_index *index, struct error *e) {
    struct part_file *file = &parts->file[parts->n_files++];
    *file = (struct part_file){.path = path_copy(sys, path, e), .index = *index};
    return e->code;
}

/* Of the file added last. */
void parts_add(struct model_parts *parts, struct part part) {
    part.file = parts->n_files - 1;
    if (part.prefix && !*part.prefix) part.prefix = NULL;
    parts->part[parts->n_parts++] = part;
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

/* ---- by flags and names ---- */

/* Is a family right where a part was looked for? */
static bool belongs(const struct part *place, enum family_kind kind, const struct family *family) {
    return place->flag ? !strcmp(family->flag, place->flag) : family->kind == kind;
}

/* Of a file that one place names the part for it; else whatever else it holds, which is misplaced. */
static enum status open_located(struct sys *sys, struct model_parts *parts, const char *path,
                                struct part place, enum family_kind kind, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    if (contents_open(sys, path, &whole, &contents, e) != OK) return e->code;
    place.misplaced = true;
    for (int i = contents.n; i-- > 0 && place.misplaced;) {
        place.family = contents.part[i].family;
        place.prefix = contents.part[i].prefix;
        place.view = i;
        place.misplaced = !belongs(&place, kind, place.family);
    }
    if (parts_add_file(sys, parts, path, &whole, e) == OK) parts_add(parts, place);
    return e->code;
}

static enum status open_flags(struct sys *sys, const struct sluice_model_options *o,
                              struct model_parts *parts, struct error *e) {
    const struct {
        const char *flag, *path;
        bool decodes;
    } flags[] = {{"--diffusion-model", o->diffusion_model, false},
                 {"--llm", o->llm, false},
                 {"--clip_l", o->clip_l, false},
                 {"--t5xxl", o->t5xxl, false},
                 {"--vae", o->vae, true}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags && e->code == OK; i++)
        if (flags[i].path && (flags[i].decodes || !o->decodes_only))
            open_located(sys, parts, flags[i].path, (struct part){.flag = flags[i].flag}, FAMILY_TEXT, e);
    return e->code;
}

/* Folders of one kind, in the order of the recipes that have them, each once. */
static int list_folders(enum family_kind kind, const char *folders[SLOTS_MAX]) {
    int n = 0;
    for (const struct recipe *const *r = recipes; *r; r++)
        for (const struct slot *s = (*r)->slot; s->family; s++) {
            bool listed = s->family->kind != kind || n == SLOTS_MAX;
            for (int i = 0; i < n && !listed; i++) listed = !strcmp(folders[i], s->folder);
            if (!listed) folders[n++] = s->folder;
        }
    return n;
}

/* Unless a flag has said so already. */
static bool looks_in_folder(const struct model_parts *parts, enum family_kind kind, const char *folder) {
    if (parts->decodes_only && kind != FAMILY_DECODER) return false;
    if (kind != FAMILY_TEXT) return !parts_find_kind(parts, kind);
    const struct recipe *recipe = pipeline_guess(parts);
    for (const struct slot *s = recipe ? recipe->slot : NULL; s && s->family; s++)
        if (!strcmp(s->folder, folder)) return !parts_find(parts, s->family);
    return !recipe;
}

/* The denoiser's first: it tells which encoders there are. */
static enum status open_folders(struct sys *sys, const char *model, struct model_parts *parts,
                                struct error *e) {
    static const enum family_kind order[] = {FAMILY_DENOISER, FAMILY_TEXT, FAMILY_VISION, FAMILY_DECODER};
    const char *folders[SLOTS_MAX];
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (int i = 0, n = list_folders(order[k], folders); i < n && e->code == OK; i++) {
            if (!looks_in_folder(parts, order[k], folders[i])) continue;
            char *path = path_existing(sys, model, folders[i], e);
            if (path) open_located(sys, parts, path, (struct part){.folder = folders[i]}, order[k], e);
            sys->release(sys, path);
        }
    return e->code;
}

enum status parts_open(struct sys *sys, const struct sluice_model_options *o, struct model_parts *parts,
                       struct error *e) {
    if (open_flags(sys, o, parts, e) != OK) return e->code;
    if (parts->by_name && open_folders(sys, o->model, parts, e) != OK) return e->code;
    if (o->model && pipeline_lacks(parts)) part_search(sys, o->model, parts, e);
    return e->code == OK ? pipeline_check_twice(parts, o->model, e) : e->code;
}
