/* Normalisation before splitting: NFC, runs of white space to one blank, lower case; each step only if the
 * tokenizer files request it. Like the reference, lower case maps each character without context (a final
 * sigma is not special). utf8proc 2.8 implements Unicode 15; tables below add the lower-case letters of later
 * versions, and U+0130, whose lower case is two characters. Compared with the reference (tokenizers 0.23.3,
 * Lowercase) for every code point. */
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/normalize.h"

#include <string.h>
#include <utf8proc.h>

/* Ranges of capital letters, and the lower-case letter of the first capital in each range. */
static const struct capital {
    int32_t first, last, lower;
} capitals[] = {
    {0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
    {0xA7CE, 0xA7CE, 0xA7CF},    {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
    {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
    {0x16EA0, 0x16EB8, 0x16EBB},
};

static int32_t lower_case(int32_t code) {
    if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 32 : code;
    for (size_t i = 0; i < sizeof capitals / sizeof *capitals; i++)
        if (code >= capitals[i].first && code <= capitals[i].last)
            return capitals[i].lower + (code - capitals[i].first);
    return utf8proc_tolower(code);
}

/* Writes text with normalised white space and case; lower case adds at most half as many bytes. */
static uint64_t fold(const struct tokenizer *t, struct span text, utf8proc_uint8_t *out) {
    uint64_t n = 0;
    bool after_space = false;
    for (uint64_t i = 0; i < text.bytes;) {
        utf8proc_int32_t code;
        i += (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text.at + i,
                                        (utf8proc_ssize_t)(text.bytes - i), &code);
        bool space = t->one_space && code_is_space(code);
        if (space && after_space) continue;
        after_space = space;
        if (t->lower && code == 0x130) {
            memcpy(out + n, "i\xcc\x87", 3);
            n += 3;
            continue;
        }
        if (space)
            code = ' ';
        else if (t->lower)
            code = lower_case(code);
        n += (uint64_t)utf8proc_encode_char(code, out + n);
    }
    return n;
}

enum status text_normalize(const struct tokenizer *t, struct span *text, char **out, struct error *e) {
    *out = NULL;
    if (t->charsmap.units) return charsmap_apply(t->sys, &t->charsmap, text, out, e);
    if (t->nfc && text_to_nfc(t->sys, *text, out, &text->bytes, e)) return e->code;
    if (*out) text->at = *out;
    if (!t->one_space && !t->lower) return OK;
    char *folded = alloc_array(t->sys, text->bytes / 2 + text->bytes, 1, e);
    if (folded) *text = (struct span){folded, fold(t, *text, (utf8proc_uint8_t *)folded)};
    t->sys->release(t->sys, *out);
    *out = folded;
    return e->code;
}
