/* Unicode NFC on top of utf8proc's tables. utf8proc_map is not used: it orders combining marks by swapping
 * neighbours, which is quadratic in the length of a run, and allocates outside sys. Here runs are ordered by
 * counting, so normalisation is linear. */
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/normalize.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/base/checked.h"

bool code_is_space(int32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool code_is_word(int32_t c) {
    if (c == 0x200C || c == 0x200D) return true;
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
        (c >= 0x1F170 && c <= 0x1F189))
        return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* True if no byte is above 0xCB, so that all code points are below U+0300: such text is already NFC. */
static bool certainly_nfc(struct span text) {
    for (uint64_t i = 0; i < text.bytes; i++)
        if ((unsigned char)text.at[i] > 0xCB) return false;
    return true;
}

/* Marks whose combining class was assigned after Unicode 9, the version by which Hugging Face tokenizers
 * normalise. Hugging Face tokenizers do not reorder or compose these marks. U+11930 is listed because it
 * composes to U+11938 since Unicode 13. */
static const struct code_range {
    utf8proc_int32_t first, last;
} later_marks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

static bool nfc_is_later_mark(utf8proc_int32_t code) {
    int low = 0, high = (int)(sizeof later_marks / sizeof *later_marks);
    while (low < high) {
        int middle = (low + high) / 2;
        if (later_marks[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < (int)(sizeof later_marks / sizeof *later_marks) && later_marks[low].first <= code;
}

static int class_of(utf8proc_int32_t code) {
    int class = utf8proc_get_property(code)->combining_class;
    return class && nfc_is_later_mark(code) ? 0 : class;
}

/* Canonical decomposition to code points; if `to` is NULL the code points are only counted. */
static uint64_t decompose(struct span text, utf8proc_int32_t *to) {
    uint64_t n = 0, i = 0;
    while (i < text.bytes) {
        utf8proc_int32_t code, parts[8]; /* a canonical decomposition has at most 4 code points */
        i += (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text.at + i,
                                        (utf8proc_ssize_t)(text.bytes - i), &code);
        int boundary = 0;
        utf8proc_ssize_t got = 1;
        if (nfc_is_later_mark(code))
            parts[0] = code;
        else
            got = utf8proc_decompose_char(code, parts, 8, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (to) memcpy(to + n, parts, (size_t)got * sizeof *parts);
        n += (uint64_t)got;
    }
    return n;
}

/* Orders a run of combining marks by combining class, stably: by insertion if short, else by counting. */
static void order_run(utf8proc_int32_t *run, uint64_t n, utf8proc_int32_t *scratch) {
    if (n <= 16) {
        for (uint64_t i = 1; i < n; i++) {
            utf8proc_int32_t code = run[i];
            uint64_t j = i;
            for (; j > 0 && class_of(run[j - 1]) > class_of(code); j--) run[j] = run[j - 1];
            run[j] = code;
        }
        return;
    }
    uint64_t start[257] = {0};
    for (uint64_t i = 0; i < n; i++) start[class_of(run[i]) + 1]++;
    for (int c = 1; c < 257; c++) start[c] += start[c - 1];
    for (uint64_t i = 0; i < n; i++) scratch[start[class_of(run[i])]++] = run[i];
    memcpy(run, scratch, n * sizeof *run);
}

static void order_marks(utf8proc_int32_t *codes, uint64_t n, utf8proc_int32_t *scratch) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t first = i;
        while (i < n && class_of(codes[i]) != 0) i++;
        if (i - first > 1) order_run(codes + first, i - first, scratch);
    }
}

/* Composes code points in place. Marks in `later_marks` are not composed, and no characters compose across
 * such a mark. */
static uint64_t compose(utf8proc_int32_t *codes, uint64_t n) {
    uint64_t out = 0;
    for (uint64_t i = 0; i < n;) {
        uint64_t first = i;
        while (i < n && !nfc_is_later_mark(codes[i])) i++;
        memmove(codes + out, codes + first, (i - first) * sizeof *codes);
        out += (uint64_t)utf8proc_normalize_utf32(codes + out, (utf8proc_ssize_t)(i - first),
                                                  UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        for (; i < n && nfc_is_later_mark(codes[i]); i++) codes[out++] = codes[i];
    }
    return out;
}

enum status text_to_nfc(struct sys *sys, struct span text, char **out, uint64_t *out_bytes, struct error *e) {
    *out = NULL;
    if (certainly_nfc(text)) return OK;
    uint64_t n = decompose(text, NULL), bytes = 0;
    utf8proc_int32_t *codes = alloc_array(sys, n, 2 * sizeof *codes, e);
    char *to = alloc_array(sys, n, 4, e);
    if (e->code) goto out;
    decompose(text, codes);
    order_marks(codes, n, codes + n);
    n = compose(codes, n);
    for (uint64_t i = 0; i < n; i++)
        bytes += (uint64_t)utf8proc_encode_char(codes[i], (utf8proc_uint8_t *)to + bytes);
    *out = to;
    *out_bytes = bytes;
    to = NULL;
out:
    sys->release(sys, codes);
    sys->release(sys, to);
    return e->code;
}
