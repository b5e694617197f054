/* What a file holds: see contents.h. */
#include "engine/open/contents.h"

#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

const struct family *contents_family(const struct tensor_index *view) {
    for (const struct family *const *f = families; *f; f++)
        if ((*f)->probe(view)) return *f;
    return NULL;
}

/* Has an earlier slot the same? Recipes share families. */
static bool contents_is_listed(int i_slot, const struct family *family, const char *prefix) {
    for (int i = 0; i < i_slot; i++)
        if (slot_takes(models_slot(i), family, prefix)) return true;
    return false;
}

static void find_family(const struct tensor_index *whole, const struct family *family,
                        struct contents *contents) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        for (const char *const *p = slot->prefixes; slot->family == family && p && *p; p++) {
            struct tensor_index view = index_view(whole, *p, 0);
            if (contents->n == CONTENTS_MAX || contents_is_listed(i, family, *p) || !family->probe(&view))
                continue;
            contents->component[contents->n].family = family;
            contents->component[contents->n++].prefix = *p;
        }
}

bool contents_alike(const struct family *one, const struct family *other) {
    bool encodes = one->kind == FAMILY_TEXT || one->kind == FAMILY_VISION;
    return one == other || (one->kind == other->kind && !encodes);
}

/* Has a recipe a slot for each, by their prefixes? */
static bool stand_apart(const struct family *one, const char *prefix, const struct family *other,
                        const char *second) {
    for (const struct recipe *const *r = recipes; *r; r++)
        for (const struct slot *a = (*r)->slot; a->family; a++)
            for (const struct slot *b = (*r)->slot; b->family; b++)
                if (a != b && slot_takes(a, one, prefix) && slot_takes(b, other, second)) return true;
    return false;
}

/* One place twice, or two components whose tensors cannot be told apart. */
static enum status check_contents(const struct tensor_index *whole, const struct contents *contents,
                                  struct error *e) {
    for (int i = 0; i < contents->n; i++)
        for (int k = 0; k < i; k++) {
            const struct family *one = contents->component[k].family, *other = contents->component[i].family;
            const char *prefix = contents->component[k].prefix, *second = contents->component[i].prefix;
            bool apart = !contents_alike(one, other) || stand_apart(one, prefix, other, second);
            if (apart && strcmp(prefix, second)) continue;
            error_set(e, UNSUPPORTED, "one file holds two parts that cannot be told apart");
            error_where(e, "%s", whole->sources[0].path);
            error_found(e, "%s behind '%s' and %s behind '%s'", one->word, prefix, other->word, second);
            return error_expected(e, "one %s, or prefixes", other->word);
        }
    return OK;
}

/* Bytes of whole words ("a.b.") that a name has in common with a prefix. */
static size_t in_common(const char *name, const char *prefix) {
    size_t common = 0;
    for (size_t i = 0; name[i] && name[i] == prefix[i]; i++)
        if (name[i] == '.') common = i + 1;
    return common;
}

/* A tensor belongs to the longest prefix that it has. What has none but stands beside a component
 * ("text_encoders.qwen3_4b.logit_scale") is the leftover of that component whose prefix is most like its
 * name. */
static int part_of(const char *name, const struct contents *contents) {
    int view = 0;
    size_t most = 0;
    bool whole = false;
    for (int i = 0; i < contents->n; i++) {
        const char *prefix = contents->component[i].prefix;
        bool has = !strncmp(name, prefix, strlen(prefix));
        size_t common = in_common(name, prefix);
        if (has < whole || (has == whole && common <= most && i)) continue;
        view = i;
        most = common;
        whole = has;
    }
    return view;
}

/* ---- what a GGUF file says of itself ---- */

enum { ARCHITECTURE_BYTES = 64 };

/* "" where nothing says it. */
static enum status contents_read_architecture(struct sys *sys, const struct tensor_index *whole,
                                              char name[ARCHITECTURE_BYTES], struct error *e) {
    static const char key[] = "general.architecture";
    struct config config = {0};
    *name = 0;
    if (!whole->config || !strstr(whole->config, key)) return OK;
    if (config_parse(sys, whole->sources[0].path, whole->config, NULL, &config, e) == OK)
        snprintf(name, ARCHITECTURE_BYTES, "%s", config_string(&config, key, ""));
    config_destroy(&config);
    return e->code;
}

bool contents_is_architecture(const struct family *family, const char *name) {
    for (const char *const *a = family->architectures; a && *a; a++)
        if (!strcmp(*a, name)) return true;
    return false;
}

/* "flux, lumina2, ...": of one family, or of all where that is NULL. */
static void list_architectures(const struct family *only, char *list, size_t bytes) {
    size_t n = 0;
    *list = 0;
    for (const struct family *const *f = families; *f; f++)
        for (const char *const *a = (*f)->architectures; a && *a && n < bytes; a++)
            if (!only || only == *f) n += (size_t)snprintf(list + n, bytes - n, "%s%s", n ? ", " : "", *a);
}

/* Some converters write their own name in place of the model's. */
static bool tells_nothing(const char *architecture) {
    return !*architecture || !strcmp(architecture, "pig") || !strcmp(architecture, "cow");
}

/* A file that says it is something else than its tensors are is taken for neither. */
static enum status check_architecture(struct sys *sys, const struct tensor_index *whole,
                                      const struct contents *contents, struct error *e) {
    char name[ARCHITECTURE_BYTES], known[160];
    const struct family *first = contents->n ? contents->component[0].family : NULL;
    bool is = false;
    if (contents_read_architecture(sys, whole, name, e) != OK || tells_nothing(name)) return e->code;
    for (int i = 0; i < contents->n; i++) is |= contents_is_architecture(contents->component[i].family, name);
    for (const struct family *const *f = families; *f && !first; f++)
        is |= contents_is_architecture(*f, name);
    if (is) return OK;
    list_architectures(first, known, sizeof known);
    error_set(e, UNSUPPORTED, "a model of this architecture is not supported");
    error_where(e, "%s, general.architecture", whole->sources[0].path);
    error_found(e, "\"%s\"", name);
    if (first && *known) return error_expected(e, "%s, which its tensors are, or none", known);
    return first ? error_expected(e, "none, for its tensors are %s's", first->name)
                 : error_expected(e, "%s, or none", known);
}

enum status contents_find(struct sys *sys, const struct tensor_index *whole, struct contents *contents,
                          struct error *e) {
    contents->n = 0;
    for (const struct family *const *f = families; *f; f++) find_family(whole, *f, contents);
    if (check_contents(whole, contents, e) != OK || check_architecture(sys, whole, contents, e) != OK)
        return e->code;
    for (int i = 0; i < whole->n_entries; i++)
        whole->entries[i].view = part_of(whole->entries[i].name, contents);
    return OK;
}

enum status contents_open(struct sys *sys, const char *path, struct tensor_index *whole,
                          struct contents *contents, struct error *e) {
    contents->n = 0;
    if (component_open(sys, path, whole, e) != OK) return e->code;
    if (contents_find(sys, whole, contents, e) != OK) index_destroy(whole);
    return e->code;
}
