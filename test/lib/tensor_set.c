#include "test/lib/tensor_set.h"

#include "loaders/loaders.h"

struct item *tensor_set_add(struct tensor_set *p, const char *prefix, const char *name, const char *type,
                            int rank, const int32_t *dim, const void *data, size_t bytes) {
    if (p->n == TENSOR_SET_MAX) abort();
    struct item *item = &p->item[p->n++];
    *item = (struct item){.type = type, .rank = rank, .data = malloc(bytes + 1), .bytes = bytes};
    if (!item->data) abort();
    if (snprintf(item->name, sizeof item->name, "%s%s", prefix, name) >= TENSOR_SET_NAME) abort();
    for (int i = 0; i < rank; i++) item->dim[i] = dim[i];
    if (data) memcpy(item->data, data, bytes);
    return item;
}

void tensor_set_free(struct tensor_set *p) {
    for (int i = 0; i < p->n; i++) free(p->item[i].data);
    free(p->config);
    free(p);
}

struct item *tensor_set_find(struct tensor_set *p, const char *name) {
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->item[i].name, name)) return &p->item[i];
    return NULL;
}

struct tensor_set *tensor_set_from_file(const char *path) {
    struct sys sys;
    struct tensor_index index;
    struct error e = {0};
    struct tensor_set *p = calloc(1, sizeof *p);
    sys_init_machine(&sys);
    if (!p || component_open(&sys, path, &index, &e) != OK) abort();
    for (int i = 0; i < index.n_entries; i++) {
        const struct index_entry *t = &index.entries[i];
        struct item *item =
            tensor_set_add(p, "", t->name, dtype_name(t->dtype), t->rank, t->dim, NULL, t->bytes);
        if (source_read(&index.sources[t->source], item->data, t->bytes, t->offset, &e) != OK) abort();
    }
    index_destroy(&index);
    return p;
}

struct tensor_set *tensor_set_from_component(const char *model, const char *component) {
    char path[TENSOR_SET_PATH];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", model, component);
    struct tensor_set *p = tensor_set_from_file(path);
    snprintf(path, sizeof path, "%s/%s/config.json", model, component);
    p->config = read_file(path, &bytes);
    if (!p->config) abort();
    return p;
}

void tensor_set_append(struct tensor_set *p, const struct tensor_set *from, const char *prefix) {
    for (int i = 0; i < from->n; i++) {
        const struct item *t = &from->item[i];
        tensor_set_add(p, prefix, t->name, t->type, t->rank, t->dim, t->data, t->bytes);
    }
}

struct tensor_set *tensor_set_copy(const struct tensor_set *from, const char *prefix) {
    struct tensor_set *p = calloc(1, sizeof *p);
    if (!p) abort();
    tensor_set_append(p, from, prefix);
    if (from->config) p->config = strdup(from->config);
    p->key = from->key;
    memcpy(p->gguf, from->gguf, sizeof p->gguf);
    p->n_gguf = from->n_gguf;
    return p;
}

void rename_part(struct item *item, const char *from, const char *to) {
    char *at = strstr(item->name, from), tail[TENSOR_SET_NAME];
    if (!at) return;
    snprintf(tail, sizeof tail, "%s", at + strlen(from));
    snprintf(at, sizeof item->name - (size_t)(at - item->name), "%s%s", to, tail);
}

void join_rows(struct tensor_set *p, struct item *to, const char *name) {
    struct item *t = tensor_set_find(p, name);
    if (!t) abort();
    to->data = realloc(to->data, to->bytes + t->bytes);
    if (!to->data) abort();
    memcpy(to->data + to->bytes, t->data, t->bytes);
    to->bytes += t->bytes;
    to->dim[0] += t->dim[0];
    snprintf(t->name, sizeof t->name, "-");
}

void tensor_set_drop(struct tensor_set *p, const char *prefix) {
    int kept = 0;
    for (int i = 0; i < p->n; i++)
        if (strncmp(p->item[i].name, prefix, strlen(prefix)))
            p->item[kept++] = p->item[i];
        else
            free(p->item[i].data);
    p->n = kept;
}

void write_tensors(const struct tensor_set *p, int first, int n, const char *path, const char *key,
                   const char *metadata) {
    json_t *header = json_object();
    json_int_t at = 0;
    if (metadata) json_object_set_new(header, "__metadata__", json_pack("{s:s}", key, metadata));
    for (int i = first; i < first + n; i++) {
        const struct item *t = &p->item[i];
        json_t *shape = json_array();
        for (int k = 0; k < t->rank; k++) json_array_append_new(shape, json_integer(t->dim[k]));
        json_int_t end = at + (json_int_t)t->bytes;
        json_object_set_new(
            header, t->name,
            json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->type, "shape", shape, "data_offsets", at, end));
        at = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    fwrite(&length, 8, 1, f);
    fwrite(text, 1, length, f);
    for (int i = first; i < first + n; i++) fwrite(p->item[i].data, 1, p->item[i].bytes, f);
    fclose(f);
    free(text);
    json_decref(header);
}

void write_tensor_set(const struct tensor_set *p, const char *path, const char *config) {
    write_tensors(p, 0, p->n, path, "config", config);
}

/* Progress of writing a set: the current tensor, and how many of its bytes are written. */
struct giving {
    const struct tensor_set *set;
    int tensor;
    uint64_t given;
};

static enum status give_bytes(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    struct giving *g = user;
    (void)e;
    if (i != g->tensor) g->given = 0;
    g->tensor = i;
    memcpy(to, g->set->item[i].data + g->given, bytes);
    g->given += bytes;
    return OK;
}

static enum dtype dtype_named(const char *name) {
    enum dtype dtype = 0;
    while (strcmp(dtype_name(dtype), name) != 0) dtype++;
    return dtype;
}

void write_gguf(struct tensor_set *p, const char *path) {
    static struct named_tensor tensors[TENSOR_SET_MAX];
    struct sys sys;
    struct error e = {0};
    struct giving giving = {p, -1, 0};
    sys_init_machine(&sys);
    for (int i = 0; i < p->n; i++) {
        const struct item *t = &p->item[i];
        tensors[i] = (struct named_tensor){t->name, tensor_make(NULL, dtype_named(t->type), t->rank, t->dim)};
    }
    gguf_write_made(&sys, path, p->gguf, p->n_gguf, tensors, p->n,
                    &(struct tensor_maker){&giving, give_bytes}, &e);
    check(e.code == OK, "%s: %s", path, e.what);
}

void write_sharded(const struct tensor_set *p, const char *folder, const char *config) {
    static const char *const names[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    json_t *map = json_object();
    char path[2 * TENSOR_SET_PATH];
    int half = p->n / 2;
    mkdir(folder, 0777);
    for (int i = 0; i < p->n; i++) json_object_set_new(map, p->item[i].name, json_string(names[i >= half]));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        write_tensors(p, i * half, i ? p->n - half : half, path, "config", config);
    }
    json_t *root = json_pack("{s:o}", "weight_map", map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    json_dump_file(root, path, 0);
    json_decref(root);
}
