/* Prompts: see prompt.h. */
#include "cli/prompt.h"

#include "cli/fail.h"
#include "cli/textfile.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* No model reads more than some thousand tokens; this stops @/dev/zero. */
#define PROMPT_BYTES_MAX (8u << 20)

/* Bytes of the well-formed UTF-8 character at text, 0 if there is none (RFC 3629: no surrogates, no overlong
 * forms). */
static size_t utf8_character(const unsigned char *text, size_t bytes) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80 ? 1 : text[0] < 0xC2 ? 0 : text[0] < 0xE0 ? 2 : text[0] < 0xF0 ? 3 : 4;
    if (length == 0 || length > bytes || text[0] > 0xF4) return 0;
    uint32_t code = length == 1 ? text[0] : text[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (text[i] & 0x3Fu);
    }
    bool surrogate = code >= 0xD800 && code < 0xE000;
    return surrogate || code > 0x10FFFF || (length > 1 && code < least[length]) ? 0 : length;
}

static int check_text(const struct prompt_text *prompt, const char *flag, bool may_hold_nul,
                      struct sluice_error *e) {
    const unsigned char *text = (const unsigned char *)prompt->text;
    for (size_t i = 0; i < prompt->bytes;) {
        size_t length = utf8_character(text + i, prompt->bytes - i);
        if (length == 0 || (text[i] == 0 && !may_hold_nul)) {
            fail(e, SLUICE_USAGE, "the prompt is not UTF-8 text");
            fail_where(e, "%s, byte %zu", flag, i);
            fail_found(e, "byte 0x%02X", text[i]);
            return fail_expected(e, length ? "no NUL in a prompt" : "UTF-8");
        }
        i += length;
    }
    return SLUICE_OK;
}

static int too_long(const char *flag, struct sluice_error *e) {
    fail(e, SLUICE_USAGE, "the prompt is too long");
    fail_where(e, "%s", flag);
    return fail_expected(e, "at most %u bytes", PROMPT_BYTES_MAX);
}

static int read_file(struct prompt_text *prompt, const char *flag, const char *path, struct sluice_error *e) {
    int problem = textfile_read_bytes(path, PROMPT_BYTES_MAX, &prompt->text, &prompt->bytes);
    if (problem == ENOMEM) return fail(e, SLUICE_MEMORY, "no memory for the prompt");
    if (!problem) return prompt->bytes > PROMPT_BYTES_MAX ? too_long(flag, e) : SLUICE_OK;
    fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO, "the file of %s cannot be read", flag);
    fail_where(e, "%s", path);
    return fail_found(e, "%s", textfile_problem(problem));
}

int prompt_read(struct prompt_text *prompt, const char *flag, bool may_hold_nul, struct sluice_error *e) {
    int status = SLUICE_OK;
    if (prompt->typed[0] == '@') {
        status = read_file(prompt, flag, prompt->typed + 1, e);
    } else {
        prompt->bytes = strlen(prompt->typed);
        prompt->text = malloc(prompt->bytes + 1);
        if (prompt->text) memcpy(prompt->text, prompt->typed, prompt->bytes);
    }
    if (status) return status;
    if (!prompt->text) return fail(e, SLUICE_MEMORY, "no memory for the prompt");
    prompt->text[prompt->bytes] = 0;
    return check_text(prompt, flag, may_hold_nul, e);
}
