#include "engine/open/pipeline.h"

#include "engine/open/configuration.h"
#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

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
        if (n)
            n += parts_of_kind(files, *r,
                               FAMILY_DECODER); /* a decoder alone fits many recipes and does not count */
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
    files->has_variant = failure.code == OK;
    files->variant = c.variant;
}

static bool has_pipeline(const struct recipe *recipe, const char *name) {
    for (const char *const *p = recipe->pipelines; *p; p++)
        if (!strcmp(*p, name)) return true;
    return false;
}

/* Returns 2 if the denoiser has the recipe's family and variant, 1 if only the family matches, else 0. */
static int denoiser_fit(struct sys *sys, const struct component_files *files,
                        const struct component_file *denoiser, const struct recipe *recipe) {
    struct component c = {.sys = sys, .family = denoiser->family};
    struct error failure = {0};
    if (!denoiser->family || recipe_family(recipe, FAMILY_DENOISER) != denoiser->family) return 0;
    c.index = parts_view(files, denoiser);
    const struct slot *slot = &recipe->slot[recipe_slot(recipe, FAMILY_DENOISER)];
    configuration_apply(&c, component_files_path(files, denoiser), slot, &failure);
    return 1 + (failure.code == OK && c.variant == recipe->variant);
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
    for (int k = 0; k < slot->family->n_dimensions; k++)
        chosen[k] = slot_dimension(slot, &slot->family->dimensions[k]);
    component_derive(&published, chosen);
    c.index = parts_view(files, decoder);
    struct config_place place = {component_files_path(files, decoder), slot, &c.index};
    configuration_apply(&c, place.path, slot, &failure);
    if (failure.code == OK) configuration_read(sys, &place, &config, &origin, &failure);
    *format = c.latent_format;
    bool fits = failure.code == OK && c.latent_channels == published.latent_channels;
    bool configured =
        !strcmp(config_string(&config, slot->family->config_key, ""), component_config_value(&published));
    bool saved = !strcmp(from->latent->recipe, recipe->name);
    config_destroy(&config);
    return 1 + (from->latent->video && recipe->frames_max) + 2 * fits + 4 * saved + 8 * configured +
           16 * has_pipeline(recipe, from->pipeline) +
           32 * denoiser_fit(sys, files, &files->bundled_denoiser, recipe);
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

static bool is_of(const struct recipe *recipe, const struct component *denoiser) {
    return !denoiser || (recipe_family(recipe, FAMILY_DENOISER) == denoiser->family &&
                         recipe->variant == denoiser->variant);
}

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
        error_set(e, UNSUPPORTED,
                  "unsupported pipeline in model_index.json" WHERE "%s" FOUND "\"%s\"" EXPECTED "%s", path,
                  named, known);
    }
    config_destroy(&config);
    return e->code;
}

/* True if the recipe has as many denoisers as model_index.json lists. An absent denoiser is then a missing
 * file, not a sign of another pipeline. False if a flag chose the denoiser. */
static bool has_declared_denoisers(const struct component_files *files, const struct recipe *recipe) {
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    return !denoiser->flag && recipe_count_slots(recipe, denoiser->family) == files->n_declared_denoisers;
}

static bool name_matches(const struct component_files *files, const struct recipe *recipe) {
    return part_name_has_word(files, component_files_find_kind(files, FAMILY_DENOISER), recipe->name_word);
}

enum status pipeline_choose(const struct component_files *files, const char *name,
                            const struct component *denoiser, const struct recipe **recipe, struct error *e) {
    char known[160];
    int most = 0;
    for (const struct recipe *const *r = recipes; *r; r++) {
        if (recipe_family(*r, FAMILY_DENOISER) != denoiser->family || (*r)->variant != denoiser->variant)
            continue;
        if ((*r)->name_word && !name_matches(files, *r)) continue;
        int n = parts_of_kind(files, *r, FAMILY_DENOISER) + parts_of_kind(files, *r, FAMILY_DECODER);
        if ((*r)->name_word) n += SLOTS_MAX;
        if (has_declared_denoisers(files, *r)) n += SLOTS_MAX;
        if ((*name && !has_pipeline(*r, name)) || n <= most) continue;
        *recipe = *r;
        most = n;
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
        if (recipe_family(*r, FAMILY_DENOISER) != denoiser->family || !(*r)->edit) continue;
        if ((*r)->variant != denoiser->variant) continue;
        if (!strcmp((*r)->edit, edit)) {
            *recipe = *r;
            return OK;
        }
        if (n < most) known[n++] = (*r)->edit;
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
        if ((*r)->edit && recipe_family(*r, FAMILY_DENOISER) == denoiser->family && has_pipeline(*r, name))
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

/* Returns another recipe with the same denoiser and pipeline, which is chosen if the model's name contains
 * the other recipe's name_word; NULL: no such recipe. */
static const struct recipe *recipe_by_other_name(const struct recipe *recipe) {
    for (const struct recipe *const *r = recipes; *r; r++)
        if ((*r)->name_word && *r != recipe && (*r)->variant == recipe->variant &&
            recipe_family(*r, FAMILY_DENOISER) == recipe_family(recipe, FAMILY_DENOISER) &&
            has_pipeline(recipe, (*r)->pipelines[0]))
            return *r;
    return NULL;
}

bool pipeline_note_by_name(const struct recipe *recipe, char *line, size_t bytes) {
    const struct recipe *other = recipe_by_other_name(recipe);
    if (recipe->name_word)
        snprintf(line, bytes, "model taken for %s, because the model's name has the word \"%s\"",
                 recipe->name, recipe->name_word);
    else if (other)
        snprintf(
            line, bytes,
            "model taken for %s: the model's name lacks the word \"%s\" of %s (--steps %d --cfg-scale %g)",
            recipe->name, other->name_word, other->name, other->steps, other->cfg_scale);
    return recipe->name_word || other;
}

bool pipeline_note_ambiguous(const struct recipe *recipe, char *line, size_t bytes) {
    size_t n = 0;
    int listed = 0;
    const struct family *denoiser = recipe_family(recipe, FAMILY_DENOISER);
    for (const struct recipe *const *r = recipes; *r && n < bytes; r++) {
        bool alike = recipe_family(*r, FAMILY_DENOISER) == denoiser && (*r)->variant == recipe->variant &&
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
