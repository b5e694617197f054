/* Chooses the recipe, and reports duplicate, misplaced and missing components: implements pipeline.h. */
#include "engine/open/pipeline.h"
#include "engine/run/component.h"

#include "engine/open/adapter_file.h"
#include "engine/open/configuration.h"
#include "engine/open/paths.h"
#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

const struct recipe *pipeline_guess(const struct component_files *files) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    const struct recipe *best = NULL;
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (denoiser && recipe_family(*r, FAMILY_DENOISER) != denoiser->family) continue;
        if (denoiser && files->has_variant && (*r)->selection.variant != files->variant) continue;
        const struct component_file *in[SLOTS_MAX];
        int n = parts_of_kind(files, *r, FAMILY_DENOISER);
        parts_assign(files, *r, in);
        for (int i = 0; (*r)->slot[i].family; i++) {
            enum family_kind kind = (*r)->slot[i].family->kind;
            n += (kind == FAMILY_TEXT || kind == FAMILY_VISION) && in[i];
        }
        /* decoders count only next to other components, because a decoder alone fits many recipes */
        if (n) n += parts_of_kind(files, *r, FAMILY_DECODER);
        if (n <= most) continue;
        best = *r;
        most = n;
    }
    return best;
}

void pipeline_detect_variant(struct sys *sys, struct component_files *files) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    const struct recipe *recipe = pipeline_guess(files);
    struct error failure = {0};
    if (!denoiser || files->has_variant) return;
    const struct slot *slot = &recipe->slot[recipe_slot(recipe, FAMILY_DENOISER)];
    struct component c = {.sys = sys, .family = denoiser->family, .index = parts_view(files, denoiser)};
    configuration_apply(&c, component_files_path(files, denoiser), slot, &failure);
    /* Reported if a component is missing in the end. */
    if (failure.code == UNSUPPORTED && files->failure.code == OK) files->failure = failure;
    files->has_variant = failure.code == OK;
    files->variant = c.variant;
}

static bool has_pipeline(const struct recipe *recipe, const char *name) {
    for (const char *const *p = recipe->selection.pipelines; *p; p++)
        if (!strcmp(*p, name)) return true;
    return false;
}

/* Evidence that identifies the recipe of a decoder if no denoiser is present. */
struct decoder_origin {
    const char *pipeline; /* name of the pipeline in model_index.json; "": unknown */
    const struct latent_origin *latent;
};

/* Rates how well a recipe matches a decoder; 0: the recipe needs another decoder family. Evidence from weak
 * to strong: video, published number of latent channels, the latent's metadata, the decoder's configuration,
 * the pipeline's name, the denoiser in the same file. *format: the latent scale that the recipe uses. */
static int decoder_fit(struct sys *sys, const struct component_files *files,
                       const struct component_file *decoder, const struct recipe *recipe,
                       const struct decoder_origin *from, struct latent_format *format) {
    int i = recipe_slot(recipe, decoder->family->kind), chosen[DIMENSIONS_MAX];
    const struct slot *slot = &recipe->slot[i];
    struct component c, published;
    struct config config = {0};
    struct error failure = {0};
    enum config_origin origin;
    if (i == SLOTS_MAX || slot->family != decoder->family) return 0;
    configuration_begin(recipe, i, sys, &c);
    configuration_begin(recipe, i, sys, &published);
    for (int k = 0; k < slot->family->config.n_dimensions; k++)
        chosen[k] = slot_dimension(slot, &slot->family->config.dimensions[k]);
    component_derive(&published, chosen);
    c.index = parts_view(files, decoder);
    struct config_place place = {component_files_path(files, decoder), slot, &c.index};
    configuration_apply(&c, place.path, slot, &failure);
    if (failure.code == OK) configuration_read(sys, &place, &config, &origin, &failure);
    *format = c.latent_format;
    bool fits = failure.code == OK && c.latent_channels == published.latent_channels;
    bool configured = !strcmp(config_string(&config, slot->family->files.config_key, ""),
                              component_config_value(&published));
    bool saved = !strcmp(from->latent->recipe, recipe->name);
    config_destroy(&config);
    /* denoiser_fit is 2 if the denoiser in the decoder's file has the recipe's family and variant, and 1 if
     * only the family matches. */
    const struct component_file *denoiser = &files->bundled_denoiser;
    int denoiser_fit = 0;
    if (denoiser->family && recipe_family(recipe, FAMILY_DENOISER) == denoiser->family) {
        struct component d = {.sys = sys, .family = denoiser->family, .index = parts_view(files, denoiser)};
        failure = (struct error){0};
        configuration_apply(&d, component_files_path(files, denoiser),
                            &recipe->slot[recipe_slot(recipe, FAMILY_DENOISER)], &failure);
        denoiser_fit = 1 + (failure.code == OK && d.variant == recipe->selection.variant);
    }
    return 1 + (from->latent->video && recipe->frames_max) + 2 * fits + 4 * saved + 8 * configured +
           16 * has_pipeline(recipe, from->pipeline) + 32 * denoiser_fit;
}

const struct recipe *pipeline_of_decoder(struct sys *sys, const struct component_files *files,
                                         const char *name, const struct latent_origin *latent,
                                         bool *assumed) {
    const struct decoder_origin from = {name, latent};
    const struct component_file *large = component_files_find_kind(files, FAMILY_DECODER);
    const struct component_file *decoder = large ? large : component_files_find_tiny(files);
    const struct recipe *best = NULL;
    struct latent_format format, scales = {0};
    int most = 0;
    for (const struct recipe *const *r = recipes; *r && decoder; r++) {
        int fit = decoder_fit(sys, files, decoder, *r, &from, &format);
        if (fit && fit == most && memcmp(&format, &scales, sizeof format) != 0) *assumed = true;
        if (fit <= most) continue;
        best = *r;
        most = fit;
        scales = format;
        *assumed = false;
    }
    return best;
}

/* True if the recipe uses the denoiser. denoiser NULL: any recipe. */
static bool is_of(const struct recipe *recipe, const struct component *denoiser) {
    return !denoiser || (recipe_family(recipe, FAMILY_DENOISER) == denoiser->family &&
                         recipe->selection.variant == denoiser->variant);
}

/* Lists the pipelines whose recipes use the denoiser, each once. */
static void list_pipelines(const struct component *denoiser, char *list, size_t bytes) {
    size_t n = 0;
    *list = 0;
    for (const struct recipe *const *r = recipes; *r; r++)
        for (const char *const *p = (*r)->selection.pipelines; *p && n < bytes && is_of(*r, denoiser); p++) {
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
        error_set(e, UNSUPPORTED,
                  "unsupported pipeline in model_index.json" WHERE "%s" FOUND "\"%s\"" EXPECTED "%s", path,
                  named, known);
    }
    config_destroy(&config);
    return e->code;
}

/* True if the boolean selection.index_key in model_index.json (false if absent) is selection.index_value.
 * META: the value is no boolean. */
static bool has_index_value(const struct component_files *files, const struct component *denoiser,
                            const struct recipe *recipe, struct error *e) {
    struct config config = {0};
    bool value = false;
    if (config_read(denoiser->sys, files->pipeline, &config, e) == OK)
        config_bool(&config, recipe->selection.index_key, &value, e);
    config_destroy(&config);
    return value == recipe->selection.index_value;
}

/* Reads `shift` of the model's scheduler_config.json; 0 if absent. Fails like config_read. */
static enum status read_shift(const struct component_files *files, struct sys *sys, double *shift,
                              struct error *e) {
    struct config config = {0};
    *shift = 0;
    if (config_read(sys, files->scheduler, &config, e) == OK)
        config_float(&config, "shift", 0, SLUICE_FLOW_SHIFT_MAX, shift, e);
    config_destroy(&config);
    return e->code;
}

/* True if the name of the model or of the denoiser's file has the recipe's name_word or an alias, and not
 * name_excludes. */
static bool name_selects(const struct component_files *files, const struct component_file *denoiser,
                         const struct recipe_selection *s) {
    bool has = part_name_has_word(files, denoiser, s->name_word);
    for (const char *const *alias = s->name_aliases; *alias; alias++)
        has |= part_name_has_word(files, denoiser, *alias);
    return has && !(s->name_excludes && part_name_has_word(files, denoiser, s->name_excludes));
}

/* True if the recipe applies only to models whose name has its name_word. name: pipeline in model_index.json,
 * "" if unknown. If all recipes for the denoiser with this pipeline have a name_word, the pipeline alone
 * selects the recipe, and the model's name does not matter. */
static bool needs_word(const struct recipe *recipe, const struct component *denoiser, const char *name) {
    if (!recipe->selection.name_word || !*name) return recipe->selection.name_word;
    for (const struct recipe *const *r = recipes; *r; r++)
        if (recipe_family(*r, FAMILY_DENOISER) == denoiser->family &&
            (*r)->selection.variant == denoiser->variant && !(*r)->selection.name_word &&
            has_pipeline(*r, name))
            return true;
    return false;
}

enum { LIST_BYTES = 96 };

/* Appends a number to a list, which is cut at LIST_BYTES. */
static void add_number(char list[LIST_BYTES], int number) {
    size_t n = strlen(list);
    snprintf(list + n, LIST_BYTES - n, "%s%d", n ? ", " : "", number);
}

/* Checks a list of hidden states in model_index.json, if present. UNSUPPORTED: other hidden states than the
 * recipe's. META: not a number. Also errors of config_read. */
static enum status check_layers(const struct component_files *files, struct sys *sys,
                                const struct condition *condition, struct error *e) {
    struct config config = {0};
    char found[LIST_BYTES] = "", expected[LIST_BYTES] = "", key[64];
    config_read(sys, files->pipeline, &config, e);
    int n = config_list_length(&config, condition->layers_key);
    const struct config_value *other = config_find(&config, condition->layers_key); /* no list, or empty */
    for (int i = 0; i < n && e->code == OK; i++) {
        int layer = 0;
        snprintf(key, sizeof key, "%s.%d", condition->layers_key, i);
        if (config_int(&config, key, -FAMILY_BLOCKS_MAX, FAMILY_BLOCKS_MAX, &layer, e) == OK)
            add_number(found, layer);
    }
    for (int i = 0; i < hidden_states_count(&condition->hidden, 0); i++)
        add_number(expected, condition->hidden.layers[i]);
    if (e->code == OK && (n || (other && other->kind != CONFIG_NULL)) && strcmp(found, expected) != 0)
        error_set(e, UNSUPPORTED,
                  "unsupported hidden states of the text encoder" WHERE "%s" FOUND "%s [%s]" EXPECTED
                  "[%s], or no such key",
                  files->pipeline, condition->layers_key, found, expected);
    config_destroy(&config);
    return e->code;
}

enum status pipeline_choose(const struct component_files *files, const char *name,
                            const struct component *denoiser, const struct recipe **recipe, struct error *e) {
    const struct component_file *found = component_files_find_kind(files, FAMILY_DENOISER);
    char known[160];
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_family(*r, FAMILY_DENOISER) != denoiser->family ||
            (*r)->selection.variant != denoiser->variant)
            continue;
        /* Where model_index.json names the pipeline, index_key replaces name_word. */
        bool by_index = *name && files->pipeline && (*r)->selection.index_key;
        /* scheduler_config.json belongs to the model's own denoiser, not to one chosen by a flag. */
        const struct recipe_selection *selection = &(*r)->selection;
        bool by_shift = files->scheduler && !found->flag && selection->shift_below > 0;
        double shift;
        if (by_shift && read_shift(files, denoiser->sys, &shift, e) != OK) return e->code;
        if (by_shift && (shift < selection->shift_least || shift >= selection->shift_below)) continue;
        bool by_word = !by_index && !by_shift && needs_word(*r, denoiser, name);
        bool other_index = by_index && !has_index_value(files, denoiser, *r, e);
        if (e->code != OK) return e->code;
        if (other_index) continue;
        if (by_word && !name_selects(files, found, selection)) continue;
        int n = parts_of_kind(files, *r, FAMILY_DENOISER) + parts_of_kind(files, *r, FAMILY_DECODER);
        if (by_word) n += SLOTS_MAX;
        /* Prefers a recipe with as many denoisers as model_index.json lists. An absent denoiser is then a
         * missing file, not a sign of another pipeline. */
        if (!found->flag && recipe_count_slots(*r, found->family) == files->n_declared_denoisers)
            n += SLOTS_MAX;
        if ((*name && !has_pipeline(*r, name)) || n <= most) continue;
        *recipe = *r;
        most = n;
    }
    for (int i = 0; most && *name && files->pipeline && i < (*recipe)->text.n_conditions; i++) {
        const struct condition *condition = &(*recipe)->text.condition[i];
        if (condition->layers_key && check_layers(files, denoiser->sys, condition, e) != OK) return e->code;
    }
    if (most) return OK;
    list_pipelines(denoiser, known, sizeof known);
    return error_set(e, UNSUPPORTED,
                     "the transformer does not belong to the pipeline in model_index.json" WHERE "%s" FOUND
                     "\"%s\"" EXPECTED "%s for these weights",
                     denoiser->index.sources[0].path, name, known);
}

/* Among the recipes with the given denoiser, chooses the recipe whose `edit` name is the value of --edit. */
static enum status choose_edit(const char *edit, const struct component *denoiser,
                               const struct recipe **recipe, struct error *e) {
    const char *known[] = {"", "", ""};
    size_t n = 0, most = sizeof known / sizeof *known;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_family(*r, FAMILY_DENOISER) != denoiser->family || !(*r)->selection.edit) continue;
        if ((*r)->selection.variant != denoiser->variant) continue;
        if (!strcmp((*r)->selection.edit, edit)) {
            *recipe = *r;
            return OK;
        }
        if (n < most) known[n++] = (*r)->selection.edit;
    }
    error_set(e, USAGE, "--edit cannot be used with this model" WHERE "%s" FOUND "%s of %s",
              denoiser->index.sources[0].path, edit, denoiser->family->name);
    if (!n) return error_expected(e, "no --edit: there is no editing pipeline for these weights");
    return error_expected(e, "%s%s%s%s%s", known[0], n > 2 ? ", " : "", n > 2 ? known[1] : "",
                          n > 1 ? " or " : "", n > 1 ? known[n - 1] : "");
}

bool pipeline_names(const struct component_files *files, const char *name) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    if (!denoiser->flag) return *name;
    for (const struct recipe *const *r = recipes; *r; r++)
        if ((*r)->selection.edit && recipe_family(*r, FAMILY_DENOISER) == denoiser->family &&
            has_pipeline(*r, name))
            return true;
    return false;
}

enum status pipeline_resolve(struct sys *sys, const struct component_files *files, const char *name,
                             const char *edit, const struct recipe **recipe, struct error *e) {
    const struct component_file *in[SLOTS_MAX];
    int i = 0;
    parts_assign(files, *recipe, in);
    while (!in[i] || in[i]->family->kind != FAMILY_DENOISER) i++;
    struct component c = {.sys = sys, .family = in[i]->family, .index = parts_view(files, in[i])};
    if (configuration_apply(&c, component_files_path(files, in[i]), &(*recipe)->slot[i], e) != OK)
        return e->code;
    if (edit) return choose_edit(edit, &c, recipe, e);
    return pipeline_choose(files, pipeline_names(files, name) ? name : "", &c, recipe, e);
}

bool pipeline_note_by_name(const struct recipe *recipe, const char *model, char *line, size_t bytes) {
    /* another recipe with the same denoiser and pipeline, chosen if the model's name has its name_word */
    const struct recipe *other = NULL;
    for (const struct recipe *const *r = recipes; *r && !other; r++)
        if ((*r)->selection.name_word && *r != recipe &&
            (*r)->selection.variant == recipe->selection.variant &&
            recipe_family(*r, FAMILY_DENOISER) == recipe_family(recipe, FAMILY_DENOISER) &&
            has_pipeline(recipe, (*r)->selection.pipelines[0]))
            other = *r;
    const struct recipe_selection *own = &recipe->selection;
    for (const char *const *alias = own->name_aliases; *alias && !own->name_word; alias++)
        if (path_has_word(model, *alias)) return false;
    if (own->name_word) {
        int n = snprintf(line, bytes, "model taken for %s, because the model's name has the word \"%s\"",
                         recipe->name, own->name_word);
        for (const char *const *alias = own->name_aliases; *alias; alias++)
            n += snprintf(line + n, bytes - (size_t)n, " or \"%s\"", *alias);
        if (own->name_excludes) snprintf(line + n, bytes - (size_t)n, ", and not \"%s\"", own->name_excludes);
    }
    if (!own->name_word && other)
        snprintf(
            line, bytes,
            "model taken for %s: the model's name lacks the word \"%s\" of %s (--steps %d --cfg-scale %g)",
            recipe->name, other->selection.name_word, other->name, other->defaults.steps,
            other->defaults.cfg_scale);
    return own->name_word || other;
}

bool pipeline_note_ambiguous(const struct recipe *recipe, char *line, size_t bytes) {
    size_t n = 0;
    int listed = 0;
    const struct family *denoiser = recipe_family(recipe, FAMILY_DENOISER);
    for (const struct recipe *const *r = recipes; *r && n < bytes; r++) {
        bool alike = recipe_family(*r, FAMILY_DENOISER) == denoiser &&
                     (*r)->selection.variant == recipe->selection.variant &&
                     recipe_count_slots(*r, denoiser) == recipe_count_slots(recipe, denoiser) &&
                     recipe_family(*r, FAMILY_DECODER) == recipe_family(recipe, FAMILY_DECODER);
        if (!alike || *r == recipe) continue;
        if (!n)
            n += (size_t)snprintf(line, bytes,
                                  "no model_index.json: model taken for %s, whose weights look like those of",
                                  recipe->name);
        if (n < bytes) n += (size_t)snprintf(line + n, bytes - n, "%s %s", listed++ ? "," : "", (*r)->name);
    }
    if (n && n < bytes && recipe_has_edit_variant(recipe)) snprintf(line + n, bytes - n, " (--edit)");
    return n > 0;
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
    /* flag of a second slot with the same family, if only file names distinguish the slots (WAN's experts) */
    const char *another = NULL;
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)) && !another; i++)
        if (slot->family == one->family && *slot->name_words && strcmp(slot->flag, flag) != 0)
            another = slot->flag;
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
    const char *unsupported = file->family ? NULL : adapter_describe(&view);
    if (file->family)
        error_found(e, "%s (%s)", file->family->display_name, file->family->name);
    else if (unsupported)
        error_found(e, "%s", unsupported);
    else
        error_found(e, "%d tensors of no known component", view.n_entries);
    return error_expected(e, "%s for %s", wanted, flag);
}

static enum status fail_required(const char *word, const char *flag, const char *model, struct error *e) {
    return error_set(e, USAGE,
                     "this model needs its %s" WHERE "%s" FOUND "%s none" EXPECTED "%s with a path, or no %s",
                     word, model ? model : "no model given", flag, flag, flag);
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
        const char *flag = o->parts[i].flag;
        bool outside = part_flag_chooses(flag, FAMILY_CONTROL) || part_flag_chooses(flag, FAMILY_UPSCALER) ||
                       part_flag_chooses(flag, FAMILY_LATENT_UPSCALER);
        if (!part_is_none(&o->parts[i]) || outside) continue;
        const struct slot *slot = recipe->slot;
        while (slot->family && (!slot->flag || strcmp(slot->flag, flag) != 0)) slot++;
        if (!slot->family) return fail_unused_flag(recipe, flag, "none", e);
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
    char wanted[192];
    for (int i = 0; i < files->n_files; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || !file->misplaced) continue;
        /* Vision encoders are named after their text model: the message names the recipe's. */
        int vision = recipe ? recipe_slot(recipe, FAMILY_VISION) : SLOTS_MAX;
        const struct slot *slot = vision < SLOTS_MAX ? &recipe->slot[vision] : NULL;
        if (slot && !strcmp(slot->flag, file->flag))
            snprintf(wanted, sizeof wanted, "%s (%s)", slot->family->display_name, slot->family->name);
        else
            part_flag_families(file->flag, wanted, sizeof wanted);
        return fail_misplaced(files, file, wanted, file->flag, e);
    }
    for (int i = 0; i < files->n_files && recipe; i++) {
        const struct component_file *file = &files->file[i];
        if (!file->flag || file->bundled || family_outside_pipelines(file->family)) continue;
        /* slot of the recipe for the file's flag, preferably of the file's family */
        const struct slot *slot = NULL;
        for (const struct slot *s = recipe->slot; s->family && (!slot || slot->family != file->family); s++)
            if (s->flag && !strcmp(s->flag, file->flag)) slot = s;
        if (slot && slot_fits_family(slot, file->family)) continue;
        if (slot) {
            snprintf(wanted, sizeof wanted, "%s (%s)", slot->family->display_name, slot->family->name);
            return fail_misplaced(files, file, wanted, file->flag, e);
        }
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
            char wanted[192];
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
    if (slot->prefix) return false; /* a slot with a tensor prefix shares its folder with another slot */
    for (const char *const *folder = files->declared; *folder; folder++)
        if (!strcmp(*folder, slot->folder)) return !part_disabled(files->options, slot);
    return false;
}

int pipeline_missing(const struct component_files *files, const struct recipe *recipe,
                     struct missing_part missing[SLOTS_MAX]) {
    const struct component_file *in[SLOTS_MAX];
    int n = 0;
    if (!recipe) return missing_of_any(files, missing);
    parts_assign(files, recipe, in);
    bool needs_text = false; /* all text encoders are optional and none is present: at least one is needed */
    for (int i = 0; recipe->slot[i].family; i++) needs_text |= recipe->slot[i].family->kind == FAMILY_TEXT;
    for (int i = 0; recipe->slot[i].family; i++)
        if (recipe->slot[i].family->kind == FAMILY_TEXT)
            needs_text = needs_text && !in[i] && recipe->slot[i].optional;
    for (int i = 0; recipe->slot[i].family; i++) {
        const struct slot *slot = &recipe->slot[i];
        enum family_kind kind = slot->family->kind;
        if (in[i] || kind == FAMILY_ENCODER) continue;
        if (kind == FAMILY_DECODER && component_files_find_tiny(files)) continue;
        if ((kind == FAMILY_TEXT && needs_text) || !slot->optional || is_declared(files, slot))
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
static void add_word(struct words *list, const char *word, const char *quote, int i, int n) {
    const char *between = !i ? "" : i < n - 1 ? ", " : " and ";
    if (list->n >= (int)sizeof list->text) return;
    list->n += snprintf(list->text + list->n, sizeof list->text - (size_t)list->n, "%s%s%s%s", between, quote,
                        word, quote);
}

static enum status fail_missing(const struct component_files *files, const struct missing_part *missing,
                                int n, const char *model, struct error *e) {
    struct words folders = {0}, flags = {0}, words = {0};
    for (int i = 0; i < n; i++) {
        if (!i || strcmp(missing[i].folder, missing[i - 1].folder) != 0)
            add_word(&folders, missing[i].folder, "'", i, n);
        add_word(&flags, missing[i].flag, "", i, n);
        add_word(&words, missing[i].word, "", i, n);
    }
    error_set(e, MISSING, "the model has no %s" WHERE "%s", folders.text, model ? model : "no model given");
    /* Tiny decoders, control networks and upscalers are used only if their flags choose the file. */
    const struct component_file *extra = component_files_find_kind(files, FAMILY_TINY_DECODER);
    if (!extra) extra = component_files_find_kind(files, FAMILY_CONTROL);
    if (!extra) extra = component_files_find_kind(files, FAMILY_UPSCALER);
    if (!extra) extra = component_files_find_kind(files, FAMILY_LATENT_UPSCALER);
    if (extra && !extra->flag)
        error_found(e, "a %s (%s), which is used only with %s", extra->family->display_name,
                    extra->family->name, flag_of(NULL, extra->family));
    else if (files->unknown_tensors.n)
        error_found(e, "'%s' and %d other tensors of no known component", files->unknown_tensors.first,
                    files->unknown_tensors.n - 1);
    const char *advice = "";
    if (!missing[0].slot)
        advice = files->decodes_only ? "" : ", and its text encoders";
    else if (n == 1 && missing[0].slot->optional)
        advice = ", or \"none\" to go without";
    for (int i = 0; i < n && missing[0].slot; i++)
        if (missing[i].slot->optional && !is_declared(files, missing[i].slot))
            advice = "; one text encoder is enough";
    return error_expected(e, "all files of the model, or %s with the %s%s", flags.text, words.text, advice);
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
