/* What a GGUF file says of itself, from one to the next: tokenizers, templates, numbers of heads. See
 * convert.h. */
#include "engine/convert/convert.h"

#include <string.h>

/* What is said anew, and what is about how the tensors lay in the other file. */
static bool is_of_the_file(const struct conversion *c, const char *key) {
    static const char *const anew[] = {"general.architecture", "general.quantization_version",
                                       "general.file_type", "general.alignment"};
    for (size_t i = 0; i < sizeof anew / sizeof *anew; i++)
        if (!strcmp(key, anew[i])) return true;
    if (!strcmp(key, "config")) return c->config_beside;
    return !strncmp(key, "split.", 6) || !strncmp(key, "comfy.gguf.orig_shape.", 22);
}

static bool is_gguf(const struct conversion *c) {
    return c->to_gguf && c->options->n_inputs == 1 && gguf_is(c->sys, c->whole.sources[0].path);
}

enum status convert_open_metadata(struct conversion *c, int *n, struct error *e) {
    struct gguf_text key;
    struct gguf_value value;
    size_t bytes = 1;
    *n = 0;
    if (!c->whole.n_sources || !is_gguf(c)) return OK;
    if (gguf_read(&c->whole.sources[0], &c->header, e) != OK) return e->code;
    while (gguf_pair_at(c->header, *n, &key, &value)) {
        bytes += key.bytes + 1;
        ++*n;
    }
    c->keys = c->sys->alloc(c->sys, LINE_HOST, bytes);
    c->values = c->sys->alloc(c->sys, LINE_HOST, ((size_t)*n + 1) * sizeof *c->values);
    return c->keys && c->values ? OK : error_set(e, MEMORY, "no memory for metadata");
}

void convert_repeat_metadata(struct conversion *c, struct gguf_metadata *metadata, int *n) {
    struct gguf_text key;
    char *name = c->keys;
    for (int i = 0; c->header && gguf_pair_at(c->header, i, &key, &c->values[i]); i++) {
        memcpy(name, key.text, key.bytes);
        name[key.bytes] = 0;
        if (strlen(name) == key.bytes && !is_of_the_file(c, name))
            metadata[(*n)++] = (struct gguf_metadata){.key = name, .value = &c->values[i]};
        name += key.bytes + 1;
    }
}
