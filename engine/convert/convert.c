/* Writes the converted file with its metadata, and the JSON summary. */
#include "engine/convert/convert.h"

#include "engine/open/paths.h"
#include "engine/open/public_structs.h"
#include "loaders/json.h"
#include "loaders/quantise/quantise.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* Fails if the output would replace an input file. */
static enum status check_inputs_spared(const struct conversion *c, struct error *e) {
    struct stat s;
    if (stat(c->options->output, &s)) return OK;
    bool read = merge_reads(c->merge, (uint64_t)s.st_dev, (uint64_t)s.st_ino);
    for (int i = 0; i < c->whole.n_sources; i++) {
        const struct file_identity *identity = &c->whole.sources[i].identity;
        read |= identity->device == (uint64_t)s.st_dev && identity->inode == (uint64_t)s.st_ino;
    }
    if (!read) return OK;
    return error_set(e, USAGE,
                     "the output is one of the input files" WHERE "%s" EXPECTED "another output name",
                     c->options->output);
}

static enum status check_disk(const struct conversion *c, struct error *e) {
    struct statvfs s;
    char *folder = path_folder(c->sys, c->options->output, e);
    bool known = folder && statvfs(folder, &s) == 0;
    c->sys->release(c->sys, folder);
    if (!known) return e->code;
    uint64_t free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    if (free_bytes >= c->bytes) return OK;
    return error_set(
        e, OUTPUT, "not enough disk space for the output" WHERE "%s" FOUND "%.1f MB free" EXPECTED "%.1f MB",
        c->options->output, (double)free_bytes / 1e6, (double)c->bytes / 1e6);
}

/* Reads the metadata of a GGUF input and sets *n to the number of keys. */
static enum status open_metadata(struct conversion *c, int *n, struct error *e) {
    struct gguf_text key;
    struct gguf_value value;
    size_t bytes = 1;
    *n = 0;
    if (!c->whole.n_sources || c->options->n_inputs != 1 || !gguf_is(c->sys, c->whole.sources[0].path))
        return OK;
    if (gguf_read(&c->whole.sources[0], &c->header, e) != OK) return e->code;
    while (gguf_pair_at(c->header, *n, &key, &value)) {
        bytes += key.bytes + 1;
        ++*n;
    }
    c->keys = c->sys->alloc(c->sys, LINE_HOST, bytes);
    c->values = c->sys->alloc(c->sys, LINE_HOST, ((size_t)*n + 1) * sizeof *c->values);
    return c->keys && c->values ? OK : error_set(e, MEMORY, "no memory for metadata");
}

/* Appends a GGUF input's metadata (mostly tokenizers) to the output's metadata, without keys that the output
 * sets and keys about the input's layout. */
static void repeat_metadata(struct conversion *c, struct gguf_metadata *metadata, int *n) {
    static const char *const anew[] = {"general.architecture", "general.quantization_version",
                                       "general.file_type", "general.alignment"};
    struct gguf_text key;
    char *name = c->keys;
    for (int i = 0; c->header && gguf_pair_at(c->header, i, &key, &c->values[i]); i++) {
        memcpy(name, key.text, key.bytes);
        name[key.bytes] = 0;
        bool dropped = strlen(name) != key.bytes || (!strcmp(name, "config") && c->config_is_file) ||
                       !strncmp(name, "split.", 6) || !strncmp(name, "comfy.gguf.orig_shape.", 22);
        for (size_t k = 0; k < sizeof anew / sizeof *anew; k++) dropped |= !strcmp(name, anew[k]);
        if (!dropped) metadata[(*n)++] = (struct gguf_metadata){.key = name, .value = &c->values[i]};
        name += key.bytes + 1;
    }
}

/* Value of the GGUF key general.file_type: for the type in --type, else for the type with the most bytes. */
static double file_type(const struct conversion *c) {
    static const int file_types[N_DTYPES] = {
        [DTYPE_F16] = 1,   [DTYPE_Q4_0] = 2,  [DTYPE_Q8_0] = 7,  [DTYPE_Q5_0] = 8,
        [DTYPE_Q4_K] = 14, [DTYPE_Q5_K] = 16, [DTYPE_Q6_K] = 18, [DTYPE_BF16] = 32};
    uint64_t bytes[N_DTYPES] = {0};
    int most = DTYPE_F32;
    if (c->options->type) return file_types[quantise_type(c->options->type)];
    for (int i = 0; i < c->n_items; i++)
        bytes[c->items[i].dtype] += (uint64_t)tensor_bytes(&c->items[i].shape);
    for (int i = 0; i < N_DTYPES; i++)
        if (bytes[i] > bytes[most]) most = i;
    return file_types[most];
}

static void describe_gguf(struct conversion *c, struct gguf_metadata *metadata, int *n, const char *config) {
    /* the input's value of general.architecture if it fits the component's family, else the family's value */
    const char *name = c->header ? gguf_architecture(c->header) : "";
    if (c->family && !contents_is_architecture(c->family, name)) name = c->architecture;
    if (*name)
        metadata[(*n)++] =
            (struct gguf_metadata){.key = "general.architecture", .kind = GGUF_STRING, .text = name};
    metadata[(*n)++] =
        (struct gguf_metadata){.key = "general.quantization_version", .kind = GGUF_U32, .number = 2};
    metadata[(*n)++] =
        (struct gguf_metadata){.key = "general.file_type", .kind = GGUF_U32, .number = file_type(c)};
    if (config && (c->config_is_file || !c->header))
        metadata[(*n)++] = (struct gguf_metadata){.key = "config", .kind = GGUF_STRING, .text = config};
    repeat_metadata(c, metadata, n);
}

static enum status write_gguf(struct conversion *c, const struct named_tensor *tensors, const char *config,
                              struct error *e) {
    enum { ANEW = 4 };
    struct tensor_maker maker = {c, convert_make};
    int n = 0, repeated = 0;
    if (open_metadata(c, &repeated, e) != OK) return e->code;
    struct gguf_metadata *metadata =
        c->sys->alloc(c->sys, LINE_HOST, (size_t)(ANEW + repeated) * sizeof *metadata);
    if (!metadata) return error_set(e, MEMORY, "no memory for metadata");
    describe_gguf(c, metadata, &n, config);
    gguf_write_made(c->sys, c->options->output, metadata, n, tensors, c->n_items, &maker, e);
    c->sys->release(c->sys, metadata);
    return e->code;
}

/* ComfyUI's _quantization_metadata: {"format_version":"1.0","layers":{LAYER:{"format":"float8_e4m3fn"}}};
 * NULL: no scaled fp8 layers. */
static char *layers_text(const struct conversion *c, unsigned json_failures) {
    json_t *layers = json_object();
    for (int i = 1; i < c->n_items; i++) {
        enum dtype dtype = c->items[i].dtype;
        bool f8 = dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2;
        if (!f8 || c->items[i - 1].what != CONVERTED_SCALE) continue;
        const char *form = dtype == DTYPE_F8_E4M3 ? "float8_e4m3fn" : "float8_e5m2";
        int n = (int)(strlen(c->items[i].name) - strlen(".weight"));
        json_t *name = json_sprintf("%.*s", n, c->items[i].name);
        json_put(layers, json_string_value(name), json_pack("{s:s}", "format", form));
        json_decref(name);
    }
    bool any = json_object_size(layers) > 0;
    json_t *json = json_pack("{s:s, s:o}", "format_version", "1.0", "layers", layers);
    if (any) return json_to_text(json, JSON_COMPACT, json_failures);
    json_decref(json);
    return NULL;
}

static enum status write_safetensors(struct conversion *c, const struct named_tensor *tensors,
                                     const char *config, struct error *e) {
    struct safetensors_text metadata[3] = {{"format", "pt"}};
    struct tensor_maker maker = {c, convert_make};
    char *layers = layers_text(c, failed_json_allocations());
    struct safetensors_content content = {
        .tensors = tensors, .n_tensors = c->n_items, .metadata = metadata, .n_metadata = 1};
    if (config) metadata[content.n_metadata++] = (struct safetensors_text){"config", config};
    if (layers) metadata[content.n_metadata++] = (struct safetensors_text){"_quantization_metadata", layers};
    safetensors_write_content(c->sys, c->options->output, &content, &maker, e);
    free(layers);
    return e->code;
}

static enum status write_file(struct conversion *c, struct error *e) {
    struct named_tensor *tensors =
        c->sys->alloc(c->sys, LINE_HOST, ((size_t)c->n_items + 1) * sizeof *tensors);
    if (!tensors) return error_set(e, MEMORY, "no memory for %d tensors", c->n_items);
    for (int i = 0; i < c->n_items; i++)
        tensors[i] = (struct named_tensor){c->items[i].name, c->items[i].shape};
    unsigned json_failures = failed_json_allocations();
    char *config = NULL; /* the component's configuration as flat JSON, without keys about tensor types */
    if (c->config.n_values) {
        static const char *const others[] = {"general.file_type", "general.quantization_version", "config"};
        json_t *json = config_json(&c->config);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) json_object_del(json, others[i]);
        config = json_to_text(json, JSON_COMPACT, json_failures);
    }
    c->to_gguf ? write_gguf(c, tensors, config, e) : write_safetensors(c, tensors, config, e);
    free(config);
    c->sys->release(c->sys, tensors);
    return e->code;
}

static enum status summarise(const struct conversion *c, char **json, struct error *e) {
    unsigned json_failures = failed_json_allocations();
    uint64_t from = 0;
    json_t *types = json_object(); /* JSON object: output bytes of each element type */
    for (int i = 0; i < c->n_items; i++) {
        const char *name = dtype_name(c->items[i].dtype);
        json_int_t bytes = json_integer_value(json_object_get(types, name));
        json_put(types, name, json_integer(bytes + (json_int_t)tensor_bytes(&c->items[i].shape)));
        from += c->items[i].what ? 0 : c->items[i].entry->bytes;
    }
    json_t *summary = json_pack("{s:i, s:s?, s:i, s:I, s:I, s:o}", "version", 1, "family",
                                c->family ? c->family->name : NULL, "tensors", c->n_items, "from_bytes",
                                (json_int_t)from, "bytes", (json_int_t)c->bytes, "types", types);
    if (c->options->n_loras) json_put(summary, "merged", json_integer(merge_count(c->merge)));
    *json = json_to_text(summary, JSON_INDENT(1), json_failures);
    return *json ? OK : error_set(e, MEMORY, "no memory for the summary");
}

enum status convert_files(struct sys *sys, const struct sluice_convert_options *options, char **json,
                          struct error *e) {
    struct conversion c = {.sys = sys, .options = options};
    const char *output = options->output ? options->output : "", *extension = strrchr(output, '.');
    if (json) *json = NULL;
    c.to_gguf = extension && extension > output && !strcasecmp(extension, ".gguf");
    if (!c.to_gguf && !(extension && extension > output && !strcasecmp(extension, ".safetensors")))
        return error_set(e, USAGE,
                         "unknown output extension" FOUND "\"%s\"" EXPECTED
                         "a name that ends in .gguf or .safetensors",
                         output);
    if (convert_open(&c, e) == OK && check_inputs_spared(&c, e) == OK && convert_choose(&c, e) == OK &&
        check_disk(&c, e) == OK && convert_prepare(&c, e) == OK && write_file(&c, e) == OK && json)
        summarise(&c, json, e);
    convert_close(&c);
    return e->code;
}

int sluice_convert(const struct sluice_convert_options *options, char **json, struct sluice_error *error) {
    struct sluice_convert_options ours = {.struct_size = sizeof ours};
    struct error e = {0};
    struct sys machine;
    if (!check_struct_size(options, "options", &e)) return publish_error(&e, error);
    copy_sized(&ours, sizeof ours, options);
    sys_init_machine(&machine);
    convert_files(&machine, &ours, json, &e);
    return publish_error(&e, error);
}
