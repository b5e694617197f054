/* Which pipeline the components make up: see pipeline.h. */
#include "engine/open/pipeline.h"

#include "engine/open/configuration.h"
#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

/* ---- the recipe ---- */

static int encoders_found(const struct component_files *files, const struct recipe *recipe) {
    const struct component_file *in[SLOTS_MAX];
    int n = 0;
    parts_assign(files, recipe, in);
    for (int i = 0; recipe->slot[i].family; i++) {
        enum family_kind kind = recipe->slot[i].family->kind;
        n += (kind == FAMILY_TEXT || kind == FAMILY_VISION) && in[i];
    }
    return n;
}

const struct recipe *pipeline_guess(const struct component_files *files) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    const struct recipe *best = NULL;
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (denoiser && recipe_family(*r, FAMILY_DENOISER) != denoiser->family) continue;
        if (denoiser && files->has_variant && (*r)->variant != files->variant) continue;
        int n = encoders_found(files, *r) + parts_of_kind(files, *r, FAMILY_DENOISER);
        if (n) n += parts_of_kind(files, *r, FAMILY_DECODER); /* alone it is many recipes' */
        if (n <= most) continue;
        best = *r;
        most = n;
    }
    return best;
}

void pipeline_look(struct sys *sys, struct component_files *files) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    const struct recipe *recipe = pipeline_guess(files);
    struct error misfit = {0};
    if (!denoiser || files->has_variant) return;
    const struct slot *slot = &recipe->slot[recipe_slot(recipe, FAMILY_DENOISER)];
    struct component c = {.sys = sys, .family = denoiser->family, .index = parts_view(files, denoiser)};
    configuration_look(&c, component_files_path(files, denoiser), slot, &misfit);
    files->has_variant = misfit.code == OK;
    files->variant = c.variant;
}

static bool has_pipeline(const struct recipe *recipe, const char *name) {
    for (const char *const *p = recipe->pipelines; *p; p++)
        if (!strcmp(*p, name)) return true;
    return false;
}

/* How well a recipe goes with a decoder: its family, the latent's channels as published, what the decoder's
 * configuration says it is, and what the folder says the pipeline is; 0: not at all. */
static int decoder_fit(struct sys *sys, const struct component_files *files,
                       const struct component_file *decoder, const struct recipe *recipe, const char *name) {
    int i = recipe_slot(recipe, FAMILY_DECODER), chosen[DIMENSIONS_MAX];
    const struct slot *slot = &recipe->slot[i];
    struct component c, published;
    struct config config = {0};
    struct error misfit = {0};
    enum config_origin origin;
    if (i == SLOTS_MAX || slot->family != decoder->family) return 0;
    configuration_begin(recipe, i, sys, &c);
    configuration_begin(recipe, i, sys, &published);
    for (int k = 0; k < slot->family->n_dimensions; k++)
        chosen[k] = slot_dimension(slot, &slot->family->dimensions[k]);
    component_derive(&published, chosen);
    c.index = parts_view(files, decoder);
    struct config_place place = {component_files_path(files, decoder), slot, &c.index};
    configuration_look(&c, place.path, slot, &misfit);
    if (misfit.code == OK) configuration_read(sys, &place, &config, &origin, &misfit);
    bool fits = misfit.code == OK && c.latent_channels == published.latent_channels;
    bool said =
        !strcmp(config_string(&config, slot->family->config_key, ""), component_config_value(&published));
    config_destroy(&config);
    return 2 + 4 * fits + 8 * said + 16 * has_pipeline(recipe, name);
}

const struct recipe *pipeline_of_decoder(struct sys *sys, const struct component_files *files,
                                         const char *name, bool video) {
    const struct component_file *decoder = component_files_find_kind(files, FAMILY_DECODER);
    const struct recipe *best = NULL;
    int most = 0;
    for (const struct recipe *const *r = recipes; *r && decoder; r++) {
        int fit = decoder_fit(sys, files, decoder, *r, name);
        if (fit && video && (*r)->frames_max) fit++;
        if (fit > most) best = *r;
        if (fit > most) most = fit;
    }
    return best;
}

/* Is it the denoiser's, or whose it may be if that is NULL? */
static bool is_of(const struct recipe *recipe, const struct component *denoiser) {
    return !denoiser || (recipe_family(recipe, FAMILY_DENOISER) == denoiser->family &&
                         recipe->variant == denoiser->variant);
}

/* The pipelines of this denoiser, or of all if that is NULL, each once. */
static void list_pipelines(const struct component *denoiser, char *list, size_t bytes) {
    size_t n = 0;
    *list = 0;
    for (const struct recipe *const *r = recipes; *r; r++)
        for (const char *const *p = (*r)->pipelines; *p && n < bytes && is_of(*r, denoiser); p++) {
            bool listed = false;
            for (const struct recipe *const *s = recipes; s < r; s++)
                listed |= is_of(*s, denoiser) && has_pipeline(*s, *p);
            if (!listed) n += (size_t)snprintf(list + n, bytes - n, "%s%s", n ? ", " : "", *p);
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

/* Has the recipe as many denoisers as the model's folder says that it has? Then one that is not there is
 * missing, and does not make another pipeline of the rest. Whoever chooses one by a flag says what there is.
 */
static bool has_those_named(const struct component_files *files, const struct recipe *recipe) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    return !denoiser->flag && recipe_count(recipe, denoiser->family) == files->denoisers_named;
}

enum status pipeline_choose(const struct component_files *files, const char *name,
                            const struct component *denoiser, const struct recipe **recipe, struct error *e) {
    char known[160];
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_family(*r, FAMILY_DENOISER) != denoiser->family || (*r)->variant != denoiser->variant)
            continue;
        int n = parts_of_kind(files, *r, FAMILY_DENOISER) + parts_of_kind(files, *r, FAMILY_DECODER);
        if (has_those_named(files, *r)) n += SLOTS_MAX;
        if ((*name && !has_pipeline(*r, name)) || n <= most) continue;
        *recipe = *r;
        most = n;
    }
    if (most) return OK;
    list_pipelines(denoiser, known, sizeof known);
    error_set(e, UNSUPPORTED, "the pipeline that model_index.json names has another transformer");
    error_where(e, "%s", denoiser->index.sources[0].path);
    error_found(e, "\"%s\"", name);
    return error_expected(e, "%s for these weights", known);
}

/* Of the recipes with this denoiser the one that is called so. */
static enum status choose_edit(const char *edit, const struct component *denoiser,
                               const struct recipe **recipe, struct error *e) {
    const char *known[] = {"", "", ""};
    size_t n = 0, most = sizeof known / sizeof *known;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_family(*r, FAMILY_DENOISER) != denoiser->family || !(*r)->edit) continue;
        if ((*r)->variant != denoiser->variant) continue;
        if (!strcmp((*r)->edit, edit)) {
            *recipe = *r;
            return OK;
        }
        if (n < most) known[n++] = (*r)->edit;
    }
    error_set(e, USAGE, "--edit cannot be used with this model");
    error_where(e, "%s", denoiser->index.sources[0].path);
    error_found(e, "%s of %s", edit, denoiser->family->name);
    if (!n) return error_expected(e, "nothing: its weights have no editing pipelines");
    return error_expected(e, "%s%s%s%s%s", known[0], n > 2 ? ", " : "", n > 2 ? known[1] : "",
                          n > 1 ? " or " : "", n > 1 ? known[n - 1] : "");
}

bool pipeline_names(const struct component_files *files, const char *name) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    if (!denoiser->flag) return *name;
    for (const struct recipe *const *r = recipes; *r; r++)
        if ((*r)->edit && recipe_family(*r, FAMILY_DENOISER) == denoiser->family && has_pipeline(*r, name))
            return true;
    return false;
}

enum status pipeline_settle(struct sys *sys, const struct component_files *files, const char *name,
                            const char *edit, const struct recipe **recipe, struct error *e) {
    const struct component_file *in[SLOTS_MAX];
    int i = 0;
    parts_assign(files, *recipe, in);
    while (!in[i] || in[i]->family->kind != FAMILY_DENOISER) i++;
    struct component c = {.sys = sys, .family = in[i]->family, .index = parts_view(files, in[i])};
    if (configuration_look(&c, component_files_path(files, in[i]), &(*recipe)->slot[i], e) != OK)
        return e->code;
    if (edit) return choose_edit(edit, &c, recipe, e);
    return pipeline_choose(files, pipeline_names(files, name) ? name : "", &c, recipe, e);
}

bool pipeline_note_alike(const struct recipe *recipe, char *line, size_t bytes) {
    size_t n = 0;
    int listed = 0;
    const struct family *denoiser = recipe_family(recipe, FAMILY_DENOISER);
    for (const struct recipe *const *r = recipes; *r && n < bytes; r++) {
        bool alike = recipe_family(*r, FAMILY_DENOISER) == denoiser && (*r)->variant == recipe->variant &&
                     recipe_count(*r, denoiser) == recipe_count(recipe, denoiser) &&
                     recipe_family(*r, FAMILY_DECODER) == recipe_family(recipe, FAMILY_DECODER);
        if (!alike || *r == recipe) continue;
        if (!n)
            n += (size_t)snprintf(line, bytes,
                                  "no model_index.json: taken for %s, whose weights look like those of",
                                  recipe->name);
        if (n < bytes) n += (size_t)snprintf(line + n, bytes - n, "%s %s", listed++ ? "," : "", (*r)->name);
    }
    if (n && n < bytes && recipe_is_edited(recipe)) snprintf(line + n, bytes - n, " (--edit)");
    return n > 0;
}

/* ---- what is there twice ---- */

/* The flag for a second one, where some recipe has two of that family that nothing but names tells apart. */
static const char *flag_of_another(const struct family *family, const char *flag) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (slot->family == family && *slot->called && strcmp(slot->flag, flag) != 0) return slot->flag;
    return NULL;
}

static enum status two_files(const struct component_files *files, const struct component_file *one,
                             const struct component_file *other, const char *flag, const char *model,
                             struct error *e) {
    size_t folder = strlen(model);
    const char *names[2] = {component_files_path(files, one), component_files_path(files, other)};
    for (int i = 0; i < 2; i++)
        if (!strncmp(names[i], model, folder) && names[i][folder]) names[i] += folder;
    error_set(e, UNSUPPORTED, "two files hold the %s", one->family->word);
    error_where(e, "%s", model);
    error_found(e, "%s and %s", names[0] + (*names[0] == '/'), names[1] + (*names[1] == '/'));
    const char *another = flag_of_another(one->family, flag);
    if (!another) return error_expected(e, "%s with the one to use", flag);
    return error_expected(e, "%s with the one to use, and %s where they are two of one model", flag, another);
}

static bool was_searched(const struct component_file *file) {
    return file->family && !file->flag && !file->folder;
}

/* The recipe's; of a family that it has not, any recipe's. */
static const char *flag_of(const struct recipe *recipe, const struct family *family) {
    const struct slot *slot = recipe ? recipe->slot : NULL;
    while (slot && slot->family && slot->family != family) slot++;
    for (int i = 0; !slot || !slot->family || slot->family != family; i++) slot = models_slot(i);
    return slot->flag;
}

/* Is it in a slot? With several slots of one family two files of it are no mistake. */
static bool is_used(const struct component_file *file, const struct component_file *const in[SLOTS_MAX]) {
    for (int i = 0; i < SLOTS_MAX; i++)
        if (in[i] == file) return true;
    return false;
}

/* Could both stand in one slot of the recipe, as far as prefixes and contents say, which no flag and no
 * folder fills? Of SDXL's encoders Flux has one; of one that a flag chooses nobody asks which else there is.
 */
static bool share_place(const struct component_files *files, const struct recipe *recipe,
                        const struct component_file *const in[SLOTS_MAX], const struct component_file *one,
                        const struct component_file *other) {
    struct tensor_index view = parts_view(files, one), other_view = parts_view(files, other);
    for (int i = 0; i < SLOTS_MAX && recipe->slot[i].family; i++) {
        const struct slot *s = &recipe->slot[i];
        if (!slot_takes(s, one->family, one->prefix) || !slot_takes(s, other->family, other->prefix))
            continue;
        if (in[i] && !was_searched(in[i])) continue;
        if (parts_is_called_otherwise(files, one, s) || parts_is_called_otherwise(files, other, s)) continue;
        if (!s->is || (s->is(&view) && s->is(&other_view))) return true;
    }
    return false;
}

enum status pipeline_check_twice(const struct component_files *files, const struct recipe *recipe,
                                 const char *model, struct error *e) {
    const struct component_file *in[SLOTS_MAX] = {0};
    if (recipe) parts_assign(files, recipe, in);
    for (int i = 0; i < files->n_files; i++)
        for (int k = 0; k < i; k++) {
            const struct component_file *one = &files->file[k], *other = &files->file[i];
            if (!was_searched(one) || !was_searched(other)) continue;
            if (!contents_alike(one->family, other->family)) continue;
            if (is_used(one, in) && is_used(other, in)) continue;
            if (recipe && one->family == other->family && !share_place(files, recipe, in, one, other))
                continue;
            bool encodes = one->family->kind == FAMILY_TEXT || one->family->kind == FAMILY_VISION;
            if (encodes && !(recipe && recipe_count(recipe, one->family))) continue;
            return two_files(files, one, other, flag_of(recipe, one->family), model, e);
        }
    return OK;
}

/* ---- what is misplaced ---- */

static enum status misplaced(const struct component_files *files, const struct component_file *file,
                             const char *wanted, const char *flag, struct error *e) {
    struct tensor_index view = parts_view(files, file);
    if (!view.n_entries) {
        error_set(e, MISSING, "there are no tensors");
        error_where(e, "%s", component_files_path(files, file));
        return error_expected(e, "the weights of %s", wanted);
    }
    if (index_check_quantised(&view, e) != OK) return e->code;
    error_set(e, UNSUPPORTED, "these weights do not fit their slot");
    error_where(e, "%s", component_files_path(files, file));
    if (file->family)
        error_found(e, "%s (%s)", file->family->word, file->family->name);
    else
        error_found(e, "an unknown kind with %d tensors", view.n_entries);
    return error_expected(e, "%s for %s", wanted, flag);
}

/* The recipe's slot with that flag that is for it, or for others. NULL: there is none. */
static const struct slot *slot_of_flag(const struct recipe *recipe, const struct component_file *file) {
    const struct slot *of_others = NULL;
    for (const struct slot *s = recipe->slot; s->family; s++) {
        if (!s->flag || strcmp(s->flag, file->flag) != 0) continue;
        if (s->family == file->family) return s;
        of_others = s;
    }
    return of_others;
}

static enum status pipeline_check_flags(const struct component_files *files, const struct recipe *recipe,
                                        struct error *e) {
    char wanted[96];
    for (int i = 0; i < files->n_files; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || !file->misplaced) continue;
        part_flag_families(file->flag, wanted, sizeof wanted);
        return misplaced(files, file, wanted, file->flag, e);
    }
    for (int i = 0; i < files->n_files && recipe; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || file->with) continue;
        const struct slot *slot = slot_of_flag(recipe, file);
        if (slot && slot->family == file->family) continue;
        if (slot) return misplaced(files, file, slot->family->word, file->flag, e);
        const struct family *denoiser = recipe_family(recipe, FAMILY_DENOISER);
        error_set(e, USAGE, "this model has no use for %s", file->flag);
        error_where(e, "%s", component_files_path(files, file));
        error_found(e, "%s (%s) beside the %s (%s)", file->family->word, file->family->name, denoiser->word,
                    denoiser->name);
        return error_expected(e, "the parts of %s only", denoiser->name);
    }
    return OK;
}

/* A folder that the layout has for a missing component holds something else. */
static enum status check_folders(const struct component_files *files, const struct missing_part *missing,
                                 int n_missing, struct error *e) {
    for (int m = 0; m < n_missing; m++)
        for (int i = 0; i < files->n_files; i++) {
            const struct component_file *file = &files->file[i];
            const struct family *family = missing[m].slot ? missing[m].slot->family : NULL;
            char wanted[96];
            if (!file->folder || strcmp(file->folder, missing[m].folder) != 0) continue;
            /* Which transformer it is, or would be, nothing else tells. */
            if (family && family->kind != FAMILY_DENOISER)
                snprintf(wanted, sizeof wanted, "%s (%s)", family->word, family->name);
            else
                part_flag_families(missing[m].flag, wanted, sizeof wanted);
            return misplaced(files, file, wanted, missing[m].flag, e);
        }
    return OK;
}

/* ---- what is missing ---- */

/* What every pipeline has, where nothing tells which it is; its text encoders are not known to be missing. */
static int missing_of_any(const struct component_files *files, struct missing_part missing[SLOTS_MAX]) {
    static const struct {
        enum family_kind kind;
        const char *folder, *word;
    } any[] = {{FAMILY_DENOISER, "transformer", "transformer"}, {FAMILY_DECODER, "vae", "autoencoder"}};
    int n = 0;
    for (size_t i = 0; i < sizeof any / sizeof *any; i++) {
        if (files->decodes_only && any[i].kind != FAMILY_DECODER) continue;
        if (component_files_find_kind(files, any[i].kind)) continue;
        const char *flag;
        for (int k = 0; (flag = part_flag(k)) && !part_flag_chooses(flag, any[i].kind);) k++;
        missing[n++] = (struct missing_part){.folder = any[i].folder, .flag = flag, .word = any[i].word};
    }
    return n;
}

int pipeline_missing(const struct component_files *files, const struct recipe *recipe,
                     struct missing_part missing[SLOTS_MAX]) {
    const struct component_file *in[SLOTS_MAX];
    int n = 0;
    if (!recipe) return missing_of_any(files, missing);
    parts_assign(files, recipe, in);
    for (int i = 0; recipe->slot[i].family; i++) {
        const struct slot *slot = &recipe->slot[i];
        if (!in[i] && !slot->optional && slot->family->kind != FAMILY_ENCODER)
            missing[n++] = (struct missing_part){slot, slot->folder, slot->flag,
                                                 slot->word ? slot->word : slot->family->word};
    }
    return n;
}

struct words {
    char text[96];
    int n;
};

/* Adds "'vae'", with " and " or ", " before it: word i of n. */
static void pipeline_add_word(struct words *list, const char *word, const char *quote, int i, int n) {
    const char *between = !i ? "" : i < n - 1 ? ", " : " and ";
    if (list->n >= (int)sizeof list->text) return;
    list->n += snprintf(list->text + list->n, sizeof list->text - (size_t)list->n, "%s%s%s%s", between, quote,
                        word, quote);
}

static enum status say_missing(const struct component_files *files, const struct missing_part *missing, int n,
                               const char *model, struct error *e) {
    struct words folders = {0}, flags = {0}, words = {0};
    bool encoders = !missing[0].slot && !files->decodes_only;
    for (int i = 0; i < n; i++) {
        pipeline_add_word(&folders, missing[i].folder, "'", i, n);
        pipeline_add_word(&flags, missing[i].flag, "", i, n);
        pipeline_add_word(&words, missing[i].word, "", i, n);
    }
    error_set(e, MISSING, "the model has no %s", folders.text);
    error_where(e, "%s", model ? model : "no model given");
    if (files->strangers.n)
        error_found(e, "'%s' and %d other tensors, which are no known part", files->strangers.first,
                    files->strangers.n - 1);
    return error_expected(e, "%s there, or %s with the %s%s", n > 1 ? "them" : "it", flags.text, words.text,
                          encoders ? ", and its text encoders" : "");
}

enum status pipeline_check(const struct component_files *files, const struct recipe *recipe,
                           const char *model, struct error *e) {
    struct missing_part missing[SLOTS_MAX];
    if (pipeline_check_flags(files, recipe, e) != OK) return e->code;
    int n = pipeline_missing(files, recipe, missing);
    if (!n || check_folders(files, missing, n, e) != OK) return e->code;
    if (files->failure.code == OK) return say_missing(files, missing, n, model, e);
    *e = files->failure;
    return e->code;
}
