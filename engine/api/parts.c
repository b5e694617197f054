/* Finding the parts of a model: see parts.h. */
#include "engine/api/parts.h"

#include "loaders/loaders.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const role_folder[N_ROLES] = {"text_encoder", "text_encoder_2", "transformer", "vae", "vae"};

/* Repositories of parts have them two folders down (split_files/vae/ae.safetensors). */
enum { FOLDERS_DOWN = 3, CANDIDATES_MAX = 256 };

/* ---- paths ---- */

char *path_join(struct sys *sys, const char *folder, const char *name) {
    size_t a = strlen(folder), b = strlen(name);
    while (a > 1 && folder[a - 1] == '/') a--;
    size_t slash = a && folder[a - 1] != '/';
    char *path = sys->alloc(sys, LINE_HOST, a + slash + b + 1);
    if (!path) return NULL;
    memcpy(path, folder, a);
    if (slash) path[a] = '/';
    memcpy(path + a + slash, name, b + 1);
    return path;
}

/* A link that leads nowhere is there: what it should lead to is missing, and reading it says so. */
bool path_exists(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0;
}

bool path_is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static enum status no_memory(struct error *e) {
    return error_set(e, MEMORY, "no memory for a path");
}

/* Without slashes at its end: a file's name must not have one. */
static char *copy_path(struct sys *sys, const char *path, struct error *e) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    char *copy = sys->alloc(sys, LINE_HOST, n + 1); /* zeroed */
    if (!copy) no_memory(e);
    return copy ? memcpy(copy, path, n) : NULL;
}

/* The folder in which a file or folder lies. */
static char *folder_of(struct sys *sys, const char *path, struct error *e) {
    char *folder = copy_path(sys, path, e);
    if (!folder) return NULL;
    size_t n = strlen(folder);
    while (n > 0 && folder[n - 1] != '/') n--;
    while (n > 1 && folder[n - 1] == '/') n--;
    if (!n) folder[n++] = '.'; /* a bare name has at least one byte */
    folder[n] = 0;
    return folder;
}

/* What is there under that name, or NULL: none, or no memory. */
static char *existing(struct sys *sys, const char *folder, const char *name, struct error *e) {
    char *path = path_join(sys, folder, name);
    if (!path) no_memory(e);
    if (!path || path_exists(path)) return path;
    sys->release(sys, path);
    return NULL;
}

/* ---- by flags and names ---- */

/* A Hugging Face folder says so by its pipeline or by names that no other layout has. */
static bool is_hugging_face(struct sys *sys, const char *model, struct error *e) {
    static const char *const signs[] = {"model_index.json", "transformer", "text_encoder"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        char *sign = existing(sys, model, signs[i], e);
        if (sign) {
            sys->release(sys, sign);
            return true;
        }
    }
    return false;
}

static void locate_in_folder(struct sys *sys, const struct sluice_model_options *o, struct model_parts *parts,
                             struct error *e) {
    const char *model = o->model;
    bool by_name = is_hugging_face(sys, model, e);
    for (int i = 0; i < N_ROLES && by_name; i++)
        if (parts->wanted[i] && !parts->path[i]) parts->path[i] = existing(sys, model, role_folder[i], e);
    if (o->decodes_only) return;
    if (!parts->tokenizer) parts->tokenizer = existing(sys, model, "tokenizer", e);
    if (!parts->tokenizer) parts->tokenizer = existing(sys, model, "tokenizer.json", e);
    parts->scheduler = existing(sys, model, "scheduler/scheduler_config.json", e);
    parts->pipeline = existing(sys, model, "model_index.json", e);
    parts->defaults = existing(sys, model, "sluice.json", e);
}

enum status parts_locate(struct sys *sys, const struct sluice_model_options *o, struct model_parts *parts,
                         struct error *e) {
    memset(parts, 0, sizeof *parts);
    const char *given[N_ROLES] = {
        [ROLE_TEXT] = o->llm, [ROLE_DENOISER] = o->diffusion_model, [ROLE_DECODER] = o->vae};
    if (!o->model && !o->diffusion_model && !o->vae && !o->llm)
        return error_set(e, USAGE, "no model was given");
    if (o->model && !path_exists(o->model)) {
        error_set(e, MISSING, "there is no such model");
        return error_where(e, "%s", o->model);
    }
    for (int i = 0; i < N_ROLES; i++) {
        parts->wanted[i] =
            i == ROLE_DECODER || (!o->decodes_only && i != ROLE_ENCODER && recipes[0]->role[i]);
        if (given[i] && parts->wanted[i]) parts->path[i] = copy_path(sys, given[i], e);
    }
    if (o->tokenizer && !o->decodes_only) parts->tokenizer = copy_path(sys, o->tokenizer, e);
    if (o->model && path_is_folder(o->model)) locate_in_folder(sys, o, parts, e);
    if (e->code != OK) parts_destroy(sys, parts);
    return e->code;
}

/* ---- what a file holds ---- */

/* Families of ours in one file, each behind its prefix. Numbers are those of the views. */
enum { CONTENTS_MAX = 8 };
struct contents {
    struct {
        const struct family *family;
        const char *prefix;
    } part[CONTENTS_MAX];
    int n;
};

const struct family *parts_family(const struct tensor_index *view) {
    for (const struct family *const *f = families; *f; f++)
        if ((*f)->probe(view)) return *f;
    return NULL;
}

static void find_contents(const struct tensor_index *whole, struct contents *contents) {
    contents->n = 0;
    for (const struct family *const *f = families; *f; f++)
        for (const char *const *prefix = (*f)->prefixes; *prefix && contents->n < CONTENTS_MAX; prefix++) {
            struct tensor_index view = index_view(whole, *prefix, 0);
            if (!(*f)->probe(&view)) continue;
            contents->part[contents->n].family = *f;
            contents->part[contents->n++].prefix = *prefix;
        }
}

/* One role twice, or two parts whose tensors cannot be told apart. */
static enum status check_contents(const struct tensor_index *whole, const struct contents *contents,
                                  struct error *e) {
    for (int i = 0; i < contents->n; i++)
        for (int k = 0; k < i; k++) {
            const struct family *one = contents->part[k].family, *other = contents->part[i].family;
            const char *prefix = contents->part[k].prefix, *second = contents->part[i].prefix;
            if (one->kind != other->kind && strcmp(prefix, second)) continue;
            error_set(e, UNSUPPORTED, "one file holds two parts that cannot be told apart");
            error_where(e, "%s", whole->sources[0].path);
            error_found(e, "%s behind '%s' and %s behind '%s'", one->word, prefix, other->word, second);
            return error_expected(e, "one %s, or prefixes", other->word);
        }
    return OK;
}

/* Bytes of whole parts ("a.b.") that a name has in common with a prefix. */
static size_t in_common(const char *name, const char *prefix) {
    size_t common = 0;
    for (size_t i = 0; name[i] && name[i] == prefix[i]; i++)
        if (name[i] == '.') common = i + 1;
    return common;
}

/* A tensor belongs to the longest prefix that it has. What has none but stands beside a part
 * ("text_encoders.qwen3_4b.logit_scale") is the leftover of that part whose prefix is most like its name. */
static int part_of(const char *name, const struct contents *contents) {
    int part = 0;
    size_t most = 0;
    bool whole = false;
    for (int i = 0; i < contents->n; i++) {
        const char *prefix = contents->part[i].prefix;
        bool has = !strncmp(name, prefix, strlen(prefix));
        size_t common = in_common(name, prefix);
        if (has < whole || (has == whole && common <= most && i)) continue;
        part = i;
        most = common;
        whole = has;
    }
    return part;
}

static enum status open_contents(struct sys *sys, const char *path, struct tensor_index *whole,
                                 struct contents *contents, struct error *e) {
    if (component_open(sys, path, whole, e) != OK) return e->code;
    find_contents(whole, contents);
    if (check_contents(whole, contents, e) != OK) index_destroy(whole);
    for (int i = 0; i < whole->n_entries; i++)
        whole->entries[i].view = part_of(whole->entries[i].name, contents);
    return e->code;
}

static void look_at(struct tensor_index *whole, const struct contents *contents, int view) {
    whole->prefix = *contents->part[view].prefix ? contents->part[view].prefix : NULL;
    whole->view = view;
}

/* The part for its slot, or whatever else the file holds. */
static enum status open_located(struct sys *sys, const char *path, enum role role, struct tensor_index *index,
                                struct error *e) {
    struct contents contents;
    if (open_contents(sys, path, index, &contents, e) != OK) return e->code;
    int view = 0;
    for (int i = 0; i < contents.n; i++)
        if (contents.part[i].family == recipes[0]->role[role]) view = i;
    if (contents.n) look_at(index, &contents, view);
    return OK;
}

/* ---- by content ---- */

struct search {
    struct sys *sys;
    const char *model;
    struct model_parts *parts;
    bool wanted[N_ROLES];
    char *candidate[CANDIDATES_MAX];
    int n_candidates;
};

static enum status two_files(const struct search *s, enum role role, const char *path, struct error *e) {
    size_t folder = strlen(s->model);
    const char *one = s->parts->path[role], *names[2] = {one, path};
    for (int i = 0; i < 2; i++)
        if (!strncmp(names[i], s->model, folder) && names[i][folder]) names[i] += folder;
    error_set(e, UNSUPPORTED, "two files hold the %s", recipes[0]->role[role]->word);
    error_where(e, "%s", s->model);
    error_found(e, "%s and %s", names[0] + (*names[0] == '/'), names[1] + (*names[1] == '/'));
    return error_expected(e, "%s with the one to use", recipes[0]->role[role]->flag);
}

/* Gives each wanted role its view. The first owns the index, the others borrow. */
static enum status take_contents(struct search *s, const char *path, struct tensor_index *whole,
                                 const struct contents *contents, struct error *e) {
    bool owned = false;
    for (int i = 0; i < contents->n && e->code == OK; i++) {
        int role = recipe_role(recipes[0], contents->part[i].family);
        if (role == N_ROLES || !s->wanted[role]) continue;
        if (s->parts->path[role]) {
            two_files(s, (enum role)role, path, e);
            break;
        }
        s->parts->path[role] = copy_path(s->sys, path, e);
        struct tensor_index view = index_view(whole, NULL, 0);
        if (!owned) view = *whole;
        owned = true;
        look_at(&view, contents, i);
        s->parts->index[role] = view;
    }
    if (!owned) index_destroy(whole);
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

/* Only lack of memory ends the search: one damaged file among many matters if a part is missing, and then it
 * is named. So is a quantised one whose names nobody knows. */
static enum status try_candidate(struct search *s, const char *path, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    struct error failure = {0};
    if (open_contents(s->sys, path, &whole, &contents, &failure) == OK) {
        if (!contents.n) index_check_quantised(&whole, &failure);
        count_strangers(s->parts, &whole, &contents);
        take_contents(s, path, &whole, &contents, e);
    }
    if (failure.code == MEMORY) *e = failure;
    if (s->parts->failure.code == OK) s->parts->failure = failure;
    return e->code;
}

static bool is_located(const struct search *s, const char *path) {
    for (int i = 0; i < N_ROLES; i++)
        if (s->parts->path[i] && !strcmp(s->parts->path[i], path)) return true;
    return false;
}

static enum status list_folder(struct search *s, const char *path, int down, struct error *e);

static enum status list_file(struct search *s, const char *folder, const char *name, int down,
                             struct error *e) {
    char *path = path_join(s->sys, folder, name);
    if (!path) return no_memory(e);
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

static enum status search_file(struct search *s, struct error *e) {
    struct contents contents;
    struct tensor_index whole;
    if (open_contents(s->sys, s->model, &whole, &contents, e) != OK) return e->code;
    count_strangers(s->parts, &whole, &contents);
    if (contents.n) return take_contents(s, s->model, &whole, &contents, e);
    s->parts->unknown = whole;
    return OK;
}

static enum status search_model(struct sys *sys, const char *model, struct model_parts *parts,
                                struct error *e) {
    bool any = false;
    struct search *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    if (!s) return no_memory(e);
    *s = (struct search){.sys = sys, .model = model, .parts = parts};
    for (int i = 0; i < N_ROLES; i++) any |= s->wanted[i] = parts->wanted[i] && !parts->path[i];
    if (any) path_is_folder(model) ? search_folder(s, e) : search_file(s, e);
    sys->release(sys, s);
    return e->code;
}

/* ---- the tokenizer ---- */

static char *tokenizer_in(struct sys *sys, const char *folder, struct error *e) {
    char *path = existing(sys, folder, "tokenizer.json", e);
    if (!path) path = existing(sys, folder, "tokenizer", e);
    if (path) return path;
    char *vocabulary = existing(sys, folder, "vocab.json", e);
    sys->release(sys, vocabulary);
    return vocabulary ? copy_path(sys, folder, e) : NULL;
}

/* Beside the text encoder: in its folder, or the one above. */
static void find_tokenizer(struct sys *sys, struct model_parts *parts, struct error *e) {
    const char *from = parts->path[ROLE_TEXT];
    if (!from) return;
    char *folder = path_is_folder(from) ? copy_path(sys, from, e) : folder_of(sys, from, e);
    for (int up = 0; up < 2 && folder && !parts->tokenizer; up++) {
        parts->tokenizer = tokenizer_in(sys, folder, e);
        char *above = folder_of(sys, folder, e);
        sys->release(sys, folder);
        folder = above;
    }
    sys->release(sys, folder);
}

/* ---- all ---- */

enum status parts_open(struct sys *sys, const struct sluice_model_options *o, struct model_parts *parts,
                       struct error *e) {
    for (int i = 0; i < N_ROLES && e->code == OK; i++)
        if (parts->path[i]) open_located(sys, parts->path[i], (enum role)i, &parts->index[i], e);
    if (e->code == OK && o->model) search_model(sys, o->model, parts, e);
    if (e->code == OK && !parts->tokenizer) find_tokenizer(sys, parts, e);
    return e->code;
}

enum { LIST_BYTES = 64 };

static const char *folder_word(enum role role) {
    return role_folder[role];
}

static const char *flag_word(enum role role) {
    return recipes[0]->role[role]->flag;
}

static const char *part_word(enum role role) {
    return recipes[0]->role[role]->word;
}

/* "'transformer' and 'vae'": these words of the parts that are missing. Returns how many are. */
static int list_missing(const struct model_parts *parts, const char *(*word)(enum role role),
                        const char *quote, char list[LIST_BYTES]) {
    int n = 0, last = 0, length = 0;
    for (int i = 0; i < N_ROLES; i++)
        if (parts->wanted[i] && !parts->path[i]) last = i;
    for (int i = 0; i <= last; i++) {
        if (!parts->wanted[i] || parts->path[i]) continue;
        const char *between = !n++ ? "" : i < last ? ", " : " and ";
        length += snprintf(list + length, (size_t)(LIST_BYTES - length), "%s%s%s%s", between, quote, word(i),
                           quote);
    }
    return n;
}

enum status parts_check_found(const struct model_parts *parts, const char *model, struct error *e) {
    char folders[LIST_BYTES], flags[LIST_BYTES], words[LIST_BYTES];
    int n = list_missing(parts, folder_word, "'", folders);
    if (!n) return OK;
    if (parts->failure.code != OK) {
        *e = parts->failure;
        return e->code;
    }
    list_missing(parts, flag_word, "", flags);
    list_missing(parts, part_word, "", words);
    error_set(e, MISSING, "the model has no %s", folders);
    error_where(e, "%s", model ? model : "no model given");
    if (parts->strangers.n)
        error_found(e, "'%s' and %d other tensors, which are no known part", parts->strangers.first,
                    parts->strangers.n - 1);
    return error_expected(e, "%s there, or %s with the %s", n > 1 ? "them" : "it", flags, words);
}

enum status parts_missing_tokenizer(const struct model_parts *parts, const struct recipe *recipe,
                                    const char *model, struct error *e) {
    const char *where = parts->path[ROLE_TEXT] ? parts->path[ROLE_TEXT] : model;
    error_set(e, MISSING, "the model has no 'tokenizer'");
    error_where(e, "%s", where ? where : "no model given");
    error_found(e, "no tokenizer.json beside the text encoder or above, and no --tokenizer");
    return error_expected(e, "%s", recipe->text[0].tokenizer_from);
}

void parts_destroy(struct sys *sys, struct model_parts *parts) {
    for (int i = 0; i < N_ROLES; i++) {
        sys->release(sys, parts->path[i]);
        index_destroy(&parts->index[i]);
    }
    index_destroy(&parts->unknown);
    sys->release(sys, parts->tokenizer);
    sys->release(sys, parts->scheduler);
    sys->release(sys, parts->pipeline);
    sys->release(sys, parts->defaults);
    memset(parts, 0, sizeof *parts);
}
