/* Sources: TIFF 6.0, section 2; EXIF 2.3, tag 274. */
#include "cli/exif.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_BYTES = 12, ORIENTATION = 274, SHORT = 3, READ_BYTES = 4096 };

struct tiff {
    unsigned char at[READ_BYTES]; /* first bytes of the TIFF structure, with its directory */
    size_t bytes;
    bool big_endian;
};

/* Reads an integer of n bytes at offset `at` in the file's byte order; 0 beyond the end. */
static unsigned long number_at(const struct tiff *t, size_t at, size_t n) {
    unsigned long value = 0;
    if (at > t->bytes || n > t->bytes - at) return 0;
    for (size_t i = 0; i < n; i++) value = value << 8 | t->at[at + (t->big_endian ? i : n - 1 - i)];
    return value;
}

int exif_orientation(FILE *from, unsigned long bytes) {
    struct tiff t;
    t.bytes = fread(t.at, 1, bytes < READ_BYTES ? bytes : READ_BYTES, from);
    if (t.bytes < 8 || (memcmp(t.at, "II*\0", 4) != 0 && memcmp(t.at, "MM\0*", 4) != 0)) return 1;
    t.big_endian = t.at[0] == 'M';
    size_t directory = number_at(&t, 4, 4), n = number_at(&t, directory, 2);
    for (size_t i = 0; i < n; i++) {
        size_t entry = directory + 2 + i * ENTRY_BYTES;
        if (number_at(&t, entry, 2) != ORIENTATION || number_at(&t, entry + 2, 2) != SHORT) continue;
        unsigned long orientation = number_at(&t, entry + 8, 2);
        return orientation >= 1 && orientation <= 8 ? (int)orientation : 1;
    }
    return 1;
}

/* Converts well-formed UTF-8 to UTF-16, big-endian; returns the end of the output. */
static unsigned char *put_utf16(unsigned char *to, const char *utf8) {
    for (const unsigned char *in = (const unsigned char *)utf8; *in;) {
        int more = *in >= 0xF0 ? 3 : *in >= 0xE0 ? 2 : *in >= 0xC0 ? 1 : 0;
        unsigned long code = more ? *in & (0x3Fu >> more) : *in;
        for (in++; more > 0 && *in; more--) code = code << 6 | (*in++ & 0x3F);
        unsigned long high = code >= 0x10000 ? 0xD800 + ((code - 0x10000) >> 10) : 0;
        if (high) *to++ = (unsigned char)(high >> 8), *to++ = (unsigned char)high;
        unsigned long low = high ? 0xDC00 + ((code - 0x10000) & 0x3FF) : code;
        *to++ = (unsigned char)(low >> 8), *to++ = (unsigned char)low;
    }
    return to;
}

/* Writes a TIFF directory of one entry. entry: tag and type; value: offset of its data. Returns the end of
 * the directory. */
static unsigned char *put_directory(unsigned char *to, const unsigned short *entry, size_t count,
                                    size_t value) {
    const unsigned char head[] = {
        0, 1, (unsigned char)(entry[0] >> 8), (unsigned char)entry[0], 0, (unsigned char)entry[1]};
    memcpy(to, head, sizeof head);
    to += sizeof head;
    for (int i = 3; i >= 0; i--) *to++ = (unsigned char)(count >> 8 * i);
    for (int i = 3; i >= 0; i--) *to++ = (unsigned char)(value >> 8 * i);
    return memset(to, 0, 4), to + 4;
}

bool exif_from_comment(const char *utf8, struct exif *out) {
    enum { MARK = 6, TIFF_HEAD = 8, DIRECTORY = 18, CODE = 8, LONG = 4, UNDEFINED = 7 };
    static const unsigned short more[] = {0x8769, LONG}, comment[] = {0x9286, UNDEFINED};
    size_t start = TIFF_HEAD + 2 * DIRECTORY, most = MARK + start + CODE + 2 * strlen(utf8) + 1;
    out->at = calloc(1, most);
    if (!out->at) return false;
    memcpy(out->at, "Exif\0\0MM\0*\0\0\0\10", MARK + TIFF_HEAD);
    unsigned char *text = out->at + MARK + start;
    memcpy(text, "UNICODE", CODE);
    out->bytes = (size_t)(put_utf16(text + CODE, utf8) - out->at);
    unsigned char *next = put_directory(out->at + MARK + TIFF_HEAD, more, 1, TIFF_HEAD + DIRECTORY);
    put_directory(next, comment, out->bytes - MARK - start, start);
    return true;
}
