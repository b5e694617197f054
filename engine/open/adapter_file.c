/* Opens adapter files. Tensors are sorted by module name, grouped into modules, and each module is checked
 * for the tensors and shapes that its form needs. */
#include "engine/open/adapter_file.h"

#include "engine/open/adapter_alpha.h"
#include "engine/open/adapter_keys.h"
#include "engine/open/contents.h"
#include "loaders/alloc_array.h"

#include <inttypes.h>
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

static const char *path_of(const struct adapter *a) {
    return a->index.sources[0].path;
}

/* Largest number of bytes of a module name in messages. Longer names are cut at the beginning, where modules
 * hardly differ. */
enum { NAME_SHOWN = 160 };

static enum status module_fail(const struct adapter *a, const struct adapter_module *m, enum status code,
                               const char *what, struct error *e) {
    int skip = m->name_bytes > NAME_SHOWN ? m->name_bytes - NAME_SHOWN : 0;
    return error_set(e, code, "module '%.*s' of the adapter %s" WHERE "%s", m->name_bytes - skip,
                     m->name + skip, what, path_of(a));
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

/* True if a tensor named "scale" is the weight vector of a norm, as in some adapter files, and not a scalar:
 * a weight vector has several values. */
static bool is_whole_vector(const struct keyed_entry *keyed) {
    return keyed->key.role == ADAPTER_SCALE && keyed->entry->bytes > sizeof(double);
}

static enum status read_keys(struct adapter *a, struct keyed_entry *keyed, int *n, struct error *e) {
    for (int i = 0; i < a->index.n_entries; i++) {
        struct keyed_entry *k = &keyed[*n];
        *k = (struct keyed_entry){.entry = &a->index.entries[i]};
        if (!adapter_key_read(k->entry->name, &k->key) || (!k->key.refused && is_whole_vector(k))) {
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

static enum status add_to_module(struct adapter *a, const struct keyed_entry *keyed, struct error *e) {
    struct adapter_module *m = &a->modules[a->n_modules - 1];
    const struct index_entry **place = &m->tensor[keyed->key.role];
    if (*place) {
        return error_set(e, DUP,
                         "two tensors of the adapter have the same role in one module" WHERE "%s" FOUND
                         "'%s' and '%s'",
                         path_of(a), (*place)->name, keyed->entry->name);
    }
    *place = keyed->entry;
    if (keyed->key.role == ADAPTER_DOWN) m->dialect = keyed->key.dialect;
    return OK;
}

static enum status group(struct adapter *a, const struct keyed_entry *keyed, int n, struct error *e) {
    for (int i = 0; i < n && e->code == OK; i++) {
        if (i == 0 || compare_modules(&keyed[i - 1], &keyed[i]))
            a->modules[a->n_modules++] = (struct adapter_module){
                .name = keyed[i].entry->name, .name_bytes = keyed[i].key.name_bytes, .scale = 1};
        add_to_module(a, &keyed[i], e);
    }
    return e->code;
}

static enum status find_modules(struct adapter *a, struct error *e) {
    uint64_t all = (uint64_t)a->index.n_entries;
    int n = 0;
    struct keyed_entry *keyed = alloc_array(a->sys, all, sizeof *keyed, e);
    a->modules = keyed ? alloc_array(a->sys, all, sizeof *a->modules, e) : NULL;
    a->unknown = a->modules ? alloc_array(a->sys, all, sizeof *a->unknown, e) : NULL;
    if (a->unknown && read_keys(a, keyed, &n, e) == OK) {
        qsort(keyed, (size_t)n, sizeof *keyed, compare_keyed);
        group(a, keyed, n, e);
    }
    a->host_bytes = a->index.host_bytes + all * (sizeof *a->modules + sizeof *a->unknown);
    a->sys->release(a->sys, keyed);
    return e->code;
}

/* Two tensor roles that only occur together: a module with a tensor of one role needs a tensor of the other
 * role. */
struct pair {
    enum adapter_role one, other;
};
static const struct pair pairs[] = {
    {ADAPTER_DOWN, ADAPTER_UP},
    {ADAPTER_HADA_W1_A, ADAPTER_HADA_W1_B},
    {ADAPTER_HADA_W2_A, ADAPTER_HADA_W2_B},
    {ADAPTER_HADA_W1_A, ADAPTER_HADA_W2_A},
    {ADAPTER_HADA_T1, ADAPTER_HADA_T2},
    {ADAPTER_LOKR_W1_A, ADAPTER_LOKR_W1_B},
    {ADAPTER_LOKR_W2_A, ADAPTER_LOKR_W2_B},
};

static bool has(const struct adapter_module *m, enum adapter_role role) {
    return m->tensor[role] != NULL;
}

static enum status check_pairs(const struct adapter *a, const struct adapter_module *m, struct error *e) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (has(m, pairs[i].one) != has(m, pairs[i].other))
            return module_fail(a, m, MISSING, "has only one of its two factors", e);
    bool w1 = has(m, ADAPTER_LOKR_W1) || has(m, ADAPTER_LOKR_W1_A);
    bool w2 = has(m, ADAPTER_LOKR_W2) || has(m, ADAPTER_LOKR_W2_A);
    if (w1 != w2) return module_fail(a, m, MISSING, "has only one of its two factors", e);
    if ((has(m, ADAPTER_LOKR_W1) && has(m, ADAPTER_LOKR_W1_A)) ||
        (has(m, ADAPTER_LOKR_W2) && has(m, ADAPTER_LOKR_W2_A)))
        return module_fail(a, m, DUP, "has a LoKr factor twice: whole, and as a product", e);
    if ((has(m, ADAPTER_MID) && !has(m, ADAPTER_DOWN)) ||
        (has(m, ADAPTER_HADA_T1) && !has(m, ADAPTER_HADA_W1_A)) ||
        (has(m, ADAPTER_LOKR_T2) && !has(m, ADAPTER_LOKR_W2_A)))
        return module_fail(a, m, MISSING,
                           "has a middle factor (lora_mid, t1 or t2) without the factors around it", e);
    return OK;
}

static enum status find_form(const struct adapter *a, struct adapter_module *m, struct error *e) {
    bool lora = has(m, ADAPTER_DOWN), loha = has(m, ADAPTER_HADA_W1_A);
    bool lokr = has(m, ADAPTER_LOKR_W1) || has(m, ADAPTER_LOKR_W1_A);
    bool changes = has(m, ADAPTER_DIFF) || has(m, ADAPTER_DIFF_BIAS) || has(m, ADAPTER_DIFF_MODULATION);
    if (lora + loha + lokr > 1 || (has(m, ADAPTER_DIFF) && lora + loha + lokr))
        return module_fail(a, m, DUP, "has tensors of two kinds of adapter", e);
    m->form = lora ? ADAPTER_LORA : loha ? ADAPTER_LOHA : lokr ? ADAPTER_LOKR : ADAPTER_DIFFERENCE;
    if (lora + loha + lokr || changes) return OK;
    return module_fail(a, m, MISSING, "has no factors", e);
}

struct role_shape {
    enum adapter_role role;
    int least, most; /* smallest and largest number of dimensions of a tensor of this role */
};
static const struct role_shape role_shapes[] = {
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

static enum status tensor_fail(const struct adapter *a, const struct index_entry *entry, enum status code,
                               const char *what, struct error *e) {
    char shape[128];
    return error_set(e, code, "tensor '%s' of the adapter %s" WHERE "%s" FOUND "%s %s", entry->name, what,
                     path_of(a), index_type_name(entry), adapter_print_shape(entry, shape, sizeof shape));
}

static enum status check_shape(const struct adapter *a, const struct index_entry *entry,
                               const struct role_shape *shape, struct error *e) {
    for (int i = 0; i < entry->rank; i++)
        if (!entry->dim[i]) return tensor_fail(a, entry, SHAPE, "is empty", e);
    if (entry->rank < shape->least || entry->rank > shape->most)
        return tensor_fail(a, entry, SHAPE, "has the wrong number of dimensions", e);
    if (entry->dtype == DTYPE_F32 || entry->dtype == DTYPE_F16 || entry->dtype == DTYPE_BF16) return OK;
    tensor_fail(a, entry, UNSUPPORTED, "has an unsupported element type", e);
    return error_expected(e, "F32, F16 or BF16");
}

static enum status check_equal(const struct adapter *a, const struct adapter_module *m, enum adapter_role one,
                               int i, enum adapter_role other, int k, struct error *e) {
    const struct index_entry *x = m->tensor[one], *y = m->tensor[other];
    if (!x || !y || x->dim[i] == y->dim[k]) return OK;
    char shape[128];
    tensor_fail(a, x, SHAPE, "has another rank than the other factor of its module", e);
    return error_expected(e, "%" PRId32 ", as in '%s' %s", y->dim[k], y->name,
                          adapter_print_shape(y, shape, sizeof shape));
}

static enum status check_ranks(const struct adapter *a, const struct adapter_module *m, struct error *e) {
    static const struct {
        enum adapter_role one;
        int i;
        enum adapter_role other;
        int k;
        enum adapter_role without; /* the check is skipped if the module has a tensor of this role */
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
    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++)
        if ((equal[i].without == N_ADAPTER_ROLES || !has(m, equal[i].without)) &&
            check_equal(a, m, equal[i].one, equal[i].i, equal[i].other, equal[i].k, e) != OK)
            return e->code;
    return OK;
}

static int rank_of(const struct adapter_module *m) {
    static const enum adapter_role roles[] = {ADAPTER_DOWN, ADAPTER_HADA_W1_B, ADAPTER_LOKR_W2_B,
                                              ADAPTER_LOKR_W1_B};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (has(m, roles[i])) return m->tensor[roles[i]]->dim[0];
    return 0;
}

static enum status check_module(const struct adapter *a, struct adapter_module *m, struct error *e) {
    if (check_pairs(a, m, e) != OK || find_form(a, m, e) != OK) return e->code;
    for (size_t i = 0; i < sizeof role_shapes / sizeof *role_shapes; i++) {
        const struct index_entry *entry = m->tensor[role_shapes[i].role];
        if (entry && check_shape(a, entry, &role_shapes[i], e) != OK) return e->code;
    }
    m->rank = rank_of(m);
    return check_ranks(a, m, e);
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

static enum status read_adapter(struct adapter *a, struct error *e) {
    if (find_modules(a, e) != OK) return e->code;
    if (!a->n_modules) return fail_no_adapter(a, e);
    for (int i = 0; i < a->n_modules; i++)
        if (check_module(a, &a->modules[i], e) != OK) return e->code;
    return adapter_read_alphas(a, e);
}

enum status adapter_open(struct sys *sys, const char *path, struct adapter **adapter, struct error *e) {
    struct adapter *a = alloc_array(sys, 1, sizeof *a, e);
    *adapter = NULL;
    if (!a) return e->code;
    a->sys = sys;
    if (safetensors_open(sys, path, &a->index, e) == OK && read_adapter(a, e) == OK)
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

struct byte_source *adapter_source(const struct adapter *a) {
    return &a->index.sources[0];
}

uint64_t adapter_host_bytes(const struct adapter *a) {
    return a->host_bytes;
}
