#include "test/lib/layouts.h"

struct layout_model at_hand;

void layouts_read(const struct layout_family *family, const char *folder) {
    at_hand = (struct layout_model){.family = family, .folder = folder};
    for (int i = 0; i < family->n_parts; i++) at_hand.part[i] = pile_read(folder, family->parts[i].component);
}

void layouts_forget(void) {
    for (int i = 0; i < at_hand.family->n_parts; i++) pile_free(at_hand.part[i]);
    at_hand = (struct layout_model){0};
}

static int place_of(const char *component) {
    int i = 0;
    while (strcmp(at_hand.family->parts[i].component, component) != 0) i++;
    return i;
}

static struct pile *original_part(int i) {
    const struct layout_part *part = &at_hand.family->parts[i];
    return part->original ? part->original(at_hand.part[i]) : pile_copy(at_hand.part[i], "");
}

struct pile *layouts_part(const char *component) {
    return at_hand.part[place_of(component)];
}

struct pile *layouts_original(const char *component) {
    return original_part(place_of(component));
}

struct pile *layouts_vae_originally(const struct pile *of) {
    struct pile *p = pile_copy(of, "");
    name_vae_originally(p);
    return p;
}

static void choose(options *from, int i, const char *path) {
    memcpy((char *)from + at_hand.family->parts[i].flag, &path, sizeof path);
}

void layouts_choose(options *from, const char *component, const char *path) {
    choose(from, place_of(component), path);
}

void layouts_write_parts(const char *const *paths, bool configs) {
    for (int i = 0; i < at_hand.family->n_parts; i++) {
        const struct layout_part *part = &at_hand.family->parts[i];
        struct pile *original = original_part(i);
        bool bare = part->bare && pile_find(original, part->bare);
        struct pile *p = pile_copy(original, bare ? part->prefix : "");
        write_pile(p, under(paths[i]), configs ? p->config : NULL);
        pile_free(p);
        pile_free(original);
    }
}

options layouts_split(void) {
    options from = {.tokenizer = at_hand.tokenizer};
    for (int i = 0; i < at_hand.family->n_parts; i++) choose(&from, i, under(at_hand.family->parts[i].file));
    return from;
}

int layouts_write_all(const char *path, const struct all_in_one *one) {
    struct pile *all = NULL;
    json_t *configs = json_object();
    int32_t dim[1] = {1};
    for (int i = 0; i < at_hand.family->n_parts; i++) {
        struct pile *p = original_part(i);
        json_object_set_new(configs, one->key[i], json_loads(p->config, 0, NULL));
        if (all)
            pile_append(all, p, one->prefix[i]);
        else
            all = pile_copy(p, one->prefix[i]);
        pile_free(p);
    }
    for (int i = 0; i < LAYOUT_STRAYS && one->stray[i]; i++)
        pile_add(all, "", one->stray[i], "F32", strstr(one->stray[i], "lm_head") != NULL, dim, "1234", 4);
    char *text = json_dumps(configs, 0);
    int n = all->n;
    write_pile(all, path, text);
    free(text);
    json_decref(configs);
    pile_free(all);
    return n;
}

void misfits_add(struct pile *p, const char *name) {
    pile_add(p, "", name, "F32", 1, (int32_t[]){1}, "1234", 4);
}

void layouts_resize(struct pile *p, const char *name, int dimension, int32_t n) {
    struct item *item = pile_find(p, name);
    if (!check(item != NULL, "no tensor %s", name)) return;
    size_t bytes = item->bytes / (size_t)item->dim[dimension] * (size_t)n;
    unsigned char *data = calloc(1, bytes);
    if (!data) abort();
    memcpy(data, item->data, bytes < item->bytes ? bytes : item->bytes);
    free(item->data);
    item->data = data;
    item->bytes = bytes;
    item->dim[dimension] = n;
}

options layouts_with(const char *component, struct pile *p) {
    options from = {.model = at_hand.folder};
    const char *path = under("part.safetensors");
    write_pile(p, path, p->config);
    pile_free(p);
    layouts_choose(&from, component, path);
    return from;
}
