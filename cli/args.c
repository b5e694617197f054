/* Parses the command line by the tables of flags and commands, and reads prompts and other text files: see
 * args.h. cli/request.c checks combinations of flags. */
#include "cli/args.h"

#include "cli/fail.h"
#include "cli/messages.h"
#include "cli/outfile.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- values: the whole text, or fail with USAGE naming flag, text and accepted values ---- */

/* False for leading spaces, hexadecimal, "inf" and "nan", which strtod and strtoll accept. */
static bool starts_number(const char *text) {
    if (*text == '-' || *text == '+') text++;
    return isdigit((unsigned char)*text) || (*text == '.' && isdigit((unsigned char)text[1]));
}

static bool is_plain_number(const char *text) {
    return starts_number(text) && !strpbrk(text, "xXpP");
}

static int value_whole(const struct flag *flag, const char *text, int *out, struct sluice_error *e) {
    char expected[96], *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    snprintf(expected, sizeof expected, "a whole number from %.0f to %.0f", flag->least, flag->most);
    if (!is_plain_number(text) || *end || errno || (double)value < flag->least || (double)value > flag->most)
        return fail_value(e, flag->name, text, expected);
    *out = (int)value;
    return SLUICE_OK;
}

int value_real(const struct flag *flag, const char *text, double *out, struct sluice_error *e) {
    char expected[96], *end;
    double value = strtod(text, &end);
    bool above = flag->kind == FLAG_REAL_ABOVE;
    snprintf(expected, sizeof expected, above ? "a number above %g, to %g" : "a number from %g to %g",
             flag->least, flag->most);
    if (!is_plain_number(text) || *end || !isfinite(value) || value < flag->least || value > flag->most ||
        (above && value == flag->least))
        return fail_value(e, flag->name, text, expected);
    *out = value;
    return SLUICE_OK;
}

/* Parses a number within the flag's range; sets *end to the first character after the number. */
static bool read_number(const struct flag *flag, const char *text, char **end, double *out) {
    *out = strtod(text, end);
    size_t bytes = (size_t)(*end - text);
    bool plain = starts_number(text) && strcspn(text, "xXpP") >= bytes && isfinite(*out);
    return plain && *out >= flag->least && *out <= flag->most;
}

/* Parses one or two numbers, "3.5" or "4,3"; the second must be above 0. */
static int value_scales(const struct flag *flag, const char *text, struct scales *out,
                        struct sluice_error *e) {
    char expected[112], *end;
    struct scales scales = {0};
    bool right = read_number(flag, text, &end, &scales.first);
    if (right && *end == ',') right = read_number(flag, end + 1, &end, &scales.second) && scales.second > 0;
    snprintf(expected, sizeof expected, "a number from %g to %g, or two as A,B, the second above 0",
             flag->least, flag->most);
    if (!right || *end) return fail_value(e, flag->name, text, expected);
    *out = scales;
    return SLUICE_OK;
}

/* Parses a list of at most LAYERS_MAX transformer layers: "7,8,9", also with spaces, or in brackets as in
 * stable-diffusion.cpp. */
static int value_layers(const struct flag *flag, const char *text, struct layers *out,
                        struct sluice_error *e) {
    char expected[96];
    bool bracketed = *text == '[', right;
    const char *at = text + bracketed;
    out->n = 0;
    do {
        char *end = NULL;
        at += strspn(at, " ");
        bool is_number = isdigit((unsigned char)*at) && out->n < LAYERS_MAX;
        long layer = is_number ? strtol(at, &end, 10) : 0;
        right = is_number && (double)layer >= flag->least && (double)layer <= flag->most;
        if (right) {
            out->at[out->n++] = (int)layer;
            at = end + strspn(end, " ");
        }
    } while (right && (*at == ',' ? *at++ : isdigit((unsigned char)*at)));
    if (right && bracketed) right = *at++ == ']';
    snprintf(expected, sizeof expected, "whole numbers from %.0f to %.0f, as 7,8,9, at most %d", flag->least,
             flag->most, LAYERS_MAX);
    return right && !*at ? SLUICE_OK : fail_value(e, flag->name, text, expected);
}

/* Parses a list of sigmas, "1,0.9,0.5". The library checks that they decrease. */
static int value_sigmas(const struct flag *flag, const char *text, struct sigmas *out,
                        struct sluice_error *e) {
    char expected[96], *end = NULL;
    const char *at = text;
    bool right = true;
    out->n = 0;
    do {
        right = out->n < SIGMAS_MAX && read_number(flag, at, &end, &out->at[out->n]) &&
                out->at[out->n] > flag->least;
        if (!right) break;
        out->n++;
        at = end + 1;
    } while (*end == ',');
    snprintf(expected, sizeof expected, "at most %d decreasing numbers above %g, to %g, such as 1,0.9,0.5",
             SIGMAS_MAX, flag->least, flag->most);
    return right && !*end ? SLUICE_OK : fail_value(e, flag->name, text, expected);
}

/* "FILE" or "FILE:0.8". A number after the last colon is the strength, unless a file has the whole text as
 * its name. Allocates the path. */
static int value_lora(const struct flag *flag, const char *text, struct sluice_lora *out,
                      struct sluice_error *e) {
    const char *colon = strrchr(text, ':');
    if (colon && (!is_plain_number(colon + 1) || access(text, F_OK) == 0)) colon = NULL;
    *out = (struct sluice_lora){NULL, 1};
    if (colon && value_real(flag, colon + 1, &out->strength, e)) return e->code;
    size_t bytes = colon ? (size_t)(colon - text) : strlen(text);
    if (!bytes) return fail_value(e, flag->name, text, flag->value);
    out->path = strndup(text, bytes);
    return out->path ? SLUICE_OK : fail(e, SLUICE_MEMORY, "no memory for the command line");
}

static int value_seed(const struct flag *flag, const char *text, struct seed *out, struct sluice_error *e) {
    char *end;
    errno = 0;
    /* Up to 2^63-1, not 2^64-1: the report carries the seed as a JSON integer. */
    long long value = strtoll(text, &end, 10);
    if (!is_plain_number(text) || *end || errno || value < -1)
        return fail_value(e, flag->name, text,
                          "a whole number from 0 to 9223372036854775807, or -1 for a random one");
    out->random = value < 0;
    out->value = out->random ? 0 : (uint64_t)value;
    return SLUICE_OK;
}

int value_above_memory(const struct flag *flag, const char *text, struct sluice_error *e) {
    int64_t machine = sluice_memory_bytes();
    return fail(e, SLUICE_USAGE,
                "the budget is above the memory of this machine" WHERE "%s" FOUND "\"%s\"" EXPECTED
                "at most %" PRId64 "B (%.2fG)",
                flag->name, text, machine, (double)machine / 1073741824);
}

/* Parses a size ("3G", "80%") into *number and returns the bytes per unit; 0 if text is not a size. machine:
 * the memory in bytes that percentages refer to. */
static long double read_size(const char *text, int64_t machine, long double *number) {
    static const struct {
        const char *suffix;
        long double bytes;
    } units[] = {
        {"", 1073741824},     {"B", 1},      {"K", 1024},      {"M", 1048576},      {"G", 1073741824},
        {"T", 1099511627776}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776}};
    size_t digits = strspn(text, "0123456789.");
    char *end;
    if (!isdigit((unsigned char)*text) || digits > 40) return 0;
    *number = strtold(text, &end);
    if (end != text + digits) return 0;
    long double unit = strcmp(end, "%") == 0 ? (long double)machine / 100 : 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcasecmp(end, units[i].suffix) == 0) unit = units[i].bytes;
    bool whole = unit != 1 || !memchr(text, '.', digits);
    return whole && *number * unit >= 1 ? unit : 0;
}

static const char size_expected[] = "more than 0, as 3G, 2.5G, 512M, 123456B, 80% or a bare number of GiB";

/* Parses a size in bytes, at most 2^60: 3G 2.5G 512M 64K (binary units), 123456B, 80% of this machine's
 * memory, or a bare number in GiB. */
static int value_size(const struct flag *flag, const char *text, int64_t *out, struct sluice_error *e) {
    int64_t machine = sluice_memory_bytes();
    long double number = 0, unit = read_size(text, machine, &number);
    if (unit == 0) return fail_value(e, flag->name, text, size_expected);
    if (number * unit > (long double)(1LL << 60)) return value_above_memory(flag, text, e);
    *out = (int64_t)(number * unit);
    return SLUICE_OK;
}

/* Parses a size of GPU memory. A percentage (at most 100) stays one, because the GPU is not open yet. */
static int value_device_size(const struct flag *flag, const char *text, struct device_size *out,
                             struct sluice_error *e) {
    static const long double most = 1LL << 60;
    bool percent = *text && text[strlen(text) - 1] == '%';
    long double number = 0, unit = read_size(text, 1LL << 40, &number);
    if (unit == 0 || number * unit > most || (percent && number > 100))
        return fail_value(e, flag->name, text, size_expected);
    out->percent = percent ? (double)number : 0;
    out->bytes = percent ? 0 : (int64_t)(number * unit);
    return SLUICE_OK;
}

static bool is_choice(const struct flag *flag, const char *text) {
    size_t bytes = strlen(text);
    for (const char *choice = flag->choices; *choice;) {
        size_t length = strcspn(choice, "|");
        if (bytes == length && memcmp(choice, text, length) == 0) return true;
        choice += length + (choice[length] == '|');
    }
    return false;
}

/* ---- text files ---- */

/* Returns the text of an errno from reading a text file. */
static const char *textfile_problem(int problem) {
    return problem == EPIPE ? "no process writes to this pipe" : strerror(problem);
}

/* Reads the next bytes of a text file or pipe; returns 0 at the end. begun: earlier reads returned bytes, so
 * an empty read means that the pipe's writer has closed it. */
static ssize_t read_some(int file, char *to, size_t bytes, bool begun) {
    enum { WRITER_MS = 1000, LOOK_MS = 100 };
    struct pollfd wait = {.fd = file, .events = POLLIN};
    for (int waited = 0; waited <= WRITER_MS;) {
        int ready = poll(&wait, 1, LOOK_MS);
        if (interrupt_pending()) return errno = EINTR, -1;
        if (ready <= 0 && file == STDIN_FILENO) continue; /* reading stdin would block, so poll again */
        ssize_t n = read(file, to, bytes);
        if (n > 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return n;
        struct stat s;
        if (n == 0 && (begun || fstat(file, &s) || !S_ISFIFO(s.st_mode))) return 0;
        if (n == 0) waited += LOOK_MS;
    }
    errno = EPIPE;
    return -1;
}

static int read_all(int file, size_t bytes_max, char **text, size_t *bytes) {
    bool awaited = file != STDIN_FILENO; /* a pipe may wait for its first writer; stdin always has a writer */
    size_t capacity = 0;
    for (ssize_t n = 1; n > 0 && *bytes <= bytes_max; *bytes += (size_t)n) {
        if (*bytes == capacity) {
            capacity = capacity ? 2 * capacity : 8192;
            if (capacity > bytes_max + 1) capacity = bytes_max + 1;
            char *larger = realloc(*text, capacity + 1);
            if (!larger) return ENOMEM;
            *text = larger;
        }
        n = read_some(file, *text + *bytes, capacity - *bytes, !awaited || *bytes > 0);
        if (n < 0) return errno;
    }
    (*text)[*bytes] = 0;
    return 0;
}

/* Reads a file, or stdin if path is "-", into *text: at most bytes_max + 1 bytes and a final NUL; the caller
 * frees it. Returns 0 or an errno: EPIPE if no process opens a pipe for writing within a second, EINTR after
 * a signal. */
static int read_bytes(const char *path, size_t bytes_max, char **text, size_t *bytes) {
    *text = NULL;
    *bytes = 0;
    bool is_stdin = strcmp(path, "-") == 0;
    int file = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return errno;
    int problem = read_all(file, bytes_max, text, bytes);
    if (!is_stdin) close(file);
    if (!problem) return 0;
    free(*text);
    *text = NULL;
    return problem;
}

/* Error for a file that is too large for its kind and thus probably the wrong file. */
static int textfile_too_large(const char *path, const struct textfile_kind *kind, struct sluice_error *e) {
    struct stat s;
    char size[32] = "", most[32];
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode)) progress_bytes((double)s.st_size, size);
    return fail(e, kind->too_large, "%s is too large" WHERE "%s" FOUND "%s" EXPECTED "at most %s", kind->what,
                path, size, progress_bytes((double)kind->bytes_max, most));
}

int textfile_read(const char *path, const struct textfile_kind *kind, char **text, struct sluice_error *e) {
    struct stat s;
    size_t bytes = 0;
    *text = NULL;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode) && (uint64_t)s.st_size > kind->bytes_max)
        return textfile_too_large(path, kind, e);
    int problem = read_bytes(path, kind->bytes_max, text, &bytes);
    bool larger = bytes > kind->bytes_max;
    if (!problem && !larger && memchr(*text, 0, bytes)) problem = EILSEQ;
    if (!problem && !larger) return SLUICE_OK;
    free(*text);
    *text = NULL;
    if (larger) return textfile_too_large(path, kind, e);
    if (problem == EINTR) return interrupt_error(e);
    return fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO, "%s cannot be read: %s" WHERE "%s",
                kind->what, textfile_problem(problem), path);
}

/* ---- prompts ---- */

const char *prompt_file(const char *typed) {
    return typed[0] == '@' && typed[1] != '@' ? typed + 1 : NULL;
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

/* Fills prompt->text from prompt->typed, which must be UTF-8. Text of files is normalised and must not have
 * NUL. as_bytes, for `tokenize`, keeps all bytes. Exit code 3 if the file cannot be read, else 2. */
static int read_prompt(struct prompt_text *prompt, const char *flag, bool as_bytes, struct sluice_error *e) {
    const char *path = prompt_file(prompt->typed);
    if (path) {
        int problem = read_bytes(path, SLUICE_TEXT_BYTES_MAX, &prompt->text, &prompt->bytes);
        if (problem == ENOMEM) return fail(e, SLUICE_MEMORY, "no memory for the prompt");
        if (problem)
            return fail(e, problem == ENOENT ? SLUICE_MISSING : SLUICE_IO,
                        "the file of %s cannot be read: %s" WHERE "%s", flag, textfile_problem(problem),
                        path);
        if (prompt->bytes > SLUICE_TEXT_BYTES_MAX)
            return fail(e, SLUICE_USAGE, "the prompt is too long" WHERE "%s" EXPECTED "at most %d bytes",
                        flag, SLUICE_TEXT_BYTES_MAX);
        if (!as_bytes) normalise_file_text(prompt);
        prompt->text[prompt->bytes] = 0;
    } else {
        prompt->text = strdup(prompt->typed + (prompt->typed[0] == '@'));
        if (!prompt->text) return fail(e, SLUICE_MEMORY, "no memory for the prompt");
        prompt->bytes = strlen(prompt->text);
    }
    for (size_t i = 0; i < prompt->bytes;) {
        const char *at = prompt->text + i;
        size_t length = sanitize_utf8_length(at, prompt->bytes - i);
        if (length == 0 || (*at == 0 && !as_bytes))
            return fail(e, SLUICE_USAGE,
                        "the prompt is not UTF-8 text" WHERE "%s, byte %zu" FOUND "byte 0x%02X" EXPECTED "%s",
                        flag, i, (unsigned char)*at, length ? "text without NUL bytes" : "UTF-8");
        i += length;
    }
    return SLUICE_OK;
}

/* ---- the command line ---- */

static int unknown_flag(const struct args *args, const char *typed, struct sluice_error *e) {
    const struct command *command = args->command;
    const struct flag *elsewhere = flag_find(typed);
    const char *answer = elsewhere ? NULL : foreign_flag_advice(typed);
    const char *nearest = flag_nearest(command->bit, typed);
    char what[192] = "unknown flag", expected[96];
    snprintf(expected, sizeof expected, "a flag that sluice %s --help-all lists", command->name);
    if (elsewhere) {
        int bytes = snprintf(what, sizeof what, "this flag belongs to other commands: "), n = 0;
        for (int i = 0; i < N_COMMANDS; i++)
            if (elsewhere->commands & commands[i].bit)
                bytes += snprintf(what + bytes, sizeof what - (size_t)bytes, "%s%s", n++ ? ", " : "",
                                  commands[i].name);
        if (command->bit & (GENERATE | DECODE) && !strcmp(typed, "--json"))
            answer = "--report FILE, or --report - for JSON on stdout";
    } else if (answer) {
        snprintf(what, sizeof what, "not a flag of this program");
    } else if (nearest) {
        snprintf(what, sizeof what, "unknown flag, did you mean %s?", nearest);
    }
    return fail(e, SLUICE_USAGE, "%s" WHERE "sluice %s" FOUND "%s" EXPECTED "%s", what, command->name, typed,
                answer ? answer : expected);
}

static int store_string(const struct flag *flag, const char *text, const char **out, struct sluice_error *e) {
    if (!*text) return fail_value(e, flag->name, text, flag->value);
    *out = text;
    return SLUICE_OK;
}

static int too_often(const struct flag *flag, const char *text, int most, struct sluice_error *e) {
    return fail(e, SLUICE_USAGE,
                "flag given too many times" WHERE "%s" FOUND "\"%s\"" EXPECTED "at most %d times", flag->name,
                text, most);
}

/* Appends a model part. A repeated flag has the same path, because other repetitions were refused. */
static int store_part(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e) {
    for (int i = 0; i < args->model.n_parts; i++)
        if (args->parts[i].flag == flag->name) return SLUICE_OK;
    args->model.parts = args->parts;
    args->parts[args->model.n_parts].flag = flag->name;
    return store_string(flag, text, &args->parts[args->model.n_parts++].path, e);
}

/* Parses a value and stores it in the member of args that the flag's row names. */
static int store(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e) {
    void *to = (char *)args + flag->offset;
    struct strings *strings = to;
    struct loras *loras = to;
    int most;
    char names[256];
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)to = true;
        return SLUICE_OK;
    case FLAG_STRING:
    case FLAG_INPUT:
        return store_string(flag, text, to, e);
    case FLAG_STRINGS:
    case FLAG_INPUTS:
        most = flag->most > 0 ? (int)flag->most : STRINGS_MAX;
        if (strings->n == most) return too_often(flag, text, most, e);
        return store_string(flag, text, &strings->at[strings->n++], e);
    case FLAG_LORAS:
        if (loras->n == SLUICE_LORAS_MAX) return too_often(flag, text, SLUICE_LORAS_MAX, e);
        return value_lora(flag, text, &loras->at[loras->n++], e);
    case FLAG_PROMPT:
        ((struct prompt_text *)to)->typed = text;
        return SLUICE_OK;
    case FLAG_WHOLE:
        return value_whole(flag, text, to, e);
    case FLAG_REAL:
    case FLAG_REAL_ABOVE:
        return value_real(flag, text, to, e);
    case FLAG_SCALES:
        return value_scales(flag, text, to, e);
    case FLAG_LAYERS:
        return value_layers(flag, text, to, e);
    case FLAG_SIGMAS:
        return value_sigmas(flag, text, to, e);
    case FLAG_SEED:
        return value_seed(flag, text, to, e);
    case FLAG_SIZE:
        return value_size(flag, text, to, e);
    case FLAG_DEVICE_SIZE:
        return value_device_size(flag, text, to, e);
    case FLAG_CHOICE:
        *(const char **)to = text;
        return is_choice(flag, text) ? SLUICE_OK : fail_value(e, flag->name, text, flag->choices);
    case FLAG_SAMPLER:
        args->sampler = sampler_parse(text, &args->sampler_schedule);
        sampler_list(names, sizeof names);
        return args->sampler ? SLUICE_OK : fail_value(e, flag->name, text, names);
    case FLAG_SCHEDULER:
        args->scheduler = schedule_parse(text);
        schedule_list(names, sizeof names);
        return args->scheduler ? SLUICE_OK : fail_value(e, flag->name, text, names);
    case FLAG_CHOICE_OR_PART:
        *(const char **)to = is_choice(flag, text) ? text : "model";
        return is_choice(flag, text) ? SLUICE_OK : store_part(args, flag, text, e);
    case FLAG_PART:
        return store_part(args, flag, text, e);
    case FLAG_CONTROL_NET:
    case FLAG_CONTROL_INPUT:
    case FLAG_CONTROL_STRING:
    case FLAG_CONTROL_REAL:
    case FLAG_CONTROL_SWITCH:
        return controls_store(args, flag, text, e);
    }
    return fail(e, SLUICE_INTERNAL, "a flag of unknown kind");
}

/* Stores a flag that was read. Repeating a flag with an equal value is accepted. */
static int take(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e) {
    long row = flag - flags;
    if (args->is_set[row] && text && !flag_repeats(flag) && strcmp(args->typed[row], text) != 0)
        return fail(e, SLUICE_USAGE,
                    "flag given twice with different values" WHERE "%s" FOUND "\"%s\" and \"%s\"" EXPECTED
                    "one value",
                    flag->name, args->typed[row], text);
    args->is_set[row] = true;
    args->typed[row] = text;
    return store(args, flag, text, e);
}

/* Reads the flag at argv[*i] and its value, also "--name=value" and "-b4"; sets *i to the last word read. If
 * the next word is a flag, the value is missing; "--name=-m" passes such a value. */
static int read_flag(struct args *args, int argc, char **argv, int *i, struct sluice_error *e) {
    char name[64], clause[256]; /* longer than the name of any flag */
    const char *word = argv[*i];
    size_t length = word[1] == '-' ? strcspn(word, "=") : 2;
    if (word[1] != '-' && !isdigit((unsigned char)word[length + (word[length] == '-')]))
        length = strlen(word);
    snprintf(name, sizeof name, "%.*s", (int)length, word);
    const char *value = word[length] ? word + length + (word[length] == '=') : NULL;
    const struct flag *flag = flag_find(name);
    if (!flag || !(flag->commands & args->command->bit)) return unknown_flag(args, name, e);
    if (flag->kind == FLAG_SWITCH || flag->kind == FLAG_CONTROL_SWITCH)
        return value ? fail_value(e, flag->name, value, "no value: this flag is a switch")
                     : take(args, flag, NULL, e);
    if (value) return take(args, flag, value, e);
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (next && !flag_find(next) && strncmp(next, "--help", 6) != 0) {
        ++*i;
        return take(args, flag, next, e);
    }
    char expected[320];
    snprintf(expected, sizeof expected, "%s: %s", flag->value, flag_clause(flag, clause, sizeof clause));
    return fail(e, SLUICE_USAGE, "a value is missing" WHERE "%s" FOUND "%s" EXPECTED "%s", flag->name,
                next ? next : "nothing",
                flag->kind == FLAG_CHOICE      ? flag->choices
                : flag->kind == FLAG_SAMPLER   ? sampler_list(clause, sizeof clause)
                : flag->kind == FLAG_SCHEDULER ? schedule_list(clause, sizeof clause)
                                               : expected);
}

/* Reads the flag or operand at argv[*i]. *only_operands: the word "--" has been read. */
static int read_word(struct args *args, int argc, char **argv, int *i, bool *only_operands,
                     struct sluice_error *e) {
    const struct command *command = args->command;
    const char *word = argv[*i];
    if (*only_operands || word[0] != '-' || !word[1]) {
        if (args->n_operands == command->n_operands || !*word)
            return fail(e, SLUICE_USAGE,
                        "unexpected argument" WHERE "sluice %s" FOUND "\"%s\"" EXPECTED "flags%s%s",
                        command->name, word, command->operands ? " and " : " only",
                        command->operands ? command->operands : "");
        args->operands[args->n_operands++] = word;
    } else if (strcmp(word, "--") == 0) {
        *only_operands = true;
    } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        args->help = true;
    } else if (strcmp(word, "--help-all") == 0) {
        args->help = args->help_all = true;
    } else {
        return read_flag(args, argc, argv, i, e);
    }
    return SLUICE_OK;
}

/* Checks operands and contradicting flags when all words are read, then reads the files of @FILE prompts. A
 * mistyped flag is thus reported before an unreadable prompt file. */
static int complete(struct args *args, struct sluice_error *e) {
    const struct command *command = args->command;
    const char *prompt = args->prompt.typed, *negative = args->negative_prompt.typed;
    bool as_bytes = command->bit == TOKENIZE;
    if (args->quiet && args->verbose)
        return fail(e, SLUICE_USAGE,
                    "-q and -v contradict each other" WHERE "sluice %s" EXPECTED "one of them",
                    command->name);
    if (args->n_operands < command->n_operands_least)
        return fail(e, SLUICE_USAGE, "an argument is missing" WHERE "sluice %s" EXPECTED "%s", command->name,
                    command->operands);
    if (prompt && negative && !strcmp(prompt, "@-") && !strcmp(negative, "@-"))
        return fail(e, SLUICE_USAGE,
                    "both prompts are read from stdin" WHERE "--prompt, --negative-prompt" FOUND
                    "\"@-\" twice" EXPECTED "a file for one of them");
    if (prompt && read_prompt(&args->prompt, "--prompt", as_bytes, e)) return e->code;
    return negative ? read_prompt(&args->negative_prompt, "--negative-prompt", as_bytes, e) : SLUICE_OK;
}

int args_parse(struct args *args, const struct command *command, int argc, char **argv,
               struct sluice_error *e) {
    bool only_operands = false;
    int status = SLUICE_OK;
    memset(args, 0, sizeof *args);
    args->command = command;
    args->model.struct_size = sizeof args->model;
    for (int i = 0; i < argc; i++) {
        struct sluice_error later;
        int problem = read_word(args, argc, argv, &i, &only_operands, &later);
        if (problem && !status) *e = later;
        if (problem && !status) status = problem;
    }
    if (args->help) return SLUICE_OK;
    return status ? status : complete(args, e);
}

void args_destroy(struct args *args) {
    free(args->prompt.text);
    free(args->negative_prompt.text);
    for (int i = 0; i < args->loras.n; i++) free((char *)(uintptr_t)args->loras.at[i].path);
}

bool args_has_flag(const struct args *args, const char *name) {
    const struct flag *flag = flag_find(name);
    return flag && args->is_set[flag - flags];
}

const char *args_value(const struct args *args, const struct flag *flag, int i) {
    const struct strings *several = (const void *)((const char *)args + flag->offset);
    const struct loras *loras = (const void *)several;
    if (flag->kind >= FLAG_CONTROL_NET) return controls_value(args, flag, i);
    if (flag->kind == FLAG_LORAS) return i < loras->n ? loras->at[i].path : NULL;
    if (flag_repeats(flag)) return i < several->n ? several->at[i] : NULL;
    return i == 0 ? args->typed[flag - flags] : NULL;
}
