#include "engine/cache/session_adapters.h"

#include "engine/base/text.h"
#include "engine/open/paths.h"

#include <stdio.h>
#include <string.h>

#define EXTENSION ".safetensors"

/* The LoRA files of a request, in the order in which the request first names them. */
struct loras {
    struct sys *sys;
    struct lora at[SLUICE_LORAS_MAX];
    int n;
};

static enum status identify(struct sys *sys, const char *path, struct file_identity *identity,
                            struct error *e) {
    struct byte_source source;
    if (source_open(sys, path, &source, e) != OK) return e->code;
    *identity = source.identity;
    source_close(&source);
    return OK;
}

static enum status identify_both(struct sys *sys, struct lora *lora, struct error *e) {
    if (identify(sys, lora->path, &lora->identity, e) != OK) {
        if (e->code != IO || !path_is_folder(lora->path)) return e->code;
        *e = (struct error){0};
        return error_set(e, IO, "this LoRA is a folder: name the file, or use --lora-dir" WHERE "%s",
                         lora->path);
    }
    char *config = adapter_config_path(sys, lora->path, e);
    if (config) identify(sys, config, &lora->config, e);
    sys->release(sys, config);
    return e->code;
}

/* Adds a LoRA file to the list, or adds the strength if the file is already listed. Takes ownership of path,
 * also after failure. */
static enum status add_lora(struct loras *l, char *path, double strength, struct error *e) {
    struct lora lora = {.path = path, .strength = strength};
    if (!path || identify_both(l->sys, &lora, e) != OK) {
        l->sys->release(l->sys, path);
        return e->code;
    }
    int i = 0;
    while (i < l->n && (l->at[i].identity.device != lora.identity.device ||
                        l->at[i].identity.inode != lora.identity.inode))
        i++;
    if (i < l->n) {
        l->at[i].strength += strength;
        l->sys->release(l->sys, path);
    } else if (l->n < SLUICE_LORAS_MAX) {
        l->at[l->n++] = lora;
    } else {
        l->sys->release(l->sys, path);
        error_set(e, USAGE, "too many LoRA files (--lora and <lora:...>)" EXPECTED "at most %d",
                  SLUICE_LORAS_MAX);
    }
    return e->code;
}

/* Returns the path of the file in --lora-dir that a tag <lora:NAME:...> names. */
static char *tagged_path(struct sys *sys, const char *folder, const char *name, struct error *e) {
    char *file = sys->alloc(sys, LINE_HOST, strlen(name) + sizeof EXTENSION), *path = NULL;
    if (file) {
        memcpy(file, name, strlen(name));
        if (!ends_with(name, EXTENSION)) memcpy(file + strlen(name), EXTENSION, sizeof EXTENSION);
        path = path_join(sys, folder, file);
    }
    sys->release(sys, file);
    if (!path) error_set(e, MEMORY, "no memory for a path");
    return path;
}

/* Lists the LoRA files that the request and the tags of n prompts name. Opens each file to identify it, then
 * closes it. The caller destroys the list, also after failure. */
static enum status list_loras(struct sys *sys, const struct sluice_request *request,
                              const struct lora_tags *tags, int n, struct loras *l, struct error *e) {
    *l = (struct loras){.sys = sys};
    for (int i = 0; i < request->n_loras && e->code == OK; i++)
        add_lora(l, path_copy(sys, request->loras[i].path, e), request->loras[i].strength, e);
    for (int i = 0; i < n && e->code == OK; i++)
        for (int k = 0; k < tags[i].n && e->code == OK; k++)
            add_lora(l, tagged_path(sys, request->lora_dir, tags[i].tag[k].name, e), tags[i].tag[k].strength,
                     e);
    for (int i = l->n - 1; i >= 0; i--) {
        if (l->at[i].strength != 0) continue;
        l->sys->release(l->sys, l->at[i].path);
        l->n--;
        memmove(l->at + i, l->at + i + 1, (size_t)(l->n - i) * sizeof *l->at);
    }
    return e->code;
}

static void close_file(struct sys *sys, struct loaded_adapter *file) {
    if (!file) return;
    adapter_match_destroy(&file->match);
    adapter_close(file->adapter);
    sys->release(sys, file->lora.path);
    sys->release(sys, file->name);
    sys->release(sys, file);
}

static struct loaded_adapter *open_file(struct session_adapters *a, const struct adapter_base *base,
                                        const struct lora *lora, bool partial, struct error *e) {
    struct sys *sys = a->sys;
    struct memory_use before = sys_memory_use(sys);
    struct loaded_adapter *file = sys->alloc(sys, LINE_HOST, sizeof *file);
    if (file) file->lora.path = path_copy(sys, lora->path, e);
    /* Adapter name: the file name without folder and ".safetensors". */
    const char *slash = strrchr(lora->path, '/'), *name = slash ? slash + 1 : lora->path;
    size_t n = strlen(name);
    if (n > strlen(EXTENSION) && ends_with(name, EXTENSION)) n -= strlen(EXTENSION);
    if (file) file->name = sys->alloc(sys, LINE_HOST, n + 1);
    if (file && file->name) memcpy(file->name, name, n);
    if (file && file->lora.path && file->name) {
        file->lora.identity = lora->identity;
        file->lora.config = lora->config;
        file->partial = partial;
        if (adapter_open(sys, lora->path, &file->adapter, e) == OK)
            adapter_match(file->adapter, base->model, partial, &file->match, e);
    } else {
        error_set(e, MEMORY, "no memory for an adapter");
    }
    /* If opening the file raised the peak of allocated memory, records the temporary part: peak minus live
     * bytes. */
    struct memory_use now = sys_memory_use(sys);
    int64_t gone = now.peak_bytes[LINE_HOST] - now.live_bytes[LINE_HOST];
    bool moved = now.peak_bytes[LINE_HOST] > before.peak_bytes[LINE_HOST];
    if (moved && (uint64_t)gone > a->open_bytes) a->open_bytes = (uint64_t)gone;
    if (e->code == OK) return file;
    close_file(sys, file);
    return NULL;
}

static bool same_identity(const struct file_identity *a, const struct file_identity *b) {
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->modified_ns == b->modified_ns;
}

static bool is_same_adapter(const struct loaded_adapter *file, const struct lora *lora, bool partial) {
    return same_identity(&file->lora.identity, &lora->identity) &&
           same_identity(&file->lora.config, &lora->config) && file->partial == partial;
}

static enum status open_files(struct session_adapters *a, const struct adapter_base *base,
                              const struct loras *loras, bool partial, struct error *e) {
    struct loaded_adapter *open[SLUICE_LORAS_MAX];
    int n_open = a->n_files;
    memcpy(open, a->file, sizeof open);
    a->n_files = 0;
    for (int i = 0; i < loras->n && e->code == OK; i++) {
        struct loaded_adapter *file = NULL;
        for (int k = 0; k < n_open && !file; k++) {
            if (!open[k] || !is_same_adapter(open[k], &loras->at[i], partial)) continue;
            file = open[k];
            open[k] = NULL;
        }
        if (!file) file = open_file(a, base, &loras->at[i], partial, e);
        if (!file) break;
        file->lora.strength = loras->at[i].strength;
        a->file[a->n_files++] = file;
    }
    for (int i = 0; i < n_open; i++) close_file(a->sys, open[i]);
    return e->code;
}

void session_adapters_drop_components(struct session_adapters *a) {
    for (int i = 0; i < SLOTS_MAX; i++) {
        if (a->component[i]) component_destroy(a->component[i]);
        if (a->component[i]) a->sys->release(a->sys, a->component[i]);
        a->component[i] = NULL;
        adapter_combination_destroy(&a->combination[i]);
    }
    if (a->sys) a->sys->release(a->sys, a->names);
    a->names = NULL;
}

void session_adapters_destroy(struct session_adapters *a) {
    session_adapters_drop_components(a);
    for (int i = 0; i < a->n_files; i++) close_file(a->sys, a->file[i]);
    *a = (struct session_adapters){.sys = a->sys};
}

static enum status adapt_slot(struct session_adapters *a, const struct adapter_base *base, int slot,
                              struct error *e) {
    struct adapter_use uses[SLUICE_LORAS_MAX];
    struct adapter_combination *c = &a->combination[slot];
    const struct component *from = requantised_component(base->requantised, base->model, slot);
    int n = 0;
    for (int i = 0; i < a->n_files; i++)
        if (adapter_file_applies(a->file[i], slot))
            uses[n++] = (struct adapter_use){&a->file[i]->match, a->file[i]->lora.strength};
    if (!n || adapters_combine(base->model, slot, uses, n, c, e) != OK) return e->code;
    struct adaptation adaptation = {c->weights, c->vectors, c->n_weights, c->n_vectors};
    a->component[slot] = a->sys->alloc(a->sys, LINE_HOST, sizeof *a->component[slot]);
    if (!a->component[slot]) return error_set(e, MEMORY, "no memory for a component with adapters");
    return component_adapt(from, &adaptation, a->component[slot], e);
}

/* Builds the text of adapter names and strengths for image metadata: "style:0.8, turbo:1". */
static enum status build_names(struct session_adapters *a, struct error *e) {
    enum { NUMBER_BYTES = 32 };
    size_t bytes = 1, at = 0;
    for (int i = 0; i < a->n_files; i++) bytes += strlen(a->file[i]->name) + NUMBER_BYTES;
    a->names = a->sys->alloc(a->sys, LINE_HOST, bytes);
    if (!a->names) return error_set(e, MEMORY, "no memory for the names of adapters");
    for (int i = 0; i < a->n_files; i++)
        at += (size_t)snprintf(a->names + at, bytes - at, "%s%s:%.9g", i ? ", " : "", a->file[i]->name,
                               a->file[i]->lora.strength);
    return OK;
}

/* Opens the listed LoRA files and builds the components with adapters, unless the session already has exactly
 * these. */
static enum status prepare_loras(struct session_adapters *a, const struct adapter_base *base,
                                 const struct loras *loras, bool partial, struct error *e) {
    bool same = a->n_files == loras->n && (a->names || !loras->n) &&
                (!base->requantised || conversion_equals(a->weights, base->requantised->choice));
    for (int i = 0; same && i < loras->n; i++)
        same = is_same_adapter(a->file[i], &loras->at[i], partial) &&
               a->file[i]->lora.strength == loras->at[i].strength;
    if (same) return OK;
    session_adapters_drop_components(a);
    a->sys = loras->sys;
    a->weights = base->requantised ? base->requantised->choice : (struct conversion_choice){N_DTYPES, false};
    if (open_files(a, base, loras, partial, e) == OK && a->n_files) build_names(a, e);
    for (int slot = 0; slot < SLOTS_MAX && a->n_files && e->code == OK; slot++) adapt_slot(a, base, slot, e);
    if (e->code != OK) session_adapters_drop_components(a);
    return e->code;
}

enum status session_adapters_prepare(struct session_adapters *a, const struct adapter_base *base,
                                     const struct sluice_request *request, const struct lora_tags *tags,
                                     int n, struct error *e) {
    struct sys *sys = base->model->sys;
    struct loras loras;
    if (list_loras(sys, request, tags, n, &loras, e) == OK)
        prepare_loras(a, base, &loras, request->lora_partial, e);
    for (int i = 0; i < loras.n; i++) sys->release(sys, loras.at[i].path);
    return e->code;
}

const struct component *session_adapters_component(const struct session_adapters *a,
                                                   const struct adapter_base *base, int slot) {
    if (a && slot < SLOTS_MAX && a->component[slot]) return a->component[slot];
    return requantised_component(base->requantised, base->model, slot);
}

void session_adapters_copy_scales(struct session_adapters *a, const struct adapter_base *base, int slot) {
    if (slot < SLOTS_MAX && a->component[slot])
        component_adapt_scales(requantised_component(base->requantised, base->model, slot),
                               a->component[slot]);
}

enum status session_adapters_check_finite(struct session_adapters *a,
                                          bool (*tick)(void *user, struct error *e), void *user,
                                          struct error *e) {
    for (int i = 0; i < a->n_files && e->code == OK; i++) {
        if (a->file[i]->finite || !tick(user, e)) continue;
        a->file[i]->finite = adapter_check_finite(a->file[i]->adapter, e) == OK;
    }
    return e->code;
}

bool adapter_file_applies(const struct loaded_adapter *file, int slot) {
    const struct adapter_part *part = file->match.part;
    for (int i = 0; i < SLOTS_MAX; i++)
        if ((slot == SLOTS_MAX || i == slot) && (part[i].n_weights || part[i].n_vectors)) return true;
    return false;
}

uint64_t session_adapters_bytes(const struct session_adapters *a) {
    uint64_t bytes = 0;
    for (int i = 0; a && i < a->n_files; i++)
        bytes += sizeof **a->file + strlen(a->file[i]->lora.path) + strlen(a->file[i]->name) +
                 a->file[i]->adapter->host_bytes + a->file[i]->match.host_bytes;
    for (int i = 0; a && i < SLOTS_MAX; i++) {
        if (a->component[i]) bytes += sizeof *a->component[i] + component_layout_bytes(a->component[i]);
        bytes += a->combination[i].host_bytes;
    }
    return bytes;
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return hash;
}

uint64_t session_adapters_hash(const struct session_adapters *a) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; a && i < a->n_files; i++) {
        const struct lora *lora = &a->file[i]->lora;
        hash = hash_bytes(hash, a->file[i]->name, strlen(a->file[i]->name) + 1);
        hash = hash_bytes(hash, &lora->identity.bytes, sizeof lora->identity.bytes);
        hash = hash_bytes(hash, &lora->strength, sizeof lora->strength);
        for (int slot = 0; slot < SLOTS_MAX; slot++) {
            const struct adapter_part *part = &a->file[i]->match.part[slot];
            for (int k = 0; k < part->n_weights; k++)
                hash = hash_bytes(hash, &part->weights[k].scale, sizeof part->weights[k].scale);
            for (int k = 0; k < part->n_vectors; k++)
                hash = hash_bytes(hash, &part->vectors[k].scale, sizeof part->vectors[k].scale);
        }
    }
    return a && a->n_files ? hash : 0;
}
