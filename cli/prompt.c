#include "cli/prompt.h"

#include "cli/fail.h"
#include "cli/messages.h"
#include "cli/textfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int check_text(const struct prompt_text *prompt, const char *flag, bool as_bytes,
                      struct sluice_error *e) {
    const char *text = prompt->text;
    for (size_t i = 0; i < prompt->bytes;) {
        size_t length = sanitize_utf8_length(text + i, prompt->bytes - i);
        if (length == 0 || (text[i] == 0 && !as_bytes)) {
            return fail(e, SLUICE_USAGE,
                        "the prompt is not UTF-8 text" WHERE "%s, byte %zu" FOUND "byte 0x%02X" EXPECTED "%s",
                        flag, i, (unsigned char)text[i], length ? "text without NUL bytes" : "UTF-8");
        }
        i += length;
    }
    return SLUICE_OK;
}

static int too_long(const char *flag, struct sluice_error *e) {
    return fail(e, SLUICE_USAGE, "the prompt is too long" WHERE "%s" EXPECTED "at most %d bytes", flag,
                SLUICE_TEXT_BYTES_MAX);
}

/* Removes what editors add: a byte order mark, CR before LF, and one final newline. */
static void normalise_file_text(struct prompt_text *prompt) {
    char *from = prompt->text, *end = from + prompt->bytes, *to = from;
    if (prompt->bytes >= 3 && memcmp(from, "\xEF\xBB\xBF", 3) == 0) from += 3;
    for (; from < end; from++) {
        bool of_line_end = *from == '\r' && from + 1 < end && from[1] == '\n';
        if (!of_line_end) *to++ = *from;
    }
    if (to > prompt->text && to[-1] == '\n') to--;
    prompt->bytes = (size_t)(to - prompt->text);
}

static int read_file(struct prompt_text *prompt, const char *flag, struct sluice_error *e) {
    const char *path = prompt_file(prompt->typed);
    int problem = textfile_read_bytes(path, SLUICE_TEXT_BYTES_MAX, &prompt->text, &prompt->bytes);
    if (problem == ENOMEM) return fail(e, SLUICE_MEMORY, "no memory for the prompt");
    if (!problem) return prompt->bytes > SLUICE_TEXT_BYTES_MAX ? too_long(flag, e) : SLUICE_OK;
    return fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO,
                "the file of %s cannot be read: %s" WHERE "%s", flag, textfile_problem(problem), path);
}

static int copy_typed(struct prompt_text *prompt, struct sluice_error *e) {
    const char *typed = prompt->typed + (prompt->typed[0] == '@');
    prompt->bytes = strlen(typed);
    prompt->text = malloc(prompt->bytes + 1);
    if (!prompt->text) return fail(e, SLUICE_MEMORY, "no memory for the prompt");
    memcpy(prompt->text, typed, prompt->bytes);
    return SLUICE_OK;
}

const char *prompt_file(const char *typed) {
    return typed[0] == '@' && typed[1] != '@' ? typed + 1 : NULL;
}

int prompt_read(struct prompt_text *prompt, const char *flag, bool as_bytes, struct sluice_error *e) {
    bool file = prompt_file(prompt->typed);
    int status = file ? read_file(prompt, flag, e) : copy_typed(prompt, e);
    if (status) return status;
    if (file && !as_bytes) normalise_file_text(prompt);
    prompt->text[prompt->bytes] = 0;
    return check_text(prompt, flag, as_bytes, e);
}

void prompt_warn(const struct prompt_text *prompt, const char *flag) {
    if (!prompt->text) return;
    if (strstr(prompt->text, "<lora:"))
        message_note("warning: %s: <lora:...> loads no LoRA without --lora-dir; it is read as plain text",
                     flag);
}
