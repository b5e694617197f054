/* Chooses the type of each tensor. The first matching --rule decides, otherwise --type with the family's
 * tables, as in a run with --type. If --type keeps a tensor's type but the output format lacks the type, the
 * tensor gets the smallest unquantised type that holds all values. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/convert/convert.h"

#include "loaders/quantise/quantise.h"
#include "loaders/quantised.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULES_MAX = 64, RULE_BYTES_MAX = 1024, MATCH_LIMIT = 100000, SMALL_VALUES = 1024 };
/* largest number of output tensors per weight: quantisation format, scales, weight */
enum { WITH_WEIGHT = 3 };

struct rules {
    pcre2_code *code[RULES_MAX];
    enum dtype dtype[RULES_MAX];
    const char *text[RULES_MAX];
    bool matched[RULES_MAX]; /* true: the pattern matches the name of at least one tensor */
    int n;
    pcre2_match_data *data;
    pcre2_match_context *context;
};

static bool is_f8(enum dtype dtype) {
    return dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2;
}

static bool is_int8(enum dtype dtype) {
    return dtype == DTYPE_I8 || (dtype_is_rotated(dtype) && dtype != DTYPE_I4_ROT256);
}

/* True for types with separate scale tensors, which only safetensors files have. */
static bool has_scales(enum dtype dtype) {
    return is_f8(dtype) || is_int8(dtype);
}

static enum status read_type(const char *where, const char *name, bool to_gguf, enum dtype *dtype,
                             struct error *e) {
    *dtype = quantise_type(name);
    bool scaled = *dtype != N_DTYPES && has_scales(*dtype);
    bool blocks = *dtype != N_DTYPES && dtype_block_values(*dtype) > 1 && !scaled;
    if (*dtype != N_DTYPES && !(to_gguf ? scaled : blocks)) return OK;
    return error_set(e, USAGE,
                     "unknown type, or a type that this output format cannot store" WHERE "%s" FOUND
                     "%s" EXPECTED "%s",
                     where, name,
                     to_gguf ? "q8_0, q6_k, q5_k, q5_0, q4_k, q4_0, bf16, f16 or f32 in .gguf"
                             : "int8_convrot, f8_e4m3, f8_e5m2, bf16, f16 or f32 in .safetensors");
}

static enum status fail_rule(const char *rule, const char *found, struct error *e) {
    return error_set(e, USAGE,
                     "invalid --rule" WHERE "--rule \"%s\"" FOUND "%s" EXPECTED
                     "regex=type, for instance 'attn.*weight=q8_0'",
                     rule, found);
}

static enum status read_rule(struct rules *rules, const char *rule, bool to_gguf, struct error *e) {
    const char *equals = strrchr(rule, '=');
    PCRE2_UCHAR problem[120] = "";
    PCRE2_SIZE at;
    int number;
    if (!equals || equals == rule || strlen(rule) > RULE_BYTES_MAX)
        return fail_rule(rule, "no '=' after a regular expression, or too long", e);
    if (read_type("--rule", equals + 1, to_gguf, &rules->dtype[rules->n], e) != OK) return e->code;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)rule, (PCRE2_SIZE)(equals - rule), PCRE2_UTF | PCRE2_UCP,
                                     &number, &at, NULL);
    if (!code) {
        pcre2_get_error_message(number, problem, sizeof problem);
        return fail_rule(rule, (const char *)problem, e);
    }
    rules->text[rules->n] = rule;
    rules->code[rules->n++] = code;
    return OK;
}

static enum status read_rules(struct rules *rules, const struct conversion *c, struct error *e) {
    int n = c->options->n_rules;
    if (n > RULES_MAX)
        return error_set(e, USAGE, "too many --rule options" FOUND "%d" EXPECTED "at most %d", n, RULES_MAX);
    rules->data = pcre2_match_data_create(1, NULL);
    rules->context = pcre2_match_context_create(NULL);
    if (!rules->data || !rules->context) return error_set(e, MEMORY, "no memory for rules");
    pcre2_set_match_limit(rules->context, MATCH_LIMIT);
    for (int i = 0; i < n && e->code == OK; i++) read_rule(rules, c->options->rules[i], c->to_gguf, e);
    return e->code;
}

/* Returns the index of the first rule that matches a tensor's name; -1: none, or an error. Updates the flags
 * rules->matched. */
static int find_rule(struct rules *rules, const char *name, struct error *e) {
    int first = -1;
    for (int i = 0; i < rules->n; i++) {
        if (first >= 0 && rules->matched[i]) continue;
        int found =
            pcre2_match(rules->code[i], (PCRE2_SPTR)name, strlen(name), 0, 0, rules->data, rules->context);
        if (found >= 0) rules->matched[i] = true;
        if (found >= 0 && first < 0) first = i;
        if (found >= 0 || found == PCRE2_ERROR_NOMATCH) continue;
        error_set(e, USAGE,
                  "the regular expression of a rule takes too long to match a tensor name: simplify it" WHERE
                  "--rule \"%s\"" FOUND "%s",
                  rules->text[i], name);
        return -1;
    }
    return first;
}

/* The smallest unquantised type that holds all values of a tensor exactly. */
static enum dtype plain_type(const struct index_entry *entry) {
    return is_f8(entry->dtype) && entry->scale == 1 && !entry->scales.bytes ? DTYPE_BF16 : DTYPE_F32;
}

static bool has_layer_name(const char *name) {
    size_t n = strlen(name), tail = strlen(".weight");
    return n > tail && !strcmp(name + n - tail, ".weight");
}

/* Type of an unconverted tensor. GGUF: vectors are f32, as GGUF readers expect. Tensors whose quantisation
 * blocks cross row boundaries are dequantised, because GGUF cannot express such blocks. Safetensors: types
 * with scales need a tensor name that ends in ".weight". */
static enum dtype unconverted_type(bool to_gguf, const struct index_entry *entry, const char *name) {
    enum dtype dtype = entry->dtype;
    bool plain = dtype_bits(dtype) >= 16;
    if (!dtype_is_weight(dtype) || (plain && !to_gguf)) return dtype;
    if (plain) {
        int64_t values = 1;
        for (int i = 0; i < entry->rank && values <= SMALL_VALUES; i++) values *= entry->dim[i];
        return entry->rank < 2 || entry->dim[0] == 1 || values <= SMALL_VALUES ? DTYPE_F32 : dtype;
    }
    bool keeps;
    if (to_gguf) {
        int values = dtype_block_values(dtype);
        keeps = values > 1 && !dtype_tiled_values(dtype) && !dtype_is_rotated(dtype) &&
                entry->dim[entry->rank - 1] % values == 0;
    } else {
        keeps = is_int8(dtype)
                    ? has_layer_name(name)
                    : is_f8(dtype) && !entry->scales.bytes && (entry->scale == 1 || has_layer_name(name));
    }
    return keeps ? dtype : plain_type(entry);
}

static enum dtype type_of(const struct conversion *c, const struct index_entry *entry, const char *name,
                          enum dtype ruled, enum dtype wanted) {
    const struct block_kind *kind = c->kinds[entry - c->whole.entries];
    enum dtype dtype = entry->dtype;
    /* An unquantised type of a --rule applies to every weight tensor. A quantised type applies to every
     * weight tensor that can be quantised, even if --type would keep the tensor unquantised. */
    bool plain = ruled == DTYPE_F32 || ruled == DTYPE_F16 || ruled == DTYPE_BF16;
    if (ruled != N_DTYPES)
        dtype = plain && dtype_is_weight(dtype) ? ruled : block_stored_type(NULL, entry, ruled);
    else if (wanted != N_DTYPES)
        dtype = block_stored_type(kind, entry, wanted);
    if (has_scales(dtype) && !has_layer_name(name)) dtype = entry->dtype;
    bool asked = dtype == ruled && dtype_bits(dtype) >= 16;
    if (dtype != entry->dtype || asked) return dtype;
    return unconverted_type(c->to_gguf, entry, name);
}

/* Appends an output tensor and sets the tensor's name and scale. */
static enum status add_item(struct conversion *c, struct converted item, const char *name, struct error *e) {
    item.scale = 1;
    item.name = c->sys->alloc(c->sys, LINE_HOST, strlen(name) + 1);
    if (!item.name) return error_set(e, MEMORY, "no memory for a tensor's name");
    strcpy(item.name, name);
    c->items[c->n_items++] = item;
    c->bytes += (uint64_t)tensor_bytes(&item.shape);
    return OK;
}

/* Chooses a weight's type and adds its output tensors: the quantisation format, the scales, the weight. */
static enum status choose_one(struct conversion *c, const struct index_entry *entry, struct rules *rules,
                              enum dtype wanted, struct error *e) {
    size_t cut = strlen(c->prefix);
    const char *name = strncmp(entry->name, c->prefix, cut) ? entry->name : entry->name + cut;
    const char *path = c->whole.sources[entry->source].path;
    int rule = find_rule(rules, name, e);
    if (e->code != OK) return e->code;
    if (entry->rank > TENSOR_RANK_MAX)
        return error_set(e, UNSUPPORTED,
                         "tensor '%s' has too many dimensions" WHERE "%s" FOUND "%d" EXPECTED "at most %d",
                         entry->name, path, entry->rank, TENSOR_RANK_MAX);
    enum dtype dtype = type_of(c, entry, name, rule < 0 ? N_DTYPES : rules->dtype[rule], wanted);
    if (merge_changes(c->merge, entry) && !quantise_can(dtype, dtype_block_values(dtype)))
        return error_set(e, UNSUPPORTED,
                         "tensor '%s' cannot keep its type when an adapter is merged into it" WHERE "%s" FOUND
                         "%s" EXPECTED "another type by --type",
                         entry->name, path, dtype_name(dtype));
    bool made = dtype != entry->dtype, int8 = is_int8(dtype);
    bool of_rows = int8 && (made || entry->scales.bytes);
    bool scaled = int8 || (is_f8(dtype) && (made || entry->scale != 1));
    char extra[LOADER_NAME_MAX + 32];
    struct converted item = {.entry = entry};
    if (int8) { /* tensor LAYER.comfy_quant of ComfyUI's format: the quantisation format of an int8 weight */
        int layer = (int)(strlen(name) - strlen(".weight")),
            bytes = (int)strlen(quantised_format_text(dtype));
        snprintf(extra, sizeof extra, "%.*s.comfy_quant", layer, name);
        item.what = CONVERTED_QUANT_FORMAT;
        item.dtype = DTYPE_U8;
        item.shape = tensor_make(NULL, DTYPE_U8, 1, (int32_t[]){bytes});
        if (add_item(c, item, extra, e) != OK) return e->code;
    }
    if (scaled) { /* tensor LAYER.weight_scale of ComfyUI's format: one scale per tensor, or one per row */
        snprintf(extra, sizeof extra, "%s_scale", name);
        item.what = of_rows ? CONVERTED_ROW_SCALES : CONVERTED_SCALE;
        item.dtype = DTYPE_F32;
        item.shape = tensor_make(NULL, DTYPE_F32, of_rows ? 2 : 0, (int32_t[]){entry->dim[0], 1});
        if (add_item(c, item, extra, e) != OK) return e->code;
    }
    enum dtype file_dtype = dtype_is_rotated(dtype) ? DTYPE_I8 : dtype;
    item.what = CONVERTED_WEIGHT;
    item.dtype = dtype;
    item.shape = tensor_make(NULL, file_dtype, entry->rank, entry->dim);
    return add_item(c, item, name, e);
}

static int compare_places(const void *a, const void *b) {
    const struct index_entry *one = *(const struct index_entry *const *)a,
                             *other = *(const struct index_entry *const *)b;
    if (one->source != other->source) return one->source < other->source ? -1 : 1;
    return one->offset < other->offset ? -1 : one->offset > other->offset;
}

static enum status choose_all(struct conversion *c, struct rules *rules, struct error *e) {
    struct sys *sys = c->sys;
    size_t n = (size_t)c->whole.n_entries + 1;
    enum dtype wanted = N_DTYPES;
    const char *type = c->options->type;
    if (type && read_type("--type", type, c->to_gguf, &wanted, e) != OK) return e->code;
    const struct index_entry **sorted = sys->alloc(sys, LINE_HOST, n * sizeof(void *));
    c->items = sys->alloc(sys, LINE_HOST, WITH_WEIGHT * n * sizeof *c->items);
    if (!sorted || !c->items) error_set(e, MEMORY, "no memory for %zu tensors", n);
    int found = 0;
    for (int i = 0; i < c->whole.n_entries && e->code == OK; i++) {
        const struct index_entry *entry = &c->whole.entries[i];
        /* Tensors of raw bytes (a tokenizer next to the weights) are not written to GGUF, which has no type
         * for bytes. */
        bool dropped =
            c->to_gguf && entry->dtype == DTYPE_U8 && c->family && family_ignores(c->family, entry->name);
        if (entry->view == c->view && !c->auxiliary[i] && !dropped) sorted[found++] = entry;
    }
    /* output tensors are sorted by their position in the input file, for sequential reading */
    if (found) qsort(sorted, (size_t)found, sizeof *sorted, compare_places);
    for (int i = 0; i < found && e->code == OK; i++) choose_one(c, sorted[i], rules, wanted, e);
    for (int i = 0; i < rules->n && e->code == OK; i++)
        if (!rules->matched[i])
            error_set(e, USAGE,
                      "no tensor name matches this --rule" WHERE "--rule \"%s\"" EXPECTED
                      "a pattern that matches a name listed by `sluice inspect --tensors`",
                      rules->text[i]);
    sys->release(sys, sorted);
    return e->code;
}

enum status convert_choose(struct conversion *c, struct error *e) {
    struct rules rules = {.n = 0};
    if (read_rules(&rules, c, e) == OK) choose_all(c, &rules, e);
    for (int i = 0; i < rules.n; i++) pcre2_code_free(rules.code[i]);
    pcre2_match_data_free(rules.data);
    pcre2_match_context_free(rules.context);
    return e->code;
}
