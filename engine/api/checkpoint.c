/* Checkpoints of any size for benchmarks and tests: a Hugging Face folder of a pipeline with real names,
 * shapes and types and random weights, written as a stream from the families' weight tables. */
#include "engine/api/made_weights.h"
#include "engine/api/model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHOICES_MAX = 16, TENSORS_MAX = FAMILY_BLOCKS_MAX * BLOCK_WEIGHTS_MAX };

static const struct {
    const char *folder, *file;
} places[N_ROLES] = {
    {"text_encoder", "model.safetensors"},
    {"transformer", "diffusion_pytorch_model.safetensors"},
    {"vae", "diffusion_pytorch_model.safetensors"},
};

struct writer {
    struct sys *sys;
    const struct recipe *recipe;
    const char *folder;
    int chosen[N_ROLES][CHOICES_MAX];
    enum dtype dtype;
    uint64_t random;
    /* the component being written */
    struct named_tensor *tensors;
    const struct weight_spec **specs;
    int n_tensors;
    uint64_t done, all; /* bytes */
    void (*on_progress)(void *user, double fraction);
    void *user;
};

/* ---- dimensions ---- */

static bool is_listed(const char *names, const char *name) {
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(names, word) != NULL;
}

/* One name may be two families'. */
static enum status list_choices(const struct recipe *recipe, struct error *e) {
    char names[320] = " dtype ";
    size_t n = strlen(names);
    for (int r = 0; r < N_ROLES; r++)
        for (int i = 0; i < recipe->role[r]->n_dimensions && n < sizeof names; i++)
            if (!is_listed(names, recipe->role[r]->dimensions[i].name))
                n +=
                    (size_t)snprintf(names + n, sizeof names - n, "%s ", recipe->role[r]->dimensions[i].name);
    return error_where(e, "known:%.*s", (int)strlen(names) - 1, names);
}

/* One "name=value" for every family that has a dimension of that name. */
static enum status choose(struct writer *w, const char *name, size_t name_bytes, long value,
                          struct error *e) {
    bool known = false;
    for (int r = 0; r < N_ROLES; r++)
        for (int i = 0; i < w->recipe->role[r]->n_dimensions; i++) {
            const struct dimension *d = &w->recipe->role[r]->dimensions[i];
            if (strlen(d->name) != name_bytes || strncmp(d->name, name, name_bytes)) continue;
            known = true;
            if (value < d->least || value > d->most) {
                error_set(e, USAGE, "the dimension '%s' cannot be used", d->name);
                error_found(e, "%ld", value);
                return error_expected(e, "%d to %d", d->least, d->most);
            }
            w->chosen[r][i] = (int)value;
        }
    if (known) return OK;
    error_set(e, USAGE, "there is no dimension '%.*s'", (int)name_bytes, name);
    return list_choices(w->recipe, e);
}

static enum status read_choices(struct writer *w, const char *text, struct error *e) {
    for (int r = 0; r < N_ROLES; r++)
        for (int i = 0; i < w->recipe->role[r]->n_dimensions; i++)
            w->chosen[r][i] = w->recipe->role[r]->dimensions[i].published;
    while (text && *text && e->code == OK) {
        size_t name = strcspn(text, "=,"), length = strcspn(text, ",");
        char *end = NULL;
        if (text[name] != '=') {
            error_set(e, USAGE, "dimensions are not readable");
            error_found(e, "'%.*s'", (int)length, text);
            return error_expected(e, "name=value,name=value");
        }
        const char *value = text + name + 1;
        if (!strncmp(text, "dtype=", 6)) {
            if (!strncmp(value, "f32", 3) && length == 9)
                w->dtype = DTYPE_F32;
            else if (!strncmp(value, "bf16", 4) && length == 10)
                w->dtype = DTYPE_BF16;
            else
                error_expected((error_set(e, USAGE, "the dtype cannot be used"), e), "f32 or bf16");
        } else {
            long number = strtol(value, &end, 10);
            if (end == value || end != text + length) {
                error_set(e, USAGE, "the dimension '%.*s' is no number", (int)name, text);
                return error_found(e, "'%.*s'", (int)(length - name - 1), value);
            }
            choose(w, text, name, number, e);
        }
        text += length + (text[length] == ',');
    }
    return e->code;
}

/* ---- weights ---- */

static enum status make_weights(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    struct writer *w = user;
    (void)e;
    made_weights(&w->random, &w->tensors[i].tensor, w->specs[i]->spread, to, bytes);
    w->done += bytes;
    if (w->on_progress) w->on_progress(w->user, (double)w->done / (double)w->all);
    return OK;
}

static enum status add_tensor(struct writer *w, const struct weight_spec *spec, int number,
                              const int32_t *dims, struct error *e) {
    char name[2 * BLOCK_NAME_MAX];
    int32_t dim[WEIGHT_RANK_MAX];
    block_weight_name(spec->names[0], number, name);
    char *kept = w->sys->alloc(w->sys, LINE_HOST, strlen(name) + 1);
    if (!kept) return error_set(e, MEMORY, "no memory for a tensor's name");
    strcpy(kept, name);
    for (int i = 0; i < spec->rank; i++) dim[i] = dims[spec->dim[i]];
    w->tensors[w->n_tensors].name = kept;
    w->tensors[w->n_tensors].tensor = tensor_make(NULL, w->dtype, spec->rank, dim);
    w->specs[w->n_tensors++] = spec;
    return OK;
}

static enum status list_tensors(struct writer *w, const struct component *c, struct error *e) {
    struct block_ref *refs = w->sys->alloc(w->sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *refs);
    if (!refs) return error_set(e, MEMORY, "no memory for a list of blocks");
    int n = c->family->blocks(c, refs);
    for (int b = 0; b < n; b++) {
        int32_t dims[FAMILY_DIMS_MAX];
        component_block_dims(c, &refs[b], dims);
        for (int i = 0; i < refs[b].kind->n_weights && e->code == OK; i++)
            if (!refs[b].kind->weights[i].optional)
                add_tensor(w, &refs[b].kind->weights[i], refs[b].number, dims, e);
    }
    w->sys->release(w->sys, refs);
    return e->code;
}

/* ---- files ---- */

static enum status make_folder(const char *path, struct error *e) {
    if (mkdir(path, 0777) == 0 || path_exists(path)) return OK;
    error_set(e, OUTPUT, "cannot create folder");
    return error_where(e, "%s", path);
}

static enum status write_text(const char *path, const char *text, struct error *e) {
    FILE *f = fopen(path, "w");
    bool ok = f && fputs(text, f) >= 0;
    if (f && fclose(f)) ok = false;
    if (ok) return OK;
    error_set(e, OUTPUT, "cannot write file");
    return error_where(e, "%s", path);
}

static enum status write_part(struct writer *w, const char *folder, const char *file, const char *text,
                              struct error *e) {
    char *inner = path_join(w->sys, w->folder, folder), *path = inner ? path_join(w->sys, inner, file) : NULL;
    if (!path)
        error_set(e, MEMORY, "no memory for a path");
    else if (make_folder(inner, e) == OK)
        write_text(path, text, e);
    w->sys->release(w->sys, path);
    w->sys->release(w->sys, inner);
    return e->code;
}

static enum status write_weights(struct writer *w, enum role role, struct error *e) {
    char *inner = path_join(w->sys, w->folder, places[role].folder);
    char *path = inner ? path_join(w->sys, inner, places[role].file) : NULL;
    struct tensor_maker maker = {w, make_weights};
    if (!path)
        error_set(e, MEMORY, "no memory for a path");
    else
        safetensors_write_made(w->sys, path, w->tensors, w->n_tensors, &maker, e);
    w->sys->release(w->sys, path);
    w->sys->release(w->sys, inner);
    return e->code;
}

static void forget_tensors(struct writer *w) {
    for (int i = 0; i < w->n_tensors; i++) w->sys->release(w->sys, (char *)w->tensors[i].name);
    w->n_tensors = 0;
}

/* Lists a component's tensors; counts or writes them. */
static enum status do_role(struct writer *w, enum role role, bool write, struct error *e) {
    struct component c = {.family = w->recipe->role[role], .sys = w->sys};
    char config[2048];
    c.family->derive(&c, w->chosen[role]);
    if (list_tensors(w, &c, e) != OK) goto out;
    for (int i = 0; i < w->n_tensors && !write; i++) w->all += (uint64_t)tensor_bytes(&w->tensors[i].tensor);
    if (!write) goto out;
    c.family->write_config(&c, config, sizeof config);
    if (write_part(w, places[role].folder, "config.json", config, e) == OK) write_weights(w, role, e);
out:
    forget_tensors(w);
    return e->code;
}

/* A byte-level tokenizer without merges: every byte a token, and the two that the template needs. */
static enum status write_tokenizer(struct writer *w, struct error *e) {
    json_t *vocab = json_object();
    int next = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        int code = printable ? byte : next++;
        char utf8[3] = {(char)code, 0, 0};
        if (code >= 0x80) {
            utf8[0] = (char)(0xc0 | code >> 6);
            utf8[1] = (char)(0x80 | (code & 63));
        }
        json_object_set_new(vocab, utf8, json_integer(byte));
    }
    json_t *root =
        json_pack("{s:s, s:[{s:i, s:s, s:b, s:b}, {s:i, s:s, s:b, s:b}, {s:i, s:s, s:b, s:b}], s:{s:s}, "
                  "s:{s:s, s:b, s:b, s:b}, "
                  "s:{s:s, s:o, s:[]}}",
                  "version", "1.0", "added_tokens", "id", 256, "content", "<|endoftext|>", "special", 1,
                  "normalized", 0, "id", 257, "content", "<|im_start|>", "special", 1, "normalized", 0, "id",
                  258, "content", "<|im_end|>", "special", 1, "normalized", 0, "normalizer", "type", "NFC",
                  "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex",
                  1, "model", "type", "BPE", "vocab", vocab, "merges");
    char *text = root ? json_dumps(root, 0) : NULL;
    if (!text)
        error_set(e, MEMORY, "no memory for a tokenizer");
    else
        write_part(w, "tokenizer", "tokenizer.json", text, e);
    free(text);
    json_decref(root);
    return e->code;
}

static enum status write_rest(struct writer *w, struct error *e) {
    char scheduler[160];
    snprintf(scheduler, sizeof scheduler,
             "{\"_class_name\": \"FlowMatchEulerDiscreteScheduler\", \"num_train_timesteps\": 1000, "
             "\"shift\": %.3g}\n",
             w->recipe->flow_shift);
    write_part(w, "scheduler", "scheduler_config.json", scheduler, e);
    if (e->code == OK) write_tokenizer(w, e);
    char *path = e->code == OK ? path_join(w->sys, w->folder, "model_index.json") : NULL;
    if (path)
        write_text(
            path,
            "{\"_class_name\": \"ZImagePipeline\", \"scheduler\": [\"diffusers\", "
            "\"FlowMatchEulerDiscreteScheduler\"], \"text_encoder\": [\"transformers\", \"Qwen3Model\"], "
            "\"tokenizer\": [\"transformers\", \"Qwen2Tokenizer\"], \"transformer\": [\"diffusers\", "
            "\"ZImageTransformer2DModel\"], \"vae\": [\"diffusers\", \"AutoencoderKL\"]}\n",
            e);
    w->sys->release(w->sys, path);
    return e->code;
}

static const struct recipe *find_recipe(const char *name, struct error *e) {
    for (const struct recipe *const *r = recipes; *r; r++)
        if (!strcmp((*r)->name, name)) return *r;
    error_set(e, USAGE, "there is no such family");
    error_found(e, "'%s'", name);
    error_expected(e, "%s", recipes[0]->name);
    return NULL;
}

int sluice_checkpoint_write(const char *family, const char *folder, const char *dimensions, uint64_t seed,
                            void (*on_progress)(void *user, double fraction), void *user,
                            struct sluice_error *error) {
    struct error e = {0};
    struct sys sys;
    sys_init_machine(&sys);
    struct writer w = {.sys = &sys,
                       .folder = folder,
                       .dtype = DTYPE_BF16,
                       .random = seed,
                       .on_progress = on_progress,
                       .user = user};
    w.recipe = find_recipe(family, &e);
    if (!w.recipe || read_choices(&w, dimensions, &e) != OK) return publish_error(&e, error);
    w.tensors = sys.alloc(&sys, LINE_HOST, TENSORS_MAX * sizeof *w.tensors);
    w.specs = sys.alloc(&sys, LINE_HOST, TENSORS_MAX * sizeof *w.specs);
    if (!w.tensors || !w.specs) error_set(&e, MEMORY, "no memory for a list of tensors");
    for (int r = 0; r < N_ROLES && e.code == OK; r++) do_role(&w, (enum role)r, false, &e);
    if (e.code == OK) make_folder(folder, &e);
    if (e.code == OK) write_rest(&w, &e);
    for (int r = 0; r < N_ROLES && e.code == OK; r++) do_role(&w, (enum role)r, true, &e);
    sys.release(&sys, w.tensors);
    sys.release(&sys, w.specs);
    return publish_error(&e, error);
}
