/* Mistral's tokenizer ("Tekken"): ids against the reference's in three file formats, and tekken.json files
 * with one defect each.
 *
 * The expected ids are those of transformers (test/golden/tokens_tekken.py made the files). With Mistral's
 * published vocabulary of 131,072 tokens, 12,001 texts had the same ids as in transformers 5.24, and as in
 * mistral_common 1.13 where they contain no special token. Small files: 256 bytes, then a few tokens. */
#include "test/lib/tokenizer_files.h"

static const char tekken_json[] = "tekken.json";

/* Parts of a small tekken.json; NULL takes the default. */
struct recipe {
    const char *bytes;    /* elements of "vocab" in place of those of ranks 'y' and 'z' */
    const char *words;    /* elements after the 256 bytes */
    const char *config;   /* members of "config" */
    const char *specials; /* the member "special_tokens" and others of the document */
};

#define SIZES(special, size) "\"default_num_special_tokens\":" special ",\"default_vocab_size\":" size ","
#define WORD(rank, base64)   ",{\"rank\":" rank ",\"token_bytes\":\"" base64 "\",\"token_str\":null}"
#define PATTERN              "\"pattern\":\"[a-z]+|[^a-z]+\""
#define UNSIZED              "\"default_num_special_tokens\":4," PATTERN
#define CONFIG               SIZES("4", "264") PATTERN
/* ab, bc, abc, xyz: no two tokens make xyz; dd lies beyond the vocabulary's size */
#define WORDS                                                                                                \
    WORD("256", "YWI=") WORD("257", "YmM=") WORD("258", "YWJj") WORD("259", "eHl6") WORD("260", "ZGQ=")
#define SPECIALS                                                                                             \
    ",\"special_tokens\":[{\"rank\":2,\"token_str\":\"<e>\",\"is_control\":true},"                           \
    "{\"rank\":0,\"token_str\":\"[x]\",\"is_control\":true}]"

enum { FIRST = 4, AB = FIRST + 256, BC, ABC, XYZ, SIZE };

static void add_byte(struct bytes *b, int byte) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes_print(b, "%s{\"token_str\":\"\\u%04x\",\"rank\":%d,\"token_bytes\":\"%c%c==\"}", byte ? "," : "",
                byte & 127, byte, digits[byte >> 2], digits[(byte & 3) << 4]);
}

static struct bytes document(struct recipe r) {
    struct bytes b = {0};
    bytes_print(&b, "{\"config\":{%s},\"vocab\":[", r.config ? r.config : CONFIG);
    for (int byte = 0; byte < 256; byte++) {
        if (r.bytes && byte == 'y') bytes_print(&b, "%s", r.bytes);
        if (!r.bytes || (byte != 'y' && byte != 'z')) add_byte(&b, byte);
    }
    bytes_print(&b, "%s]%s}", r.words ? r.words : WORDS, r.specials ? r.specials : SPECIALS);
    return b;
}

static void write_recipe(struct recipe r) {
    struct bytes b = document(r);
    malformed_write(tekken_json, b.at, b.n);
    free(b.at);
}

static struct tokenizer *open_recipe(struct recipe r) {
    write_recipe(r);
    return tokenizer_open_good(tekken_json, "BPE");
}

static void expect_failure(struct recipe r, enum status code, const char *says) {
    write_recipe(r);
    expect_open_failure(tekken_json, code, says);
}

TEST(goldens) {
    compare_packed("tekken", (const char *const[]){"tekken.json", NULL});
    compare_packed("tekken", (const char *const[]){"tokenizer.json", NULL});
    tokenizer_unpack("tekken", "tekken.gguf");
    tokenizer_unpack("tekken", "cases.json");
    compare_cases(malformed_path("tekken.gguf"), malformed_path("cases.json"));
    malformed_write_text("tekken.gguf", NULL);
    malformed_write_text("cases.json", NULL);
}

/* Ids of the special tokens in Flux.2's template, as in Mistral's files. Ids without a special token have the
 * text <SPECIAL_id>. */
TEST(special_tokens) {
    static const struct {
        const char *text;
        int id;
    } rows[] = {{"<s>", 1},          {"[INST]", 3},           {"[/INST]", 4},           {"[IMG]", 10},
                {"<pad>", 11},       {"[SYSTEM_PROMPT]", 17}, {"[/SYSTEM_PROMPT]", 18}, {"<SPECIAL_20>", 20},
                {"<SPECIAL_30>", -1}};
    static const char *const files[] = {"tekken.json", "tokenizer.json", "tekken.gguf"};
    for (int i = 0; i < 3; i++) {
        tokenizer_unpack("tekken", files[i]);
        struct tokenizer *t = tokenizer_open_good(files[i], "BPE");
        assert_int_equal(tokenizer_size(t), 930);
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            assert_int_equal(tokenizer_special(t, rows[k].text), rows[k].id);
        tokenizer_close_clean(t);
        malformed_write_text(files[i], NULL);
    }
    /* Without a list, the 20 tokens of mistral_common. */
    struct tokenizer *t = open_recipe((struct recipe){.config = SIZES("22", "282") PATTERN, .specials = ""});
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        assert_int_equal(tokenizer_special(t, rows[k].text), rows[k].id);
    IDS(t, "[/SYSTEM_PROMPT]<SPECIAL_21>a", 18, 21, 22 + 'a');
    tokenizer_close_clean(t);
}

TEST(ids_of_words) {
    struct tokenizer *t = open_recipe((struct recipe){0});
    assert_int_equal(tokenizer_size(t), SIZE);
    assert_int_equal(tokenizer_special(t, "<e>"), 2);
    assert_int_equal(tokenizer_special(t, "<SPECIAL_3>"), 3);
    IDS(t, "abc<e>ab[x]", ABC, 2, AB, 0);
    IDS(t, "bcab", BC, AB);
    IDS(t, "abcx", ABC, FIRST + 'x'); /* a and bc, or ab and c, make abc */
    IDS(t, "xyz", XYZ);
    IDS(t, "xyza", FIRST + 'x', FIRST + 'y', FIRST + 'z', FIRST + 'a');
    IDS(t, "dd", FIRST + 'd', FIRST + 'd');
    IDS(t, "e\xcc\x81", FIRST + 'e', FIRST + 0xCC, FIRST + 0x81); /* no composition */
    tokenizer_close_clean(t);
    /* Ranks decide between pairs: bc has a better rank than ab. */
    t = open_recipe((struct recipe){
        .words = WORD("256", "YmM=") WORD("257", "YWI="),
        .config = PATTERN,
        .specials =
            ",\"special_tokens\":[{\"rank\":0,\"token_str\":\"[x]\"},{\"rank\":1,\"token_str\":\"[y]\"}]"});
    assert_int_equal(tokenizer_size(t),
                     2 + 258); /* the configuration has no sizes: all listed tokens count */
    IDS(t, "abc", 2 + 'a', 2 + 256);
    tokenizer_close_clean(t);
}

/* tekken.json as a tensor of bytes inside another file. */
TEST(stored) {
    struct bytes b = document((struct recipe){0});
    struct tokenizer *t;
    struct error e = {0};
    sys_init_machine(&tokenizer_sys);
    assert_int_equal(tokenizer_open_stored(&tokenizer_sys, "x.safetensors", b.at, b.n, &t, &e), OK);
    IDS(t, "abc<e>", ABC, 2);
    tokenizer_close_clean(t);
    assert_int_equal(tokenizer_open_stored(&tokenizer_sys, "x.safetensors", b.at, b.n - 1, &t, &e), JSON);
    assert_non_null(strstr(e.where, "x.safetensors"));
    free(b.at);
}

TEST(malformed_tokens_refused) {
    static const struct {
        const char *words;
        enum status code;
        const char *says;
    } rows[] = {
        {WORD("255", "YWI="), META, "wrong rank"},
        {WORD("257", "YWI="), META, "wrong rank"},
        {WORD("-1", "YWI="), META, "wrong rank"},
        {WORD("256.0", "YWI="), META, "wrong rank"},
        {WORD("99999999999999999999", "YWI="), LIMIT, "64 bits"},
        {WORD("256", "YWI"), META, "not base64"},
        {WORD("256", "Y*I="), META, "not base64"},
        {WORD("256", ""), META, "wrong bytes"},
        {WORD("256", "YQ=="), DUP, "bytes of another token"},
        {",{\"rank\":256,\"token_str\":\"ab\"}", META, "token_bytes"},
        {",{\"rank\":256,\"token_bytes\":7}", META, "token_bytes"},
        {",{\"rank\":256,\"token_bytes\":\"YWI=\",\"token_bytes\":\"YWI=\"}", DUP, "token_bytes"},
        {",[256,\"YWI=\"]", JSON, "an object"},
        {",,", JSON, "an object"},
        {",", JSON, "an object"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_failure((struct recipe){.words = rows[i].words, .config = UNSIZED}, rows[i].code,
                       rows[i].says);
    expect_failure((struct recipe){.bytes = WORD("121", "eg==") WORD("122", "eQ==")}, META, "wrong bytes");
    expect_failure((struct recipe){.bytes = WORD("121", "eXk=")}, META, "wrong bytes");
    for (int length = 340; length <= 348; length += 8) { /* of base64; 255 and 261 bytes */
        struct bytes b = {0};
        bytes_print(&b, WORD("256", "%0*d"), length, 0);
        struct recipe r = {.words = (const char *)b.at, .config = UNSIZED};
        if (length > 340)
            expect_failure(r, LIMIT, "token 256 is too long");
        else
            tokenizer_close_clean(open_recipe(r));
        free(b.at);
    }
    /* A member name with JSON escapes: the bytes of these tokens were not counted when the table was
     * allocated. */
    struct bytes b = {0};
    for (int i = 0; i < 9; i++)
        bytes_print(&b, ",{\"rank\":%d,\"token\\u005fbytes\":\"%0340d\"}", 256 + i, i);
    expect_failure((struct recipe){.words = (const char *)b.at, .config = UNSIZED}, LIMIT, "is too long");
    free(b.at);
}

TEST(malformed_special_tokens_refused) {
    static const struct {
        const char *specials;
        enum status code;
        const char *says;
    } rows[] = {
        {"[{\"rank\":4,\"token_str\":\"a\"}]", META, "an unused rank from 0 to 3"},
        {"[{\"rank\":-1,\"token_str\":\"a\"}]", META, "invalid"},
        {"[{\"rank\":\"1\",\"token_str\":\"a\"}]", META, "invalid"},
        {"[{\"token_str\":\"a\"}]", META, "invalid"},
        {"[{\"rank\":1,\"token_str\":\"a\"},{\"rank\":1,\"token_str\":\"b\"}]", META, "an unused rank"},
        {"[{\"rank\":1,\"token_str\":\"a\"},{\"rank\":2,\"token_str\":\"a\"}]", DUP, "occurs twice"},
        {"[{\"rank\":1,\"token_str\":\"<SPECIAL_2>\"}]", DUP, "occurs twice"},
        {"[{\"rank\":1,\"token_str\":\"\"}]", META, "length of added token"},
        {"[{\"rank\":1}]", META, "token_str"},
        {"[7]", META, "token_str"},
        {"{}", JSON, "an array"},
        {"[{\"rank\":1,\"token_str\":\"a\"},]", JSON, "a value"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char specials[256];
        snprintf(specials, sizeof specials, ",\"special_tokens\":%s", rows[i].specials);
        expect_failure((struct recipe){.specials = specials}, rows[i].code, rows[i].says);
    }
}

TEST(malformed_configuration_refused) {
    static const struct {
        const char *config;
        enum status code;
        const char *says;
    } rows[] = {
        {"", META, "config.pattern"},
        {"\"pattern\":null", META, "config.pattern"},
        {"\"pattern\":\"(\"", UNSUPPORTED, "does not compile"},
        {SIZES("4", "266") PATTERN, META, "the number of tokens is invalid"},
        {SIZES("4", "259") PATTERN, META, "the number of tokens is invalid"},
        {SIZES("4", "3") PATTERN, META, "the number of special tokens is invalid"},
        {SIZES("-1", "264") PATTERN, META, "default_num_special_tokens is invalid"},
        {SIZES("65537", "264") PATTERN, META, "default_num_special_tokens is invalid"},
        {SIZES("4", "16777217") PATTERN, META, "default_vocab_size is invalid"},
        {SIZES("4", "2.5") PATTERN, META, "default_vocab_size"},
        {SIZES("1", "261") PATTERN, META, "an unused rank from 0 to 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_failure((struct recipe){.config = rows[i].config}, rows[i].code, rows[i].says);
    expect_failure((struct recipe){.specials = ",\"vocab\":[]"}, DUP, "vocab");
    expect_text_failure(tekken_json, "{\"config\":{}}", MISSING, "\"vocab\" is missing");
    expect_text_failure(tekken_json, "{\"config\":{},\"vocab\":7}", META, "config.pattern");
    expect_text_failure(tekken_json, "{\"config\":{" PATTERN "},\"vocab\":7}", JSON, "an array");
}

/* Truncations fail; a changed byte causes at most an error. The step is prime, so that changes hit every part
 * of the elements. */
TEST(damage_never_crashes) {
    struct bytes file = document((struct recipe){0});
    for (size_t i = 0; i < file.n; i += 23) {
        struct tokenizer *t;
        struct error e;
        malformed_write(tekken_json, file.at, i);
        assert_int_not_equal(tokenizer_open_path(malformed_path(tekken_json), &t, &e), OK);
        unsigned char byte = file.at[i];
        file.at[i] ^= (unsigned char)(1 + i % 255);
        malformed_write(tekken_json, file.at, file.n);
        file.at[i] = byte;
        if (tokenizer_open_path(malformed_path(tekken_json), &t, &e) == OK) tokenizer_close_clean(t);
    }
    free(file.at);
}

TEST(every_allocation_fails) {
    write_recipe((struct recipe){0});
    expect_memory_failures(tekken_json, "abc<e> xx\n");
    expect_json_failures(tekken_json);
}

/* Words of capitals only make the split pattern's first alternative backtrack. */
TEST(linear_time) {
    tokenizer_unpack("tekken", tekken_json);
    struct tokenizer *t = tokenizer_open_good(tekken_json, "BPE");
    expect_linear_time(t, (const char *const[]){"A", "aB", "\xcc\x81", "/", NULL});
    tokenizer_close_clean(t);
}

int main(void) {
    json_failures_set_up();
    return run_all_tests(malformed_set_up, malformed_tear_down);
}
