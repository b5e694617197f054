/* Finds tokenizers: implements tokenizers.h. */
#include "engine/open/tokenizers.h"

#include "engine/base/sys.h"
#include "engine/open/paths.h"
#include "engine/open/prompt.h"
#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"
#include "models/models.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct lookup {
    struct tokenizer_search *search;
    int slot;
    const struct text_recipe *text;
    struct tokenizer *found;
    char other[160]; /* kind and path of a tokenizer that was found but has the wrong kind; "": not found */
};

static enum status try_tokenizer(struct lookup *l, struct tokenizer *tokenizer, const char *path,
                                 struct error *e) {
    const char *kind = tokenizer_kind(tokenizer);
    if (strcmp(kind, l->text->tokenizer) != 0) {
        if (!*l->other) snprintf(l->other, sizeof l->other, "%s in %s", kind, path);
        tokenizer_close(tokenizer);
        return e->code;
    }
    l->found = tokenizer;
    if (prompt_check(l->text, tokenizer, e) != OK) error_where(e, "%s", path);
    return e->code;
}

static void note_open_bytes(struct lookup *l, uint64_t bytes) {
    if (bytes > l->search->open_bytes) l->search->open_bytes = bytes;
}

/* Opens the tokenizer at the path, and keeps the tokenizer if its kind is right. Frees the path; does
 * nothing if the path is NULL. */
static enum status try_path(struct lookup *l, char *path, struct error *e) {
    struct sys *sys = l->search->sys;
    struct tokenizer *tokenizer = NULL;
    if (!path || l->found || e->code != OK) goto out;
    size_t n = strlen(path);
    bool is_model = n >= 6 && !strcmp(path + n - 6, ".model");
    if (!path_is_folder(path) && !is_model && !gguf_is(sys, path) &&
        file_check_text(sys, path, "a tokenizer.json", e) != OK)
        goto out;
    note_open_bytes(l, tokenizer_open_bytes(sys, path));
    if (tokenizer_open(sys, path, &tokenizer, e) == OK) try_tokenizer(l, tokenizer, path, e);
out:
    sys->release(sys, path);
    return e->code;
}

/* Reads the padding token from the configuration in the encoder's own tokenizer folder; other encoders'
 * folders may name another token. */
static enum status read_pad(struct lookup *l, const char *folder, struct error *e) {
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    struct sys *sys = l->search->sys;
    if (!l->text->pad && !l->text->pad_with_id_0) return OK;
    for (int i = 0; i < 2 && tokenizer_pad(l->found) < 0 && e->code == OK; i++) {
        struct config config = {0};
        char *path = path_existing(sys, folder, names[i], e);
        if (path && config_read(sys, path, &config, e) == OK) {
            const char *pad = config_string(&config, "pad_token", NULL);
            if (!pad) pad = config_string(&config, "pad_token.content", NULL);
            if (pad) tokenizer_set_pad(l->found, tokenizer_special(l->found, pad));
        }
        config_destroy(&config);
        sys->release(sys, path);
    }
    return e->code;
}

static bool folder_has(struct sys *sys, const char *folder, const char *name, struct error *e) {
    char *path = path_existing(sys, folder, name, e);
    sys->release(sys, path);
    return path != NULL;
}

/* Searches `folder` for a tokenizer: the encoder's tokenizer folder in it, a tokenizer.json, the first
 * encoder's tokenizer folder, or tokenizer files directly in `folder`. */
static enum status try_folder(struct lookup *l, const char *folder, struct error *e) {
    static const char *const loose[] = {"vocab.json", "spiece.model", "tokenizer.model", "tekken.json"};
    enum { N_LOOSE = sizeof loose / sizeof *loose };
    struct sys *sys = l->search->sys;
    const char *first =
        l->search->recipe->slot[recipe_slot(l->search->recipe, FAMILY_TEXT)].text.tokenizer_folder;
    const char *const names[] = {"tokenizer.json", first};
    char *own = path_existing(sys, folder, l->text->tokenizer_folder, e);
    if (own && !l->found && try_path(l, path_copy(sys, own, e), e) == OK && l->found) read_pad(l, own, e);
    sys->release(sys, own);
    for (int i = 0; i < 2 && !l->found && e->code == OK; i++)
        if (i < 1 || first != l->text->tokenizer_folder)
            try_path(l, path_existing(sys, folder, names[i], e), e);
    for (int i = 0; i < N_LOOSE && !l->found && e->code == OK; i++)
        if (folder_has(sys, folder, loose[i], e)) return try_path(l, path_copy(sys, folder, e), e);
    return e->code;
}

/* Searches the path of --tokenizer: its subfolders tokenizer, tokenizer_2, ... if there are any, else the
 * path itself. */
static enum status try_flag(struct lookup *l, struct error *e) {
    struct sys *sys = l->search->sys;
    const char *path = l->search->options->tokenizer;
    bool folders = false;
    for (const struct slot *s = l->search->recipe->slot; s->family && path_is_folder(path); s++)
        if (s->text.tokenizer_folder) folders |= folder_has(sys, path, s->text.tokenizer_folder, e);
    if (e->code != OK) return e->code;
    folders ? try_folder(l, path, e) : try_path(l, path_copy(sys, path, e), e);
    l->search->flag_used |= l->found != NULL;
    return e->code;
}

/* Searches the folder of a text encoder's file, and the folder's parent. */
static enum status try_encoder_folder(struct lookup *l, const char *encoder, struct error *e) {
    struct sys *sys = l->search->sys;
    char *folder = path_is_folder(encoder) ? path_copy(sys, encoder, e) : path_folder(sys, encoder, e);
    for (int up = 0; up < 2 && folder && !l->found && e->code == OK; up++) {
        try_folder(l, folder, e);
        char *above = path_folder(sys, folder, e);
        sys->release(sys, folder);
        folder = above;
    }
    sys->release(sys, folder);
    return e->code;
}

static const struct component_file *find_encoder(const struct tokenizer_search *search, int slot) {
    const struct component_file *file = parts_in_slot(search->files, search->recipe, slot);
    return file && file->family->kind == FAMILY_TEXT ? file : NULL;
}

/* Adds the expected --tokenizer value to the error. One folder must serve all encoders of the model: if the
 * encoders need several kinds of tokenizers (CLIP and T5), each kind has its own subfolder. */
static enum status expect_tokenizer(const struct lookup *l, struct error *e) {
    const struct recipe *recipe = l->search->recipe;
    const char *kind[SLOTS_MAX], *repository = NULL; /* Hugging Face repository of the whole pipeline */
    char folders[64] = "";
    size_t bytes = 0;
    int n = 0;
    for (int i = 0; recipe->slot[i].family; i++) {
        const struct text_recipe *text = &recipe->slot[i].text;
        bool listed = !text->tokenizer || !find_encoder(l->search, i);
        for (int k = 0; k < n && !listed; k++) listed = !strcmp(kind[k], text->tokenizer);
        if (listed || bytes >= sizeof folders) continue;
        kind[n] = text->tokenizer;
        bytes += (size_t)snprintf(folders + bytes, sizeof folders - bytes, "%s%s/", n++ ? " and " : "",
                                  text->tokenizer_folder);
    }
    const struct hf_source *source;
    for (int i = 0; (source = recipe_source(recipe, i)) && !repository; i++)
        if (!source->flag && !source->files) repository = source->repository;
    if (n < 2 || !repository) return error_expected(e, "%s", l->text->tokenizer_from);
    return error_expected(
        e, "--tokenizer DIR with %s in DIR: hf download %s --include '*tokenizer*' --local-dir DIR", folders,
        repository);
}

static enum status fail_not_found(const struct lookup *l, const char *encoder, struct error *e) {
    const struct sluice_model_options *o = l->search->options;
    const struct slot *slot = &l->search->recipe->slot[l->slot];
    const char *where = encoder ? encoder : o->model,
               *word = slot->display_name ? slot->display_name : slot->family->display_name;
    if (o->tokenizer && *l->other) {
        error_set(e, META, "the %s needs a %s tokenizer" WHERE "%s" FOUND "%s", word, l->text->tokenizer,
                  o->tokenizer, l->other);
        return expect_tokenizer(l, e);
    }
    error_set(e, MISSING, "no tokenizer for the %s" WHERE "%s", word, where ? where : "no model given");
    if (*l->other)
        error_found(e, "%s", l->other);
    else
        error_found(e, "no %s tokenizer in the text encoder's file, beside it or in the folder above",
                    l->text->tokenizer);
    return expect_tokenizer(l, e);
}

static const char *encoder_path(const struct tokenizer_search *search, int slot) {
    const struct component_file *file = find_encoder(search, slot);
    return file ? component_files_path(search->files, file) : NULL;
}

static enum status try_stored_tokenizer(struct lookup *l, const struct tensor_index *index,
                                        const struct index_entry *entry, struct error *e) {
    struct sys *sys = l->search->sys;
    const struct byte_source *source = &index->sources[entry->source];
    struct tokenizer *tokenizer = NULL;
    if (header_limit_check(sys, source->path, entry->bytes, e) != OK) return e->code;
    void *bytes = sys->alloc(sys, LINE_HOST, entry->bytes);
    if (!bytes) return error_set(e, MEMORY, "no memory for a tokenizer of %" PRIu64 " bytes", entry->bytes);
    note_open_bytes(l, TOKENIZER_HEAP_BYTES);
    bool read = source_read(source, bytes, entry->bytes, entry->offset, e) == OK;
    if (read && tokenizer_open_stored(sys, source->path, bytes, entry->bytes, &tokenizer, e) == OK)
        try_tokenizer(l, tokenizer, source->path, e);
    else if (read)
        error_where(e, "%s, the tokenizer in its tensor '%s'", source->path, entry->name);
    sys->release(sys, bytes);
    return e->code;
}

/* Searches the text encoder's own file for a tokenizer: a tensor of bytes, as in ComfyUI's T5 and umT5 files
 * (`spiece_model`) and Mistral files (`tekken_model`), or GGUF metadata (index.config, as JSON). */
static enum status try_encoder(struct lookup *l, struct error *e) {
    const struct component_file *file = find_encoder(l->search, l->slot);
    const struct tensor_index *index = file ? &l->search->files->opened[file->opened].index : NULL;
    for (int i = 0; index && i < index->n_entries; i++) {
        const struct index_entry *entry = &index->entries[i];
        const char *dot = strrchr(entry->name, '.'), *name = dot ? dot + 1 : entry->name;
        if (entry->dtype == DTYPE_U8 && entry->rank == 1 &&
            (!strcmp(name, "spiece_model") || !strcmp(name, "tekken_model")))
            return try_stored_tokenizer(l, index, entry, e);
    }
    if (!index || !index->config || !strstr(index->config, "\"tokenizer.ggml.model\"")) return OK;
    return try_path(l, path_copy(l->search->sys, index->sources[0].path, e), e);
}

enum status tokenizer_find(struct tokenizer_search *search, int slot, struct tokenizer **tokenizer,
                           struct error *e) {
    const struct sluice_model_options *o = search->options;
    struct lookup l = {.search = search, .slot = slot, .text = &search->recipe->slot[slot].text};
    if (o->tokenizer) try_flag(&l, e);
    if (!l.found && e->code == OK && o->model && path_is_folder(o->model)) try_folder(&l, o->model, e);
    if (!l.found && e->code == OK) try_encoder(&l, e);
    /* Searches the folder of the slot's own encoder first, then the folders of other encoders, because
     * encoders often share a folder. */
    for (int i = 0; i < SLOTS_MAX && !l.found && e->code == OK; i++) {
        const char *encoder = encoder_path(search, (slot + i) % SLOTS_MAX);
        if (encoder) try_encoder_folder(&l, encoder, e);
    }
    if (!l.found && e->code == OK) fail_not_found(&l, encoder_path(search, slot), e);
    *tokenizer = l.found;
    return e->code;
}

enum status tokenizer_check_flag(const struct tokenizer_search *search, struct error *e) {
    if (!search->options->tokenizer || search->flag_used || e->code != OK) return e->code;
    char kinds[128] = "";
    size_t n = 0;
    for (const struct slot *s = search->recipe->slot; s->family && n < sizeof kinds; s++)
        if (s->text.tokenizer && !strstr(kinds, s->text.tokenizer))
            n += (size_t)snprintf(kinds + n, sizeof kinds - n, "%s%s", n ? " or " : "", s->text.tokenizer);
    return error_set(e, META, "--tokenizer is of the wrong kind for this model" WHERE "%s" EXPECTED "%s",
                     search->options->tokenizer, kinds);
}
