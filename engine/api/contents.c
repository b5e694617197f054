/* What a file holds: see contents.h. */
#include "engine/api/contents.h"

#include "loaders/loaders.h"

#include <string.h>

const struct family *contents_family(const struct tensor_index *view) {
    for (const struct family *const *f = families; *f; f++)
        if ((*f)->probe(view)) return *f;
    return NULL;
}

static void find_contents(const struct tensor_index *whole, struct contents *contents) {
    contents->n = 0;
    for (const struct family *const *f = families; *f; f++)
        for (const char *const *prefix = (*f)->prefixes; *prefix && contents->n < CONTENTS_MAX; prefix++) {
            struct tensor_index view = index_view(whole, *prefix, 0);
            if ((*f)->kind == FAMILY_ENCODER || !(*f)->probe(&view)) continue;
            contents->part[contents->n].family = *f;
            contents->part[contents->n++].prefix = *prefix;
        }
}

bool contents_alike(const struct family *one, const struct family *other) {
    return one == other || (one->kind == other->kind && one->kind != FAMILY_TEXT);
}

/* One place twice, or two parts whose tensors cannot be told apart. */
static enum status check_contents(const struct tensor_index *whole, const struct contents *contents,
                                  struct error *e) {
    for (int i = 0; i < contents->n; i++)
        for (int k = 0; k < i; k++) {
            const struct family *one = contents->part[k].family, *other = contents->part[i].family;
            const char *prefix = contents->part[k].prefix, *second = contents->part[i].prefix;
            if (!contents_alike(one, other) && strcmp(prefix, second)) continue;
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

enum status contents_open(struct sys *sys, const char *path, struct tensor_index *whole,
                          struct contents *contents, struct error *e) {
    contents->n = 0;
    if (component_open(sys, path, whole, e) != OK) return e->code;
    find_contents(whole, contents);
    if (check_contents(whole, contents, e) != OK) index_destroy(whole);
    for (int i = 0; i < whole->n_entries; i++)
        whole->entries[i].view = part_of(whole->entries[i].name, contents);
    return e->code;
}
