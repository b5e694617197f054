#include "engine/open/published.h"

#include "engine/open/component_files.h"
#include "engine/open/configuration.h"
#include "loaders/loaders.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 2 * BLOCK_NAME_MAX };

/* Tensor index under construction. In a first pass entries is NULL, and the weights are only counted. */
struct listing {
    struct index_entry *entries;
    char *names;
    int n;
    size_t name_bytes;
};

static void list_weight(struct listing *l, const struct block_ref *ref, const struct weight_spec *spec,
                        const int32_t *dims) {
    char name[NAME_BYTES];
    size_t bytes = strlen(block_weight_name(spec->names[0], ref->number, name)) + 1;
    if (l->entries) {
        struct index_entry *entry = &l->entries[l->n];
        *entry = (struct index_entry){.dtype = DTYPE_BF16, .scale = 1};
        entry->name = memcpy(l->names + l->name_bytes, name, bytes);
        entry->rank = block_published_shape(spec, spec->names[0], dims, entry->dim);
        struct tensor shape = tensor_make(NULL, entry->dtype, entry->rank, entry->dim);
        entry->bytes = (uint64_t)tensor_bytes(&shape);
    }
    l->n++;
    l->name_bytes += bytes;
}

static void list_weights(struct listing *l, const struct component *c, const struct block_ref *refs,
                         int n_refs) {
    for (int b = 0; b < n_refs; b++) {
        int32_t dims[FAMILY_DIMS_MAX];
        component_block_dims(c, &refs[b], dims);
        for (int i = 0; i < refs[b].kind->n_weights; i++) {
            const struct weight_spec *spec = &refs[b].kind->weights[i];
            if (!spec->optional && block_has_weight(spec, dims)) list_weight(l, &refs[b], spec, dims);
        }
    }
}

/* Sorts the entries and drops duplicates: several weights may be slices of one tensor. */
static void sort_entries_by_name(struct tensor_index *index, int n) {
    uint64_t offset = 0;
    qsort(index->entries, (size_t)n, sizeof *index->entries, index_compare_names);
    for (int i = 0; i < n; i++) {
        struct index_entry *entry = &index->entries[index->n_entries];
        if (index->n_entries && !strcmp(entry[-1].name, index->entries[i].name)) continue;
        *entry = index->entries[i];
        entry->offset = offset;
        offset += entry->bytes;
        index->n_entries++;
    }
}

static enum status published_make_source(struct tensor_index *index, const char *name, struct error *e) {
    struct sys *sys = index->sys;
    size_t bytes = strlen(name) + 1;
    index->sources = sys->alloc(sys, LINE_HOST, sizeof *index->sources);
    if (!index->sources) return error_set(e, MEMORY, "no memory for a component's index");
    index->n_sources = 1;
    index->sources[0] =
        (struct byte_source){.sys = sys, .file = -1, .direct = -1, .path = sys->alloc(sys, LINE_HOST, bytes)};
    if (!index->sources[0].path) return error_set(e, MEMORY, "no memory for a component's index");
    memcpy(index->sources[0].path, name, bytes);
    return OK;
}

struct binding {
    struct sys *sys;
    const struct recipe *recipe;
    const struct sizes *sizes;
    struct component *made;
    struct block_ref *refs;
};

static void derive_slot(const struct binding *b, int slot) {
    configuration_begin(b->recipe, slot, b->sys, b->made);
    component_derive(b->made, b->sizes->of[slot]);
}

/* Lists the tensors of a slot's weight file. A decoder's file also holds the encoder's weights. */
static void list_file(struct listing *l, const struct binding *b, int slot) {
    const struct slot *all = b->recipe->slot, *of = &all[slot];
    for (int i = 0; all[i].family; i++) {
        bool half = of->family->kind == FAMILY_DECODER && all[i].family->kind == FAMILY_ENCODER;
        if (i != slot && !(half && !strcmp(all[i].folder, of->folder))) continue;
        derive_slot(b, i);
        list_weights(l, b->made, b->refs, b->made->family->blocks(b->made, b->refs));
    }
}

static enum status published_make_index(const struct binding *b, int slot, struct tensor_index *index,
                                        struct error *e) {
    struct listing l = {0};
    list_file(&l, b, slot);
    *index = (struct tensor_index){.sys = b->sys};
    index->entries = b->sys->alloc(b->sys, LINE_HOST, (size_t)l.n * sizeof *index->entries);
    index->names = b->sys->alloc(b->sys, LINE_HOST, l.name_bytes);
    if (!index->entries || !index->names) return error_set(e, MEMORY, "no memory for a component's index");
    index->host_bytes = (uint64_t)l.n * sizeof *index->entries + l.name_bytes;
    l = (struct listing){.entries = index->entries, .names = index->names};
    list_file(&l, b, slot);
    sort_entries_by_name(index, l.n);
    return published_make_source(index, b->recipe->slot[slot].family->name, e);
}

/* Binds a component without files to the config.json that a model of the given sizes would have. */
static enum status bind_configured(struct component *c, const struct component *made, struct error *e) {
    char text[4096];
    struct config config = {0};
    component_write_config(&made, 1, text, sizeof text);
    if (config_parse(c->sys, made->family->name, text, NULL, &config, e) == OK) component_bind(c, &config, e);
    config_destroy(&config);
    return e->code;
}

/* Binds the component of one slot. An autoencoder's encoder borrows the index of its decoder, which must be
 * bound first. */
static enum status bind_slot(const struct binding *b, int slot, struct component *all, struct error *e) {
    struct component *c = &all[slot];
    int decoder = recipe_slot(b->recipe, FAMILY_DECODER);
    configuration_begin(b->recipe, slot, b->sys, c);
    if (c->family->kind == FAMILY_ENCODER)
        c->index = index_view(&all[decoder].index, NULL, all[decoder].index.view);
    else if (published_make_index(b, slot, &c->index, e) != OK)
        return e->code;
    derive_slot(b, slot);
    return bind_configured(c, b->made, e);
}

/* Estimates a tokenizer's memory. Bytes per token id, measured with generated tokenizers of published sizes
 * (bench checkpoint): BPE 25.5, CLIP 23.0, unigram 173.5. */
static uint64_t tokenizer_bytes_of(const struct slot *slot, const struct component *c) {
    enum { BYTES_OF_MERGES = 26, BYTES_OF_UNIGRAMS = 174 };
    if (slot->family->kind != FAMILY_TEXT) return 0;
    bool merges = strstr(slot->text.tokenizer, "BPE") != NULL;
    return (uint64_t)c->tables[0].tensors[0].shape.dim[0] * (merges ? BYTES_OF_MERGES : BYTES_OF_UNIGRAMS);
}

enum status published_bind(struct sys *sys, const struct recipe *recipe, const struct sizes *sizes,
                           const struct sluice_model_options *options, struct component *component,
                           uint64_t *tokenizer_bytes, struct error *e) {
    struct binding b = {sys, recipe, sizes, sys->alloc(sys, LINE_HOST, sizeof *b.made),
                        sys->alloc(sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *b.refs)};
    *tokenizer_bytes = 0;
    if (!b.made || !b.refs) error_set(e, MEMORY, "no memory for a list of blocks");
    for (int slot = 0; recipe->slot[slot].family && e->code == OK; slot++)
        if (!slot_is_extra(&recipe->slot[slot]) && !part_disabled(options, &recipe->slot[slot]) &&
            bind_slot(&b, slot, component, e) == OK)
            *tokenizer_bytes += tokenizer_bytes_of(&recipe->slot[slot], &component[slot]);
    sys->release(sys, b.made);
    sys->release(sys, b.refs);
    return e->code;
}
