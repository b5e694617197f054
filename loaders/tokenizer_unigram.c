/* Unigram tokenizers (T5): normalised text to words, each word to its most probable pieces.
 *
 * Words and their marks are made here rather than by SentencePiece, as the reference makes them
 * (transformers 5.23, T5Tokenizer: WhitespaceSplit, Metaspace): text is cut at white space, which goes;
 * U+2581 begins every word, and one within a word begins another. The pieces of one word never reach into the
 * next.
 */
#include "loaders/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

#include "loaders/unigram.h"

static const char mark[] = "\xe2\x96\x81"; /* U+2581 */
enum { MARK_BYTES = 3 };

/* One text's way. word has room for the longest word and its mark, found for as many ids. */
struct marking {
    const struct tokenizer *t;
    char *word;
    int32_t *found;
    struct id_list *out;
};

static bool is_mark(struct span text, uint64_t i) {
    return text.bytes - i >= MARK_BYTES && !memcmp(text.at + i, mark, MARK_BYTES);
}

static enum status put_word(struct marking *m, struct span word, struct error *e) {
    size_t n = 0;
    enum unigram_result result = unigram_encode(m->t->unigram, word.at, word.bytes, m->found, &n);
    if (result == UNIGRAM_NO_MEMORY) return error_set(e, MEMORY, "no memory for the pieces of a word");
    if (result) return error_set(e, INTERNAL, "SentencePiece refuses a word");
    bool after_unk = false;
    for (size_t i = 0; i < n && !e->code; i++) {
        bool is_unk = m->found[i] == m->t->unknown || m->found[i] == m->t->unk;
        int32_t id = is_unk ? m->t->unk : m->found[i];
        if (!(is_unk && after_unk)) id_list_push(m->t->sys, m->out, id, e);
        after_unk = is_unk;
    }
    return e->code;
}

/* text has no white space. */
static enum status put_marked(struct marking *m, struct span text, struct error *e) {
    struct span all = {m->word, text.bytes};
    if (!is_mark(text, 0)) {
        memcpy(m->word, mark, MARK_BYTES);
        all.bytes += MARK_BYTES;
    }
    memcpy(m->word + (all.bytes - text.bytes), text.at, text.bytes);
    for (uint64_t from = 0, i = 1; i <= all.bytes; i++) {
        if (i < all.bytes && !is_mark(all, i)) continue;
        if (put_word(m, (struct span){all.at + from, i - from}, e)) return e->code;
        from = i;
    }
    return OK;
}

static enum status put_words(struct marking *m, struct span text, struct error *e) {
    uint64_t from = 0;
    for (uint64_t i = 0; i <= text.bytes;) {
        utf8proc_int32_t code = ' ';
        uint64_t n = 1;
        if (i < text.bytes)
            n = (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text.at + i,
                                           (utf8proc_ssize_t)(text.bytes - i), &code);
        if (code_is_space(code)) {
            if (from < i && put_marked(m, (struct span){text.at + from, i - from}, e)) return e->code;
            from = i + n;
        }
        i += n;
    }
    return OK;
}

enum status unigram_text(const struct tokenizer *t, struct span text, struct id_list *out, struct error *e) {
    struct marking m = {.t = t, .out = out};
    m.word = alloc_array(t->sys, text.bytes + MARK_BYTES, 1, e);
    m.found = alloc_array(t->sys, text.bytes + MARK_BYTES, sizeof *m.found, e);
    if (!e->code) put_words(&m, text, e);
    t->sys->release(t->sys, m.word);
    t->sys->release(t->sys, m.found);
    return e->code;
}
