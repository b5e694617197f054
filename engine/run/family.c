/* Binds the files of a component to its family: implements family.h. */
#include "engine/run/family.h"

#include <stdio.h>
#include <string.h>

const char *component_config_value(const struct component *c) {
    return c->config_value ? c->config_value : c->family->files.config_value;
}

const char *component_architecture(const struct component *c) {
    const char *const *usual = c->family->files.architectures;
    return c->architecture ? c->architecture : usual ? *usual : "";
}

const char *component_first_existing(const struct component *c, const char *name, const char *other) {
    return !index_find(&c->index, name) && index_find(&c->index, other) ? other : name;
}

bool component_has_block(const struct component *c, const char *const *names, int number) {
    char name[2 * BLOCK_NAME_MAX];
    for (; *names; names++)
        if (index_find(&c->index, block_weight_name(*names, number, name))) return true;
    return false;
}

int32_t component_dim(const struct component *c, const char *name, int rank, int place, struct error *e) {
    const struct index_entry *entry = index_find(&c->index, name);
    if (entry && entry->rank == rank && entry->dim[place] > 0) return entry->dim[place];
    error_set(e, entry ? SHAPE : MISSING, "tensor '%s%s' %s" WHERE "%s", index_prefix(&c->index), name,
              entry ? "has the wrong shape" : "is missing", c->index.sources[0].path);
    return 1;
}

static const struct index_entry *find_prefix(const struct component *c, const char *prefix) {
    for (int i = 0; i < c->index.n_entries; i++) {
        const struct index_entry *entry = &c->index.entries[i];
        bool begins = !strncmp(index_name(&c->index, entry), prefix, strlen(prefix));
        if (begins && index_contains(&c->index, entry)) return entry;
    }
    return NULL;
}

enum status component_refuse_similar(const struct component *c, const struct similar_architecture *relatives,
                                     const char *expected, struct error *e) {
    for (const struct similar_architecture *r = relatives; r->prefix; r++) {
        const struct index_entry *entry = find_prefix(c, r->prefix);
        if (!entry) continue;
        return error_set(e, UNSUPPORTED, "unsupported model: %s" WHERE "%s" FOUND "'%s'" EXPECTED "%s",
                         r->what, c->index.sources[0].path, entry->name, expected);
    }
    return OK;
}

bool family_ignores(const struct family *family, const char *name) {
    for (const char *const *prefix = family->files.ignorable; prefix && *prefix; prefix++)
        if (!strncmp(name, *prefix, strlen(*prefix))) return true;
    /* logit_scale is CLIP's temperature, not a scale of quantised weights. _extra_state is PyTorch's name for
     * a module's state other than weights (Cosmos). */
    static const char *const endings[] = {"logit_scale", "_extra_state"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t tail = strlen(endings[i]);
        if (n >= tail && !strcmp(name + n - tail, endings[i])) return true;
    }
    return false;
}

void component_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    memcpy(dims, c->dims, sizeof c->dims);
    if (c->family->blocks.dims) c->family->blocks.dims(c, ref, dims);
}

static void report_missing(const struct component *c, const struct block_ref *ref,
                           void (*report)(void *user, const char *name), void *user) {
    char name[2 * BLOCK_NAME_MAX];
    int32_t dims[FAMILY_DIMS_MAX];
    component_block_dims(c, ref, dims);
    for (int i = 0; i < ref->kind->n_weights; i++) {
        const struct weight_spec *spec = &ref->kind->weights[i];
        if (!block_has_weight(spec, dims)) continue;
        struct index_entry *entry = block_find_weight(ref, spec, &c->index);
        if (entry)
            entry->used = true;
        else if (!weight_is_optional(spec) && !ref->unused)
            report(user, block_missing_name(ref, spec, &c->index, name));
    }
}

enum status component_list_missing(struct component *c, void (*report)(void *user, const char *name),
                                   void *user, struct error *e) {
    if (!c->blocks) return OK; /* the component has no dims, so its blocks are unknown */
    struct block_ref *refs = c->sys->alloc(c->sys, LINE_HOST, FAMILY_BLOCKS_MAX * sizeof *refs);
    if (!refs) return error_set(e, MEMORY, "no memory for a list of blocks");
    int n = c->family->blocks.list(c, refs);
    for (int i = 0; i < n; i++) report_missing(c, &refs[i], report, user);
    c->sys->release(c->sys, refs);
    return OK;
}

struct tensor component_state_tensor(const struct component *c, const struct lane *lane, const char *name) {
    for (int i = 0; i < c->family->state.n_tensors; i++)
        if (!strcmp(c->family->state.tensors[i].name, name))
            return *(const struct tensor *)((const char *)lane->state + c->family->state.tensors[i].offset);
    return (struct tensor){0};
}

int component_frame_chunks(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks) {
    if (c->family->lanes.chunks) return c->family->lanes.chunks(c, latent_frames, chunks);
    int32_t factor = component_frame_factor(c);
    for (int32_t i = 0; i < latent_frames && latent_frames <= FRAME_CHUNKS_MAX; i++)
        chunks[i] = (struct frame_chunk){i, 1, i ? 1 + factor * (i - 1) : 0, i ? factor : 1};
    return latent_frames;
}

void component_destroy(struct component *c) {
    if (!c->sys) return;
    for (int i = 0; i < c->n_blocks; i++) block_destroy(c->sys, &c->blocks[i]);
    for (int i = 0; i < c->n_tables; i++) block_destroy(c->sys, &c->tables[i]);
    c->sys->release(c->sys, c->blocks);
    index_destroy(&c->index);
    *c = (struct component){0};
}

uint64_t component_layout_bytes(const struct component *c) {
    uint64_t bytes = (uint64_t)c->n_blocks * sizeof *c->blocks;
    for (int i = 0; i < c->n_blocks; i++) bytes += block_layout_bytes(&c->blocks[i]);
    for (int i = 0; i < c->n_tables; i++) bytes += block_layout_bytes(&c->tables[i]);
    return bytes;
}
