/* Opens adapter files. Tensors are sorted by module name, grouped into modules, and each module is checked
 * for the tensors and shapes that its form needs. The alpha of a module is a scalar tensor of the file, or a
 * value of peft's configuration. This configuration is in the file's metadata or in adapter_config.json next
 * to the file. */
#include "engine/open/adapter_file.h"

#include "engine/base/half.h"
#include "engine/base/text.h"
#include "engine/open/contents.h"
#include "engine/open/paths.h"
#include "loaders/loaders.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *adapter_form_name(enum adapter_form form) {
    static const char *const names[] = {"LoRA", "LoHa", "LoKr", "difference"};
    return names[form];
}

const char *adapter_dialect_name(enum adapter_dialect dialect) {
    static const char *const names[] = {"kohya", "peft", "older diffusers"};
    return names[dialect];
}

char *adapter_print_shape(const struct index_entry *entry, char *out, size_t bytes) {
    block_print_shape(entry->rank, entry->dim, out, bytes);
    return out;
}

/* Endings of adapter keys (tensor names, such as ".lora_down.weight") and their tensor roles; the longest
 * matching ending wins. */
static const struct key_end {
    const char *end;
    enum adapter_role role;
    enum adapter_dialect dialect;
} key_ends[] = {
    {".lora_down.weight", ADAPTER_DOWN, ADAPTER_KOHYA},
    {".lora_up.weight", ADAPTER_UP, ADAPTER_KOHYA},
    {".lora_mid.weight", ADAPTER_MID, ADAPTER_KOHYA},
    {".alpha", ADAPTER_ALPHA, ADAPTER_KOHYA},
    {".scale", ADAPTER_SCALE, ADAPTER_KOHYA},
    {".lora_A.weight", ADAPTER_DOWN, ADAPTER_PEFT},
    {".lora_A.default.weight", ADAPTER_DOWN, ADAPTER_PEFT},
    {".lora_A", ADAPTER_DOWN, ADAPTER_PEFT},
    {".lora_B.weight", ADAPTER_UP, ADAPTER_PEFT},
    {".lora_B.default.weight", ADAPTER_UP, ADAPTER_PEFT},
    {".lora_B", ADAPTER_UP, ADAPTER_PEFT},
    {".lora_B.bias", ADAPTER_UP_BIAS, ADAPTER_PEFT},
    {".lora_B.default.bias", ADAPTER_UP_BIAS, ADAPTER_PEFT},
    {".lora.down.weight", ADAPTER_DOWN, ADAPTER_OLD_DIFFUSERS},
    {".lora.up.weight", ADAPTER_UP, ADAPTER_OLD_DIFFUSERS},
    {"_lora.down.weight", ADAPTER_DOWN, ADAPTER_OLD_DIFFUSERS},
    {"_lora.up.weight", ADAPTER_UP, ADAPTER_OLD_DIFFUSERS},
    {".lora_linear_layer.down.weight", ADAPTER_DOWN, ADAPTER_OLD_DIFFUSERS},
    {".lora_linear_layer.up.weight", ADAPTER_UP, ADAPTER_OLD_DIFFUSERS},
    {".dora_scale", ADAPTER_DORA, ADAPTER_KOHYA},
    {".lora_magnitude_vector", ADAPTER_DORA, ADAPTER_PEFT},
    {".lora_magnitude_vector.weight", ADAPTER_DORA, ADAPTER_PEFT},
    {".lora_magnitude_vector.default.weight", ADAPTER_DORA, ADAPTER_PEFT},
    {".diff", ADAPTER_DIFF, ADAPTER_KOHYA},
    {".diff_b", ADAPTER_DIFF_BIAS, ADAPTER_KOHYA},
    {".diff_m", ADAPTER_DIFF_MODULATION, ADAPTER_KOHYA},
    {".hada_w1_a", ADAPTER_HADA_W1_A, ADAPTER_KOHYA},
    {".hada_w1_b", ADAPTER_HADA_W1_B, ADAPTER_KOHYA},
    {".hada_w2_a", ADAPTER_HADA_W2_A, ADAPTER_KOHYA},
    {".hada_w2_b", ADAPTER_HADA_W2_B, ADAPTER_KOHYA},
    {".hada_t1", ADAPTER_HADA_T1, ADAPTER_KOHYA},
    {".hada_t2", ADAPTER_HADA_T2, ADAPTER_KOHYA},
    {".lokr_w1", ADAPTER_LOKR_W1, ADAPTER_KOHYA},
    {".lokr_w1_a", ADAPTER_LOKR_W1_A, ADAPTER_KOHYA},
    {".lokr_w1_b", ADAPTER_LOKR_W1_B, ADAPTER_KOHYA},
    {".lokr_w2", ADAPTER_LOKR_W2, ADAPTER_KOHYA},
    {".lokr_w2_a", ADAPTER_LOKR_W2_A, ADAPTER_KOHYA},
    {".lokr_w2_b", ADAPTER_LOKR_W2_B, ADAPTER_KOHYA},
    {".lokr_t2", ADAPTER_LOKR_T2, ADAPTER_KOHYA},
};

/* Endings of tensor names (keys) of unsupported kinds of adapters. */
static const struct refused_end {
    const char *end, *what;
} refused_ends[] = {
    {".oft_blocks", "OFT"},
    {".oft_diag", "OFT"},
    {".oft_R.weight", "OFT of peft"},
    {".oft_R.default.weight", "OFT of peft"},
    {".boft_R", "BOFT"},
    {".boft_s", "BOFT"},
    {".on_input", "IA3"},
    {".ia3_l", "IA3"},
    {".a1.weight", "GLoRA"},
    {".a2.weight", "GLoRA"},
    {".b1.weight", "GLoRA"},
    {".b2.weight", "GLoRA"},
    {".set_weight", "a replacement of a weight"},
    {".reshape_weight", "a reshaped weight"},
    {".w_norm", "a replacement of a norm"},
    {".b_norm", "a replacement of a norm"},
    {".lora_embedding_A", "an adapted embedding"},
    {".lora_embedding_B", "an adapted embedding"},
    {".lora_C.weight", "LoRA with three factors"},
};

bool adapter_key_read(const char *key, struct adapter_key *out) {
    size_t bytes = strlen(key), longest = 0;
    *out = (struct adapter_key){0};
    for (size_t i = 0; i < sizeof key_ends / sizeof *key_ends; i++) {
        const struct key_end *k = &key_ends[i];
        size_t n = strlen(k->end);
        if (n <= longest || n == bytes || !ends_with(key, k->end)) continue;
        longest = n;
        *out = (struct adapter_key){(int)(bytes - n), k->role, k->dialect, NULL};
    }
    for (size_t i = 0; i < sizeof refused_ends / sizeof *refused_ends; i++) {
        size_t n = strlen(refused_ends[i].end);
        if (n <= longest || n == bytes || !ends_with(key, refused_ends[i].end)) continue;
        longest = n;
        *out = (struct adapter_key){.name_bytes = (int)(bytes - n), .refused = refused_ends[i].what};
    }
    return longest > 0;
}

bool adapter_is_key(const char *name) {
    struct adapter_key key;
    return adapter_key_read(name, &key) &&
           (key.refused || (key.role != ADAPTER_SCALE && key.role != ADAPTER_ALPHA));
}

const char *adapter_describe(const struct tensor_index *view) {
    /* Beginnings of tensor names. Sources: ComfyUI, comfy/controlnet.py; diffusers, T2IAdapter. */
    static const struct {
        const char *name, *what;
    } kinds[] = {
        {"lora_controlnet", "a Control-LoRA, which is not supported"},
        {"difference", "a ControlNet stored as difference from its model, which is not supported"},
        {"controlnet_blocks.0.x_rms.",
         "a block-wise control network of Qwen-Image (DiffSynth), which is not supported"},
        {"controlnet_blocks.0.linear.weight", "a MistoLine network, which is not supported"},
        {"body.0.in_conv.", "a T2I adapter, which is not supported"},
        {"body.0.block", "a T2I adapter, which is not supported"},
        {"body.0.resnets.", "a T2I adapter, which is not supported"},
        {"body.0.weight", "convolutions without the PReLU weights (body.1.weight) of a compact upscaler"},
        {"adapter.body.0.", "a T2I adapter, which is not supported"},
        {"adapter.conv_in.", "a T2I adapter, which is not supported"},
        {"image_proj.", "an IP-Adapter, which is not supported"},
        {"redux_up.", "Flux.1 Redux, which --redux takes"},
    };
    bool adapter = false;
    for (int i = 0; i < view->n_entries; i++) {
        const char *name = index_name(view, &view->entries[i]);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (!strncmp(name, kinds[k].name, strlen(kinds[k].name))) return kinds[k].what;
        adapter = adapter || adapter_is_key(name);
    }
    return adapter ? "a LoRA or other adapter, which --lora takes" : NULL;
}

static const char *path_of(const struct adapter *a) {
    return a->index.sources[0].path;
}

struct keyed_entry {
    const struct index_entry *entry;
    struct adapter_key key;
};

static int compare_modules(const struct keyed_entry *x, const struct keyed_entry *y) {
    int bytes = x->key.name_bytes < y->key.name_bytes ? x->key.name_bytes : y->key.name_bytes;
    int order = memcmp(x->entry->name, y->entry->name, (size_t)bytes);
    return order ? order : x->key.name_bytes - y->key.name_bytes;
}

static int compare_keyed(const void *a, const void *b) {
    const struct keyed_entry *x = a, *y = b;
    int order = compare_modules(x, y);
    return order ? order : strcmp(x->entry->name, y->entry->name);
}

/* Parses the keys of all tensors. Tensors that are no adapter keys go to a->unknown. */
static enum status read_keys(struct adapter *a, struct keyed_entry *keyed, int *n, struct error *e) {
    for (int i = 0; i < a->index.n_entries; i++) {
        struct keyed_entry *k = &keyed[*n];
        *k = (struct keyed_entry){.entry = &a->index.entries[i]};
        bool is_key = adapter_key_read(k->entry->name, &k->key);
        /* A "scale" of several values is the weight vector of a norm, as in some adapter files. */
        if (is_key && !k->key.refused && k->key.role == ADAPTER_SCALE)
            is_key = k->entry->bytes <= sizeof(double);
        if (!is_key) {
            a->unknown[a->n_unknown++] = k->entry;
            continue;
        }
        ++*n;
        if (!k->key.refused) continue;
        return error_set(e, UNSUPPORTED,
                         "tensor '%s' of the adapter is of an unsupported kind" WHERE "%s" FOUND "%s" EXPECTED
                         "LoRA, LoHa, LoKr, or weight differences",
                         k->entry->name, path_of(a), k->key.refused);
    }
    return OK;
}

/* Groups the sorted tensors of an adapter into modules. */
static enum status group(struct adapter *a, const struct keyed_entry *keyed, int n, struct error *e) {
    for (int i = 0; i < n; i++) {
        const struct adapter_key *key = &keyed[i].key;
        if (i == 0 || compare_modules(&keyed[i - 1], &keyed[i]))
            a->modules[a->n_modules++] = (struct adapter_module){
                .name = keyed[i].entry->name, .name_bytes = key->name_bytes, .scale = 1};
        struct adapter_module *m = &a->modules[a->n_modules - 1];
        const struct index_entry **place = &m->tensor[key->role];
        if (*place) {
            return error_set(e, DUP,
                             "two tensors of the adapter have the same role in one module" WHERE "%s" FOUND
                             "'%s' and '%s'",
                             path_of(a), (*place)->name, keyed[i].entry->name);
        }
        *place = keyed[i].entry;
        if (key->role == ADAPTER_DOWN) m->dialect = key->dialect;
    }
    return OK;
}

static enum status find_modules(struct adapter *a, struct error *e) {
    uint64_t all = (uint64_t)a->index.n_entries;
    int n = 0;
    struct keyed_entry *keyed = sys_new(a->sys, all, sizeof *keyed, "an adapter's tensors", e);
    a->modules = keyed ? sys_new(a->sys, all, sizeof *a->modules, "an adapter's modules", e) : NULL;
    a->unknown =
        a->modules ? sys_new(a->sys, all, sizeof *a->unknown, "an adapter's unknown tensors", e) : NULL;
    if (a->unknown && read_keys(a, keyed, &n, e) == OK) {
        qsort(keyed, (size_t)n, sizeof *keyed, compare_keyed);
        group(a, keyed, n, e);
    }
    a->host_bytes = a->index.host_bytes + all * (sizeof *a->modules + sizeof *a->unknown);
    a->sys->release(a->sys, keyed);
    return e->code;
}

static enum status module_fail(const struct adapter *a, const struct adapter_module *m, enum status code,
                               const char *what, struct error *e) {
    enum { SHOWN = 160 }; /* longer module names are cut at the beginning, where they hardly differ */
    int skip = m->name_bytes > SHOWN ? m->name_bytes - SHOWN : 0;
    return error_set(e, code, "module '%.*s' of the adapter %s" WHERE "%s", m->name_bytes - skip,
                     m->name + skip, what, path_of(a));
}

/* Checks that a module has all tensors that its form needs, and sets the form. */
static enum status check_roles(const struct adapter *a, struct adapter_module *m, struct error *e) {
    static const struct {
        enum adapter_role one,
            other; /* a module with a tensor of one role needs a tensor of the other role */
    } pairs[] = {
        {ADAPTER_DOWN, ADAPTER_UP},
        {ADAPTER_HADA_W1_A, ADAPTER_HADA_W1_B},
        {ADAPTER_HADA_W2_A, ADAPTER_HADA_W2_B},
        {ADAPTER_HADA_W1_A, ADAPTER_HADA_W2_A},
        {ADAPTER_HADA_T1, ADAPTER_HADA_T2},
        {ADAPTER_LOKR_W1_A, ADAPTER_LOKR_W1_B},
        {ADAPTER_LOKR_W2_A, ADAPTER_LOKR_W2_B},
    };
    const struct index_entry *const *t = m->tensor;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!t[pairs[i].one] != !t[pairs[i].other])
            return module_fail(a, m, MISSING, "has only one of its two factors", e);
    bool w1 = t[ADAPTER_LOKR_W1] || t[ADAPTER_LOKR_W1_A], w2 = t[ADAPTER_LOKR_W2] || t[ADAPTER_LOKR_W2_A];
    if (w1 != w2) return module_fail(a, m, MISSING, "has only one of its two factors", e);
    if ((t[ADAPTER_LOKR_W1] && t[ADAPTER_LOKR_W1_A]) || (t[ADAPTER_LOKR_W2] && t[ADAPTER_LOKR_W2_A]))
        return module_fail(a, m, DUP, "has a LoKr factor twice: whole, and as a product", e);
    if ((t[ADAPTER_MID] && !t[ADAPTER_DOWN]) || (t[ADAPTER_HADA_T1] && !t[ADAPTER_HADA_W1_A]) ||
        (t[ADAPTER_LOKR_T2] && !t[ADAPTER_LOKR_W2_A]))
        return module_fail(a, m, MISSING,
                           "has a middle factor (lora_mid, t1 or t2) without the factors around it", e);
    bool lora = t[ADAPTER_DOWN], loha = t[ADAPTER_HADA_W1_A];
    bool changes = t[ADAPTER_DIFF] || t[ADAPTER_DIFF_BIAS] || t[ADAPTER_DIFF_MODULATION];
    if (lora + loha + w1 > 1 || (t[ADAPTER_DIFF] && lora + loha + w1))
        return module_fail(a, m, DUP, "has tensors of two kinds of adapter", e);
    m->form = lora ? ADAPTER_LORA : loha ? ADAPTER_LOHA : w1 ? ADAPTER_LOKR : ADAPTER_DIFFERENCE;
    if (lora + loha + w1 || changes) return OK;
    return module_fail(a, m, MISSING, "has no factors", e);
}

static enum status tensor_fail(const struct adapter *a, const struct index_entry *entry, enum status code,
                               const char *what, struct error *e) {
    char shape[128];
    return error_set(e, code, "tensor '%s' of the adapter %s" WHERE "%s" FOUND "%s %s", entry->name, what,
                     path_of(a), index_type_name(entry), adapter_print_shape(entry, shape, sizeof shape));
}

/* Checks the number of dimensions and the type of a module's tensors. */
static enum status check_shapes(const struct adapter *a, const struct adapter_module *m, struct error *e) {
    static const struct {
        enum adapter_role role;
        int least, most; /* smallest and largest number of dimensions of a tensor of this role */
    } shapes[] = {
        {ADAPTER_DOWN, 2, 5},
        {ADAPTER_UP, 2, 5},
        {ADAPTER_MID, 4, 4},
        {ADAPTER_HADA_W1_A, 2, 2},
        {ADAPTER_HADA_W1_B, 2, 2},
        {ADAPTER_HADA_W2_A, 2, 2},
        {ADAPTER_HADA_W2_B, 2, 2},
        {ADAPTER_HADA_T1, 4, 4},
        {ADAPTER_HADA_T2, 4, 4},
        {ADAPTER_LOKR_W1, 2, 4},
        {ADAPTER_LOKR_W1_A, 2, 2},
        {ADAPTER_LOKR_W1_B, 2, 2},
        {ADAPTER_LOKR_W2, 2, 4},
        {ADAPTER_LOKR_W2_A, 2, 2},
        {ADAPTER_LOKR_W2_B, 2, 2},
        {ADAPTER_LOKR_T2, 4, 4},
        {ADAPTER_DIFF, 1, 5},
        {ADAPTER_DIFF_BIAS, 1, 2},
        {ADAPTER_DIFF_MODULATION, 1, 4},
        {ADAPTER_UP_BIAS, 1, 2},
        {ADAPTER_DORA, 1, 5},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct index_entry *entry = m->tensor[shapes[i].role];
        if (!entry) continue;
        for (int k = 0; k < entry->rank; k++)
            if (!entry->dim[k]) return tensor_fail(a, entry, SHAPE, "is empty", e);
        if (entry->rank < shapes[i].least || entry->rank > shapes[i].most)
            return tensor_fail(a, entry, SHAPE, "has the wrong number of dimensions", e);
        if (entry->dtype == DTYPE_F32 || entry->dtype == DTYPE_F16 || entry->dtype == DTYPE_BF16) continue;
        tensor_fail(a, entry, UNSUPPORTED, "has an unsupported element type", e);
        return error_expected(e, "F32, F16 or BF16");
    }
    return OK;
}

/* Sets a module's rank and checks that its factors have the same rank. */
static enum status check_ranks(const struct adapter *a, struct adapter_module *m, struct error *e) {
    static const enum adapter_role rank_in_dim_0[] = {ADAPTER_DOWN, ADAPTER_HADA_W1_B, ADAPTER_LOKR_W2_B,
                                                      ADAPTER_LOKR_W1_B};
    static const struct {
        enum adapter_role one; /* a rule: dimension i of the tensor of role `one` ... */
        int i;
        enum adapter_role other; /* ... equals dimension k of the tensor of role `other` */
        int k;
        enum adapter_role without; /* the rule is skipped if the module has a tensor of this role */
    } equal[] = {
        {ADAPTER_UP, 1, ADAPTER_DOWN, 0, ADAPTER_MID},
        {ADAPTER_UP, 1, ADAPTER_MID, 0, N_ADAPTER_ROLES},
        {ADAPTER_MID, 1, ADAPTER_DOWN, 0, N_ADAPTER_ROLES},
        {ADAPTER_HADA_W1_A, 1, ADAPTER_HADA_W1_B, 0, ADAPTER_HADA_T1},
        {ADAPTER_HADA_W2_A, 1, ADAPTER_HADA_W2_B, 0, ADAPTER_HADA_T2},
        {ADAPTER_HADA_W1_A, 0, ADAPTER_HADA_T1, 0, N_ADAPTER_ROLES},
        {ADAPTER_HADA_W1_B, 0, ADAPTER_HADA_T1, 1, N_ADAPTER_ROLES},
        {ADAPTER_HADA_W2_A, 0, ADAPTER_HADA_T2, 0, N_ADAPTER_ROLES},
        {ADAPTER_HADA_W2_B, 0, ADAPTER_HADA_T2, 1, N_ADAPTER_ROLES},
        {ADAPTER_HADA_T1, 2, ADAPTER_HADA_T2, 2, N_ADAPTER_ROLES},
        {ADAPTER_HADA_T1, 3, ADAPTER_HADA_T2, 3, N_ADAPTER_ROLES},
        {ADAPTER_LOKR_W1_A, 1, ADAPTER_LOKR_W1_B, 0, N_ADAPTER_ROLES},
        {ADAPTER_LOKR_W2_A, 1, ADAPTER_LOKR_W2_B, 0, ADAPTER_LOKR_T2},
        {ADAPTER_LOKR_W2_A, 0, ADAPTER_LOKR_T2, 0, N_ADAPTER_ROLES},
        {ADAPTER_LOKR_W2_B, 0, ADAPTER_LOKR_T2, 1, N_ADAPTER_ROLES},
    };
    for (size_t i = 0; i < sizeof rank_in_dim_0 / sizeof *rank_in_dim_0 && !m->rank; i++)
        if (m->tensor[rank_in_dim_0[i]]) m->rank = m->tensor[rank_in_dim_0[i]]->dim[0];
    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
        const struct index_entry *x = m->tensor[equal[i].one], *y = m->tensor[equal[i].other];
        if (equal[i].without != N_ADAPTER_ROLES && m->tensor[equal[i].without]) continue;
        if (!x || !y || x->dim[equal[i].i] == y->dim[equal[i].k]) continue;
        char shape[128];
        tensor_fail(a, x, SHAPE, "has another rank than the other factor of its module", e);
        return error_expected(e, "%" PRId32 ", as in '%s' %s", y->dim[equal[i].k], y->name,
                              adapter_print_shape(y, shape, sizeof shape));
    }
    return OK;
}

/* Converts the bytes of a scalar tensor; at least 8 bytes are readable. False: an unsupported type. */
static bool scalar_value(const struct index_entry *entry, const void *from, double *value) {
    const char *type = index_type_name(entry);
    float f32;
    double f64;
    uint16_t half;
    int32_t i32;
    int64_t i64;
    memcpy(&f32, from, sizeof f32);
    memcpy(&f64, from, sizeof f64);
    memcpy(&half, from, sizeof half);
    memcpy(&i32, from, sizeof i32);
    memcpy(&i64, from, sizeof i64);
    if (!strcmp(type, "F32"))
        *value = (double)f32;
    else if (!strcmp(type, "BF16"))
        *value = (double)half_bf16_f32(half);
    else if (!strcmp(type, "F16"))
        *value = (double)half_f16_f32(half);
    else if (!strcmp(type, "F64"))
        *value = f64;
    else if (!strcmp(type, "I64"))
        *value = (double)i64;
    else if (!strcmp(type, "I32"))
        *value = (double)i32;
    else
        return false;
    return true;
}

static enum status read_scalar(const struct adapter *a, const struct index_entry *entry, double *value,
                               struct error *e) {
    int64_t n = 1;
    char bytes[sizeof(double)] = {0};
    for (int i = 0; i < entry->rank; i++) n = n && entry->dim[i] == 1;
    if (!n || entry->bytes > sizeof bytes)
        return error_set(e, SHAPE,
                         "tensor '%s' of an adapter is not a scalar" WHERE "%s" FOUND "%llu bytes" EXPECTED
                         "one number",
                         entry->name, path_of(a), (unsigned long long)entry->bytes);
    if (source_read(&a->index.sources[0], bytes, entry->bytes, entry->offset, e) != OK) return e->code;
    if (!scalar_value(entry, bytes, value))
        return error_set(e, UNSUPPORTED,
                         "tensor '%s' of an adapter has an unsupported type" WHERE "%s" FOUND "%s" EXPECTED
                         "F32, F16, BF16, F64, I32 or I64",
                         entry->name, path_of(a), index_type_name(entry));
    if (isfinite((float)*value)) return OK;
    return error_set(e, META, "tensor '%s' of an adapter is not finite in f32" WHERE "%s" FOUND "%g",
                     entry->name, path_of(a), *value);
}

static int compare_key(const void *key, const void *value) {
    return strcmp(key, ((const struct config_value *)value)->key);
}

/* Binary search in peft's configuration for a key of three parts: the first `part` bytes of the module's
 * name, `key`, and `end`. */
static const struct config_value *peft_find(const struct config *peft, int part, const char *name,
                                            const char *key, const char *end) {
    char whole[2 * LOADER_NAME_MAX];
    snprintf(whole, sizeof whole, "%.*s%s%s", part, name, key, end);
    if (!peft->n_values) return NULL;
    return bsearch(whole, peft->values, (size_t)peft->n_values, sizeof *peft->values, compare_key);
}

/* Reads a module's alpha from peft's configuration: from alpha_pattern, where a pattern is the module's whole
 * name or the last parts of the name, else from lora_alpha. Without either alpha is the rank, so that the
 * scale is 1. */
static enum status peft_alpha(const struct config *peft, struct adapter_module *m, struct error *e) {
    char name[LOADER_NAME_MAX + 1];
    snprintf(name, sizeof name, "%.*s", m->name_bytes, m->name);
    /* The configuration's keys may have the name's component prefix ("transformer."). */
    const char *dot = strchr(name, '.');
    int part = dot ? (int)(dot - name) + 1 : 0;
    if (!peft_find(peft, part, name, "lora_alpha", "")) part = 0;
    const struct config_value *alpha = NULL;
    for (const char *at = name + part; at && !alpha; at = strchr(at, '.')) {
        at += *at == '.';
        alpha = peft_find(peft, part, name, "alpha_pattern.", at);
    }
    if (!alpha) alpha = peft_find(peft, part, name, "lora_alpha", "");
    const struct config_value *by_root = peft_find(peft, part, name, "use_rslora", "");
    if (!alpha || alpha->kind == CONFIG_NULL) return OK;
    if (alpha->kind != CONFIG_NUMBER || !isfinite((float)alpha->number)) {
        return error_set(e, META, "the adapter's configuration value '%s' is not a finite number" WHERE "%s",
                         alpha->key, peft->path);
    }
    double divisor = by_root && by_root->number != 0 ? sqrt((double)m->rank) : (double)m->rank;
    m->alpha = (float)alpha->number;
    m->scale = (float)(alpha->number / divisor);
    return OK;
}

char *adapter_config_path(struct sys *sys, const char *path, struct error *e) {
    static const char name[] = "adapter_model.safetensors";
    size_t n = strlen(path), tail = sizeof name - 1;
    if (n < tail || strcmp(path + n - tail, name) != 0 || (n > tail && path[n - tail - 1] != '/'))
        return NULL;
    char *folder = path_folder(sys, path, e);
    char *config = folder ? path_existing(sys, folder, "adapter_config.json", e) : NULL;
    sys->release(sys, folder);
    return config;
}

/* Reads peft's configuration. Refuses alpha patterns with regular expressions; diffusers and trainers write
 * plain names. */
static enum status read_peft(const struct adapter *a, struct config *config, struct error *e) {
    if (a->index.adapter) {
        config_parse(a->sys, path_of(a), a->index.adapter, NULL, config, e);
    } else {
        char *path = adapter_config_path(a->sys, path_of(a), e);
        if (path) config_read(a->sys, path, config, e);
        a->sys->release(a->sys, path);
    }
    for (int i = 0; i < config->n_values && e->code == OK; i++) {
        const char *at = strstr(config->values[i].key, "alpha_pattern.");
        if (!at || !strpbrk(at, "*+?[](){}|^$\\")) continue;
        error_set(e, UNSUPPORTED,
                  "the adapter's alpha_pattern is a regular expression" WHERE "%s" FOUND "%s" EXPECTED
                  "plain names of modules",
                  config->path, at);
    }
    return e->code;
}

/* Reads the alpha of one module. The alpha of a LoKr module is ignored if neither of its two matrices is
 * factored: such a module has no rank. */
static enum status read_alpha(const struct adapter *a, const struct config *peft, struct adapter_module *m,
                              struct error *e) {
    const struct index_entry *alpha = m->tensor[ADAPTER_ALPHA], *scale = m->tensor[ADAPTER_SCALE];
    double value = 1;
    m->alpha = NAN;
    m->scale = 1;
    if (alpha && read_scalar(a, alpha, &value, e) != OK) return e->code;
    if (alpha) m->alpha = (float)value;
    if (alpha && m->rank) m->scale = (float)(value / m->rank);
    if (scale && read_scalar(a, scale, &value, e) == OK) m->scale = (float)value;
    if (!alpha && !scale && m->rank) return peft_alpha(peft, m, e);
    return e->code;
}

static enum status fail_no_adapter(const struct adapter *a, struct error *e) {
    struct contents contents = {0};
    struct error ignored = {0};
    contents_find(a->sys, &a->index, &contents, &ignored);
    error_set(e, UNSUPPORTED, "the file is not a LoRA or other adapter" WHERE "%s", path_of(a));
    if (contents.n)
        error_found(e, "the weights of a model: %s (%s)", contents.component[0].family->display_name,
                    contents.component[0].family->name);
    else if (a->index.n_entries)
        error_found(e, "'%s'", a->index.entries[0].name);
    else
        error_found(e, "no tensors");
    return error_expected(e, "tensors such as 'NAME.lora_down.weight' or 'NAME.lora_A.weight'");
}

enum status adapter_open(struct sys *sys, const char *path, struct adapter **adapter, struct error *e) {
    struct config peft = {0};
    struct adapter *a = sys_new(sys, 1, sizeof *a, "an adapter", e);
    *adapter = NULL;
    if (!a) return e->code;
    a->sys = sys;
    if (safetensors_open(sys, path, &a->index, e) == OK && find_modules(a, e) == OK && !a->n_modules)
        fail_no_adapter(a, e);
    for (int i = 0; i < a->n_modules && e->code == OK; i++) {
        struct adapter_module *m = &a->modules[i];
        if (check_roles(a, m, e) == OK && check_shapes(a, m, e) == OK) check_ranks(a, m, e);
    }
    if (e->code == OK) read_peft(a, &peft, e);
    for (int i = 0; i < a->n_modules && e->code == OK; i++) read_alpha(a, &peft, &a->modules[i], e);
    config_destroy(&peft);
    if (e->code == OK)
        *adapter = a;
    else
        adapter_close(a);
    return e->code;
}

void adapter_close(struct adapter *a) {
    if (!a) return;
    struct sys *sys = a->sys;
    sys->release(sys, a->modules);
    sys->release(sys, a->unknown);
    index_destroy(&a->index);
    sys->release(sys, a);
}
