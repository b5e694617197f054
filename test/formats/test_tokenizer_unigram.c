/* T5's tokenizer (unigram): ids against the reference's (test/golden/tokens_flux.py), from both file formats,
 * and files with one defect each. Names of tests begin with the number of the defect (t07 ...). Files are
 * built field by field from one small model. */

#include "test/lib/tokenizer_files.h"

#include <math.h>

static const char spiece[] = "spiece.model";

static void add_varint(struct bytes *b, uint64_t value) {
    for (; value > 127; value >>= 7) bytes_number(b, value | 128, 1);
    bytes_number(b, value, 1);
}

static void add_number(struct bytes *b, int field, int64_t value) {
    add_varint(b, (uint64_t)field << 3);
    add_varint(b, (uint64_t)value);
}

static void add_text(struct bytes *b, int field, const void *text, size_t n) {
    add_varint(b, (uint64_t)field << 3 | 2);
    add_varint(b, n);
    bytes_put(b, text, n);
}

static void add_piece(struct bytes *b, const char *text, size_t n, float score, int type) {
    struct bytes piece = {0};
    add_text(&piece, 1, text, n);
    bytes_number(&piece, 0x15, 1);
    bytes_put(&piece, &score, 4);
    add_number(&piece, 3, type);
    add_text(b, 1, piece.at, piece.n);
    free(piece.at);
}

enum { PAD, END, UNK, MARK, A, B, AB, CD, N_PIECES, EXTRA_0 = N_PIECES + 99 };

/* A test's changes to the small tokenizer model; NULL, 0: unchanged. */
struct recipe {
    const char *piece;
    size_t piece_bytes;
    float score;
    int type;
    int trainer_field;
    int64_t trainer_value;
    const char *table;
    size_t table_bytes;
    const char *tail; /* raw bytes appended to the file */
    size_t tail_bytes;
    bool no_unk, no_normalizer;
};

static struct bytes model, part;

static void write_model(struct recipe r) {
    model.n = part.n = 0;
    add_piece(&model, "<pad>", 5, 0, 3);
    add_piece(&model, "</s>", 4, 0, 3);
    add_piece(&model, "<unk>", 5, 0, r.no_unk ? 1 : 2);
    add_piece(&model, "\xe2\x96\x81", 3, -2, 1);
    add_piece(&model, "a", 1, -3, 1);
    add_piece(&model, "b", 1, -3, 1);
    add_piece(&model, "ab", 2, -4, 1);
    add_piece(&model, "cd", 2, -4, 1);
    if (r.piece) add_piece(&model, r.piece, r.piece_bytes, r.score, r.type ? r.type : 1);
    add_number(&part, 3, 1);
    if (r.trainer_field) add_number(&part, r.trainer_field, r.trainer_value);
    add_text(&model, 2, part.at, part.n);
    part.n = 0;
    add_text(&part, 1, "identity", 8);
    if (r.table) add_text(&part, 2, r.table, r.table_bytes);
    if (!r.no_normalizer) add_text(&model, 3, part.at, part.n);
    if (r.tail) bytes_put(&model, r.tail, r.tail_bytes);
    malformed_write(spiece, model.at, model.n);
}

static struct tokenizer *open_recipe(struct recipe r) {
    write_model(r);
    return tokenizer_open_good("", "unigram");
}

static void expect_failure(struct recipe r, enum status code, const char *says) {
    write_model(r);
    expect_open_failure("", code, says);
}

TEST(goldens) {
    compare_packed("t5", (const char *const[]){"spiece.model", "tokenizer_config.json", NULL});
    compare_packed("t5_json", (const char *const[]){"tokenizer.json", NULL});
    compare_packed("umt5", (const char *const[]){"spiece.model", "tokenizer_config.json", NULL});
}

TEST(ids_of_words) {
    struct tokenizer *t = open_recipe((struct recipe){0});
    assert_int_equal(tokenizer_size(t), N_PIECES + 100);
    assert_int_equal(tokenizer_special(t, "</s>"), END);
    assert_int_equal(tokenizer_special(t, "<pad>"), PAD);
    assert_int_equal(tokenizer_special(t, "<unk>"), UNK);
    assert_int_equal(tokenizer_special(t, "<extra_id_0>"), EXTRA_0);
    assert_int_equal(tokenizer_special(t, "ab"), -1);
    IDS(t, " ab \t\xe3\x80\x80 b\n", MARK, AB, MARK, B);
    IDS(t, "aab", MARK, A, AB);
    IDS(t, "xyab\xc3\xa9", MARK, UNK, AB, UNK);
    IDS(t, "xy x", MARK, UNK, MARK, UNK);
    IDS(t, "a\342\226\201\342\226\201b", MARK, A, MARK, MARK, B); /* U+2581 twice */
    IDS(t, "a</s> b<extra_id_0>", MARK, A, END, MARK, B, EXTRA_0);
    IDS(t, "a\0b", MARK, A, UNK, B);
    assert_ids(t, "  ", 2, NULL, 0);
    tokenizer_close_clean(t);
    t = open_recipe((struct recipe){.piece = "a\0b", .piece_bytes = 3, .score = -1});
    IDS(t, "a\0b", MARK, N_PIECES);
    tokenizer_close_clean(t);
}

/* Of segmentations with equal scores, the one with the longest last piece is chosen, independent of rounding
 * errors in the sums. */
TEST(equal_scores_prefer_longer_last_piece) {
    struct tokenizer *t = open_recipe((struct recipe){.piece = "aa", .piece_bytes = 2, .score = -4.1F});
    int32_t want[64] = {MARK, A};
    char text[64];
    for (int i = 2; i < 32; i++) want[i] = N_PIECES;
    memset(text, 'a', sizeof text);
    assert_ids(t, text, 61, want, 32);
    tokenizer_close_clean(t);
}

TEST(configuration) {
    malformed_write_text(
        "tokenizer_config.json",
        "{\"tokenizer_class\":\"T5TokenizerFast\",\"extra_ids\":1,\"added_tokens_decoder\":{\"1\":{"
        "\"content\":"
        "\"</s>\",\"special\":true,\"rstrip\":true},\"8\":{\"content\":\"<extra_id_0>\",\"lstrip\":true}}}");
    struct tokenizer *t = open_recipe((struct recipe){0});
    assert_int_equal(tokenizer_size(t), N_PIECES + 1);
    IDS(t, "a  <extra_id_0>b</s>  a", MARK, A, N_PIECES, MARK, B, END, MARK, A);
    tokenizer_close_clean(t);
    expect_text_failure("tokenizer_config.json", "{\"tokenizer_class\":\"LlamaTokenizer\"}", UNSUPPORTED,
                        "LlamaTokenizer");
    expect_text_failure("tokenizer_config.json", "{\"extra_ids\":1001}", META, "extra_ids");
    expect_text_failure("tokenizer_config.json", "{\"extra_ids\":\"5\"}", META, "a string");
    malformed_write_text("tokenizer_config.json", NULL);
    t = tokenizer_open_good(spiece, "unigram"); /* the path of the file instead of its folder */
    assert_int_equal(tokenizer_special(t, "<extra_id_0>"), EXTRA_0);
    tokenizer_close_clean(t);
}

TEST(t01_every_truncation) {
    struct tokenizer *t;
    struct error e;
    write_model((struct recipe){0});
    for (size_t n = 0; n < model.n; n++) {
        malformed_write(spiece, model.at, n);
        enum status status = tokenizer_open_path(malformed_path(""), &t, &e);
        if (status != BOUNDS && status != MISSING)
            fail_msg("%zu bytes: %s %s", n, status_name(status), e.what);
    }
}

TEST(t07_wire_format) {
#define TAIL(text) (struct recipe){.tail = text, .tail_bytes = sizeof(text) - 1}
    expect_failure(TAIL("\x98\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"), BOUNDS, "more than 10 bytes");
    expect_failure(TAIL("\240\6\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"), BOUNDS, "more than 10 bytes");
    expect_failure(TAIL("\240\6\x80"), BOUNDS, "middle of a number");
    expect_failure(TAIL("\242\6\5abc"), BOUNDS, "5 bytes");
    expect_failure(TAIL("\242\6\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"), BOUNDS, "18446744073709551615");
    expect_failure(TAIL("\2\0"), TYPE, "an invalid number");
    /* protobuf's group start and end, and undefined wire types */
    expect_failure(TAIL("\243\6"), TYPE, "an unknown wire type");
    expect_failure(TAIL("\244\6"), TYPE, "an unknown wire type");
    expect_failure(TAIL("\246\6"), TYPE, "an unknown wire type");
    expect_failure(TAIL("\247\6"), TYPE, "an unknown wire type");
    expect_failure(TAIL("\245\6abc"), BOUNDS, "middle of a number");
    expect_failure(TAIL("\241\6abcdefg"), BOUNDS, "middle of a number");
    expect_failure(TAIL("\10\1"), TYPE, "type 0 of field 1");
    expect_failure(TAIL("\n\2\10\1"), TYPE, "type 0 of field 1");
    expect_failure(TAIL("\n\2\22\0"), TYPE, "type 2 of field 2");
    tokenizer_close_clean(open_recipe(TAIL("\242\6\3abc\245\6abcd\241\6abcdefgh\240\6\1")));
}

TEST(t08_pieces) {
    static char long_piece[200000];
    memset(long_piece, 'x', sizeof long_piece);
    expect_failure((struct recipe){.piece = long_piece, .piece_bytes = sizeof long_piece}, LIMIT,
                   "200000 bytes");
    expect_failure((struct recipe){.piece = "", .piece_bytes = 0}, META, "piece 8 is empty");
    expect_failure((struct recipe){.piece = "x", .piece_bytes = 1, .score = NAN}, META, "nan");
    expect_failure((struct recipe){.piece = "x", .piece_bytes = 1, .score = -INFINITY}, META, "-inf");
    expect_failure((struct recipe){.piece = "ab", .piece_bytes = 2}, DUP, "\"ab\"");
    expect_failure((struct recipe){.piece = "<extra_id_7>", .piece_bytes = 12}, DUP, "<extra_id_7>");
    expect_failure((struct recipe){.piece = "x\xff", .piece_bytes = 2}, UTF8, "piece 8");
}

/* A character map: replacement texts, and a trie of 256 units whose root leads to 'a' (0x61). */
struct table {
    uint32_t bytes, units[256];
    char texts[8];
};

TEST(t09_normalisation) {
    enum { LEAF = 1 << 8, OFFSET = 10 };
    struct table good = {.bytes = 1024, .texts = "b\0cd"};
    good.units[0] = 0x10 << OFFSET;                 /* the root's children are at 0x10 ^ byte */
    good.units[0x71] = 'a' | LEAF | 0x20 << OFFSET; /* children and value of 'a' are at 0x51 */
    good.units[0x51] = 1u << 31 | 2;                /* value of 'a': the replacement text "cd" */
    struct recipe r = {.table = (const char *)&good, .table_bytes = 4 + 1024 + 5};
    struct tokenizer *t = open_recipe(r);
    IDS(t, "ba b", MARK, B, CD, MARK, B);
    tokenizer_close_clean(t);
    for (size_t n = 1; n < 4; n++)
        expect_failure((struct recipe){.table = "\0\0\0", .table_bytes = n}, BOUNDS,
                       "shorter than its own length");
    expect_failure((struct recipe){.table = "\5\0\0\0abcdefgh", .table_bytes = 12}, BOUNDS, "5 bytes");
    expect_failure((struct recipe){.table = "\0\0\0\0abcdefg", .table_bytes = 12}, BOUNDS, "0 bytes");
    expect_failure((struct recipe){.table = "\377\377\377\377abcdefg", .table_bytes = 12}, BOUNDS,
                   "4294967295");
    expect_failure((struct recipe){.table = (const char *)&good, .table_bytes = 4 + 1024 + 4}, BOUNDS,
                   "ends within a text");
    struct table bad = good;
    r.table = (const char *)&bad;
    bad.units[0] = 1u << 31 | 0x100 << OFFSET;
    expect_failure(r, BOUNDS, "outside of the table");
    bad.units[0] = good.units[0];
    bad.units[0x71] = 'a' | 1 << 9 | 0x3FFFu << OFFSET;
    expect_failure(r, BOUNDS, "outside of the table");
    bad.units[0x71] = good.units[0x71];
    bad.units[0x51] = 1u << 31 | 5;
    expect_failure(r, BOUNDS, "byte 5");
    static char huge[(1 << 20) / 2 - 4096];
    expect_failure((struct recipe){.table = huge, .table_bytes = sizeof huge}, BOUNDS, "0 bytes");
}

/* A trie with a cycle, and replacements longer than the limit. */
TEST(t09_cyclic_map_refused) {
    static struct {
        uint32_t bytes, units[256];
        char text[100000];
    } table = {.bytes = 1024};
    memset(table.text, 'b', sizeof table.text - 1);
    table.units[0] = 0x10 << 10;
    table.units[0x71] = 'a' | 0; /* a cycle: the node's children are its siblings */
    struct recipe r = {.table = (const char *)&table, .table_bytes = sizeof table};
    struct tokenizer *t = open_recipe(r);
    IDS(t, "aaab", MARK, A, A, AB);
    tokenizer_close_clean(t);
    table.units[0x71] = 'a' | 1 << 8 | 0x20 << 10;
    table.units[0x51] = 1u << 31;
    t = open_recipe(r);
    struct error e = {0};
    int32_t *ids;
    int n;
    assert_int_equal(tokenizer_encode(t, "aaaa", 4, &ids, &n, &e), LIMIT);
    tokenizer_close_clean(t);
}

/* Tests 70 pieces, each a prefix of the next: first as normal pieces, then as user-defined tokens. */
TEST(t10_nested) {
    char text[80];
    memset(text, 'x', sizeof text);
    for (int type = 1; type <= 4; type += 3) {
        model.n = 0;
        add_piece(&model, "<unk>", 5, 0, 2);
        for (size_t n = 1; n <= 70; n++) add_piece(&model, text, n, -1 - (float)n / 128, type);
        add_text(&model, 2, "\x18\x01", 2);
        add_text(&model, 3, "", 0);
        malformed_write(spiece, model.at, model.n);
        struct tokenizer *t = tokenizer_open_good("", NULL);
        if (type == 4)
            assert_ids(t, text, 75, (const int32_t[]){70, 5}, 2);
        else
            assert_ids(t, text, 75, (const int32_t[]){0, 5, 70}, 3);
        tokenizer_close_clean(t);
    }
}

TEST(t11_special_ids) {
    enum { UNK_ID = 40, BOS_ID, EOS_ID, PAD_ID };
    expect_failure((struct recipe){.no_unk = true}, META, "unknown piece");
    expect_failure((struct recipe){.piece = "<u>", .piece_bytes = 3, .type = 2}, META, "two unknown");
    expect_failure((struct recipe){.trainer_field = UNK_ID, .trainer_value = -1}, META, "-1 in field 40");
    expect_failure((struct recipe){.trainer_field = UNK_ID, .trainer_value = 8}, META, "8 in field 40");
    expect_failure((struct recipe){.trainer_field = EOS_ID, .trainer_value = 1000}, META, "1000 in field 42");
    expect_failure((struct recipe){.trainer_field = PAD_ID, .trainer_value = INT64_MIN}, META, "in field 43");
    tokenizer_close_clean(open_recipe((struct recipe){.trainer_field = BOS_ID, .trainer_value = -1}));
    expect_failure((struct recipe){.trainer_field = 3, .trainer_value = 3}, UNSUPPORTED, "model type");
    expect_failure((struct recipe){.trainer_field = 3, .trainer_value = 2}, UNSUPPORTED, "add_dummy_prefix");
    expect_failure((struct recipe){.no_normalizer = true}, MISSING, "normalizer");
}

#define META_SPACE "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}"
#define WORDS      "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"}," META_SPACE "]}"
#define JSON(normalizer, pre, vocab, unk)                                                                    \
    "{\"normalizer\":" normalizer ",\"pre_tokenizer\":" pre                                                  \
    ",\"added_tokens\":[{\"id\":1,\"content\":\"</s>\",\"special\":true}],\"model\":{\"type\":\"Unigram\","  \
    "\"unk_id\":" unk ",\"vocab\":[[\"<unk>\",0],[\"</s>\",0.0],[\"\xe2\x96\x81\",-2],[\"a\",-3.5]" vocab    \
    "]}}"

TEST(malformed_json_refused) {
    static const struct {
        const char *text;
        enum status code;
        const char *says;
    } rows[] = {
        {JSON("null", WORDS, "", "4"), META, "found 4"},
        {JSON("null", WORDS, "", "-1"), META, "-1"},
        {JSON("null", WORDS, "", "null"), META, "unk_id"},
        {JSON("null", WORDS, ",[\"b\"]", "0"), META, "piece 4"},
        {JSON("null", WORDS, ",[\"b\",\"1\"]", "0"), META, "piece 4"},
        {JSON("null", WORDS, ",[\"b\",1,2]", "0"), META, "piece 4"},
        {JSON("null", WORDS, ",7", "0"), META, "an integer"},
        {JSON("null", WORDS, ",[\"a\",-1]", "0"), DUP, "\"a\""},
        {JSON("null", WORDS, ",[\"\",-1]", "0"), META, "empty"},
        {JSON("null", "{\"type\":\"Whitespace\"}", "", "0"), UNSUPPORTED, "Whitespace"},
        {JSON("null", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "", "0"), UNSUPPORTED, "\"_\""},
        {JSON("null", "{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\"}", "", "0"), UNSUPPORTED,
         "never"},
        {JSON("{\"type\":\"NFKC\"}", WORDS, "", "0"), UNSUPPORTED, "NFKC"},
        {JSON("{\"type\":\"Precompiled\",\"precompiled_charsmap\":5}", WORDS, "", "0"), META, "a string"},
        {JSON("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"?\"}", WORDS, "", "0"), META, "base64"},
        {JSON("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}", WORDS, "", "0"), BOUNDS,
         "shorter"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_text_failure("tokenizer.json", rows[i].text, rows[i].code, rows[i].says);
    /* format of earlier versions of Hugging Face tokenizers */
    malformed_write_text("tokenizer.json",
                         JSON("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\"},{\"type\":"
                              "\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]}",
                              META_SPACE, "", "0"));
    struct tokenizer *t = tokenizer_open_good("tokenizer.json", NULL);
    IDS(t, " a  a</s>b", 2, 3, 2, 3, 1, 2, 0);
    tokenizer_close_clean(t);
    malformed_write_text("tokenizer.json", NULL);
}

TEST(every_allocation_fails) {
    struct table table = {.bytes = 1024, .texts = "b"};
    write_model((struct recipe){.table = (const char *)&table, .table_bytes = 4 + 1024 + 2});
    expect_memory_failures("", "ab <extra_id_0> x");
}

/* One word with overlapping pieces, unknown characters, clusters of marks, white space, and prefixes of
 * special tokens: time must be linear. */
TEST(linear_time) {
    tokenizer_unpack("t5", "spiece.model");
    struct tokenizer *t = tokenizer_open_good("", NULL);
    expect_linear_time(t, (const char *const[]){"haha...", "\xcc\x81\xcc\xa3", "  \t ", "<extra_id",
                                                "\xe2\x96\x81", "\xef\xb7\xba", NULL});
    tokenizer_close_clean(t);
}

/* Encodes a sentence and writes its first ids, padded with -1. */
static void first_ids(struct tokenizer *t, int32_t *first, int most) {
    static const char text[] = "a red fox in the snow <extra_id_3>";
    struct error e = {0};
    int32_t *ids;
    int n;
    assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, &ids, &n, &e), OK);
    for (int i = 0; i < most; i++) first[i] = i < n ? ids[i] : -1;
    tokenizer_sys.release(&tokenizer_sys, ids);
}

/* Generated tokenizers have the requested size and give the same ids in either format. */
TEST(generated_tokenizer) {
    static const int rows[] = {256, 1000, 32128}, sizes[] = {256, 1000, 32100};
    static const char *const without[] = {"tokenizer.json", "spiece.model"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t ids[2][32];
        for (int form = 0; form < 2; form++) {
            struct tokenizer *t = open_synthetic("unigram", rows[i], without[form]);
            assert_int_equal(tokenizer_size(t), sizes[i]);
            assert_int_equal(tokenizer_special(t, "<extra_id_0>"), sizes[i] - 1);
            IDS(t, "~ ~</s>", 3, 97, 3, 97, 1);
            first_ids(t, ids[form], 32);
            tokenizer_close_clean(t);
        }
        assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    }
    expect_synthetic_failure("unigram", 255, "256");
    expect_synthetic_failure("WordPiece", 1000, "WordPiece");
}

int main(void) {
    return run_all_tests(malformed_set_up, malformed_tear_down);
}
