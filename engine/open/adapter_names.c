#include "engine/open/adapter_names.h"

#include "loaders/alloc_array.h"

#include <stdlib.h>
#include <string.h>

/* List of weight names under construction. In a first pass names->at is NULL, and the names are only
 * counted. */
struct listing {
    struct weight_names *names;
    size_t text_bytes;
    int n;
};

static void list_name(struct listing *l, const char *format, int number, const struct weight_name *like,
                      const int32_t *dims) {
    char text[2 * BLOCK_NAME_MAX];
    size_t bytes = strlen(block_weight_name(format, number, text)) + 1;
    if (l->names->at) {
        struct weight_name *name = &l->names->at[l->n];
        *name = *like;
        name->name = memcpy(l->names->text + l->text_bytes, text, bytes);
        struct weight_parts parts = block_weight_parts(like->spec, format, dims);
        name->rows = parts.rows;
        name->n_parts = parts.n;
        for (int i = 0; i < parts.n; i++) {
            name->part[i].first = parts.at[i].first;
            name->part[i].rows = parts.at[i].rows;
        }
    }
    l->n++;
    l->text_bytes += bytes;
}

static void list_weight(struct listing *l, const struct block_ref *ref, struct weight_name like,
                        const int32_t *dims) {
    const struct weight_spec *spec = like.spec;
    const char *pattern;
    like.rank = spec->rank;
    for (int i = 0; i < spec->rank; i++) like.dim[i] = dims[spec->dim[i]];
    for (int i = 0, number; (pattern = block_weight_pattern(ref, spec, i, &number)); i++) {
        like.naming = strchr(pattern, '[')               ? NAMING_FUSED
                      : pattern == spec->checkpoint_name ? NAMING_CHECKPOINT
                                                         : NAMING_PRIMARY;
        list_name(l, pattern, number, &like, dims);
    }
}

static bool has_tensor(const struct block *block, size_t offset) {
    for (int i = 0; i < block->n_tensors; i++)
        if (block->tensors[i].offset == offset) return true;
    return false;
}

static void list_block(struct listing *l, const struct component *c, const struct block_ref *ref,
                       const struct block *block, struct weight_name like) {
    int32_t dims[FAMILY_DIMS_MAX];
    component_block_dims(c, ref, dims);
    for (int i = 0; i < ref->kind->n_weights; i++) {
        like.spec = &ref->kind->weights[i];
        like.weight = i;
        if (!block_has_weight(like.spec, dims)) continue;
        if (block && !has_tensor(block, like.spec->offset)) continue;
        like.refused =
            like.spec->embedding_lookup || ref->kind->embedding_table ? "an embedding table" : NULL;
        list_weight(l, ref, like, dims);
    }
}

static void list_component(struct listing *l, const struct component *c, int slot, struct block_ref *refs) {
    int n = c->family->blocks(c, refs), blocks = 0, tables = 0;
    for (int i = 0; i < n; i++) {
        const struct block *block = NULL;
        struct weight_name like = {.slot = slot, .block = -1, .ref = refs[i]};
        if (!refs[i].unused && refs[i].kind->embedding_table) {
            block = &c->tables[tables++];
        } else if (!refs[i].unused) {
            like.block = blocks;
            block = &c->blocks[blocks++];
        }
        list_block(l, c, &refs[i], block, like);
    }
}

static void list_model(struct listing *l, const struct sluice_model *m, struct block_ref *refs) {
    for (int i = 0; i < SLOTS_MAX; i++) {
        const struct component *c = &m->component[i];
        bool adapted = c->family && (c->family->kind == FAMILY_TEXT || c->family->kind == FAMILY_DENOISER);
        if (adapted) list_component(l, c, i, refs);
    }
}

static char plain(char c) {
    return c == '.' ? '_' : c;
}

static int compare_flat(const char *x, const char *y) {
    for (; *x && plain(*x) == plain(*y); x++, y++) {
    }
    return (unsigned char)plain(*x) - (unsigned char)plain(*y);
}

static int compare_weight_names(const void *a, const void *b) {
    const struct weight_name *x = a, *y = b;
    if (x->slot != y->slot) return x->slot - y->slot;
    int order = compare_flat(x->name, y->name);
    if (order) return order;
    return x->block != y->block ? x->block - y->block : x->weight - y->weight;
}

enum status weight_names_list(const struct sluice_model *m, struct weight_names *names, struct error *e) {
    *names = (struct weight_names){.sys = m->sys};
    struct block_ref *refs = alloc_array(m->sys, FAMILY_BLOCKS_MAX, sizeof *refs, e);
    if (!refs) return e->code;
    struct listing l = {.names = names};
    list_model(&l, m, refs);
    names->text = alloc_array(m->sys, l.text_bytes, 1, e);
    names->at = names->text ? alloc_array(m->sys, (uint64_t)l.n, sizeof *names->at, e) : NULL;
    names->bytes = l.text_bytes + (uint64_t)l.n * sizeof *names->at;
    if (names->at) {
        names->n = l.n;
        l = (struct listing){.names = names};
        list_model(&l, m, refs);
        qsort(names->at, (size_t)names->n, sizeof *names->at, compare_weight_names);
    }
    m->sys->release(m->sys, refs);
    if (e->code != OK) weight_names_destroy(names);
    return e->code;
}

void weight_names_destroy(struct weight_names *names) {
    if (!names->sys) return;
    names->sys->release(names->sys, names->text);
    names->sys->release(names->sys, names->at);
    *names = (struct weight_names){0};
}

const struct weight_name *weight_names_find(const struct weight_names *names, int slot, const char *name,
                                            int *n) {
    int first = 0, end = names->n;
    while (first < end) {
        int middle = first + (end - first) / 2;
        const struct weight_name *at = &names->at[middle];
        bool before = at->slot != slot ? at->slot < slot : compare_flat(at->name, name) < 0;
        if (before)
            first = middle + 1;
        else
            end = middle;
    }
    for (*n = 0; first + *n < names->n; ++*n) {
        const struct weight_name *at = &names->at[first + *n];
        if (at->slot != slot || compare_flat(at->name, name) != 0) break;
    }
    return *n ? &names->at[first] : NULL;
}

/* Levenshtein distance of two names, or most + 1 if it is larger than `most`. Ignores bytes after
 * NEAREST_BYTES. */
enum { NEAREST_BYTES = 200 };
static int edit_distance(const char *x, const char *y, int most) {
    int row[NEAREST_BYTES + 1], nx = 0, ny = 0;
    while (nx < NEAREST_BYTES && x[nx]) nx++;
    while (ny < NEAREST_BYTES && y[ny]) ny++;
    if (abs(nx - ny) > most) return most + 1;
    for (int k = 0; k <= ny; k++) row[k] = k;
    for (int i = 1; i <= nx; i++) {
        int diagonal = row[0], least = row[0] = i;
        for (int k = 1; k <= ny; k++) {
            int changed = diagonal + (plain(x[i - 1]) != plain(y[k - 1]));
            int one = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
            diagonal = row[k];
            row[k] = changed < one ? changed : one;
            if (row[k] < least) least = row[k];
        }
        if (least > most) return most + 1;
    }
    return row[ny];
}

int weight_names_nearest(const struct weight_names *names, int slot, const char *name,
                         const struct weight_name **nearest, int n_max) {
    enum { NEAREST_MAX = 8 };
    int distance[NEAREST_MAX], n = 0;
    if (n_max > NEAREST_MAX) n_max = NEAREST_MAX;
    for (int i = 0; i < names->n; i++) {
        const struct weight_name *at = &names->at[i];
        if (slot >= 0 && at->slot != slot) continue;
        if (i && at[-1].slot == at->slot && !compare_flat(at[-1].name, at->name)) continue;
        int most = n < n_max ? NEAREST_BYTES : distance[n - 1] - 1;
        int d = edit_distance(name, at->name, most), k;
        if (d > most) continue;
        if (n < n_max) n++;
        for (k = n - 1; k > 0 && distance[k - 1] > d; k--) {
            distance[k] = distance[k - 1];
            nearest[k] = nearest[k - 1];
        }
        distance[k] = d;
        nearest[k] = at;
    }
    return n;
}
