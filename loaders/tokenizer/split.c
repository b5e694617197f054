/* The split pattern of the pre-tokenizer: written for Oniguruma (the engine of Hugging Face tokenizers), run
 * by PCRE2, with identical results. Both engines agree on most syntax and differ silently on some, so the
 * pattern is translated. Constructs that mean something else in PCRE2, or do not exist there, are
 * UNSUPPORTED by name, because they would change ids: - \s is White_Space in Oniguruma; PCRE2's also
 * contains U+180E. - \d and \p of L, Lu, Ll, Lm, Lo, M, N, Nd: the reference implements Unicode 16, PCRE2
 * 10.42 only Unicode 14. Code points assigned in between are added by hand: 9,272 letters (most of them CJK
 * extensions H and I), 120 numbers, 93 marks. Other properties, and \P of these inside a class, keep PCRE2's
 * version; \p{Lt} is the same in both. - \p{Han} is a script in Oniguruma, script extensions in PCRE2:
 * written as sc:. - \w \b \h \v \G ^ $ && [[]] [:x:] {n}+ (?m: have other meanings: rejected. Compared with
 * the reference (tokenizers 0.23.3) for every code point and in 10^5 hostile texts. */
#include "loaders/tokenizer/tables.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const char clip_pattern[] = "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]"
                            "|[^\\s\\p{L}\\p{N}]+";

/* The pattern of Mistral's tekken.json. GGUF files contain no pattern and use this one. Published
 * tokenizer.json files contain another pattern, which transformers warns about ("incorrect regex pattern");
 * they are read with it. */
const char tekken_pattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Code points that Unicode 15 to 16 added to the properties in split patterns. The list does no harm with a
 * newer PCRE2. */
/* clang-format off */
#define NEW_LU \
    "\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"
#define NEW_LL \
    "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"
#define NEW_LM \
    "\\x{10d4e}\\x{10d6f}\\x{16d40}-\\x{16d42}\\x{16d6b}-\\x{16d6c}\\x{1e030}-\\x{1e06d}\\x{1e4eb}"
#define NEW_LO \
    "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4d}\\x{10d4f}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}" \
    "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}" \
    "\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}" \
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d43}-\\x{16d6a}\\x{18cff}" \
    "\\x{1b132}\\x{1b155}\\x{1e4d0}-\\x{1e4ea}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}" \
    "\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define NEW_M \
    "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}" \
    "\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}\\x{113d2}" \
    "\\x{113e1}-\\x{113e2}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}\\x{11f3e}-\\x{11f42}" \
    "\\x{11f5a}\\x{13440}\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}" \
    "\\x{1e5ee}-\\x{1e5ef}"
#define NEW_ND \
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}" \
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1e4f0}-\\x{1e4f9}" \
    "\\x{1e5f1}-\\x{1e5fa}"
#define NEW_L NEW_LU NEW_LL NEW_LM NEW_LO
#define NEW_N NEW_ND "\\x{1d2c0}-\\x{1d2d3}"
/* clang-format on */

static const struct property {
    const char *name, *members; /* members: code points and ranges, in the syntax of a character class */
} properties[] = {
    {"L", "\\p{L}" NEW_L},    {"Lu", "\\p{Lu}" NEW_LU}, {"Ll", "\\p{Ll}" NEW_LL}, {"Lm", "\\p{Lm}" NEW_LM},
    {"Lo", "\\p{Lo}" NEW_LO}, {"M", "\\p{M}" NEW_M},    {"N", "\\p{N}" NEW_N},    {"Nd", "\\p{Nd}" NEW_ND},
};

enum { TRANSLATED_BYTES_MAX = 1 << 20 };

struct translation {
    const char *in;
    uint64_t bytes, at;
    char *out;
    uint64_t n_out, room;
    bool in_class;
    char refused[48]; /* the construct that cannot be translated; "" if none */
    bool too_long;
};

static void put_bytes(struct translation *t, const char *bytes, uint64_t n) {
    if (n > t->room - t->n_out) {
        t->too_long = true;
        return;
    }
    memcpy(t->out + t->n_out, bytes, n);
    t->n_out += n;
}

static void put(struct translation *t, const char *text) {
    put_bytes(t, text, strlen(text));
}

/* The character of the pattern `ahead` positions after the current one; 0 past the end. */
static char look(const struct translation *t, uint64_t ahead) {
    return ahead < t->bytes - t->at ? t->in[t->at + ahead] : 0;
}

/* Refuses the construct of `bytes` bytes at the current position; the first refused construct is reported. */
static void refuse(struct translation *t, uint64_t bytes) {
    if (bytes > t->bytes - t->at) bytes = t->bytes - t->at;
    if (!t->refused[0]) snprintf(t->refused, sizeof t->refused, "%.*s", (int)bytes, t->in + t->at);
}

static void copy(struct translation *t, uint64_t n) {
    put_bytes(t, t->in + t->at, n);
    t->at += n;
}

/* Writes a Unicode property: with code points of later versions added, as a script (sc:), or unchanged. */
static void put_property(struct translation *t, bool negated, const char *name, int bytes) {
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        if ((int)strlen(properties[i].name) != bytes || memcmp(properties[i].name, name, (size_t)bytes))
            continue;
        if (negated && t->in_class) break;
        if (!t->in_class) put(t, negated ? "[^" : "[");
        put(t, properties[i].members);
        if (!t->in_class) put(t, "]");
        return;
    }
    char text[64];
    snprintf(text, sizeof text, "\\%c{%s%.*s}", negated ? 'P' : 'p', bytes > 2 ? "sc:" : "", bytes, name);
    put(t, text);
}

/* Translates an escape sequence (backslash and character) of the split pattern. */
static void translate_escape(struct translation *t) {
    const char *here = t->in + t->at, *end = NULL;
    char c = look(t, 1);
    uint64_t left = t->bytes - t->at;
    if (c == 'p' || c == 'P') { /* \p{Name}, \P{Name}, \p{^Name} */
        const char *name = here + 3;
        if (look(t, 2) == '{') end = memchr(name, '}', left - 3);
        if (!end || end == name || end - name > 40) {
            refuse(t, 8);
            return;
        }
        bool inverted = *name == '^';
        put_property(t, (c == 'P') != inverted, name + inverted, (int)(end - name) - inverted);
        t->at += (uint64_t)(end - here) + 1;
        return;
    }
    if (c == 'x' && look(t, 2) == '{' && (end = memchr(here, '}', left))) {
        copy(t, (uint64_t)(end - here) + 1);
        return;
    }
    if (c == 's' || c == 'S')
        put(t, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    else if (c == 'd' || c == 'D')
        put_property(t, c == 'D', "Nd", 2);
    else if (c && strchr("rntfaex", c))
        put_bytes(t, here, 2);
    else if (c > ' ' && c < 0x7F &&
             !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')))
        put_bytes(t, here, 2);
    else
        refuse(t, 2);
    t->at += 2;
}

static void translate(struct translation *t) {
    static const char *const groups[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    while (t->at < t->bytes && !t->refused[0] && !t->too_long) {
        char c = look(t, 0);
        if (c == '\\') {
            translate_escape(t);
        } else if (t->in_class) { /* nested classes, intersections and POSIX names are refused */
            if (c == '[' || (c == '&' && look(t, 1) == '&')) refuse(t, 2);
            if (c == ']') t->in_class = false;
            copy(t, 1);
        } else if (c == '[') {
            t->in_class = true;
            copy(t, look(t, 1) == '^' ? 2 : 1);
            if (look(t, 0) == ']') refuse(t, 1);
        } else if (c == '(') {
            size_t n = 0;
            for (size_t i = 0; i < sizeof groups / sizeof *groups && !n; i++)
                if (strlen(groups[i]) <= t->bytes - t->at &&
                    !memcmp(t->in + t->at, groups[i], strlen(groups[i])))
                    n = strlen(groups[i]);
            if (!n && (look(t, 1) == '?' || look(t, 1) == '*')) refuse(t, 4);
            copy(t, n ? n : 1);
        } else if (c == '{') {
            /* {n}, {n,} and {n,m} mean the same in both engines unless ? or + follows. Other braces are
             * literal in both, except {,m}. */
            uint64_t n = 1;
            while ((look(t, n) >= '0' && look(t, n) <= '9') || look(t, n) == ',') n++;
            bool quantifier = n > 1 && look(t, n) == '}';
            char after = quantifier ? look(t, n + 1) : 0;
            if (quantifier && (look(t, 1) == ',' || after == '+' || after == '?')) refuse(t, n + 2);
            copy(t, quantifier ? n + 1 : 1);
        } else {
            if (c == '^' || c == '$') refuse(t, 1);
            copy(t, 1);
        }
    }
}

static void *pcre_alloc(size_t bytes, void *sys) {
    return ((struct sys *)sys)->alloc(sys, LINE_HOST, bytes);
}

static void pcre_release(void *memory, void *sys) {
    ((struct sys *)sys)->release(sys, memory);
}

enum status split_compile(struct tokenizer *t, pcre2_code **code, struct span pattern, const char *member,
                          struct error *e) {
    struct translation tr = {.in = pattern.at, .bytes = pattern.bytes, .room = TRANSLATED_BYTES_MAX};
    pcre2_compile_context *context = NULL;
    int problem = 0;
    PCRE2_SIZE at = 0;
    if (pattern.bytes > TOKENIZER_PATTERN_BYTES)
        return error_set(e, LIMIT,
                         "tokenizer: the split pattern is too long" WHERE "%s, %s" FOUND "%" PRIu64
                         " bytes" EXPECTED "at most %d",
                         t->path, member, pattern.bytes, TOKENIZER_PATTERN_BYTES);
    tr.out = sys_new(t->sys, tr.room, 1, "the split pattern", e);
    if (!tr.out) return e->code;
    translate(&tr);
    if (tr.refused[0]) {
        error_set(e, UNSUPPORTED,
                  "tokenizer: the split pattern uses an unsupported regular expression" FOUND "\"%s\"",
                  tr.refused);
        goto out;
    }
    if (tr.too_long) {
        error_set(e, LIMIT,
                  "tokenizer: the split pattern is too long when translated for PCRE2" EXPECTED
                  "at most %d bytes",
                  TRANSLATED_BYTES_MAX);
        goto out;
    }
    /* PCRE2 allocates through sys. LF ends lines, whatever PCRE2's build options are. */
    if (!t->memory) t->memory = pcre2_general_context_create(pcre_alloc, pcre_release, t->sys);
    if (t->memory) context = pcre2_compile_context_create(t->memory);
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        *code = pcre2_compile((PCRE2_SPTR)tr.out, tr.n_out, PCRE2_UTF | PCRE2_UCP, &problem, &at, context);
        pcre2_compile_context_free(context);
    }
    if (!context || (!*code && (problem == PCRE2_ERROR_HEAP_FAILED || problem == PCRE2_ERROR_NOMEMORY))) {
        error_set(e, MEMORY, "no memory for the split pattern");
    } else if (!*code) {
        PCRE2_UCHAR why[120] = "";
        pcre2_get_error_message(problem, why, sizeof why);
        error_set(e, UNSUPPORTED, "tokenizer: the split pattern does not compile" FOUND "%s",
                  (const char *)why);
    }
out:
    t->sys->release(t->sys, tr.out);
    return e->code ? error_where(e, "%s, %s", t->path, member) : OK;
}

/* Finds the next match into start and end; false if there is none or on error. Like Oniguruma's iterator,
 * skips an empty match directly after the last one. */
static bool find_match(struct split *s, struct error *e) {
    int code = 0;
    while (s->from < s->text.bytes && code >= 0) {
        code = pcre2_match(s->code, (PCRE2_SPTR)s->text.at, s->text.bytes, s->from, PCRE2_NO_UTF_CHECK,
                           s->data, s->context);
        if (code < 0) break;
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->data);
        if (at[0] != at[1] || !s->matched || at[1] != s->end) {
            s->start = at[0];
            s->end = s->from = at[1];
            return s->matched = true;
        }
        do s->from++;
        while (s->from < s->text.bytes && ((unsigned char)s->text.at[s->from] & 0xC0) == 0x80);
    }
    if (code >= 0 || code == PCRE2_ERROR_NOMATCH) return false;
    bool limit =
        code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_HEAPLIMIT || code == PCRE2_ERROR_DEPTHLIMIT;
    PCRE2_UCHAR why[120] = "";
    pcre2_get_error_message(code, why, sizeof why);
    if (code == PCRE2_ERROR_NOMEMORY)
        error_set(e, MEMORY, "no memory to split a text");
    else
        error_set(e, limit ? LIMIT : INTERNAL,
                  "the tokenizer's split pattern takes too long on this text" WHERE "%s, byte %" PRIu64
                  " of a piece of text" FOUND "%s" EXPECTED "steps in proportion to the text",
                  s->t->path, s->from, (const char *)why);
    return false;
}

bool split_next(struct split *s, struct span *piece, struct error *e) {
    while (s->returned == s->end) {
        if (s->returned == s->text.bytes) return false;
        if (!find_match(s, e)) {
            if (e->code) return false;
            s->start = s->end = s->text.bytes; /* no match is left: the rest of the text is one piece */
        }
        if (s->drop_gaps) s->returned = s->start;
    }
    uint64_t to = s->returned < s->start ? s->start : s->end;
    *piece = (struct span){s->text.at + s->returned, to - s->returned};
    s->returned = to;
    return true;
}
