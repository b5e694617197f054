#include "test/lib/bytes.h"

#include "test/lib/seeded.h"

void bytes_fill(struct bytes *b, int byte, size_t n) {
    if (b->room <= b->n + n) b->at = realloc(b->at, b->room = 2 * (b->n + n) + 64);
    if (!b->at) abort();
    memset(b->at + b->n, byte, n);
    b->at[b->n += n] = 0;
}

void bytes_put(struct bytes *b, const void *from, size_t n) {
    bytes_fill(b, 0, n);
    if (n) memcpy(b->at + b->n - n, from, n);
}

void bytes_number(struct bytes *b, uint64_t number, int bytes) {
    bytes_fill(b, 0, (size_t)bytes);
    for (int i = 0; i < bytes; i++) b->at[b->n - (size_t)(bytes - i)] = (unsigned char)(number >> 8 * i);
}

void bytes_print(struct bytes *b, const char *format, ...) {
    char text[4096];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert_true(n >= 0 && n < (int)sizeof text);
    bytes_put(b, text, (size_t)n);
}

static void put_word(struct bytes *b, const char *word, size_t n) {
    if (*word == '\'') {
        bytes_put(b, word + 1, n - 1);
    } else if (*word == '$') {
        const char *star = memchr(word, '*', n);
        size_t bytes = (star ? (size_t)(star - word) : n) - 1, times = star ? strtoull(star + 1, NULL, 0) : 1;
        bytes_number(b, bytes * times, 8);
        while (times--) bytes_put(b, word + 1, bytes);
    } else if (*word == '.') {
        bytes_fill(b, 0, strtoull(word + 1, NULL, 0));
    } else if (*word == '/') {
        size_t align = n > 1 ? strtoull(word + 1, NULL, 0) : 32;
        bytes_fill(b, 0, (align - b->n % align) % align);
    } else {
        char *end;
        uint64_t number = strtoull(word, &end, 0);
        bytes_number(b, number, *end == ':' ? atoi(end + 1) : 4);
    }
}

void bytes_words(struct bytes *b, const char *words) {
    for (size_t n; *words; words += n + (words[n] == ' ')) {
        n = strcspn(words, " ");
        if (n) put_word(b, words, n);
    }
}

void bytes_print_words(struct bytes *b, const char *format, ...) {
    char words[1024];
    va_list args;
    va_start(args, format);
    assert_true(vsnprintf(words, sizeof words, format, args) < (int)sizeof words);
    va_end(args);
    bytes_words(b, words);
}

struct bytes bytes_of(const char *words) {
    struct bytes b = {0};
    bytes_words(&b, words);
    return b;
}

struct bytes bytes_of_file(const char *path) {
    struct bytes b = {0};
    unsigned char part[4096];
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot read %s", path);
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) bytes_put(&b, part, n);
    fclose(file);
    return b;
}
