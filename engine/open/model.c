/* An opened model: its parts and log messages. model_open.c opens models. */
#include "engine/open/model.h"

#include "engine/open/pipeline.h"

#include <stdio.h>
#include <string.h>

int32_t model_condition_columns(const struct sluice_model *m, int condition) {
    const struct recipe *recipe = m->recipe;
    int slot = recipe->text.condition[condition].slot;
    const struct component *text = &m->component[slot];
    bool pools = recipe->text.condition[condition].what == CONDITION_POOLED;
    if (text->family)
        return pools ? text->pooled_columns
                     : text->text_columns / condition_parts(&recipe->text.condition[condition]);
    int32_t left = model_component(m, FAMILY_DENOISER)->pooled_columns;
    if (!recipe_condition(recipe, slot, CONDITION_POOLED)) return 0;
    for (int i = 0; i < recipe->text.n_conditions; i++) {
        const struct condition *c = &recipe->text.condition[i];
        if (c->what != CONDITION_POOLED) continue;
        if (!m->component[c->slot].family && c->slot < slot) return 0;
        left -= m->component[c->slot].pooled_columns;
    }
    return left > 0 ? left : 0;
}

static int note_schedule(const struct sluice_model *m, char line[MODEL_NOTE_BYTES]) {
    const struct flow_shift_line *s = &m->shift_line;
    if (!m->sampling.prediction->is_flow)
        return snprintf(line, MODEL_NOTE_BYTES,
                        "no scheduler_config.json: %s, prediction %s and sampler %s are the default of %s",
                        sampling_class_name(&m->sampling), m->sampling.prediction->name,
                        m->sampling.sampler->name, m->recipe->name);
    if (m->shift_rule == FLOW_SHIFT_FIXED)
        return snprintf(line, MODEL_NOTE_BYTES,
                        "no scheduler_config.json: flow shift %g is the default of %s", m->flow_shift,
                        m->recipe->name);
    if (m->shift_rule == FLOW_SHIFT_FLUX2)
        return snprintf(line, MODEL_NOTE_BYTES,
                        "no scheduler_config.json: a flow shift that depends on image size and steps is the "
                        "default of %s",
                        m->recipe->name);
    int n = snprintf(line, MODEL_NOTE_BYTES,
                     "no scheduler_config.json: a flow shift from e^%g at %d tokens to e^%g at %d",
                     s->base_shift, s->base_tokens, s->max_shift, s->max_tokens);
    if (m->shift_terminal > 0)
        n += snprintf(line + n, MODEL_NOTE_BYTES - (size_t)n, ", and down to %g,", m->shift_terminal);
    return n + snprintf(line + n, MODEL_NOTE_BYTES - (size_t)n, " is the default of %s", m->recipe->name);
}

void model_note_absent(const struct recipe *recipe, int i, char line[MODEL_NOTE_BYTES]) {
    const struct slot *slot = &recipe->slot[i];
    const char *word = slot->display_name ? slot->display_name : slot->family->display_name;
    int rows = slot->text.tokens_max - slot->text.drop_idx;
    int n = snprintf(line, MODEL_NOTE_BYTES, "no %s (%s): ", word, slot->flag);
    if (recipe_condition(recipe, i, CONDITION_POOLED))
        snprintf(line + n, MODEL_NOTE_BYTES - (size_t)n,
                 "zeros replace its part of the %d text embeddings and of the pooled embedding", rows);
    else
        snprintf(line + n, MODEL_NOTE_BYTES - (size_t)n, "%d zero embeddings replace its output", rows);
}

static int note_all_absent(const struct sluice_model *m, char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES],
                           int n) {
    for (int i = 0; m->recipe->slot[i].family; i++)
        if (m->recipe->slot[i].family->kind == FAMILY_TEXT && !m->component[i].family)
            model_note_absent(m->recipe, i, lines[n++]);
    return n;
}

int model_notes(const struct sluice_model *m, char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES]) {
    int n = 0;
    if (m->published) {
        snprintf(lines[n++], MODEL_NOTE_BYTES,
                 "no files: planned with the published sizes of %s, in bf16 by default", m->recipe->name);
        return note_all_absent(m, lines, n);
    }
    if (m->upscales_only) return 0;
    for (int i = 0; i < MODEL_UPSCALER; i++)
        if (m->component[i].family && m->component[i].family->kind != FAMILY_ENCODER &&
            m->config_origin[i] != CONFIG_JSON_FILE)
            snprintf(lines[n++], MODEL_NOTE_BYTES, "no config.json for the %s: settings are from %s (%s)",
                     m->component[i].family->display_name, config_origin_word[m->config_origin[i]],
                     m->component[i].family->name);
    if (m->decoder_assumed)
        snprintf(
            lines[n++], MODEL_NOTE_BYTES,
            "model_index.json, config.json and the latent do not identify the autoencoder: its latents are "
            "scaled as those of %s",
            m->recipe->name);
    if (m->decodes_only) return n;
    n = note_all_absent(m, lines, n);
    if (!m->has_schedule) note_schedule(m, lines[n++]);
    /* With index_key, `edit` or a range of shifts, model_index.json, --edit or scheduler_config.json selected
     * the recipe, not a word in the model's name. */
    const struct recipe_selection *selection = &m->recipe->selection;
    bool by_shift = m->has_schedule && selection->shift_below > 0;
    bool by_index = m->pipeline_named && (selection->index_key || selection->edit || by_shift);
    if ((!by_index && pipeline_note_by_name(m->recipe, m->name, lines[n], MODEL_NOTE_BYTES)) ||
        (!m->pipeline_named && pipeline_note_ambiguous(m->recipe, lines[n], MODEL_NOTE_BYTES)))
        n++;
    if (m->other_model_word)
        snprintf(
            lines[n++], MODEL_NOTE_BYTES,
            "the tiny decoder's path has \"%s\", which is for another model than %s: colours may be wrong",
            m->other_model_word, m->recipe->name);
    if (m->lone_expert)
        snprintf(lines[n++], MODEL_NOTE_BYTES,
                 "the file name has \"%s\", so this %s is one of two; it is used alone, for all steps",
                 m->lone_expert->name_words[0], m->lone_expert->family->display_name);
    return n;
}

const struct component *model_component(const struct sluice_model *m, enum family_kind kind) {
    static const struct component none;
    int slot = recipe_slot(m->recipe, kind);
    return slot < SLOTS_MAX ? &m->component[slot] : &none;
}

int model_decoder_slot(const struct sluice_model *m, bool tiny) {
    static const enum family_kind kinds[] = {FAMILY_DECODER, FAMILY_TINY_DECODER};
    int slots[] = {recipe_slot(m->recipe, kinds[tiny]), recipe_slot(m->recipe, kinds[!tiny])};
    for (int i = 0; i < 2; i++)
        if (slots[i] < SLOTS_MAX && m->component[slots[i]].family) return slots[i];
    return SLOTS_MAX;
}

const struct component *model_decoder(const struct sluice_model *m) {
    static const struct component none;
    int slot = model_decoder_slot(m, false);
    return slot < SLOTS_MAX ? &m->component[slot] : &none;
}

void model_close(struct sluice_model *m) {
    if (!m) return;
    for (int i = 0; i < MODEL_COMPONENTS; i++) component_destroy(&m->component[i]);
    for (int i = 0; i < SLOTS_MAX; i++) tokenizer_close(m->tokenizer[i]);
    m->sys->release(m->sys, m->name);
    /* copy of the system interface, because *m contains the original and is freed through it */
    struct sys machine = m->machine;
    struct sys *sys = m->sys == &m->machine ? &machine : m->sys;
    sys->release(sys, m);
}
