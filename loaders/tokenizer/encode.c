/* Encodes texts with a tokenizer's tables. See tokenizer.h; tables.h lists the steps. */
#include "loaders/loaders.h"
#include "loaders/tokenizer/tables.h"

#include <inttypes.h>
#include <string.h>

/* Encoding state of one text, with all its allocations. */
struct encoding {
    const struct tokenizer *t;
    pcre2_match_data *data, *redata; /* PCRE2 match data for the split patterns t->split and t->resplit */
    pcre2_match_context *context;
    struct bpe_scratch scratch;
    struct id_list out;
};

/* True for a piece of one character, of ASCII letters only or of ASCII signs only: GPT-2's pattern, the only
 * pattern for a second split (resplit), leaves such pieces whole. This saves a pattern match for nearly
 * every piece. */
static bool is_whole(struct span piece) {
    uint64_t letters = 0, signs = 0, continued = 0;
    for (uint64_t i = 0; i < piece.bytes; i++) {
        unsigned char c = (unsigned char)piece.at[i];
        bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';
        letters += letter;
        signs += !letter && c > ' ' && c < 0x7F && !(c >= '0' && c <= '9');
        continued += (c & 0xC0) == 0x80;
    }
    return letters == piece.bytes || signs == piece.bytes || continued + 1 == piece.bytes;
}

static enum status encode_plain(struct encoding *c, struct span text, struct error *e) {
    const struct tokenizer *t = c->t;
    struct split split = {.t = t,
                          .code = t->split,
                          .drop_gaps = t->drop_gaps,
                          .data = c->data,
                          .context = c->context,
                          .text = text};
    struct span piece, part;
    if (t->unigram.edges) return unigram_text(t, text, &c->out, e);
    if (t->by_character) return bpe_piece(t, &c->scratch, text, &c->out, e);
    while (!e->code && split_next(&split, &piece, e)) {
        if (!t->resplit || is_whole(piece)) {
            bpe_piece(t, &c->scratch, piece, &c->out, e);
            continue;
        }
        struct split again = {
            .t = t, .code = t->resplit, .data = c->redata, .context = c->context, .text = piece};
        while (!e->code && split_next(&again, &part, e)) bpe_piece(t, &c->scratch, part, &c->out, e);
    }
    return e->code;
}

/* Splits the text at added tokens and passes the text between the tokens to the next step. */
typedef enum status (*next_step)(struct encoding *c, struct span text, struct error *e);

static enum status encode_between_added(struct encoding *c, const struct added_set *set, struct span text,
                                        next_step next, struct error *e) {
    struct added_search search = {.set = set, .text = text};
    uint64_t taken = 0;
    while (added_next(&search)) {
        if (taken < search.start && next(c, (struct span){text.at + taken, search.start - taken}, e))
            return e->code;
        if (id_list_push(c->t->sys, &c->out, search.id, e)) return e->code;
        taken = search.end;
    }
    return taken < text.bytes ? next(c, (struct span){text.at + taken, text.bytes - taken}, e) : OK;
}

static enum status encode_normalized(struct encoding *c, struct span text, struct error *e) {
    char *normal = NULL;
    if (text_normalize(c->t, &text, &normal, e)) return e->code;
    encode_between_added(c, &c->t->normalized, text, encode_plain, e);
    c->t->sys->release(c->t->sys, normal);
    return e->code;
}

enum status tokenizer_check_text(const char *name, const char *text, uint64_t bytes, uint64_t most,
                                 struct error *e) {
    if (bytes > most) {
        error_set(e, LIMIT,
                  "the %s is too long" FOUND "%" PRIu64 " bytes" EXPECTED "at most %" PRIu64 " bytes", name,
                  bytes, most);
        return error_is_usage(e);
    }
    uint64_t valid = utf8_valid_bytes(text, bytes);
    if (valid == bytes) return OK;
    error_set(e, UTF8,
              "the %s is not UTF-8" WHERE "byte %" PRIu64 " of the %s" FOUND "byte 0x%02x" EXPECTED
              "valid UTF-8",
              name, valid, name, (unsigned char)text[valid]);
    return error_is_usage(e);
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, uint64_t bytes, int32_t **ids,
                             int *n_ids, struct error *e) {
    struct encoding c = {.t = t};
    *ids = NULL;
    *n_ids = 0;
    if (tokenizer_check_text("text", text, bytes, TOKENIZER_TEXT_BYTES, e)) return e->code;
    /* Allocates the list of ids even if the text has no ids, so that NULL means failure. */
    c.out.ids = sys_new(t->sys, 64, sizeof *c.out.ids, "token ids", e);
    c.out.capacity = 64;
    if (e->code) goto out;
    if (t->split) {
        c.data = pcre2_match_data_create_from_pattern(t->split, t->memory);
        if (t->resplit) c.redata = pcre2_match_data_create_from_pattern(t->resplit, t->memory);
        c.context = pcre2_match_context_create(t->memory);
        if (!c.data || !c.context || (t->resplit && !c.redata)) {
            error_set(e, MEMORY, "no memory to split a text");
            goto out;
        }
        /* Patterns of published tokenizers take a few steps per byte; the limit stops hostile patterns that
         * backtrack without end. Backtracking memory counts as host memory (LINE_HOST). */
        pcre2_set_match_limit(c.context, (uint32_t)(10000 + 16 * bytes));
        pcre2_set_heap_limit(c.context, 64 * 1024);
    }
    encode_between_added(&c, &t->raw, (struct span){text, bytes}, encode_normalized, e);
out:
    pcre2_match_data_free(c.data);
    pcre2_match_data_free(c.redata);
    pcre2_match_context_free(c.context);
    t->sys->release(t->sys, c.scratch.symbols);
    t->sys->release(t->sys, c.scratch.heap);
    if (e->code) {
        t->sys->release(t->sys, c.out.ids);
        return e->code;
    }
    *ids = c.out.ids;
    *n_ids = (int)c.out.n;
    return OK;
}
