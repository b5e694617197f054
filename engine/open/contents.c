/* Detects the components in a file: implements contents.h. */
#include "engine/open/contents.h"

#include "loaders/loaders.h"

#include <stdio.h>
#include <string.h>

/* Adds the components of a family, under every tensor prefix of its slots. Recipes share families, so a
 * prefix of an earlier slot is skipped. */
static void find_family(const struct tensor_index *whole, const struct family *family,
                        struct contents *contents) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        for (const char *const *p = slot->prefixes; slot->family == family && p && *p; p++) {
            struct tensor_index view = index_view(whole, *p, 0);
            bool is_listed = contents->n == CONTENTS_MAX;
            for (int k = 0; k < i && !is_listed; k++) is_listed = slot_takes(models_slot(k), family, *p);
            if (is_listed || !family->files.probe(&view)) continue;
            contents->component[contents->n].family = family;
            contents->component[contents->n++].prefix = *p;
        }
}

/* True if the file holds a control network with this prefix. */
static bool has_control(const struct contents *contents, const char *prefix) {
    for (int i = 0; i < contents->n; i++)
        if (contents->component[i].family->kind == FAMILY_CONTROL &&
            !strcmp(contents->component[i].prefix, prefix))
            return true;
    return false;
}

/* Removes other components with the prefix of a control network. Control networks have tensors of their
 * denoiser, so these files match the denoiser's family too. */
static void drop_controlled(struct contents *contents) {
    struct contents all = *contents;
    contents->n = 0;
    for (int i = 0; i < all.n; i++)
        if (all.component[i].family->kind == FAMILY_CONTROL || !has_control(&all, all.component[i].prefix))
            contents->component[contents->n++] = all.component[i];
}

bool contents_exclusive(const struct family *one, const struct family *other) {
    bool encodes = one->kind == FAMILY_TEXT || one->kind == FAMILY_VISION;
    return one == other || (one->kind == other->kind && !encodes);
}

/* Fails if two components in a file are of the same kind and no recipe uses both, or have the same tensor
 * prefix and neither lists its names (family_files.names). */
static enum status check_contents(const struct tensor_index *whole, const struct contents *contents,
                                  struct error *e) {
    for (int i = 0; i < contents->n; i++)
        for (int k = 0; k < i; k++) {
            const struct family *one = contents->component[k].family, *other = contents->component[i].family;
            const char *prefix = contents->component[k].prefix, *second = contents->component[i].prefix;
            bool apart = !contents_exclusive(one, other);
            for (const struct recipe *const *r = recipes; *r && !apart; r++)
                for (const struct slot *a = (*r)->slot; a->family; a++)
                    for (const struct slot *b = (*r)->slot; b->family; b++)
                        apart |= a != b && slot_takes(a, one, prefix) && slot_takes(b, other, second);
            if (apart && (strcmp(prefix, second) || one->files.names || other->files.names)) continue;
            return error_set(e, UNSUPPORTED,
                             "the file holds two components that cannot be told apart" WHERE "%s" FOUND
                             "%s with tensor prefix '%s' and %s with '%s'" EXPECTED
                             "one %s, or the tensor prefixes of a known checkpoint",
                             whole->sources[0].path, one->display_name, prefix, other->display_name, second,
                             other->display_name);
        }
    return OK;
}

/* True if the family lists the beginning of this tensor name, which is without prefix (family_files.names).
 */
static bool is_named(const struct family *family, const char *name) {
    for (const char *const *n = family->files.names; n && *n; n++)
        if (!strncmp(name, *n, strlen(*n))) return true;
    return false;
}

/* Finds the component that a tensor belongs to, by the longest matching prefix; of components with the same
 * prefix, the one that lists the name. If no prefix matches completely
 * ("text_encoders.qwen3_4b.logit_scale"), the prefix with the longest common beginning decides. */
static int part_of(const char *name, const struct contents *contents) {
    int view = 0;
    size_t most = 0;
    bool whole = false;
    for (int i = 0; i < contents->n; i++) {
        const char *prefix = contents->component[i].prefix;
        const struct family *family = contents->component[i].family;
        bool has = !strncmp(name, prefix, strlen(prefix)),
             named = has && is_named(family, name + strlen(prefix));
        size_t common = 0; /* length of the common start of name and prefix, up to their last common dot */
        for (size_t k = 0; name[k] && name[k] == prefix[k]; k++)
            if (name[k] == '.') common = k + 1;
        if (family->files.names && !named && contents->n > 1) continue;
        if (has < whole || (has == whole && common + named <= most && i)) continue;
        view = i;
        most = common;
        whole = has;
    }
    return view;
}

enum { ARCHITECTURE_BYTES = 64 };

static enum status read_architecture(struct sys *sys, const struct tensor_index *whole,
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
    for (const char *const *a = family->files.architectures; a && *a; a++)
        if (!strcmp(*a, name)) return true;
    return false;
}

/* Fails if general.architecture is unknown or contradicts the tensors. */
static enum status check_architecture(struct sys *sys, const struct tensor_index *whole,
                                      const struct contents *contents, struct error *e) {
    enum { LIST_BYTES = 136 }; /* with ", ..." and ", or no such key" the list fits into error.expected */
    char name[ARCHITECTURE_BYTES], known[LIST_BYTES + 8] = "";
    const struct family *first = contents->n ? contents->component[0].family : NULL;
    bool is = false, full = false;
    size_t bytes = 0;
    if (read_architecture(sys, whole, name, e) != OK) return e->code;
    /* general.architecture is absent, or a placeholder that some converters write instead of the model's
     * name */
    if (!*name || !strcmp(name, "pig") || !strcmp(name, "cow")) return OK;
    for (int i = 0; i < contents->n; i++) is |= contents_is_architecture(contents->component[i].family, name);
    for (const struct family *const *f = families; *f && !first; f++)
        is |= contents_is_architecture(*f, name);
    if (is) return OK;
    /* Expected: the architectures of the first component's family, else those of all families, each once. */
    for (const struct family *const *f = families; *f; f++) {
        /* `convert` alone writes GGUF files of control networks and upscalers. */
        if (!first && family_outside_pipelines(*f)) continue;
        for (const char *const *a = (*f)->files.architectures; a && *a && !full; a++) {
            bool listed = first && first != *f;
            for (const struct family *const *g = families; g < f && !first; g++)
                listed |= contents_is_architecture(*g, *a);
            full = !listed && bytes + strlen(*a) + 2 > LIST_BYTES;
            if (!listed)
                bytes += (size_t)snprintf(known + bytes, sizeof known - bytes, "%s%s", bytes ? ", " : "",
                                          full ? "..." : *a);
        }
    }
    error_set(e, UNSUPPORTED, "%s" WHERE "%s, general.architecture" FOUND "\"%s\"",
              first ? "the GGUF architecture contradicts the tensors" : "unsupported GGUF architecture",
              whole->sources[0].path, name);
    if (first && *known) return error_expected(e, "%s, as its tensors are, or no such key", known);
    return first ? error_expected(e, "no such key: the tensors are those of %s", first->name)
                 : error_expected(e, "%s, or no such key", known);
}

enum status contents_find(struct sys *sys, const struct tensor_index *whole, struct contents *contents,
                          struct error *e) {
    contents->n = 0;
    for (const struct family *const *f = families; *f; f++) find_family(whole, *f, contents);
    drop_controlled(contents);
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
