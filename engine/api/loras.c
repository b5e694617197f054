#include "engine/api/loras.h"

#include "engine/base/text.h"
#include "engine/open/adapter_file.h"
#include "engine/open/paths.h"

#include <string.h>

#define EXTENSION ".safetensors"

static bool is_same_file(const struct file_identity *a, const struct file_identity *b) {
    return a->device == b->device && a->inode == b->inode;
}

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
    while (i < l->n && !is_same_file(&l->at[i].identity, &lora.identity)) i++;
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

/* The path in --lora-dir of <lora:NAME:...>. */
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

static void drop_lora(struct loras *l, int i) {
    l->sys->release(l->sys, l->at[i].path);
    l->n--;
    memmove(l->at + i, l->at + i + 1, (size_t)(l->n - i) * sizeof *l->at);
}

enum status loras_list(struct sys *sys, const struct sluice_request *request, const struct lora_tags *tags,
                       int n, struct loras *l, struct error *e) {
    *l = (struct loras){.sys = sys};
    for (int i = 0; i < request->n_loras && e->code == OK; i++)
        add_lora(l, path_copy(sys, request->loras[i].path, e), request->loras[i].strength, e);
    for (int i = 0; i < n && e->code == OK; i++)
        for (int k = 0; k < tags[i].n && e->code == OK; k++)
            add_lora(l, tagged_path(sys, request->lora_dir, tags[i].tag[k].name, e), tags[i].tag[k].strength,
                     e);
    for (int i = l->n - 1; i >= 0; i--)
        if (l->at[i].strength == 0) drop_lora(l, i);
    return e->code;
}

void loras_destroy(struct loras *l) {
    for (int i = 0; i < l->n; i++) l->sys->release(l->sys, l->at[i].path);
    l->n = 0;
}

char *lora_name(struct sys *sys, const char *path) {
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    size_t n = strlen(file);
    if (n > strlen(EXTENSION) && ends_with(file, EXTENSION)) n -= strlen(EXTENSION);
    char *name = sys->alloc(sys, LINE_HOST, n + 1);
    if (name) memcpy(name, file, n);
    return name;
}
