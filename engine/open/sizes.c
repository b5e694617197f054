#include "engine/open/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct recipe *sizes_find_recipe(const char *name, struct error *e) {
    for (const struct recipe *const *r = recipes; *r; r++)
        if (!strcmp((*r)->name, name)) return *r;
    char known[sizeof e->where] = "";
    for (const struct recipe *const *r = recipes; *r; r++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, " %s", (*r)->name);
    }
    error_set(e, USAGE, "unknown family" WHERE "known:%s" FOUND "'%s'", known, name);
    return NULL;
}

static bool sizes_is_listed(const char *names, const char *name) {
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(names, word) != NULL;
}

static bool sizes_has(const struct sizes *sizes, const struct recipe *recipe, const struct slot *slot) {
    return sizes->only < SLOTS_MAX ? slot == &recipe->slot[sizes->only] : !slot_is_extra(slot);
}

/* Adds the list of known dimension names to the error. Names that several families share are listed once. */
static enum status list_choices(const struct sizes *sizes, const struct recipe *recipe, struct error *e) {
    char names[320] = " dtype ";
    size_t n = strlen(names);
    for (const struct slot *s = recipe->slot; s->family; s++)
        for (int i = 0; sizes_has(sizes, recipe, s) && i < s->family->n_dimensions && n < sizeof names; i++) {
            const char *name = s->family->dimensions[i].name;
            if (name && !sizes_is_listed(names, name))
                n += (size_t)snprintf(names + n, sizeof names - n, "%s ", name);
        }
    return error_where(e, "known:%.*s", (int)strlen(names) - 1, names);
}

/* True if a dimension in --dims applies to the slot: the part before the dot ("clip_g.", "text_encoder_2.")
 * is empty, or names the slot's flag or folder. */
static bool sizes_are_for(const struct slot *slot, const char *part, size_t part_bytes) {
    const char *flag = slot->flag ? slot->flag + strspn(slot->flag, "-") : "";
    bool by_flag = strlen(flag) + 1 == part_bytes && !strncmp(flag, part, part_bytes - 1);
    bool by_folder = strlen(slot->folder) + 1 == part_bytes && !strncmp(slot->folder, part, part_bytes - 1);
    return !part_bytes || by_flag || by_folder;
}

/* Sets a dimension of --dims: "name=value" in every slot whose family has the dimension, "part.name=value"
 * only in the slot of the part. */
static enum status sizes_choose(struct sizes *sizes, const struct recipe *recipe, const char *name,
                                size_t name_bytes, long value, struct error *e) {
    const char *part = name, *dot = memchr(name, '.', name_bytes);
    size_t part_bytes = dot ? (size_t)(dot - name) + 1 : 0;
    bool known = false;
    name += part_bytes;
    name_bytes -= part_bytes;
    for (int s = 0; s < SLOTS_MAX && recipe->slot[s].family; s++)
        for (int i = 0; i < recipe->slot[s].family->n_dimensions; i++) {
            const struct dimension *d = &recipe->slot[s].family->dimensions[i];
            if (!d->name || strlen(d->name) != name_bytes || strncmp(d->name, name, name_bytes)) continue;
            if (!sizes_has(sizes, recipe, &recipe->slot[s])) continue;
            if (!sizes_are_for(&recipe->slot[s], part, part_bytes)) continue;
            known = true;
            if (value < d->least || value > d->most) {
                return error_set(e, USAGE,
                                 "the dimension '%s' is out of range" FOUND "%ld" EXPECTED "%d to %d",
                                 d->name, value, d->least, d->most);
            }
            sizes->of[s][i] = (int)value;
        }
    if (known) return OK;
    error_set(e, USAGE, "unknown dimension '%.*s'", (int)(part_bytes + name_bytes), part);
    return list_choices(sizes, recipe, e);
}

static enum status read_choice(struct sizes *sizes, const struct recipe *recipe, const char *text,
                               size_t length, struct error *e) {
    const char *equals = memchr(text, '=', length);
    char *end = NULL;
    if (!equals) {
        return error_set(e, USAGE,
                         "--dims has an entry without '='" FOUND "'%.*s'" EXPECTED "name=value,name=value",
                         (int)length, text);
    }
    size_t name = (size_t)(equals - text), bytes = length - name - 1;
    if (name == 5 && !strncmp(text, "dtype", name)) {
        sizes->dtype = equals + 1;
        sizes->dtype_bytes = bytes;
        return OK;
    }
    long number = strtol(equals + 1, &end, 10);
    if (end == equals + 1 || end != text + length) {
        return error_set(e, USAGE, "the dimension '%.*s' is not a number" FOUND "'%.*s'", (int)name, text,
                         (int)bytes, equals + 1);
    }
    return sizes_choose(sizes, recipe, text, name, number, e);
}

/* True if the dimension name at `at`, up to its "=", occurs earlier in the value of --dims. */
static bool came_before(const char *text, const char *at) {
    size_t bytes = strcspn(at, "=,") + 1;
    while (text < at && strncmp(text, at, bytes)) text += strcspn(text, ",") + 1;
    return text < at;
}

enum status sizes_read(struct sizes *sizes, const struct recipe *recipe, int only, const char *text,
                       struct error *e) {
    *sizes = (struct sizes){.only = only};
    for (int s = 0; s < SLOTS_MAX && recipe->slot[s].family; s++)
        for (int i = 0; i < recipe->slot[s].family->n_dimensions; i++)
            sizes->of[s][i] = slot_dimension(&recipe->slot[s], &recipe->slot[s].family->dimensions[i]);
    for (const char *at = text; at && *at && e->code == OK;) {
        size_t length = strcspn(at, ",");
        if (read_choice(sizes, recipe, at, length, e) == OK && came_before(text, at)) {
            error_set(e, USAGE,
                      "--dims gives a dimension twice" FOUND "'%.*s'" EXPECTED "each dimension once",
                      (int)length, at);
        }
        at += length + (at[length] == ',');
    }
    return e->code;
}
