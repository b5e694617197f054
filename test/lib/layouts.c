#include "test/lib/layouts.h"

struct layout_model current_model;

void layouts_load(const struct layout_family *family, const char *folder) {
    current_model = (struct layout_model){.family = family, .folder = folder};
    for (int i = 0; i < family->n_parts; i++)
        current_model.part[i] = tensor_set_from_component(folder, family->parts[i].component);
}

void layouts_free(void) {
    for (int i = 0; i < current_model.family->n_parts; i++) tensor_set_free(current_model.part[i]);
    current_model = (struct layout_model){0};
}

static int place_of(const char *component) {
    int i = 0;
    while (strcmp(current_model.family->parts[i].component, component) != 0) i++;
    return i;
}

static struct tensor_set *checkpoint_part(int i) {
    const struct layout_part *part = &current_model.family->parts[i];
    return part->to_checkpoint ? part->to_checkpoint(current_model.part[i])
                               : tensor_set_copy(current_model.part[i], "");
}

struct tensor_set *layouts_part(const char *component) {
    return current_model.part[place_of(component)];
}

struct tensor_set *layouts_checkpoint_part(const char *component) {
    return checkpoint_part(place_of(component));
}

struct tensor_set *layouts_vae_to_checkpoint(const struct tensor_set *of) {
    struct tensor_set *p = tensor_set_copy(of, "");
    rename_vae_to_checkpoint(p);
    return p;
}

static void choose(options *from, int i, const char *path) {
    memcpy((char *)from + current_model.family->parts[i].flag, &path, sizeof path);
}

void layouts_set_path(options *from, const char *component, const char *path) {
    choose(from, place_of(component), path);
}

void layouts_write_parts(const char *const *paths, bool configs) {
    for (int i = 0; i < current_model.family->n_parts; i++) {
        const struct layout_part *part = &current_model.family->parts[i];
        struct tensor_set *original = checkpoint_part(i);
        bool bare = part->prefix_if && tensor_set_find(original, part->prefix_if);
        struct tensor_set *p = tensor_set_copy(original, bare ? part->prefix : "");
        write_tensor_set(p, temporary_path(paths[i]), configs ? p->config : NULL);
        tensor_set_free(p);
        tensor_set_free(original);
    }
}

options layouts_part_files(void) {
    options from = {.tokenizer = current_model.tokenizer};
    for (int i = 0; i < current_model.family->n_parts; i++)
        choose(&from, i, temporary_path(current_model.family->parts[i].file));
    return from;
}

int layouts_write_all(const char *path, const struct all_in_one *one) {
    struct tensor_set *all = NULL;
    json_t *configs = json_object();
    int32_t dim[1] = {1};
    for (int i = 0; i < current_model.family->n_parts; i++) {
        struct tensor_set *p = checkpoint_part(i);
        json_object_set_new(configs, one->key[i], json_loads(p->config, 0, NULL));
        if (all)
            tensor_set_append(all, p, one->prefix[i]);
        else
            all = tensor_set_copy(p, one->prefix[i]);
        tensor_set_free(p);
    }
    for (int i = 0; i < EXTRA_TENSORS_MAX && one->extra_tensor[i]; i++)
        tensor_set_add(all, "", one->extra_tensor[i], "F32", strstr(one->extra_tensor[i], "lm_head") != NULL,
                       dim, "1234", 4);
    char *text = json_dumps(configs, 0);
    int n = all->n;
    write_tensor_set(all, path, text);
    free(text);
    json_decref(configs);
    tensor_set_free(all);
    return n;
}

void invalid_models_add_marker(struct tensor_set *p, const char *name) {
    tensor_set_add(p, "", name, "F32", 1, (int32_t[]){1}, "1234", 4);
}

void layouts_resize(struct tensor_set *p, const char *name, int dimension, int32_t n) {
    struct item *item = tensor_set_find(p, name);
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

options layouts_replace_part(const char *component, struct tensor_set *p) {
    options from = {.model = current_model.folder};
    const char *path = temporary_path("part.safetensors");
    write_tensor_set(p, path, p->config);
    tensor_set_free(p);
    layouts_set_path(&from, component, path);
    return from;
}
