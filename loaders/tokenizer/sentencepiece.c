/* Reads spiece.model or tokenizer.model: SentencePiece's ModelProto, parsed by hand. Three fields are used:
 * the pieces, the trainer specification (model type: unigram for T5 and umT5, BPE for Gemma), and the
 * normalisation. A file without the last two, which follow the pieces, is truncated. Byte pieces of a unigram
 * model are ordinary pieces, as in Hugging Face tokenizers: a character without a piece becomes the unknown
 * token, not byte pieces. Sources: sentencepiece_model.proto, SentencePiece 0.1.97; wire format:
 * https://protobuf.dev/programming-guides/encoding. */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <string.h>

enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };
enum { MODEL_PIECES = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };
enum { TRAINER_MODEL = 3, TRAINER_UNK = 40, TRAINER_PAD = 43, UNIGRAM_MODEL = 1, BPE_MODEL = 2 };
enum { NORMALIZER_TABLE = 2, NORMALIZER_PREFIX, NORMALIZER_EXTRA, NORMALIZER_ESCAPE };

/* Iterator over the fields of a protobuf message. base: start of the file, for messages. */
struct walk {
    const struct reading *r;
    const char *base, *at, *end;
};

struct field {
    uint32_t number, wire;
    uint64_t value; /* value of a protobuf field of type varint, 32-bit or 64-bit */
    struct span bytes;
};

static struct walk walk_into(const struct walk *from, struct span message) {
    return (struct walk){from->r, from->base, message.at, message.at + message.bytes};
}

/* Sets an error at the current byte of the file. what: printf format, may end in FOUND, EXPECTED (error_set).
 */
#define field_fail(e, code, w, what, ...)                                                                    \
    error_set(e, code, "tokenizer: a protobuf field of the SentencePiece model " what WHERE "%s, byte %lld", \
              ##__VA_ARGS__, (w)->r->path, (long long)((w)->at - (w)->base))

static enum status read_varint(struct walk *w, uint64_t *value, struct error *e) {
    *value = 0;
    for (int i = 0; i < 10; i++) {
        if (w->at == w->end) return field_fail(e, BOUNDS, w, "ends in the middle of a number");
        uint64_t byte = (unsigned char)*w->at++;
        *value |= (byte & 127) << 7 * i;
        if (byte < 128) return OK;
    }
    return field_fail(e, BOUNDS, w, "has a number of more than 10 bytes");
}

/* Reads the next protobuf field; false at the end or after an error. */
static bool next_field(struct walk *w, struct field *f, struct error *e) {
    uint64_t tag;
    *f = (struct field){0};
    if (w->at == w->end || read_varint(w, &tag, e)) return false;
    f->number = tag >> 3 > UINT32_MAX ? 0 : (uint32_t)(tag >> 3);
    f->wire = tag & 7;
    int fixed = f->wire == WIRE_32 ? 4 : 8;
    if (!f->number)
        field_fail(e, TYPE, w, "has an invalid number");
    else if (f->wire == WIRE_VARINT || f->wire == WIRE_BYTES)
        read_varint(w, &f->value, e);
    else if (f->wire != WIRE_64 && f->wire != WIRE_32)
        field_fail(e, TYPE, w, "has an unknown wire type");
    else if (w->end - w->at < fixed)
        field_fail(e, BOUNDS, w, "ends in the middle of a number");
    else
        for (int i = 0; i < fixed; i++) f->value |= (uint64_t)(unsigned char)*w->at++ << 8 * i;
    if (e->code || f->wire != WIRE_BYTES) return !e->code;
    if (f->value > (uint64_t)(w->end - w->at)) {
        field_fail(e, BOUNDS, w, "reaches beyond the end" FOUND "%" PRIu64 " bytes" EXPECTED "at most %lld",
                   f->value, (long long)(w->end - w->at));
        return false;
    }
    f->bytes = (struct span){w->at, f->value};
    w->at += f->value;
    return true;
}

static enum status expect_wire(const struct walk *w, const struct field *f, uint32_t wire, struct error *e) {
    if (f->wire == wire) return OK;
    return field_fail(e, TYPE, w,
                      "has the wrong wire type" FOUND "type %" PRIu32 " of field %" PRIu32 EXPECTED
                      "type %" PRIu32,
                      f->wire, f->number, wire);
}

struct piece {
    struct span text;
    float score;
    uint64_t type;
};

static enum status read_piece(const struct walk *from, struct span message, struct piece *piece,
                              struct error *e) {
    static const uint32_t wires[] = {
        [PIECE_TEXT] = WIRE_BYTES, [PIECE_SCORE] = WIRE_32, [PIECE_TYPE] = WIRE_VARINT};
    struct walk w = walk_into(from, message);
    struct field f;
    *piece = (struct piece){.type = TYPE_NORMAL};
    while (next_field(&w, &f, e)) {
        if (f.number > PIECE_TYPE) continue;
        if (expect_wire(&w, &f, wires[f.number], e)) return e->code;
        uint32_t bits = (uint32_t)f.value;
        if (f.number == PIECE_TEXT)
            piece->text = f.bytes;
        else if (f.number == PIECE_SCORE)
            memcpy(&piece->score, &bits, sizeof bits);
        else
            piece->type = f.value;
    }
    return e->code;
}

/* Parts of the model file, found in one pass. */
struct model {
    struct walk file;
    uint64_t n_pieces, text_bytes; /* upper bounds of the number of pieces and of the bytes of their texts */
    int64_t unk;                   /* id of the unknown piece; -1: not found yet */
    bool bpe;                      /* the model type is BPE (Gemma); false: unigram */
    struct span trainer, normalizer, table;
};

static enum status walk_model(struct model *m, struct error *e) {
    struct walk w = m->file;
    struct field f;
    while (next_field(&w, &f, e)) {
        if (f.number > MODEL_NORMALIZER) continue;
        if (expect_wire(&w, &f, WIRE_BYTES, e)) return e->code;
        m->n_pieces += f.number == MODEL_PIECES;
        if (f.number == MODEL_PIECES) m->text_bytes += f.bytes.bytes;
        if (f.number == MODEL_TRAINER) m->trainer = f.bytes;
        if (f.number == MODEL_NORMALIZER) m->normalizer = f.bytes;
    }
    if (e->code) return e->code;
    if (m->trainer.at && m->normalizer.at) return OK;
    return reading_fail(e, MISSING, w.r, "%s of a SentencePiece model is missing",
                        m->trainer.at ? "the normalizer specification" : "the trainer specification");
}

/* Checks the model type, and the ids of the unknown, first, last and padding piece; -1 means absent. */
static enum status check_trainer(struct model *m, struct error *e) {
    struct walk w = walk_into(&m->file, m->trainer);
    struct field f;
    while (next_field(&w, &f, e)) {
        bool special = f.number >= TRAINER_UNK && f.number <= TRAINER_PAD;
        if (f.number != TRAINER_MODEL && !special) continue;
        if (expect_wire(&w, &f, WIRE_VARINT, e)) return e->code;
        if (f.number == TRAINER_MODEL && f.value != UNIGRAM_MODEL && f.value != BPE_MODEL)
            return reading_fail(e, UNSUPPORTED, w.r,
                                "the model type is not supported" FOUND "%" PRIu64 EXPECTED
                                "1 (unigram) or 2 (BPE)",
                                f.value);
        if (f.number == TRAINER_MODEL) m->bpe = f.value == BPE_MODEL;
        int64_t id = (int64_t)f.value;
        if (!special || (id >= (f.number == TRAINER_UNK ? 0 : -1) && (id < 0 || (uint64_t)id < m->n_pieces)))
            continue;
        return reading_fail(e, META, w.r,
                            "a special piece's id is invalid" FOUND "%" PRId64 " in field %" PRIu32 EXPECTED
                            "one of %" PRIu64 " pieces",
                            id, f.number, m->n_pieces);
    }
    return e->code;
}

/* Reads the normalisation table. A BPE model must have no table, and must neither add nor remove white space;
 * the defaults of the format do both. UNSUPPORTED: it does. */
static enum status read_normalizer(struct reading *r, struct model *m, struct error *e) {
    struct walk w = walk_into(&m->file, m->normalizer);
    struct field f;
    bool prefix = true, extra = true, escape = true;
    while (next_field(&w, &f, e)) {
        if (f.number == NORMALIZER_PREFIX) prefix = f.value;
        if (f.number == NORMALIZER_EXTRA) extra = f.value;
        if (f.number == NORMALIZER_ESCAPE) escape = f.value;
        if (f.number != NORMALIZER_TABLE) continue;
        if (expect_wire(&w, &f, WIRE_BYTES, e)) return e->code;
        m->table = f.bytes;
    }
    if (!e->code && m->bpe && (prefix || extra || !escape || m->table.bytes))
        return reading_unsupported(r, "the normalizer of a SentencePiece BPE model",
                                   m->table.bytes ? "a table"
                                   : prefix       ? "add_dummy_prefix"
                                   : extra        ? "remove_extra_whitespaces"
                                                  : "no escape_whitespaces",
                                   "only escape_whitespaces (Gemma)", e);
    if (e->code || !m->table.bytes) return e->code;
    return charsmap_make(r->t->sys, m->table, r->path, &r->t->charsmap, e);
}

static enum status read_pieces(struct reading *r, struct model *m, json_t *list, struct error *e) {
    struct walk w = m->file;
    struct field f;
    struct piece piece;
    for (int64_t id = 0; next_field(&w, &f, e);) {
        if (f.number != MODEL_PIECES) continue;
        if (read_piece(&w, f.bytes, &piece, e) || pieces_add(r, piece.text, piece.score, e)) return e->code;
        if (piece.type == TYPE_UNKNOWN && m->unk >= 0)
            return reading_fail(e, META, r, "the vocabulary has two unknown pieces");
        if (piece.type == TYPE_UNKNOWN) m->unk = id;
        bool unknown = m->bpe && piece.type == TYPE_UNKNOWN; /* as in Gemma's tokenizer.json */
        if (piece.type == TYPE_CONTROL || piece.type == TYPE_USER || unknown)
            added_list_token(list, id, piece.text, piece.type != TYPE_USER);
        id++;
    }
    return e->code;
}

enum status unigram_read_added(struct reading *r, const json_t *config, const json_t *special_map,
                               json_t *others, struct error *e) {
    json_t *defaults =
        json_pack("{s:s, s:s, s:s}", "eos_token", "</s>", "unk_token", "<unk>", "pad_token", "<pad>");
    const struct named_tokens named = {config, special_map, defaults, others};
    if (!defaults) error_set(e, MEMORY, "no memory for added tokens");
    if (!e->code) added_read_named(r, &named, e);
    json_decref(defaults);
    return e->code;
}

/* True if tokenizer_config.json has the tokenizer class of the model type, or no class. */
static bool class_fits(const struct model *m, const json_t *class) {
    static const char *const classes[][2] = {{"T5Tokenizer", "T5TokenizerFast"},
                                             {"GemmaTokenizer", "GemmaTokenizerFast"}};
    return reading_absent(class) || reading_is_text(class, classes[m->bpe][0]) ||
           reading_is_text(class, classes[m->bpe][1]);
}

enum status tokenizer_read_spiece(struct reading *r, const struct span *bytes, const json_t *config,
                                  const json_t *special_map, struct error *e) {
    const json_t *class = json_object_get(config, "tokenizer_class"),
                 *extra = json_object_get(config, "extra_ids");
    json_int_t n_extra = reading_absent(extra) ? 100 : json_integer_value(extra);
    char *text = NULL;
    uint64_t n = 0;
    if (!bytes && file_read_text(r->t->sys, r->path, TOKENIZER_FILE_BYTES, &text, &n, e)) return e->code;
    const struct span file = bytes ? *bytes : (struct span){text, n};
    struct model m = {.file = {r, file.at, file.at, file.at + file.bytes}, .unk = -1};
    unsigned json_failures = failed_json_allocations();
    json_t *others = json_array();
    if (walk_model(&m, e) || check_trainer(&m, e) || read_normalizer(r, &m, e)) goto out;
    if (m.bpe) n_extra = 0;
    if (!class_fits(&m, class))
        reading_unsupported(r, "tokenizer_class", reading_shown(class),
                            m.bpe ? "GemmaTokenizer" : "T5Tokenizer", e);
    else if (!reading_absent(extra) && (!json_is_integer(extra) || n_extra < 0 || n_extra > 1000))
        reading_wrong_kind(r, "extra_ids", extra, "an integer from 0 to 1000", e);
    else if (!pieces_make(r, m.n_pieces + (uint64_t)n_extra, m.text_bytes + 32 * (uint64_t)n_extra, e) &&
             !read_pieces(r, &m, others, e) && !pieces_add_extra(r, (int)n_extra, others, e) && !m.bpe)
        pieces_finish(r, m.unk, e);
    if (m.bpe && !e->code) bpe_pieces_finish(r, e);
    if (!others || failed_json_allocations() != json_failures)
        error_set(e, MEMORY, "no memory for added tokens");
    if (m.bpe && !e->code)
        added_read_list(r, others, e);
    else if (!e->code)
        unigram_read_added(r, config, special_map, others, e);
out:
    json_decref(others);
    r->t->sys->release(r->t->sys, text);
    return e->code;
}
