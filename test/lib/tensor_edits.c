#include "test/lib/tensor_edits.h"

#include <ctype.h>

enum { LISTS = 56, ARGUMENTS = 12 };

static struct list {
    const char *name, *const *words;
    int n;
} lists[LISTS];
static int n_lists;

/* The part of a tensor's name that matches a pattern. Patterns match anywhere in the name; ^ and $ stand for
 * its begin and end, {i} and {j} for any number, and {last} for the largest number at this place in the names
 * of the set. */
struct match {
    size_t begin, end;
    int number[2]; /* i and j; {last} sets i too */
    int last;      /* -1: not known yet, any number matches {last} */
};

static const char *match_from(const char *name, const char *pattern, struct match *m) {
    while (*pattern) {
        if (*pattern == '{') {
            char *end;
            if (!isdigit((unsigned char)*name)) return NULL;
            int n = (int)strtol(name, &end, 10);
            if (pattern[1] == 'l' && m->last >= 0 && n != m->last) return NULL;
            m->number[pattern[1] == 'j'] = n;
            name = end;
            pattern = strchr(pattern, '}') + 1;
        } else if (!strcmp(pattern, "$")) {
            return *name ? NULL : name;
        } else if (*name++ != *pattern++) {
            return NULL;
        }
    }
    return name;
}

static bool match(const char *name, const char *pattern, struct match *m) {
    bool anchored = *pattern == '^';
    for (const char *at = name; *at; at++) {
        const char *end = match_from(at, pattern + anchored, m);
        m->begin = (size_t)(at - name);
        m->end = end ? (size_t)(end - name) : 0;
        if (end) return true;
        if (anchored) break;
    }
    return false;
}

/* Returns a match whose `last` is the largest number that {i} or {last} of the pattern stands for. */
static struct match match_of(const struct tensor_set *p, const char *pattern) {
    struct match m = {.last = -1};
    int last = -1;
    for (int i = 0; i < p->n && strchr(pattern, '{'); i++)
        if (match(p->item[i].name, pattern, &m) && m.number[0] > last) last = m.number[0];
    m.last = last;
    return m;
}

/* Appends the text to *out. Sums in braces, such as {3i+j+1} or {last-i}, become their values. */
static void expand(const char *text, const struct match *m, char *out) {
    char *end = out + strlen(out);
    for (; *text; text++) {
        if (*text != '{') {
            *end++ = *text;
            continue;
        }
        int sum = 0;
        for (text++; *text != '}';) {
            const char *term = text;
            int sign = *text == '-' ? -1 : 1, factor = 1;
            text += *text == '-' || *text == '+';
            if (isdigit((unsigned char)*text)) {
                char *rest;
                factor = (int)strtol(text, &rest, 10);
                text = rest;
            }
            if (*text == 'i' || *text == 'j') {
                factor *= m->number[*text++ == 'j'];
            } else if (!strncmp(text, "last", 4)) {
                factor *= m->last;
                text += 4;
            }
            if (!check(text > term, "'%s' is no sum of numbers, i, j and last", text)) abort();
            sum += sign * factor;
        }
        end += sprintf(end, "%d", sum);
    }
    *end = 0;
}

/* Writes the name in which the text replaces the match. */
static void replaced(const char *name, const struct match *m, const char *text, char to[TENSOR_SET_NAME]) {
    snprintf(to, TENSOR_SET_NAME, "%.*s", (int)m->begin, name);
    expand(text, m, to);
    snprintf(to + strlen(to), TENSOR_SET_NAME - strlen(to), "%s", name + m->end);
}

static void rename_match(struct item *t, const struct match *m, const char *text) {
    char name[TENSOR_SET_NAME];
    replaced(t->name, m, text, name);
    memcpy(t->name, name, sizeof name);
}

/* rename FROM TO [if OTHER]: if the set has the tensor OTHER */
static int edit_rename(struct tensor_set *p, const char *const *to, int n) {
    struct match m = match_of(p, to[0]);
    int changed = 0;
    for (int i = 0; i < p->n; i++) {
        char other[TENSOR_SET_NAME] = "";
        if (!match(p->item[i].name, to[0], &m)) continue;
        if (n == 4) expand(to[3], &m, other);
        if (n == 4 && !tensor_set_find(p, other)) continue;
        rename_match(&p->item[i], &m, to[1]);
        changed++;
    }
    return changed;
}

/* join FIRST NEXT... TO: concatenates several tensors by rows */
static int edit_join(struct tensor_set *p, const char *const *of, int n) {
    struct match m = match_of(p, of[0]);
    int changed = 0;
    for (int i = 0; i < p->n; i++) {
        struct item *t = &p->item[i];
        char next[TENSOR_SET_NAME];
        if (!match(t->name, of[0], &m)) continue;
        for (int k = 1; k < n - 1; k++) {
            replaced(t->name, &m, of[k], next);
            join_rows(p, t, next);
        }
        rename_match(t, &m, of[n - 1]);
        changed++;
    }
    tensor_set_drop(p, "-");
    return changed;
}

/* split FROM AXIS TO...: one tensor for each of n equal parts of an axis */
static int edit_split(struct tensor_set *p, const char *const *of, int n) {
    struct match m = match_of(p, of[0]);
    int axis = atoi(of[1]), parts = n - 2, changed = 0;
    for (int i = 0, all = p->n; i < all; i++) {
        const struct item whole = p->item[i];
        struct item *part;
        char name[TENSOR_SET_NAME];
        if (!match(whole.name, of[0], &m)) continue;
        size_t outer = 1;
        for (int k = 0; k < axis; k++) outer *= (size_t)whole.dim[k];
        size_t bytes = whole.bytes / outer / (size_t)parts;
        for (int k = 0; k < parts; k++) {
            replaced(whole.name, &m, of[2 + k], name);
            part = tensor_set_add(p, "", name, whole.type, whole.rank, whole.dim, NULL, outer * bytes);
            part->dim[axis] /= parts;
            for (size_t o = 0; o < outer; o++)
                memcpy(part->data + o * bytes, whole.data + (o * (size_t)parts + (size_t)k) * bytes, bytes);
        }
        strcpy(p->item[i].name, "-");
        changed++;
    }
    tensor_set_drop(p, "-");
    return changed;
}

static void swap_halves(struct item *t) {
    unsigned char *whole = t->data, *swapped = malloc(t->bytes);
    size_t half = t->bytes / 2;
    if (!swapped) abort();
    memcpy(swapped, whole + half, half);
    memcpy(swapped + half, whole, half);
    free(whole);
    t->data = swapped;
}

static void transpose(struct item *t) {
    size_t rows = (size_t)t->dim[0], columns = (size_t)t->dim[1], size = t->bytes / rows / columns;
    unsigned char *turned = malloc(t->bytes);
    if (!turned) abort();
    for (size_t i = 0; i < rows * columns; i++)
        memcpy(turned + (i % columns * rows + i / columns) * size, t->data + i * size, size);
    free(t->data);
    t->data = turned;
    t->dim[0] = (int32_t)columns;
    t->dim[1] = (int32_t)rows;
}

static int each_match(struct tensor_set *p, const char *pattern, void (*change)(struct item *)) {
    struct match m = match_of(p, pattern);
    int changed = 0;
    for (int i = 0; i < p->n; i++) {
        if (!match(p->item[i].name, pattern, &m)) continue;
        change(&p->item[i]);
        changed++;
    }
    return changed;
}

/* swap PATTERN: exchanges the halves, because checkpoints store shift and scale of some norms in the other
 * order */
static int edit_swap(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    return each_match(p, of[0], swap_halves);
}

static int edit_transpose(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    return each_match(p, of[0], transpose);
}

static void mark_dropped(struct item *t) {
    strcpy(t->name, "-");
}

static int edit_drop(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    int changed = each_match(p, of[0], mark_dropped);
    tensor_set_drop(p, "-");
    return changed;
}

static void double_values(struct item *t) {
    for (size_t i = 0; i < t->bytes / sizeof(float); i++) ((float *)(void *)t->data)[i] *= 2;
}

static int edit_double(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    return each_match(p, of[0], double_values);
}

/* shape PATTERN FROM TO: FROM has a letter or 1 for each axis, TO the product of letters for each new axis;
 * tensors of other shapes stay. "shape . abcde ab,c,d,e" joins the first two of five axes. */
static int edit_shape(struct tensor_set *p, const char *const *of, int n) {
    int changed = 0;
    (void)n;
    for (int i = 0; i < p->n; i++) {
        struct item *t = &p->item[i];
        struct match m = {.last = -1};
        int32_t size[128] = {0};
        bool fits = match(t->name, of[0], &m) && t->rank == (int)strlen(of[1]);
        for (int k = 0; k < t->rank && fits; k++) {
            size[(int)of[1][k]] = t->dim[k];
            fits = of[1][k] != '1' || t->dim[k] == 1;
        }
        if (!fits) continue;
        size['1'] = t->dim[0] && 1;
        t->rank = 0;
        for (const char *at = of[2]; *at; at += *at == ',') {
            int32_t product = 1;
            for (; *at && *at != ','; at++) product *= *at == '1' ? 1 : size[(int)*at];
            t->dim[t->rank++] = product;
        }
        changed++;
    }
    return changed;
}

/* resize NAME AXIS SIZE: changes the shape; cuts the bytes at their end, or appends zeros */
static int edit_resize(struct tensor_set *p, const char *const *of, int n) {
    struct item *t = tensor_set_find(p, of[0]);
    (void)n;
    if (!t) return 0;
    int axis = atoi(of[1]);
    int32_t size = atoi(of[2]);
    size_t bytes = t->bytes / (size_t)t->dim[axis] * (size_t)size;
    unsigned char *data = calloc(1, bytes);
    if (!data) abort();
    memcpy(data, t->data, bytes < t->bytes ? bytes : t->bytes);
    free(t->data);
    t->data = data;
    t->bytes = bytes;
    t->dim[axis] = size;
    return 1;
}

/* type NAME TYPE: another type of one byte a value */
static int edit_type(struct tensor_set *p, const char *const *of, int n) {
    struct item *t = tensor_set_find(p, of[0]);
    (void)n;
    if (!t) return 0;
    t->type = of[1];
    t->bytes = 1;
    for (int i = 0; i < t->rank; i++) t->bytes *= (size_t)t->dim[i];
    return 1;
}

/* add NAME TYPE SHAPE: zeros of the shape "2,3", or a scalar of the shape "-" */
static int edit_add(struct tensor_set *p, const char *const *of, int n) {
    int32_t dim[5];
    int rank = 0;
    size_t bytes = strstr(of[1], "32") ? 4 : strstr(of[1], "16") ? 2 : 1;
    (void)n;
    for (const char *at = of[2]; *at && *at != '-'; at += *at == ',') {
        char *end;
        dim[rank] = (int32_t)strtol(at, &end, 10);
        bytes *= (size_t)dim[rank++];
        at = end;
    }
    struct item *t = tensor_set_add(p, "", of[0], of[1], rank, dim, NULL, bytes);
    memset(t->data, 0, bytes);
    return 1;
}

/* copy NAME TO: a second tensor of the same values */
static int edit_copy(struct tensor_set *p, const char *const *of, int n) {
    const struct item *t = tensor_set_find(p, of[0]);
    (void)n;
    return t && tensor_set_add(p, "", of[1], t->type, t->rank, t->dim, t->data, t->bytes);
}

static int edit_prefix(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    for (int i = 0; i < p->n; i++) rename_match(&p->item[i], &(struct match){0}, of[0]);
    return p->n;
}

/* set KEY VALUE, unset KEY: a key of the configuration; the value is JSON */
static int edit_set(struct tensor_set *p, const char *const *of, int n) {
    json_t *config = json_loads(p->config ? p->config : "{}", 0, NULL);
    json_t *value = n == 2 ? json_loads(of[1], JSON_DECODE_ANY, NULL) : NULL;
    check(n == 1 || value, "%s is no JSON", of[n - 1]);
    int changed = n == 2 ? !json_object_set_new(config, of[0], value) : !json_object_del(config, of[0]);
    free(p->config);
    p->config = json_dumps(config, 0);
    json_decref(config);
    return changed;
}

/* config TEXT: replaces the configuration; "none": no configuration */
static int edit_config(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    free(p->config);
    p->config = strcmp(of[0], "none") ? strdup(of[0]) : NULL;
    return 1;
}

/* key NAME: key of the configuration in the metadata of a file with several components */
static int edit_key(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    p->key = of[0];
    return 1;
}

/* gguf KEY TYPE VALUE: metadata of a GGUF file */
static int edit_gguf(struct tensor_set *p, const char *const *of, int n) {
    static const struct {
        const char *name;
        enum gguf_kind kind;
    } kinds[] = {{"text", GGUF_STRING}, {"u32", GGUF_U32}, {"f32", GGUF_F32}, {"bool", GGUF_BOOL}};
    int i = 0;
    (void)n;
    while (i < COUNT_OF(kinds) && strcmp(kinds[i].name, of[1]) != 0) i++;
    if (!check(i < COUNT_OF(kinds), "GGUF metadata has no type %s", of[1])) return 0;
    if (p->n_gguf == GGUF_PAIRS) abort();
    p->gguf[p->n_gguf++] = (struct gguf_metadata){
        .key = of[0], .kind = kinds[i].kind, .text = of[2], .number = strtod(of[2], NULL)};
    return 1;
}

/* as LIST */
static int edit_as(struct tensor_set *p, const char *const *of, int n);

static const struct edit {
    const char *name;
    int least, most; /* numbers of arguments */
    /* Returns the number of changes. */
    int (*apply)(struct tensor_set *p, const char *const *arguments, int n);
} edits[] = {
    {"as", 1, 1, edit_as},
    {"rename", 2, 4, edit_rename},
    {"prefix", 1, 1, edit_prefix},
    {"join", 3, ARGUMENTS, edit_join},
    {"split", 3, ARGUMENTS, edit_split},
    {"swap", 1, 1, edit_swap},
    {"transpose", 1, 1, edit_transpose},
    {"double", 1, 1, edit_double},
    {"drop", 1, 1, edit_drop},
    {"shape", 3, 3, edit_shape},
    {"resize", 3, 3, edit_resize},
    {"type", 2, 2, edit_type},
    {"add", 3, 3, edit_add},
    {"copy", 2, 2, edit_copy},
    {"set", 2, 2, edit_set},
    {"unset", 1, 1, edit_set},
    {"config", 1, 1, edit_config},
    {"key", 1, 1, edit_key},
    {"gguf", 3, 3, edit_gguf},
};

static void apply_edits(struct tensor_set *p, const char *const *words, int n, bool of_list) {
    for (int first = 0, end; first < n; first = end + 1) {
        for (end = first; end < n && strcmp(words[end], ";") != 0;) end++;
        const struct edit *edit = edits;
        int arguments = end - first - 1;
        if (end == first) continue;
        while (edit < edits + COUNT_OF(edits) && strcmp(edit->name, words[first]) != 0) edit++;
        if (check(edit < edits + COUNT_OF(edits) && arguments >= edit->least && arguments <= edit->most,
                  "there is no edit '%s' of %d arguments", words[first], arguments) &&
            !edit->apply(p, words + first + 1, arguments) && !of_list)
            check(false, "%s %s changes nothing", words[first], words[first + 1]);
    }
}

static int edit_as(struct tensor_set *p, const char *const *of, int n) {
    (void)n;
    for (int i = 0; i < n_lists; i++) {
        if (strcmp(lists[i].name, of[0]) != 0) continue;
        apply_edits(p, lists[i].words, lists[i].n, true);
        return 1;
    }
    return 0;
}

void tensor_edits_define(const char *name, const char *const *words, int n) {
    if (n_lists == LISTS) abort();
    lists[n_lists++] = (struct list){name, words, n};
}

void tensor_set_edit(struct tensor_set *p, const char *const *words, int n) {
    apply_edits(p, words, n, false);
}
