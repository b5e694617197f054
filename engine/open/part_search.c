/* Finding parts by content: see part_search.h. */
#include "engine/open/part_search.h"

#include "engine/open/paths.h"
#include "loaders/loaders.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Repositories of parts have them two folders down (split_files/vae/ae.safetensors). */
enum { FOLDERS_DOWN = 3, CANDIDATES_MAX = 256 };

struct search {
    struct sys *sys;
    const char *model;
    struct model_parts *parts;
    char *candidate[CANDIDATES_MAX];
    int n_candidates;
};

/* ---- one file ---- */

/* Is the family still looked for, or a second of it worth knowing of? */
static bool is_wanted(const struct model_parts *parts, const struct family *family) {
    if (parts->decodes_only && family->kind != FAMILY_DECODER) return false;
    const struct part *found =
        family->kind == FAMILY_TEXT ? parts_find(parts, family) : parts_find_kind(parts, family->kind);
    if (found && (found->flag || found->folder)) return false;
    int n = 0;
    for (int i = 0; i < parts->n_parts; i++) n += parts->part[i].family == family;
    return n < 2;
}

static enum status take_contents(struct search *s, const char *path, struct tensor_index *whole,
                                 const struct contents *contents, struct error *e) {
    bool taken = false;
    for (int i = 0; i < contents->n && e->code == OK; i++) {
        if (!is_wanted(s->parts, contents->part[i].family)) continue;
        if (!taken) parts_add_file(s->sys, s->parts, path, whole, e);
        taken = true;
        parts_add(
            s->parts,
            (struct part){.family = contents->part[i].family, .prefix = contents->part[i].prefix, .view = i});
    }
    if (!taken) index_destroy(whole);
    return e->code;
}

/* What no part's prefix explains. */
static void count_strangers(struct model_parts *parts, const struct tensor_index *whole,
                            const struct contents *contents) {
    for (int i = 0; i < whole->n_entries; i++) {
        const char *name = whole->entries[i].name;
        bool known = false;
        for (int k = 0; k < contents->n && !known; k++)
            known = !strncmp(name, contents->part[k].prefix, strlen(contents->part[k].prefix));
        if (known) continue;
        if (!parts->strangers.n++)
            snprintf(parts->strangers.first, sizeof parts->strangers.first, "%s", name);
    }
}

static enum status search_file(struct search *s, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    if (contents_open(s->sys, s->model, &whole, &contents, e) != OK) return e->code;
    count_strangers(s->parts, &whole, &contents);
    if (contents.n) return take_contents(s, s->model, &whole, &contents, e);
    index_check_quantised(&whole, &s->parts->failure);
    if (parts_add_file(s->sys, s->parts, s->model, &whole, e) == OK) parts_add(s->parts, (struct part){0});
    return e->code;
}

/* A quantised file whose names nobody knows is a failure too. */
static enum status try_candidate(struct search *s, const char *path, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    struct error failure = {0};
    if (contents_open(s->sys, path, &whole, &contents, &failure) == OK) {
        if (!contents.n) index_check_quantised(&whole, &failure);
        count_strangers(s->parts, &whole, &contents);
        take_contents(s, path, &whole, &contents, e);
    }
    if (failure.code == MEMORY) *e = failure;
    if (s->parts->failure.code == OK) s->parts->failure = failure;
    return e->code;
}

/* ---- a folder ---- */

/* A folder of one part holds no other. */
static bool is_located(const struct search *s, const char *path) {
    for (int i = 0; i < s->parts->n_files; i++)
        if (!strcmp(s->parts->file[i].path, path)) return true;
    return false;
}

static enum status list_folder(struct search *s, const char *path, int down, struct error *e);

static enum status list_file(struct search *s, const char *folder, const char *name, int down,
                             struct error *e) {
    char *path = path_join(s->sys, folder, name);
    if (!path) return error_set(e, MEMORY, "no memory for a path");
    bool is_folder = path_is_folder(path), candidate = !is_folder && component_is_candidate(name);
    if (is_folder && down > 0 && !is_located(s, path)) list_folder(s, path, down - 1, e);
    if (candidate && s->n_candidates == CANDIDATES_MAX) {
        error_set(e, LIMIT, "too many files that could be a part of the model");
        error_where(e, "%s", s->model);
        error_expected(e, "at most %d, or a flag for each part", CANDIDATES_MAX);
    } else if (candidate) {
        s->candidate[s->n_candidates++] = path;
        return OK;
    }
    s->sys->release(s->sys, path);
    return e->code;
}

/* Hidden files are caches of downloads. */
static enum status list_folder(struct search *s, const char *path, int down, struct error *e) {
    DIR *folder = opendir(path);
    if (!folder) return OK;
    for (struct dirent *file; e->code == OK && (file = readdir(folder));)
        if (*file->d_name != '.') list_file(s, path, file->d_name, down, e);
    closedir(folder);
    return e->code;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum status search_folder(struct search *s, struct error *e) {
    list_folder(s, s->model, FOLDERS_DOWN, e);
    qsort(s->candidate, (size_t)s->n_candidates, sizeof *s->candidate, compare_paths);
    for (int i = 0; i < s->n_candidates; i++) {
        if (e->code == OK) try_candidate(s, s->candidate[i], e);
        s->sys->release(s->sys, s->candidate[i]);
    }
    return e->code;
}

enum status part_search(struct sys *sys, const char *model, struct model_parts *parts, struct error *e) {
    struct search *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    if (!s) return error_set(e, MEMORY, "no memory for a search");
    *s = (struct search){.sys = sys, .model = model, .parts = parts};
    path_is_folder(model) ? search_folder(s, e) : search_file(s, e);
    sys->release(sys, s);
    return e->code;
}
