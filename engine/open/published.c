/* Models without files: implements published.h. */
#include "engine/open/published.h"
#include "engine/run/component.h"

#include "engine/open/component_files.h"
#include "engine/open/configuration.h"
#include "loaders/loaders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct recipe *sizes_find_recipe(const char *name, struct error *e) {
    for (const struct recipe *const *r = recipes; *r; r++)
        if (!strcmp((*r)->name, name)) return *r;
    error_set(e, USAGE, "unknown family" FOUND "%s" EXPECTED "one that `sluice families` lists", name);
    return NULL;
}

/* True if a slot's sizes are needed: the single requested slot, or without a single slot every slot except
 * tiny decoders. */
static bool sizes_has(const struct sizes *sizes, const struct recipe *recipe, const struct slot *slot) {
    return sizes->only < SLOTS_MAX ? slot == &recipe->slot[sizes->only] : !slot_is_extra(slot);
}

/* Adds the list of known dimension names to the error. Names that several families share are listed once. */
static enum status list_choices(const struct sizes *sizes, const struct recipe *recipe, struct error *e) {
    char names[320] = " dtype ";
    size_t n = strlen(names);
    for (const struct slot *s = recipe->slot; s->family; s++)
        for (int i = 0; sizes_has(sizes, recipe, s) && i < s->family->config.n_dimensions && n < sizeof names;
             i++) {
            const char *name = s->family->config.dimensions[i].name;
            char word[64]; /* blanks around the name, as in the list, so that strstr finds whole names only */
            snprintf(word, sizeof word, " %s ", name ? name : "");
            if (name && !strstr(names, word)) n += (size_t)snprintf(names + n, sizeof names - n, "%s ", name);
        }
    return error_where(e, "known:%.*s", (int)strlen(names) - 1, names);
}

/* Sets a dimension of --dims: "name=value" in every slot whose family has the dimension, "part.name=value"
 * only in the slot with this flag ("clip_g.") or folder ("text_encoder_2."). */
static enum status sizes_choose(struct sizes *sizes, const struct recipe *recipe, const char *name,
                                size_t name_bytes, long value, struct error *e) {
    const char *part = name, *dot = memchr(name, '.', name_bytes);
    size_t part_bytes = dot ? (size_t)(dot - name) + 1 : 0;
    bool known = false;
    name += part_bytes;
    name_bytes -= part_bytes;
    for (int s = 0; s < SLOTS_MAX && recipe->slot[s].family; s++) {
        const struct slot *slot = &recipe->slot[s];
        const char *flag = slot->flag ? slot->flag + strspn(slot->flag, "-") : "";
        bool by_flag = strlen(flag) + 1 == part_bytes && !strncmp(flag, part, part_bytes - 1);
        bool by_folder =
            strlen(slot->folder) + 1 == part_bytes && !strncmp(slot->folder, part, part_bytes - 1);
        if (!sizes_has(sizes, recipe, slot) || (part_bytes && !by_flag && !by_folder)) continue;
        for (int i = 0; i < slot->family->config.n_dimensions; i++) {
            const struct dimension *d = &slot->family->config.dimensions[i];
            if (!d->name || strlen(d->name) != name_bytes || strncmp(d->name, name, name_bytes)) continue;
            known = true;
            if (value < d->least || value > d->most) {
                return error_set(e, USAGE,
                                 "the dimension '%s' is out of range" FOUND "%ld" EXPECTED "%d to %d",
                                 d->name, value, d->least, d->most);
            }
            sizes->of[s][i] = (int)value;
        }
    }
    if (known) return OK;
    error_set(e, USAGE, "unknown dimension '%.*s'", (int)(part_bytes + name_bytes), part);
    return list_choices(sizes, recipe, e);
}

/* Reads one entry of --dims, "name=value". */
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

enum status sizes_read(struct sizes *sizes, const struct recipe *recipe, int only, const char *text,
                       struct error *e) {
    *sizes = (struct sizes){.only = only};
    for (int s = 0; s < SLOTS_MAX && recipe->slot[s].family; s++)
        for (int i = 0; i < recipe->slot[s].family->config.n_dimensions; i++)
            sizes->of[s][i] = slot_dimension(&recipe->slot[s], &recipe->slot[s].family->config.dimensions[i]);
    for (const char *at = text; at && *at && e->code == OK;) {
        size_t length = strcspn(at, ",");
        size_t name = strcspn(at, "=,") + 1; /* with the "=" */
        const char *same = text;             /* first entry of --dims that sets the same dimension */
        while (same < at && strncmp(same, at, name)) same += strcspn(same, ",") + 1;
        if (read_choice(sizes, recipe, at, length, e) == OK && same < at) {
            error_set(e, USAGE,
                      "--dims gives a dimension twice" FOUND "'%.*s'" EXPECTED "each dimension once",
                      (int)length, at);
        }
        at += length + (at[length] == ',');
    }
    return e->code;
}

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
            if (!weight_is_optional(spec) && block_has_weight(spec, dims))
                list_weight(l, &refs[b], spec, dims);
        }
    }
}

/* Sorts the entries and drops duplicates: several weights may be slices of one tensor. */
static void sort_entries(struct tensor_index *index, int n) {
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

/* Adds one source without a file to the index, so that messages have a path. */
static enum status make_source(struct tensor_index *index, const char *name, struct error *e) {
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
    struct component *made; /* buffer for a component that only has sizes */
    struct block_ref *refs; /* buffer for the list of blocks of `made` */
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
        list_weights(l, b->made, b->refs, b->made->family->blocks.list(b->made, b->refs));
    }
}

static enum status make_index(const struct binding *b, int slot, struct tensor_index *index,
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
    sort_entries(index, l.n);
    return make_source(index, b->recipe->slot[slot].family->name, e);
}

/* Binds the component of one slot. An autoencoder's encoder borrows the index of its decoder, which must be
 * bound first. decoder: the decoder's component; unused for other slots than the encoder. */
static enum status bind_slot(const struct binding *b, int slot, const struct component *decoder,
                             struct component *c, struct error *e) {
    configuration_begin(b->recipe, slot, b->sys, c);
    if (c->family->kind == FAMILY_ENCODER)
        c->index = index_view(&decoder->index, NULL, decoder->index.view);
    else if (make_index(b, slot, &c->index, e) != OK)
        return e->code;
    derive_slot(b, slot);
    /* config.json as a published model of these sizes would have it */
    const struct component *made = b->made;
    char text[4096];
    struct config config = {0};
    component_write_config(&made, 1, text, sizeof text);
    if (config_parse(c->sys, made->family->name, text, NULL, &config, e) == OK) component_bind(c, &config, e);
    config_destroy(&config);
    return e->code;
}

bool published_takes_part(const struct sluice_part *part) {
    const struct slot *slot;
    for (int i = 0; (slot = models_slot(i)); i++)
        if (slot->extra && !strcmp(slot->flag, part->flag) && !strcmp(slot->family->name, part->path))
            return true;
    return false;
}

/* True if a model without files has the component of this slot: extra ones only if a flag chooses them. */
static bool is_bound(const struct slot *slot, const struct sluice_model_options *o) {
    const char *flag = slot->shares_file_with ? slot->shares_file_with : slot->flag;
    bool given = false;
    for (int i = 0; slot->extra && o && i < o->n_parts; i++)
        given |= o->parts[i].path && !strcmp(o->parts[i].flag, flag);
    return (given || !slot_is_extra(slot)) && !part_disabled(o, slot);
}

enum status published_bind(struct sys *sys, const struct recipe *recipe, const struct sizes *sizes,
                           const struct sluice_model_options *options, struct component *component,
                           uint64_t *tokenizer_bytes, struct error *e) {
    /* Memory of a tokenizer in bytes per token id, measured with generated tokenizers of published sizes
     * (sluice-dev checkpoint): BPE 25.5, CLIP 23.0, unigram 173.5. */
    enum { BYTES_OF_MERGES = 26, BYTES_OF_UNIGRAMS = 174 };
    struct binding b = {sys, recipe, sizes, sys->alloc(sys, LINE_HOST, sizeof *b.made),
                        sys->alloc(sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *b.refs)};
    int decoder_slot = recipe_slot(recipe, FAMILY_DECODER);
    const struct component *decoder = decoder_slot < SLOTS_MAX ? &component[decoder_slot] : NULL;
    *tokenizer_bytes = 0;
    if (!b.made || !b.refs) error_set(e, MEMORY, "no memory for a list of blocks");
    for (int slot = 0; recipe->slot[slot].family && e->code == OK; slot++)
        if (is_bound(&recipe->slot[slot], options) &&
            bind_slot(&b, slot, decoder, &component[slot], e) == OK && recipe->slot[slot].text.tokenizer) {
            bool merges = strstr(recipe->slot[slot].text.tokenizer, "BPE") != NULL;
            int32_t ids = component[slot].tables[0].tensors[0].shape.dim[0];
            *tokenizer_bytes += (uint64_t)ids * (merges ? BYTES_OF_MERGES : BYTES_OF_UNIGRAMS);
        }
    sys->release(sys, b.made);
    sys->release(sys, b.refs);
    return e->code;
}

/* Fails because no network of this kind has the name, and lists the names. flag: of the network. */
static enum status unknown_network(const char *name, const char *flag, enum family_kind kind,
                                   struct error *e) {
    char names[256] = "";
    size_t n = 0;
    for (const struct family *const *f = families; *f && n < sizeof names; f++)
        if ((*f)->kind == kind)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", (*f)->name);
    return error_set(e, USAGE,
                     "unknown %s; with --family, %s takes a name" WHERE "%s" FOUND "%s" EXPECTED
                     "%s, with changed sizes as NAME:size=value,...",
                     kind == FAMILY_CONTROL           ? "control network"
                     : kind == FAMILY_LATENT_UPSCALER ? "latent upscaler"
                                                      : "upscaler",
                     flag, flag, name, names);
}

/* Published value of a denoiser family's dimension; -1: no such dimension. */
static int published_value(const struct family *family, const char *name) {
    for (int i = 0; i < family->config.n_dimensions; i++) {
        const struct dimension *d = &family->config.dimensions[i];
        if (d->name && !strcmp(d->name, name)) return d->published;
    }
    return -1;
}

/* Gives a control network the sizes of its denoiser, such as SDXL's UNet. Copies the dimensions that the
 * denoiser's slot changes, if both families publish them with the same value. */
static void follow_denoiser(struct slot *network, const struct slot *denoiser) {
    int n = 0;
    for (int i = 0; i < SLOT_DIMENSIONS_MAX && denoiser->dimension[i].name; i++) {
        const char *name = denoiser->dimension[i].name;
        int published = published_value(network->family, name);
        if (published < 0 || published != published_value(denoiser->family, name)) continue;
        network->dimension[n].name = name;
        network->dimension[n++].value = denoiser->dimension[i].value;
    }
}

enum status published_bind_network(struct sys *sys, const struct sluice_part *part,
                                   const struct slot *denoiser, struct component *c, struct error *e) {
    const char *name = part->path;
    enum family_kind kind = denoiser                                                ? FAMILY_CONTROL
                            : part_flag_chooses(part->flag, FAMILY_LATENT_UPSCALER) ? FAMILY_LATENT_UPSCALER
                                                                                    : FAMILY_UPSCALER;
    char family[64];
    size_t length = strcspn(name, ":");
    int slot;
    snprintf(family, sizeof family, "%.*s", (int)length, name);
    const struct recipe *found = models_find_extra(family, &slot);
    if (!found || found->slot[slot].family->kind != kind) return unknown_network(name, part->flag, kind, e);
    struct sizes *sizes = sys_new(sys, 1, sizeof *sizes, "the sizes of a network", e);
    struct recipe *recipe = sys->alloc(sys, LINE_HOST, sizeof *recipe);
    struct binding b = {sys, recipe, sizes, sys->alloc(sys, LINE_HOST, sizeof *b.made),
                        sys->alloc(sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *b.refs)};
    if (!recipe || !b.made || !b.refs) error_set(e, MEMORY, "no memory for a list of blocks");
    const char *dimensions = name[length] ? name + length + 1 : NULL;
    if (e->code == OK) {
        *recipe = *found;
        if (denoiser) follow_denoiser(&recipe->slot[slot], denoiser);
        if (sizes_read(sizes, recipe, slot, dimensions, e) == OK) bind_slot(&b, slot, NULL, c, e);
    }
    sys->release(sys, recipe);
    sys->release(sys, sizes);
    sys->release(sys, b.made);
    sys->release(sys, b.refs);
    return e->code;
}
