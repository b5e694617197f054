#include "engine/open/model.h"
#include "engine/open/component_search.h"
#include "engine/open/latent_file.h"
#include "engine/open/pipeline.h"
#include "engine/open/prompt.h"
#include "engine/open/published.h"
#include "engine/open/settings.h"
#include "engine/open/tokenizers.h"

#include <stdio.h>
#include <string.h>

void copy_sized(void *to, size_t to_bytes, const void *from) {
    size_t bytes;
    memcpy(&bytes, from, sizeof bytes); /* struct_size is the first field of every public structure */
    memset(to, 0, to_bytes);
    memcpy(to, from, bytes < to_bytes ? bytes : to_bytes);
}

/* Opens the autoencoder's encoder if the decoder's files have its weights. */
static enum status open_encoder(struct sluice_model *m, const char *path, struct error *e) {
    int slot = recipe_slot(m->recipe, FAMILY_ENCODER);
    const struct tensor_index *index = &model_component(m, FAMILY_DECODER)->index;
    if (slot == SLOTS_MAX || m->decodes_only || !m->recipe->slot[slot].family->probe(index)) return OK;
    struct component *c = &m->component[slot];
    configuration_begin(m->recipe, slot, m->sys, c);
    c->index = index_view(index, index->prefix, index->view);
    c->index.claimed_bytes = 0; /* the decoder, in the same files, already counts total_size */
    configuration_bind(c, path, &m->recipe->slot[slot], &m->config_origin[slot], e);
    c->n_unknown = 0;
    return e->code;
}

static enum status open_slot(struct sluice_model *m, int slot, struct component_files *files,
                             const struct component_file *file, struct error *e) {
    struct component *c = &m->component[slot];
    const char *path = component_files_path(files, file);
    configuration_begin(m->recipe, slot, m->sys, c);
    if (file->folder) configuration_in_pipeline(c);
    if (slot_is_extra(&m->recipe->slot[slot]))
        m->other_model_word = part_other_model_word(files, file, &m->recipe->slot[slot]);
    c->index = component_files_take(files, file);
    if (configuration_bind(c, path, &m->recipe->slot[slot], &m->config_origin[slot], e) != OK) return e->code;
    return file->family->kind == FAMILY_DECODER ? open_encoder(m, path, e) : OK;
}

static enum status mismatch(const struct component *c, const char *what, int a, const char *of_a, int b,
                            const char *of_b, struct error *e) {
    return error_set(e, SHAPE,
                     "the components of this model do not fit together: %s" WHERE "%s" FOUND
                     "%d in the %s" EXPECTED "%d as in the %s",
                     what, c->index.sources[0].path, a, of_a, b, of_b);
}

/* Published embedding tables have unused rows at the end: 151,936 for Qwen3's 151,669 ids, 152,064 for
 * Qwen2.5's 151,665. A larger difference means a tokenizer of another encoder. */
enum { PADDING_ROWS_MOST = 512 };

static enum status check_tokenizer(const struct sluice_model *m, int slot, struct error *e) {
    const struct component *text = &m->component[slot];
    int ids = tokenizer_size(m->tokenizer[slot]), rows = text->tables[0].tensors[0].shape.dim[0];
    char table[64];
    snprintf(table, sizeof table, "%s's embedding rows", text->family->display_name);
    if (ids > rows || rows - ids > PADDING_ROWS_MOST)
        return mismatch(text, "token ids", ids, "tokenizer", rows, table, e);
    return OK;
}

int32_t model_condition_columns(const struct sluice_model *m, int condition) {
    const struct recipe *recipe = m->recipe;
    int slot = recipe->condition[condition].slot;
    const struct component *text = &m->component[slot];
    bool pools = recipe->condition[condition].what == CONDITION_POOLED;
    if (text->family) return pools ? text->pooled_columns : text->text_columns;
    int32_t left = model_component(m, FAMILY_DENOISER)->pooled_columns;
    if (!recipe_condition(recipe, slot, CONDITION_POOLED)) return 0;
    for (int i = 0; i < recipe->n_conditions; i++) {
        const struct condition *c = &recipe->condition[i];
        if (c->what != CONDITION_POOLED) continue;
        if (!m->component[c->slot].family && c->slot < slot) return 0;
        left -= m->component[c->slot].pooled_columns;
    }
    return left > 0 ? left : 0;
}

/* Sums the columns of text features that the recipe concatenates, starting at condition `first`. *of: the
 * first present encoder, or NULL. Returns the index after the last concatenated condition. */
static int add_adjacent(const struct sluice_model *m, int first, const struct component **of, int *columns) {
    const struct recipe *recipe = m->recipe;
    enum condition_kind what = recipe->condition[first].what;
    int i = first;
    *of = NULL;
    *columns = 0;
    for (; i < recipe->n_conditions; i++) {
        const struct condition *c = &recipe->condition[i];
        if (c->what != what || (what == CONDITION_TOKENS && i > first && !c->concat_columns)) break;
        if (!*of && m->component[c->slot].family) *of = &m->component[c->slot];
        *columns += model_condition_columns(m, i);
    }
    return i;
}

/* Checks that concatenated text features have as many columns as the denoiser reads, or that the recipe
 * allows padding with zero columns. */
static enum status check_columns(const struct sluice_model *m, const struct component *denoiser,
                                 struct error *e) {
    for (int i = 0; i < m->recipe->n_conditions;) {
        const struct condition *first = &m->recipe->condition[i];
        bool pools = first->what == CONDITION_POOLED;
        int wanted = pools ? denoiser->pooled_columns : denoiser->text_columns, columns;
        const struct component *of;
        i = add_adjacent(m, i, &of, &columns);
        if (!of || columns == wanted || (first->zero_padded && columns < wanted)) continue;
        return mismatch(of, pools ? "pooled text features" : "text features", columns,
                        of->family->display_name, wanted, denoiser->family->display_name, e);
    }
    return OK;
}

/* Channels that the recipe concatenates to the latent: mask, image latents, control video. */
static int concat_expected(const struct sluice_model *m, const struct component *decoder) {
    switch (m->recipe->concat) {
    case CONCAT_FILL:
        return decoder->latent_channels + decoder->pixel_factor * decoder->pixel_factor;
    case CONCAT_INPAINT:
        return decoder->latent_channels + 1;
    case CONCAT_I2V:
        return decoder->latent_channels + component_frame_factor(decoder);
    case CONCAT_CONTROL:
        return 2 * decoder->latent_channels + decoder->pixel_factor * decoder->pixel_factor;
    case CONCAT_NONE:
        break;
    }
    return 0;
}

static enum status check_denoiser(const struct sluice_model *m, const struct component *denoiser,
                                  struct error *e) {
    const struct component *decoder = model_decoder(m);
    if (check_columns(m, denoiser, e) != OK) return e->code;
    int channels = decoder->latent_channels, latent = denoiser->latent_channels;
    if (channels != latent)
        return mismatch(decoder, "latent channels", channels, decoder->family->display_name, latent,
                        denoiser->family->display_name, e);
    int concat = concat_expected(m, decoder), has = denoiser->concat_channels;
    if (concat != has)
        return mismatch(denoiser, "channels concatenated to the latent", has, denoiser->family->display_name,
                        concat, "mask and image latents of this autoencoder", e);
    return OK;
}

static enum status check_encoder(const struct sluice_model *m, const struct component *encoder,
                                 struct error *e) {
    const struct component *decoder = model_component(m, FAMILY_DECODER);
    if (encoder->latent_channels != decoder->latent_channels)
        return mismatch(encoder, "latent channels", encoder->latent_channels, encoder->family->display_name,
                        decoder->latent_channels, "autoencoder's decoder", e);
    if (encoder->pixel_factor != decoder->pixel_factor)
        return mismatch(encoder, "pixels per latent pixel and axis", encoder->pixel_factor,
                        encoder->family->display_name, decoder->pixel_factor, "autoencoder's decoder", e);
    return OK;
}

/* Checks a tiny decoder against the decoder that it replaces, if that decoder is present. */
static enum status check_tiny(const struct sluice_model *m, const struct component *tiny, struct error *e) {
    const struct component *large = model_decoder(m);
    if (tiny->latent_channels != large->latent_channels)
        return mismatch(tiny, "latent channels", tiny->latent_channels, tiny->family->display_name,
                        large->latent_channels, large->family->display_name, e);
    if (tiny->pixel_factor != large->pixel_factor)
        return mismatch(tiny, "pixels per latent pixel and axis", tiny->pixel_factor,
                        tiny->family->display_name, large->pixel_factor, large->family->display_name, e);
    if (component_frame_factor(tiny) != component_frame_factor(large))
        return mismatch(tiny, "frames per latent frame", component_frame_factor(tiny),
                        tiny->family->display_name, component_frame_factor(large),
                        large->family->display_name, e);
    return OK;
}

/* Checks the denoiser's number of image token positions: the tokens of one image, or of two (WAN's first and
 * last frame). */
static enum status check_picture_rows(const struct sluice_model *m, const struct component *vision,
                                      const struct component *denoiser, struct error *e) {
    struct vision_grid grid = vision->family->vision_grid(vision, m->width, m->height);
    int rows = grid.columns * grid.rows, places = denoiser->image_rows;
    if (!places || places == rows || places == 2 * rows) return OK;
    return mismatch(denoiser, "image token positions", places, denoiser->family->display_name, rows,
                    "image tokens of the vision encoder, or twice that", e);
}

/* Checks the vision encoder's features against the denoiser or the text encoder that reads them. */
static enum status check_vision(const struct sluice_model *m, const struct component *vision,
                                struct error *e) {
    const struct recipe *recipe = m->recipe;
    const struct component *denoiser = model_component(m, FAMILY_DENOISER);
    if (denoiser->image_columns && denoiser->image_columns != vision->text_columns)
        return mismatch(vision, "image features", vision->text_columns, vision->family->display_name,
                        denoiser->image_columns, denoiser->family->display_name, e);
    if (denoiser->image_columns && check_picture_rows(m, vision, denoiser, e) != OK) return e->code;
    for (int slot = 0; recipe->slot[slot].family && e->code == OK; slot++) {
        const struct component *text = &m->component[slot];
        if (recipe->slot[slot].text.image_prompt.pad && text->text_columns != vision->text_columns)
            mismatch(vision, "image features", vision->text_columns, vision->family->display_name,
                     text->text_columns, text->family->display_name, e);
    }
    return e->code;
}

static enum status model_check_parts(const struct sluice_model *m, struct error *e) {
    for (int slot = 0; slot < SLOTS_MAX && m->recipe->slot[slot].family && e->code == OK; slot++) {
        const struct component *c = &m->component[slot];
        if (m->tokenizer[slot]) check_tokenizer(m, slot, e);
        if (e->code == OK && c->family && c->family->kind == FAMILY_DENOISER) check_denoiser(m, c, e);
        if (c->family && c->family->kind == FAMILY_ENCODER) check_encoder(m, c, e);
        if (c->family && c->family->kind == FAMILY_VISION) check_vision(m, c, e);
        if (c->family && slot_is_extra(&m->recipe->slot[slot])) check_tiny(m, c, e);
    }
    return e->code;
}

static enum status open_tokenizers(struct sluice_model *m, const struct component_files *files,
                                   const struct sluice_model_options *o, struct error *e) {
    struct tokenizer_search search = {.sys = m->sys, .options = o, .files = files, .recipe = m->recipe};
    const struct component_file *in[SLOTS_MAX];
    parts_assign(files, m->recipe, in);
    for (int slot = 0; slot < SLOTS_MAX && m->recipe->slot[slot].family && e->code == OK; slot++)
        if (in[slot] && in[slot]->family->kind == FAMILY_TEXT)
            tokenizer_find(&search, slot, &m->tokenizer[slot], e);
    m->open_bytes = search.open_bytes;
    return tokenizer_check_flag(&search, e);
}

static enum status name_model(struct sluice_model *m, const char *path, struct error *e) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    m->name = m->sys->alloc(m->sys, LINE_HOST, n - from + 1);
    if (!m->name) return error_set(e, MEMORY, "no memory for the model's name");
    memcpy(m->name, path + from, n - from);
    return OK;
}

static enum status resolve_recipe(struct sluice_model *m, const struct component_files *files,
                                  const char *name, const struct sluice_model_options *o, struct error *e) {
    const struct recipe *guess = m->recipe;
    if (pipeline_resolve(m->sys, files, name, o->edit, &m->recipe, e) != OK) return e->code;
    m->pipeline_named = o->edit || pipeline_names(files, name);
    if (!m->pipeline_named || !m->recipe->references_if_unnamed)
        m->references_max = m->recipe->references_max;
    const struct component_file *denoiser = component_files_find_kind(files, FAMILY_DENOISER);
    if (denoiser && recipe_count_slots(m->recipe, denoiser->family) == 1)
        m->lone_expert = part_slot_by_file_name(files, denoiser);
    /* Checks again, because the final recipe may need other encoders than the guessed recipe, which passed
     * the check earlier. */
    return m->recipe == guess ? OK : pipeline_check(files, m->recipe, o->model, e);
}

/* Opens the denoisers, or all other components. The caller opens denoisers first, because errors about
 * denoisers are the most helpful. */
static enum status open_kind(struct sluice_model *m, struct component_files *files, bool denoisers,
                             struct error *e) {
    const struct component_file *in[SLOTS_MAX];
    parts_assign(files, m->recipe, in);
    for (int i = 0; i < SLOTS_MAX && e->code == OK; i++) {
        if (!in[i] || (in[i]->family->kind == FAMILY_DENOISER) != denoisers) continue;
        if (!m->decodes_only || family_decodes(in[i]->family)) open_slot(m, i, files, in[i], e);
    }
    return e->code;
}

static enum status fill_from(struct sluice_model *m, struct component_files *files,
                             const struct sluice_model_options *o, const char *name, struct error *e) {
    if (pipeline_check(files, m->recipe, o->model, e) != OK) return e->code;
    if (m->decodes_only) {
        struct latent_origin latent = latent_read_origin(m->sys, o->latent);
        m->recipe = pipeline_of_decoder(m->sys, files, name, &latent, &m->decoder_assumed);
        if (pipeline_check_flags(files, m->recipe, e) != OK) return e->code;
    }
    if (!m->decodes_only && resolve_recipe(m, files, name, o, e) == OK && open_kind(m, files, true, e) == OK)
        open_tokenizers(m, files, o, e);
    if (e->code == OK) open_kind(m, files, false, e);
    if (e->code == OK) settings_read_schedule(m, files->scheduler, e);
    if (e->code == OK && !m->decodes_only) settings_detect_prediction(m, e);
    if (e->code == OK) settings_read_pipeline(m, m->decodes_only ? NULL : files->pipeline, e);
    if (e->code == OK) settings_read_defaults(m, files->defaults, e);
    return e->code == OK ? model_check_parts(m, e) : e->code;
}

/* Reads the pipeline's name from model_index.json. Decoding alone accepts unknown names. */
static enum status read_name(struct sys *sys, const struct component_files *files,
                             char name[PIPELINE_NAME_BYTES], struct error *e) {
    struct error failure = {0};
    if (!files->pipeline || pipeline_read(sys, files->pipeline, name, &failure) == OK) return OK;
    if (!files->decodes_only || failure.code == MEMORY) *e = failure;
    return e->code;
}

static enum status fill_from_files(struct sluice_model *m, const struct sluice_model_options *o,
                                   struct error *e) {
    struct component_files files;
    char name[PIPELINE_NAME_BYTES] = "";
    const char *file = part_path_of_kind(o, o->decodes_only ? FAMILY_DECODER : FAMILY_DENOISER);
    if (!file && o->decodes_only) file = part_path_of_kind(o, FAMILY_TINY_DECODER);
    m->decodes_only = o->decodes_only;
    if (component_files_locate(m->sys, o, &files, e) == OK)
        name_model(m, o->model ? o->model : file ? file : "parts", e);
    if (e->code == OK) read_name(m->sys, &files, name, e);
    if (e->code == OK) component_files_open(m->sys, o, &files, &m->recipe, e);
    if (e->code == OK) fill_from(m, &files, o, name, e);
    component_files_destroy(m->sys, &files);
    return e->code;
}

static bool has_parts(const struct sluice_model_options *o) {
    for (int i = 0; i < o->n_parts; i++)
        if (o->parts[i].path && !part_is_none(&o->parts[i])) return true;
    return false;
}

/* Fills a model without files (--family) with published sizes and settings. */
static enum status fill_published(struct sluice_model *m, const struct sluice_model_options *o,
                                  struct error *e) {
    struct sizes sizes;
    m->published = m->pipeline_named = true;
    m->recipe = sizes_find_recipe(o->family, e);
    if (!m->recipe || sizes_read(&sizes, m->recipe, SLOTS_MAX, o->dimensions, e) != OK) return e->code;
    if (o->model || has_parts(o) || o->tokenizer || o->edit || o->decodes_only || sizes.dtype) {
        return error_set(e, USAGE,
                         "--family plans a published model; flags that name files do not apply" WHERE
                         "--family %s" EXPECTED
                         "no --model, --tokenizer, --edit, latent file or dtype in --dims; --vae and other "
                         "component flags only with the value none",
                         o->family);
    }
    if (pipeline_check_disabled_parts(o, m->recipe, o->family, e) == OK && name_model(m, o->family, e) == OK)
        published_bind(m->sys, m->recipe, &sizes, o, m->component, &m->tokenizer_bytes, e);
    /* With --family inconsistent sizes are a usage error, because they come from --dims and not from a
     * file. */
    if (e->code != OK && e->code != MEMORY) error_is_usage(e);
    m->references_max = m->recipe->references_max;
    if (e->code == OK) settings_read_schedule(m, NULL, e);
    if (e->code == OK) settings_read_pipeline(m, NULL, e);
    if (e->code == OK) settings_read_defaults(m, NULL, e);
    return e->code == OK ? model_check_parts(m, e) : e->code;
}

static enum status fill_model(struct sluice_model *m, const struct sluice_model_options *o, struct error *e) {
    int64_t before = sys_memory_use(m->sys).live_bytes[LINE_HOST];
    if ((o->family ? fill_published(m, o, e) : fill_from_files(m, o, e)) != OK) return e->code;
    m->size_step = m->recipe->patch * model_decoder(m)->pixel_factor;
    struct memory_use use = sys_memory_use(m->sys);
    m->host_bytes = (uint64_t)(use.live_bytes[LINE_HOST] - before) + m->tokenizer_bytes;
    uint64_t gone = (uint64_t)(use.peak_bytes[LINE_HOST] - use.live_bytes[LINE_HOST]);
    if (gone > m->open_bytes) m->open_bytes = gone;
    return OK;
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
    for (int i = 0; i < SLOTS_MAX; i++)
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
    if (pipeline_note_by_name(m->recipe, lines[n], MODEL_NOTE_BYTES) ||
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

enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e) {
    return model_open_reserving(sys, options, 0, model, e);
}

enum status model_open_reserving(struct sys *sys, const struct sluice_model_options *options,
                                 uint64_t reserved_bytes, struct sluice_model **model, struct error *e) {
    struct sys machine;
    sys_init_machine(&machine);
    struct sys *from = sys ? sys : &machine;
    struct sluice_model *m = from->alloc(from, LINE_HOST, sizeof *m);
    *model = NULL;
    if (!m) return error_set(e, MEMORY, "no memory for a model");
    m->machine = machine; /* copied after the allocation of *m, so that the memory counters include *m */
    m->sys = sys ? sys : &m->machine;
    struct sluice_model_options o;
    copy_sized(&o, sizeof o, options);
    m->sys->header_limit =
        (struct sys_header_limit){o.max_ram_bytes > 0 ? (uint64_t)o.max_ram_bytes : 0, reserved_bytes};
    if (fill_model(m, &o, e) != OK) {
        model_close(m);
        return e->code;
    }
    *model = m;
    return OK;
}

void model_close(struct sluice_model *m) {
    if (!m) return;
    for (int i = 0; i < SLOTS_MAX; i++) component_destroy(&m->component[i]);
    for (int i = 0; i < SLOTS_MAX; i++) tokenizer_close(m->tokenizer[i]);
    m->sys->release(m->sys, m->name);
    struct sys machine = m->machine; /* a copy, because sys must outlive *m, which contains it */
    struct sys *sys = m->sys == &m->machine ? &machine : m->sys;
    sys->release(sys, m);
}
