/* The built-in Unicode tables against installed libraries, for every code point: utf8proc for letters and
 * marks, PCRE2 for other properties. Intended differences are listed with their reason; the first unexpected
 * one is printed. */
#include "test/lib/seeded.h"
#include <utf8proc.h>

#include "loaders/tokenizer/tables.h"

enum { CODES = 0x110000 };

static struct sys sys;

static bool is_surrogate(int32_t code) {
    return code >= 0xD800 && code < 0xE000;
}

static bool matches(const pcre2_code *class, pcre2_match_data *data, int32_t code) {
    utf8proc_uint8_t text[4];
    PCRE2_SIZE bytes = (PCRE2_SIZE)utf8proc_encode_char(code, text);
    return pcre2_match(class, text, bytes, 0, PCRE2_ANCHORED, data, NULL) > 0;
}

static pcre2_code *class_of(const char *pattern) {
    int problem;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &problem, &at,
                         NULL);
}

static void compare_class(const char *pattern, bool (*ours)(int32_t)) {
    pcre2_code *class = class_of(pattern), *unassigned = class_of("\\p{Cn}");
    if (!class) skip(); /* PCRE2 before 10.40 lacks these Unicode properties */
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    for (int32_t code = 0; code < CODES; code++) {
        /* The installed PCRE2 or utf8proc may have an earlier Unicode version. */
        if (is_surrogate(code) || matches(unassigned, data, code)) continue;
        if (utf8proc_category(code) == UTF8PROC_CATEGORY_CN) continue;
        if (matches(class, data, code) != ours(code))
            fail_msg("U+%04X: class %s differs from PCRE2's", (unsigned)code, pattern);
    }
    pcre2_match_data_free(data);
    pcre2_code_free(class);
    pcre2_code_free(unassigned);
}

TEST(test_white_space_class) {
    compare_class("\\p{White_Space}", code_is_space);
}

TEST(test_word_class) {
    compare_class("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", code_is_word);
}

/* Lower case of Unicode 16 and 17; a utf8proc that has the capital letter must agree (2.8 has Unicode 15). */
TEST(test_lower_case) {
    int later = 0;
    struct tokenizer t = {.sys = &sys, .lower = true};
    for (int32_t code = 0; code < CODES; code++) {
        if (is_surrogate(code)) continue;
        char text[4], *out;
        struct error e = {0};
        struct span span = {text, (uint64_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)text)};
        assert_int_equal(text_normalize(&t, &span, &out, &e), OK);
        utf8proc_int32_t small = -1;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)span.at, (utf8proc_ssize_t)span.bytes, &small);
        bool whole = n == (utf8proc_ssize_t)span.bytes;
        if (code == 0x130)
            assert_true(span.bytes == 3 &&
                        !memcmp(span.at, "i\xcc\x87", 3)); /* the lower case of U+0130 is two characters */
        else if (utf8proc_category(code) == UTF8PROC_CATEGORY_CN && small != code)
            later++;
        else if (!whole || small != utf8proc_tolower(code))
            fail_msg("U+%04X: wrong lower case U+%04X", (unsigned)code, (unsigned)small);
        sys.release(&sys, out);
    }
    printf("%d lower-case letters are unknown to utf8proc %s\n", later, utf8proc_version());
}

/* The reference normalises by Unicode 9: marks of later versions are not reordered, characters of later
 * versions not composed. */
static const struct {
    int32_t first, last;
} later_than_9[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1715, 0x1715},
};

static bool is_later(int32_t code) {
    for (size_t i = 0; i < sizeof later_than_9 / sizeof *later_than_9; i++)
        if (code >= later_than_9[i].first && code <= later_than_9[i].last) return true;
    return false;
}

/* Compares NFC of the character alone, and between marks that reveal its combining class: U+0315 has class
 * 232, U+0334 class 1. */
static void compare_nfc(int32_t code, bool between) {
    static const int32_t around[] = {'q', 0x315, -1, 0x334};
    char text[32], *out;
    utf8proc_uint8_t *theirs;
    struct error e = {0};
    uint64_t n = 0;
    for (int i = between ? 0 : 2; i < (between ? 4 : 3); i++)
        n += (uint64_t)utf8proc_encode_char(around[i] < 0 ? code : around[i], (utf8proc_uint8_t *)text + n);
    assert_true(utf8proc_map((utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &theirs,
                             UTF8PROC_STABLE | UTF8PROC_COMPOSE) >= 0);
    struct tokenizer t = {.sys = &sys, .nfc = true};
    struct span normal = {text, n};
    assert_int_equal(text_normalize(&t, &normal, &out, &e), OK);
    bool same = normal.bytes == strlen((char *)theirs) && !memcmp(normal.at, theirs, normal.bytes);
    if (!same && !is_later(code))
        fail_msg("U+%04X: NFC differs from utf8proc %s", (unsigned)code, utf8proc_version());
    sys.release(&sys, out);
    free(theirs);
}

TEST(test_nfc) {
    for (int32_t code = 1; code < CODES; code++) {
        if (is_surrogate(code)) continue;
        compare_nfc(code, false);
        compare_nfc(code, true);
    }
}

int main(void) {
    sys_init_machine(&sys);
    return tests_main(NULL, NULL);
}
