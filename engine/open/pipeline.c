/* Which pipeline the parts make up: see pipeline.h. */
#include "engine/open/pipeline.h"

#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

/* ---- the recipe ---- */

static int texts_found(const struct model_parts *parts, const struct recipe *recipe) {
    int n = 0;
    for (const struct slot *s = recipe->slot; s->family; s++)
        n += s->family->kind == FAMILY_TEXT && parts_find(parts, s->family);
    return n;
}

const struct recipe *pipeline_guess(const struct model_parts *parts) {
    const struct part *denoiser = parts_find_kind(parts, FAMILY_DENOISER);
    const struct recipe *best = NULL;
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (denoiser && recipe_family(*r, FAMILY_DENOISER) == denoiser->family) return *r;
        int n = denoiser ? 0 : texts_found(parts, *r);
        if (n <= most) continue;
        best = *r;
        most = n;
    }
    return best;
}

static bool has_pipeline(const struct recipe *recipe, const char *name) {
    for (const char *const *p = recipe->pipelines; *p; p++)
        if (!strcmp(*p, name)) return true;
    return false;
}

/* The pipelines of this denoiser, or of all if that is NULL, each once. */
static void list_pipelines(const struct component *denoiser, char *list, size_t bytes) {
    size_t n = 0;
    *list = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (denoiser &&
            (recipe_family(*r, FAMILY_DENOISER) != denoiser->family || (*r)->variant != denoiser->variant))
            continue;
        for (const char *const *p = (*r)->pipelines; *p && n < bytes; p++) {
            bool listed = false;
            for (const struct recipe *const *s = recipes; s < r; s++)
                listed |= !denoiser && has_pipeline(*s, *p);
            if (!listed) n += (size_t)snprintf(list + n, bytes - n, "%s%s", n ? ", " : "", *p);
        }
    }
}

enum status pipeline_read(struct sys *sys, const char *path, char name[PIPELINE_NAME_BYTES],
                          struct error *e) {
    struct config config = {0};
    char known[160];
    bool found = false;
    if (config_read(sys, path, &config, e) != OK) return e->code;
    const char *named = config_string(&config, "_class_name", "");
    snprintf(name, PIPELINE_NAME_BYTES, "%s", named);
    for (const struct recipe *const *r = recipes; *r; r++) found |= has_pipeline(*r, named);
    if (*named && !found) {
        list_pipelines(NULL, known, sizeof known);
        error_set(e, UNSUPPORTED, "this pipeline is not supported");
        error_where(e, "%s", path);
        error_found(e, "\"%s\"", named);
        error_expected(e, "%s", known);
    }
    config_destroy(&config);
    return e->code;
}

enum status pipeline_choose(const char *name, const struct component *denoiser, const struct recipe **recipe,
                            struct error *e) {
    char known[160];
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_family(*r, FAMILY_DENOISER) != denoiser->family || (*r)->variant != denoiser->variant)
            continue;
        if (*name && !has_pipeline(*r, name)) continue;
        *recipe = *r;
        return OK;
    }
    list_pipelines(denoiser, known, sizeof known);
    error_set(e, UNSUPPORTED, "the pipeline that model_index.json names has another transformer");
    error_where(e, "%s", denoiser->index.sources[0].path);
    error_found(e, "\"%s\"", name);
    return error_expected(e, "%s for these weights", known);
}

bool pipeline_note_alike(const struct recipe *recipe, char *line, size_t bytes) {
    size_t n = 0;
    for (const struct recipe *const *r = recipes; *r && n < bytes; r++) {
        bool alike = recipe_family(*r, FAMILY_DENOISER) == recipe_family(recipe, FAMILY_DENOISER) &&
                     (*r)->variant == recipe->variant;
        if (!alike || *r == recipe) continue;
        if (!n)
            n += (size_t)snprintf(line, bytes, "no model_index.json: taken for %s, whose weights look like",
                                  recipe->name);
        if (n < bytes) n += (size_t)snprintf(line + n, bytes - n, " %s's", (*r)->name);
    }
    return n > 0;
}

/* ---- what is there twice ---- */

static enum status two_files(const struct model_parts *parts, const struct part *one,
                             const struct part *other, const char *model, struct error *e) {
    size_t folder = strlen(model);
    const char *names[2] = {parts_path(parts, one), parts_path(parts, other)};
    for (int i = 0; i < 2; i++)
        if (!strncmp(names[i], model, folder) && names[i][folder]) names[i] += folder;
    error_set(e, UNSUPPORTED, "two files hold the %s", one->family->word);
    error_where(e, "%s", model);
    error_found(e, "%s and %s", names[0] + (*names[0] == '/'), names[1] + (*names[1] == '/'));
    return error_expected(e, "%s with the one to use", one->family->flag);
}

static bool was_searched(const struct part *part) {
    return part->family && !part->flag && !part->folder;
}

enum status pipeline_check_twice(const struct model_parts *parts, const char *model, struct error *e) {
    for (int i = 0; i < parts->n_parts; i++)
        for (int k = 0; k < i; k++) {
            const struct part *one = &parts->part[k], *other = &parts->part[i];
            const struct recipe *guess = pipeline_guess(parts);
            if (!was_searched(one) || !was_searched(other)) continue;
            if (!contents_alike(one->family, other->family)) continue;
            bool wanted = one->family->kind != FAMILY_TEXT || (guess && recipe_has(guess, one->family));
            if (wanted) return two_files(parts, one, other, model, e);
        }
    return OK;
}

/* ---- what is misplaced ---- */

/* "transformer (zimage or flux)": the families that a flag chooses among. */
static void list_families(const char *flag, char *list, size_t bytes) {
    const struct family *last = NULL;
    size_t n = 0;
    *list = 0;
    for (const struct family *const *f = families; *f; f++)
        if (!strcmp((*f)->flag, flag) && (*f)->kind != FAMILY_ENCODER) last = *f;
    for (const struct family *const *f = families; *f && n < bytes; f++) {
        if (strcmp((*f)->flag, flag) != 0 || (*f)->kind == FAMILY_ENCODER) continue;
        const char *before = !n ? (*f)->word : *f == last ? " or " : ", ";
        n += (size_t)snprintf(list + n, bytes - n, "%s%s%s", before, n ? "" : " (", (*f)->name);
    }
    if (n < bytes) snprintf(list + n, bytes - n, ")");
}

static enum status misplaced(const struct model_parts *parts, const struct part *part, const char *wanted,
                             const char *flag, struct error *e) {
    const struct tensor_index *index = &parts->file[part->file].index;
    struct tensor_index view = index_view(index, part->prefix, part->view);
    if (!index->n_entries) {
        error_set(e, MISSING, "there are no tensors");
        error_where(e, "%s", parts_path(parts, part));
        return error_expected(e, "the weights of %s", wanted);
    }
    if (index_check_quantised(&view, e) != OK) return e->code;
    error_set(e, UNSUPPORTED, "these weights do not fit their slot");
    error_where(e, "%s", parts_path(parts, part));
    if (part->family)
        error_found(e, "%s (%s)", part->family->word, part->family->name);
    else
        error_found(e, "an unknown kind with %d tensors", index->n_entries);
    return error_expected(e, "%s for %s", wanted, flag);
}

static enum status check_flags(const struct model_parts *parts, const struct recipe *recipe,
                               struct error *e) {
    char wanted[96];
    for (int i = 0; i < parts->n_parts; i++) {
        const struct part *part = &parts->part[i];
        if (!part->flag) continue;
        list_families(part->flag, wanted, sizeof wanted);
        if (part->misplaced) return misplaced(parts, part, wanted, part->flag, e);
    }
    for (int i = 0; i < parts->n_parts && recipe; i++) {
        const struct part *part = &parts->part[i];
        if (!part->flag || recipe_has(recipe, part->family)) continue;
        const struct family *denoiser = recipe_family(recipe, FAMILY_DENOISER);
        error_set(e, USAGE, "this model has no use for %s", part->flag);
        error_where(e, "%s", parts_path(parts, part));
        error_found(e, "%s (%s) beside the %s (%s)", part->family->word, part->family->name, denoiser->word,
                    denoiser->name);
        return error_expected(e, "the parts of %s only", denoiser->name);
    }
    return OK;
}

static bool lies_in(const struct part *part, const char *folder) {
    return part->folder && !strcmp(part->folder, folder);
}

/* A folder that the layout has for a missing part holds something else. */
static enum status check_folders(const struct model_parts *parts, const struct recipe *recipe,
                                 const bool missing[SLOTS_MAX], struct error *e) {
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < parts->n_parts && missing[slot]; i++) {
            const struct part *part = &parts->part[i];
            const struct family *family = recipe->slot[slot].family;
            char wanted[96];
            if (!lies_in(part, recipe->slot[slot].folder)) continue;
            snprintf(wanted, sizeof wanted, "%s (%s)", family->word, family->name);
            if (family->kind == FAMILY_DENOISER) list_families(family->flag, wanted, sizeof wanted);
            return misplaced(parts, part, wanted, family->flag, e);
        }
    return OK;
}

/* ---- what is missing ---- */

/* Where nothing points to a recipe, its text encoders are not known to be missing. */
static bool is_missing(const struct model_parts *parts, const struct recipe *guess, int slot) {
    const struct recipe *recipe = guess ? guess : recipes[0];
    const struct family *family = recipe->slot[slot].family;
    if (!family || family->kind == FAMILY_ENCODER) return false;
    if (parts->decodes_only && family->kind != FAMILY_DECODER) return false;
    if (family->kind == FAMILY_DENOISER) return !parts_find_kind(parts, FAMILY_DENOISER);
    return (guess || family->kind != FAMILY_TEXT) && !parts_find(parts, family);
}

int pipeline_missing(const struct model_parts *parts, bool missing[SLOTS_MAX]) {
    const struct recipe *guess = pipeline_guess(parts);
    int n = 0;
    for (int slot = 0; slot < SLOTS_MAX; slot++) n += missing[slot] = is_missing(parts, guess, slot);
    return n;
}

bool pipeline_lacks(const struct model_parts *parts) {
    bool missing[SLOTS_MAX];
    return pipeline_missing(parts, missing) > 0;
}

enum { LIST_BYTES = 96 };

/* "'transformer' and 'vae'": these words, each in quotes, of the roles that are missing. */
static void list_words(const char *const words[SLOTS_MAX], const bool missing[SLOTS_MAX], const char *quote,
                       char list[LIST_BYTES]) {
    int n = 0, last = 0, length = 0;
    for (int i = 0; i < SLOTS_MAX; i++)
        if (missing[i]) last = i;
    for (int i = 0; i <= last && length < LIST_BYTES; i++) {
        if (!missing[i]) continue;
        const char *between = !n++ ? "" : i < last ? ", " : " and ";
        length += snprintf(list + length, (size_t)(LIST_BYTES - length), "%s%s%s%s", between, quote, words[i],
                           quote);
    }
}

static enum status say_missing(const struct model_parts *parts, const struct recipe *guess,
                               const bool missing[SLOTS_MAX], const char *model, struct error *e) {
    const struct recipe *recipe = guess ? guess : recipes[0];
    const char *folder[SLOTS_MAX] = {0}, *flag[SLOTS_MAX] = {0}, *word[SLOTS_MAX] = {0};
    char folders[LIST_BYTES], flags[LIST_BYTES], words[LIST_BYTES];
    int n = 0;
    for (int i = 0; i < SLOTS_MAX; i++) {
        if (!missing[i]) continue;
        n++;
        folder[i] = recipe->slot[i].folder;
        flag[i] = recipe->slot[i].family->flag;
        word[i] = recipe->slot[i].family->word;
    }
    list_words(folder, missing, "'", folders);
    list_words(flag, missing, "", flags);
    list_words(word, missing, "", words);
    error_set(e, MISSING, "the model has no %s", folders);
    error_where(e, "%s", model ? model : "no model given");
    if (parts->strangers.n)
        error_found(e, "'%s' and %d other tensors, which are no known part", parts->strangers.first,
                    parts->strangers.n - 1);
    bool encoders = !guess && !parts->decodes_only;
    return error_expected(e, "%s there, or %s with the %s%s", n > 1 ? "them" : "it", flags, words,
                          encoders ? ", and its text encoders" : "");
}

enum status pipeline_check(const struct model_parts *parts, const char *model, struct error *e) {
    const struct recipe *guess = pipeline_guess(parts);
    bool missing[SLOTS_MAX];
    if (check_flags(parts, parts->decodes_only ? NULL : guess, e) != OK) return e->code;
    if (!pipeline_missing(parts, missing)) return OK;
    if (check_folders(parts, guess ? guess : recipes[0], missing, e) != OK) return e->code;
    if (parts->failure.code == OK) return say_missing(parts, guess, missing, model, e);
    *e = parts->failure;
    return e->code;
}
