/* Wan transformers under their authors' names have the same tensors, byte for byte, as under diffusers'
 * names, for every model variant. VACE's control blocks follow the transformer blocks that the configuration
 * lists, or evenly spaced ones. */
#include "test/lib/layouts.h"

#include <stdlib.h>

static struct model {
    struct fault_sys fault_sys;
    struct sluice_model *opened;
} diffusers, authors;

static const struct component *transformer_of(const struct model *m) {
    return model_component(m->opened, FAMILY_DENOISER);
}

static bool open_as(struct model *m, options from, const char *what) {
    struct error e = {0};
    char line[1024];
    fault_sys_init(&m->fault_sys, 1);
    m->opened = NULL;
    bool ok = model_open(&m->fault_sys.sys, model_options(&from), &m->opened, &e) == OK;
    return check(ok, "%s: %s", what, error_line(&e, line, sizeof line));
}

static bool same_bytes(const struct component *a, const struct packed_tensor *x, const struct component *b,
                       const struct packed_tensor *y) {
    struct error e = {0};
    char *left = malloc(x->entry->bytes), *right = malloc(x->entry->bytes);
    if (!left || !right) abort();
    bool same = x->offset == y->offset && x->entry->bytes == y->entry->bytes;
    same = same && source_read(&a->index.sources[x->entry->source], left, x->entry->bytes, x->entry->offset,
                               &e) == OK;
    same = same && source_read(&b->index.sources[y->entry->source], right, y->entry->bytes, y->entry->offset,
                               &e) == OK;
    same = same && !memcmp(left, right, x->entry->bytes);
    free(left);
    free(right);
    return same;
}

static void compare(const char *what) {
    const struct component *a = transformer_of(&diffusers), *b = transformer_of(&authors);
    check(a->n_blocks == b->n_blocks && !b->n_unknown, "%s: %d blocks instead of %d, %d unknown tensors",
          what, b->n_blocks, a->n_blocks, b->n_unknown);
    for (int i = 0; i < a->n_blocks && i < b->n_blocks; i++) {
        const struct block *x = &a->blocks[i], *y = &b->blocks[i];
        check(!strcmp(x->name, y->name) && x->n_tensors == y->n_tensors, "%s: block %s is not %s", what,
              y->name, x->name);
        for (int k = 0; k < x->n_tensors && k < y->n_tensors; k++)
            check(same_bytes(a, &x->tensors[k], b, &y->tensors[k]), "%s: tensor %s is not %s", what,
                  y->tensors[k].entry->name, x->tensors[k].entry->name);
    }
}

static void configure(struct tensor_set *p, const char *key, const char *value) {
    json_t *config = json_loads(p->config, 0, NULL);
    if (value)
        json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(config, key);
    free(p->config);
    p->config = json_dumps(config, 0);
    json_decref(config);
}

static void test_checkpoint_names_give_same_bytes(const char *name) {
    options from = {.model = current_model.folder};
    struct tensor_set *p = layouts_wan_to_checkpoint(layouts_part("transformer"));
    configure(p, "vace_layers", NULL);
    options other = layouts_replace_part("transformer", p);
    if (open_as(&diffusers, from, name) && open_as(&authors, other, name)) compare(name);
    model_close(diffusers.opened);
    model_close(authors.opened);
}

static const char *block_before_hint(const char *hint) {
    const struct component *c = transformer_of(&authors);
    for (int i = 2; i < c->n_blocks; i++)
        if (!strcmp(c->blocks[i].name, hint)) return c->blocks[i - 2].name;
    return "none";
}

static void test_vace_block_positions(void) {
    struct tensor_set *p = layouts_wan_to_checkpoint(layouts_part("transformer"));
    configure(p, "vace_layers", "[0, 3]");
    if (open_as(&authors, layouts_replace_part("transformer", p), "hints"))
        check(!strcmp(block_before_hint("vace_blocks.1"), "blocks.3"), "the second hint is after %s",
              block_before_hint("vace_blocks.1"));
    model_close(authors.opened);
    static const char *const wrong[][2] = {{"[1, 2]", "a first entry of 1"},
                                           {"[0, 0]", "block 0 after block 0"},
                                           {"[0, 4]", "block 4 after block 0"},
                                           {"[0]", "expected 2"},
                                           {"[0, 1, 2]", "expected 2"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        p = tensor_set_copy(layouts_part("transformer"), "");
        configure(p, "vace_layers", wrong[i][0]);
        expect_refused(layouts_replace_part("transformer", p), META, wrong[i][0],
                       WORDS("'vace_layers'", wrong[i][1]));
    }
}

int main(void) {
    static const char *const names[] = {"wan21", "wan_i2v", "wan_flf2v", "wan22_i2v", "wan_vace"};
    temporary_make();
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char folder[TENSOR_SET_PATH];
        snprintf(folder, sizeof folder, "test/golden/%s/model", names[i]);
        layouts_load(&layouts_of_wan, folder);
        test_checkpoint_names_give_same_bytes(names[i]);
        if (!strcmp(names[i], "wan_vace")) test_vace_block_positions();
        layouts_free();
    }
    return finish();
}
