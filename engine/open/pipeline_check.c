/* Errors about duplicate, misplaced and missing components. See pipeline.h. */
#include "engine/open/pipeline.h"

#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

/* Returns the flag of a second slot with the same family, in recipes where only file names distinguish the
 * slots (WAN's two experts); NULL: no such slot. */
static const char *flag_of_another(const struct family *family, const char *flag) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (slot->family == family && *slot->name_words && strcmp(slot->flag, flag) != 0) return slot->flag;
    return NULL;
}

static enum status fail_duplicate(const struct component_files *files, const struct component_file *one,
                                  const struct component_file *other, const char *flag, const char *model,
                                  struct error *e) {
    size_t folder = strlen(model);
    const char *names[2] = {component_files_path(files, one), component_files_path(files, other)};
    for (int i = 0; i < 2; i++)
        if (!strncmp(names[i], model, folder) && names[i][folder]) names[i] += folder;
    error_set(e, UNSUPPORTED, "two files hold the %s" WHERE "%s" FOUND "%s and %s", one->family->display_name,
              model, names[0] + (*names[0] == '/'), names[1] + (*names[1] == '/'));
    const char *another = flag_of_another(one->family, flag);
    if (!another) return error_expected(e, "%s with the one to use", flag);
    return error_expected(e, "%s with the one to use; %s as well if both belong to one model", flag, another);
}

static bool found_by_content(const struct component_file *file) {
    return file->family && !file->flag && !file->folder;
}

/* Returns the component flag of a family's slot in the given recipe, else in any recipe. */
static const char *flag_of(const struct recipe *recipe, const struct family *family) {
    const struct slot *slot = recipe ? recipe->slot : NULL;
    while (slot && slot->family && slot->family != family) slot++;
    for (int i = 0; !slot || !slot->family || slot->family != family; i++) slot = models_slot(i);
    return slot->flag;
}

/* True if a slot of the recipe uses the component. If a recipe has two slots of a family, two files may be
 * used. */
static bool is_used(const struct component_file *file, const struct component_file *const in[SLOTS_MAX]) {
    for (int i = 0; i < SLOTS_MAX; i++)
        if (in[i] == file) return true;
    return false;
}

/* True if two components, judged by tensor prefix and content, could fill the same slot, and neither flag nor
 * folder fills the slot. False for example for SDXL's second text encoder and Flux's CLIP. */
static bool compete_for_slot(const struct component_files *files, const struct recipe *recipe,
                             const struct component_file *const in[SLOTS_MAX],
                             const struct component_file *one, const struct component_file *other) {
    struct tensor_index view = parts_view(files, one), other_view = parts_view(files, other);
    for (int i = 0; i < SLOTS_MAX && recipe->slot[i].family; i++) {
        const struct slot *s = &recipe->slot[i];
        if (!slot_takes(s, one->family, one->prefix) || !slot_takes(s, other->family, other->prefix))
            continue;
        if (in[i] && !found_by_content(in[i])) continue;
        if (part_disabled(files->options, s)) continue;
        if (part_named_for_other_slot(files, one, s) || part_named_for_other_slot(files, other, s)) continue;
        if (!s->matches || (s->matches(&view) && s->matches(&other_view))) return true;
    }
    return false;
}

enum status pipeline_check_duplicates(const struct component_files *files, const struct recipe *recipe,
                                      const char *model, struct error *e) {
    const struct component_file *in[SLOTS_MAX] = {0};
    if (recipe) parts_assign(files, recipe, in);
    for (int i = 0; i < files->n_files; i++)
        for (int k = 0; k < i; k++) {
            const struct component_file *one = &files->file[k], *other = &files->file[i];
            if (!found_by_content(one) || !found_by_content(other)) continue;
            if (!contents_exclusive(one->family, other->family)) continue;
            if (is_used(one, in) && is_used(other, in)) continue;
            if (recipe && one->family == other->family && !compete_for_slot(files, recipe, in, one, other))
                continue;
            bool encodes = one->family->kind == FAMILY_TEXT || one->family->kind == FAMILY_VISION;
            if (encodes && !(recipe && recipe_count_slots(recipe, one->family))) continue;
            return fail_duplicate(files, one, other, flag_of(recipe, one->family), model, e);
        }
    return OK;
}

static enum status fail_misplaced(const struct component_files *files, const struct component_file *file,
                                  const char *wanted, const char *flag, struct error *e) {
    struct tensor_index view = parts_view(files, file);
    if (!view.n_entries) {
        return error_set(e, MISSING, "the file has no tensors" WHERE "%s" EXPECTED "the weights of %s",
                         component_files_path(files, file), wanted);
    }
    if (index_check_quantised(&view, e) != OK) return e->code;
    error_set(e, UNSUPPORTED, "this file holds another component" WHERE "%s",
              component_files_path(files, file));
    if (file->family)
        error_found(e, "%s (%s)", file->family->display_name, file->family->name);
    else
        error_found(e, "%d tensors of no known component", view.n_entries);
    return error_expected(e, "%s for %s", wanted, flag);
}

static const struct slot *slot_of_flag(const struct recipe *recipe, const struct component_file *file) {
    const struct slot *of_others = NULL;
    for (const struct slot *s = recipe->slot; s->family; s++) {
        if (!s->flag || strcmp(s->flag, file->flag) != 0) continue;
        if (s->family == file->family) return s;
        of_others = s;
    }
    return of_others;
}

static enum status fail_required(const char *word, const char *flag, const char *model, struct error *e) {
    return error_set(e, USAGE,
                     "this model needs its %s" WHERE "%s" FOUND "%s none" EXPECTED "%s with a path, or no %s",
                     word, model ? model : "no model given", flag, flag, flag);
}

static const struct slot *slot_of(const struct recipe *recipe, const char *flag) {
    for (const struct slot *s = recipe->slot; s->family; s++)
        if (s->flag && !strcmp(s->flag, flag)) return s;
    return NULL;
}

static enum status fail_unused_flag(const struct recipe *recipe, const char *flag, const char *where,
                                    struct error *e) {
    return error_set(e, USAGE, "this model does not use %s" WHERE "%s" EXPECTED "only components of %s", flag,
                     where, recipe_family(recipe, FAMILY_DENOISER)->name);
}

enum status pipeline_check_disabled_parts(const struct sluice_model_options *o, const struct recipe *recipe,
                                          const char *model, struct error *e) {
    const char *last = NULL;
    for (int i = 0; i < o->n_parts; i++) {
        if (!part_is_none(&o->parts[i])) continue;
        const char *flag = o->parts[i].flag;
        const struct slot *slot = slot_of(recipe, flag);
        if (!slot) return fail_unused_flag(recipe, flag, "none", e);
        if (!slot->optional)
            return fail_required(slot->display_name ? slot->display_name : slot->family->display_name, flag,
                                 model, e);
        if (slot->family->kind == FAMILY_TEXT) last = flag;
    }
    for (const struct slot *s = recipe->slot; s->family; s++)
        if (s->family->kind == FAMILY_TEXT && !part_disabled(o, s)) return OK;
    return last ? fail_required("text encoders", last, model, e) : OK;
}

enum status pipeline_check_flags(const struct component_files *files, const struct recipe *recipe,
                                 struct error *e) {
    char wanted[96];
    for (int i = 0; i < files->n_files; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || !file->misplaced) continue;
        part_flag_families(file->flag, wanted, sizeof wanted);
        return fail_misplaced(files, file, wanted, file->flag, e);
    }
    for (int i = 0; i < files->n_files && recipe; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || file->bundled) continue;
        const struct slot *slot = slot_of_flag(recipe, file);
        if (slot && slot->family == file->family) continue;
        if (slot) return fail_misplaced(files, file, slot->family->display_name, file->flag, e);
        const struct family *denoiser = recipe_family(recipe, FAMILY_DENOISER);
        fail_unused_flag(recipe, file->flag, component_files_path(files, file), e);
        return error_found(e, "%s (%s) with the %s (%s)", file->family->display_name, file->family->name,
                           denoiser->display_name, denoiser->name);
    }
    return OK;
}

static enum status check_folders(const struct component_files *files, const struct missing_part *missing,
                                 int n_missing, struct error *e) {
    for (int m = 0; m < n_missing; m++)
        for (int i = 0; i < files->n_files; i++) {
            const struct component_file *file = &files->file[i];
            const struct family *family = missing[m].slot ? missing[m].slot->family : NULL;
            char wanted[96];
            if (!file->folder || strcmp(file->folder, missing[m].folder) != 0) continue;
            /* If the denoiser is missing, its family is unknown, so the error names all families that the
             * flag accepts. */
            if (family && family->kind != FAMILY_DENOISER)
                snprintf(wanted, sizeof wanted, "%s (%s)", family->display_name, family->name);
            else
                part_flag_families(missing[m].flag, wanted, sizeof wanted);
            return fail_misplaced(files, file, wanted, missing[m].flag, e);
        }
    return OK;
}

static int missing_of_any(const struct component_files *files, struct missing_part missing[SLOTS_MAX]) {
    static const struct {
        enum family_kind kind;
        const char *folder, *word;
    } any[] = {{FAMILY_DENOISER, "transformer", "transformer"}, {FAMILY_DECODER, "vae", "autoencoder"}};
    int n = 0;
    for (size_t i = 0; i < sizeof any / sizeof *any; i++) {
        if (files->decodes_only && any[i].kind != FAMILY_DECODER) continue;
        if (component_files_find_kind(files, any[i].kind)) continue;
        if (any[i].kind == FAMILY_DECODER && component_files_find_tiny(files)) continue;
        const char *flag;
        for (int k = 0; (flag = part_flag(k)) && !part_flag_chooses(flag, any[i].kind);) k++;
        missing[n++] = (struct missing_part){.folder = any[i].folder, .flag = flag, .word = any[i].word};
    }
    return n;
}

/* True if the slot has a folder of its own (no other slot shares the folder) that exists or is named in
 * model_index.json. */
static bool is_declared(const struct component_files *files, const struct slot *slot) {
    if (slot->prefix) return false; /* another slot shares the folder */
    for (const char *const *folder = files->declared; *folder; folder++)
        if (!strcmp(*folder, slot->folder)) return !part_disabled(files->options, slot);
    return false;
}

/* True if all text encoders of the recipe are optional and none is present: at least one is required. */
static bool has_no_text_encoder(const struct recipe *recipe,
                                const struct component_file *const in[SLOTS_MAX]) {
    bool encodes = false;
    for (int i = 0; recipe->slot[i].family; i++) {
        if (recipe->slot[i].family->kind != FAMILY_TEXT) continue;
        if (in[i] || !recipe->slot[i].optional) return false;
        encodes = true;
    }
    return encodes;
}

static bool may_be_missing(const struct component_files *files, const struct slot *slot, bool no_text) {
    if (slot->family->kind == FAMILY_ENCODER) return true;
    if (slot->family->kind == FAMILY_DECODER && component_files_find_tiny(files)) return true;
    if (slot->family->kind == FAMILY_TEXT && no_text) return false;
    return slot->optional && !is_declared(files, slot);
}

int pipeline_missing(const struct component_files *files, const struct recipe *recipe,
                     struct missing_part missing[SLOTS_MAX]) {
    const struct component_file *in[SLOTS_MAX];
    int n = 0;
    if (!recipe) return missing_of_any(files, missing);
    parts_assign(files, recipe, in);
    bool no_text = has_no_text_encoder(recipe, in);
    for (int i = 0; recipe->slot[i].family; i++) {
        const struct slot *slot = &recipe->slot[i];
        if (!in[i] && !may_be_missing(files, slot, no_text))
            missing[n++] =
                (struct missing_part){slot, slot->folder, slot->flag,
                                      slot->display_name ? slot->display_name : slot->family->display_name};
    }
    return n;
}

struct words {
    char text[96];
    int n;
};

/* Appends word i of n to a list in a message, such as ", 'vae'" or " and 'vae'". */
static void pipeline_add_word(struct words *list, const char *word, const char *quote, int i, int n) {
    const char *between = !i ? "" : i < n - 1 ? ", " : " and ";
    if (list->n >= (int)sizeof list->text) return;
    list->n += snprintf(list->text + list->n, sizeof list->text - (size_t)list->n, "%s%s%s%s", between, quote,
                        word, quote);
}

/* Ending of the advice in an error about missing components. */
static const char *missing_advice(const struct component_files *files, const struct missing_part *missing,
                                  int n) {
    if (!missing[0].slot) return files->decodes_only ? "" : ", and its text encoders";
    for (int i = 0; i < n; i++)
        if (missing[i].slot->optional && !is_declared(files, missing[i].slot))
            return "; one text encoder is enough";
    return n == 1 && missing[0].slot->optional ? ", or \"none\" to go without" : "";
}

static enum status fail_missing(const struct component_files *files, const struct missing_part *missing,
                                int n, const char *model, struct error *e) {
    struct words folders = {0}, flags = {0}, words = {0};
    for (int i = 0; i < n; i++) {
        pipeline_add_word(&folders, missing[i].folder, "'", i, n);
        pipeline_add_word(&flags, missing[i].flag, "", i, n);
        pipeline_add_word(&words, missing[i].word, "", i, n);
    }
    error_set(e, MISSING, "the model has no %s" WHERE "%s", folders.text, model ? model : "no model given");
    const struct component_file *tiny = component_files_find_kind(files, FAMILY_TINY_DECODER);
    if (tiny && !tiny->flag) /* a tiny decoder is used only if the flag for tiny decoders chooses the file */
        error_found(e, "a %s (%s), which is used only with %s", tiny->family->display_name,
                    tiny->family->name, flag_of(NULL, tiny->family));
    else if (files->unknown_tensors.n)
        error_found(e, "'%s' and %d other tensors of no known component", files->unknown_tensors.first,
                    files->unknown_tensors.n - 1);
    return error_expected(e, "all files of the model, or %s with the %s%s", flags.text, words.text,
                          missing_advice(files, missing, n));
}

enum status pipeline_check(const struct component_files *files, const struct recipe *recipe,
                           const char *model, struct error *e) {
    struct missing_part missing[SLOTS_MAX];
    if (pipeline_check_flags(files, recipe, e) != OK) return e->code;
    if (recipe && pipeline_check_disabled_parts(files->options, recipe, model, e) != OK) return e->code;
    int n = pipeline_missing(files, recipe, missing);
    if (!n || check_folders(files, missing, n, e) != OK) return e->code;
    if (files->failure.code == OK) return fail_missing(files, missing, n, model, e);
    *e = files->failure;
    return e->code;
}
