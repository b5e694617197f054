/* Lists and finds the names by which adapters refer to weights: implements adapter_names.h. */
#include "engine/open/adapter_names.h"

#include "engine/base/text.h"
#include "engine/open/paths.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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
        struct weight_parts parts = block_weight_parts(like->spec, format, number, dims);
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

/* Lists the weights of one block. block NULL: an unused layer, which has no tensors. */
static void list_block(struct listing *l, const struct component *c, const struct block_ref *ref,
                       const struct block *block, struct weight_name like) {
    int32_t dims[FAMILY_DIMS_MAX];
    component_block_dims(c, ref, dims);
    for (int i = 0; i < ref->kind->n_weights; i++) {
        like.spec = &ref->kind->weights[i];
        like.weight = i;
        bool has_tensor = !block;
        for (int k = 0; block && k < block->n_tensors; k++)
            has_tensor |= block->tensors[k].offset == like.spec->offset;
        if (!has_tensor || !block_has_weight(like.spec, dims)) continue;
        like.refused =
            like.spec->embedding_lookup || ref->kind->embedding_table ? "an embedding table" : NULL;
        list_weight(l, ref, like, dims);
    }
}

static void list_component(struct listing *l, const struct component *c, int slot, struct block_ref *refs) {
    int n = c->family->blocks.list(c, refs), blocks = 0, tables = 0;
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

/* Compares two names; a dot equals an underscore. */
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
    struct block_ref *refs = sys_new(m->sys, FAMILY_BLOCKS_MAX, sizeof *refs, "the names of weights", e);
    if (!refs) return e->code;
    struct listing l = {.names = names};
    list_model(&l, m, refs);
    names->text = sys_new(m->sys, l.text_bytes, 1, "the names of weights", e);
    names->at =
        names->text ? sys_new(m->sys, (size_t)l.n, sizeof *names->at, "the names of weights", e) : NULL;
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

static bool lists_name(const struct weight_name *const *listed, int n, const char *name) {
    while (n > 0 && compare_flat(listed[n - 1]->name, name) != 0) n--;
    return n > 0;
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
        if (d > most || lists_name(nearest, n, at->name)) continue;
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

/* Prefixes for denoisers. */
static const char *const of_denoisers[] = {
    "",
    "transformer.",
    "unet.",
    "diffusion_model.",
    "model.diffusion_model.",
    "lora_unet_",
    "lora_unet__",
    "lora_transformer_",
    "lycoris_",
    "lycoris_unet_",
};
static const char second_denoiser[] = "transformer_2.";

/* Prefixes for text encoders. kohya numbers the encoders (te1, te2) like Hugging Face's folders; some
 * trainers give Flux's T5 the number 3. */
static const struct {
    const char *tokenizer; /* kind of the encoder's tokenizer; NULL: any */
    const char *folder, *prefix;
} of_encoders[] = {
    {NULL, "text_encoder", "text_encoder."},
    {NULL, "text_encoder", "lora_te_"},
    {NULL, "text_encoder", "lora_te1_"},
    {NULL, "text_encoder_2", "text_encoder_2."},
    {NULL, "text_encoder_2", "lora_te2_"},
    {NULL, "text_encoder_3", "text_encoder_3."},
    {NULL, "text_encoder_3", "lora_te3_"},
    {"unigram", "text_encoder_2", "lora_te3_"},
    /* Anima's text adapter. Kohya's names treat it as part of the transformer. Sources: diffusers,
     * AnimaLoraLoaderMixin; kohya-ss/sd-scripts, networks/lora_anima.py. */
    {NULL, "text_conditioner", "text_conditioner."},
    {NULL, "text_conditioner", "lora_unet_llm_adapter_"},
    /* LTX-2's text projection and connectors. Source: diffusers, LTX2LoraLoaderMixin. */
    {NULL, "connectors", "connectors."},
};

static bool begins(const char *name, const char *prefix) {
    return !strncmp(name, prefix, strlen(prefix));
}

const char *adapter_after_prefix(const char *name, const char *prefix) {
    static const char peft[] = "base_model.model.";
    if (!begins(name, prefix)) return NULL;
    name += strlen(prefix);
    return begins(name, peft) ? name + sizeof peft - 1 : name;
}

#define NOISE "noise"

/* True if the word "high" or "low" that ends at `at` in a file name means one of WAN's two transformers. Then
 * "noise" follows, or nothing but "lora", "model" and words with digits (version, rank, bits). Otherwise the
 * word belongs to a style ("low-poly"). */
static bool ends_name(const char *at, const char *end) {
    static const char *const neutral[] = {NOISE, "lora", "model"};
    if (at < end && !strncasecmp(at + 1, NOISE, strlen(NOISE)) &&
        !isalnum((unsigned char)at[1 + strlen(NOISE)]))
        return true;
    while (at < end) {
        int bytes = 0;
        bool is_neutral = false;
        for (; at + bytes < end && isalnum((unsigned char)at[bytes]); bytes++)
            is_neutral |= isdigit((unsigned char)at[bytes]) != 0;
        for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++)
            is_neutral |= (size_t)bytes == strlen(neutral[i]) && !strncasecmp(at, neutral[i], (size_t)bytes);
        if (bytes && !is_neutral) return false;
        at += bytes + 1;
    }
    return true;
}

static bool name_selects(const char *name, const char *end, const char *word) {
    size_t n = strlen(word);
    bool whole = ends_with(word, NOISE);
    for (const char *at = name; at + n <= end; at++) {
        bool begins = at == name || !isalnum((unsigned char)at[-1]);
        if (begins && !strncasecmp(at, word, n) && !isalnum((unsigned char)at[n]) &&
            (whole || ends_name(at + n, end)))
            return true;
    }
    return false;
}

static bool name_selects_any(const char *name, const char *end, const struct slot *slot) {
    for (const char *const *word = slot->name_words; *word; word++)
        if (name_selects(name, end, *word)) return true;
    return false;
}

static int named_slot(const char *name, const char *end, const struct recipe *recipe, int first, int second) {
    bool of_first = name_selects_any(name, end, &recipe->slot[first]);
    bool of_second = name_selects_any(name, end, &recipe->slot[second]);
    return of_first == of_second ? -1 : of_first ? first : second;
}

/* Assigns an adapter to one of two denoisers, or to both: by the prefix "transformer_2.", by the name of the
 * adapter's file, or by the name of the file's folder. */
static void choose_denoiser(const struct adapter *a, const struct recipe *recipe, int first, int second,
                            struct adapter_prefixes *prefixes) {
    const char *path = a->index.sources[0].path, *file = path_last_part(path), *dot = strrchr(file, '.');
    int named = named_slot(file, dot ? dot : file + strlen(file), recipe, first, second);
    if (named < 0) {
        const char *end = file;
        while (end > path && end[-1] == '/') end--;
        const char *folder = end;
        while (folder > path && folder[-1] != '/') folder--;
        named = named_slot(folder, end, recipe, first, second);
    }
    bool by_prefix = false;
    for (int i = 0; i < a->n_modules; i++) by_prefix |= begins(a->modules[i].name, second_denoiser);
    if (by_prefix) {
        prefixes->of[second][0] = second_denoiser;
        prefixes->of[second][1] = NULL;
    } else if (named >= 0) {
        prefixes->of[named == first ? second : first][0] = NULL;
        prefixes->named = &recipe->slot[named];
    } else {
        prefixes->for_all = true;
    }
}

void adapter_find_prefixes(const struct adapter *a, const struct recipe *recipe,
                           struct adapter_prefixes *prefixes) {
    int first = recipe_slot(recipe, FAMILY_DENOISER);
    *prefixes = (struct adapter_prefixes){0};
    for (int i = 0; i < SLOTS_MAX && recipe->slot[i].family; i++) {
        const struct slot *slot = &recipe->slot[i];
        const char **to = prefixes->of[i];
        if (slot->family->kind == FAMILY_TEXT) {
            int n = 0;
            for (size_t k = 0; k < sizeof of_encoders / sizeof *of_encoders; k++) {
                const char *tokenizer = slot->text.tokenizer ? slot->text.tokenizer : "";
                bool of_kind = !of_encoders[k].tokenizer || !strcmp(of_encoders[k].tokenizer, tokenizer);
                if (of_kind && !strcmp(of_encoders[k].folder, slot->folder)) to[n++] = of_encoders[k].prefix;
            }
            for (const char *const *own = slot->prefixes; own && *own && n < ADAPTER_PREFIXES_MAX; own++)
                if (**own) to[n++] = *own;
        } else if (slot->family->kind == FAMILY_DENOISER) {
            memcpy(to, of_denoisers, sizeof of_denoisers);
            if (i != first) choose_denoiser(a, recipe, first, i, prefixes);
        }
    }
}

/* Ends of attention module names in adapter files of old diffusers versions ("attn1.processor.to_q"). meant:
 * the current end of the name, first in a UNet or transformer, then in a text encoder. */
static const struct old_end {
    const char *old, *meant[2];
} old_ends[] = {
    {".to_q", {".to_q", ".q_proj"}},
    {".to_k", {".to_k", ".k_proj"}},
    {".to_v", {".to_v", ".v_proj"}},
    {".to_out", {".to_out.0", ".out_proj"}},
};

bool adapter_module_name(const struct adapter_module *module, int i, char *out) {
    static const char processor[] = ".processor";
    int bytes = snprintf(out, LOADER_NAME_MAX + 1, "%.*s", module->name_bytes, module->name);
    if (i == 0) return true;
    if (module->dialect != ADAPTER_OLD_DIFFUSERS || i > 2) return false;
    char *at = strstr(out, processor);
    if (at) {
        bytes -= (int)strlen(processor);
        memmove(at, at + strlen(processor), strlen(at + strlen(processor)) + 1);
    }
    for (size_t k = 0; k < sizeof old_ends / sizeof *old_ends; k++) {
        const char *old = old_ends[k].old;
        if ((size_t)bytes == strlen(old) || !ends_with(out, old)) continue;
        bytes -= (int)strlen(old);
        snprintf(out + bytes, (size_t)(LOADER_NAME_MAX + 1 - bytes), "%s", old_ends[k].meant[i - 1]);
        return true;
    }
    return i == 1;
}
