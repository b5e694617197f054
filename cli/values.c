#include "cli/values.h"

#include "cli/fail.h"
#include "cli/flags.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* False for leading spaces, hexadecimal, "inf" and "nan", which strtod and strtoll accept. */
static bool starts_number(const char *text) {
    if (*text == '-' || *text == '+') text++;
    return isdigit((unsigned char)*text) || (*text == '.' && isdigit((unsigned char)text[1]));
}

static bool values_is_plain(const char *text) {
    return starts_number(text) && !strpbrk(text, "xXpP");
}

int value_whole(const struct flag *flag, const char *text, int *out, struct sluice_error *e) {
    char expected[96], *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    snprintf(expected, sizeof expected, "a whole number from %.0f to %.0f", flag->least, flag->most);
    if (!values_is_plain(text) || *end || errno || (double)value < flag->least || (double)value > flag->most)
        return fail_value(e, flag->name, text, expected);
    *out = (int)value;
    return SLUICE_OK;
}

int value_real(const struct flag *flag, const char *text, double *out, struct sluice_error *e) {
    char expected[96], *end;
    double value = strtod(text, &end);
    snprintf(expected, sizeof expected, "a number from %g to %g", flag->least, flag->most);
    if (!values_is_plain(text) || *end || !isfinite(value) || value < flag->least || value > flag->most)
        return fail_value(e, flag->name, text, expected);
    *out = value;
    return SLUICE_OK;
}

/* Parses a number within the flag's range; sets *end to the text after it. */
static bool values_scale(const struct flag *flag, const char *text, char **end, double *out) {
    *out = strtod(text, end);
    size_t bytes = (size_t)(*end - text);
    bool plain = starts_number(text) && strcspn(text, "xXpP") >= bytes && isfinite(*out);
    return plain && *out >= flag->least && *out <= flag->most;
}

int value_scales(const struct flag *flag, const char *text, struct scales *out, struct sluice_error *e) {
    char expected[112], *end;
    struct scales scales = {0};
    bool right = values_scale(flag, text, &end, &scales.high);
    if (right && *end == ',') right = values_scale(flag, end + 1, &end, &scales.low) && scales.low > 0;
    snprintf(expected, sizeof expected, "a number from %g to %g, or two, HIGH,LOW, the second above 0",
             flag->least, flag->most);
    if (!right || *end) return fail_value(e, flag->name, text, expected);
    *out = scales;
    return SLUICE_OK;
}

int value_layers(const struct flag *flag, const char *text, struct layers *out, struct sluice_error *e) {
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

int value_lora(const struct flag *flag, const char *text, struct sluice_lora *out, struct sluice_error *e) {
    const char *colon = strrchr(text, ':');
    if (colon && (!values_is_plain(colon + 1) || access(text, F_OK) == 0)) colon = NULL;
    *out = (struct sluice_lora){NULL, 1};
    if (colon && value_real(flag, colon + 1, &out->strength, e)) return e->code;
    size_t bytes = colon ? (size_t)(colon - text) : strlen(text);
    if (!bytes) return fail_value(e, flag->name, text, flag->value);
    out->path = strndup(text, bytes);
    return out->path ? SLUICE_OK : fail(e, SLUICE_MEMORY, "no memory for the command line");
}

int value_seed(const struct flag *flag, const char *text, struct seed *out, struct sluice_error *e) {
    char *end;
    errno = 0;
    /* Up to 2^63-1, not 2^64-1: the report carries the seed as a JSON integer. */
    long long value = strtoll(text, &end, 10);
    if (!values_is_plain(text) || *end || errno || value < -1)
        return fail_value(e, flag->name, text,
                          "a whole number from 0 to 9223372036854775807, or -1 for a random one");
    out->random = value < 0;
    out->value = out->random ? 0 : (uint64_t)value;
    return SLUICE_OK;
}

/* Bytes per unit of a size's suffix, 0 for an unknown suffix. machine: bytes that 100 % means. */
static long double unit_bytes(const char *suffix, int64_t machine) {
    static const struct {
        const char *suffix;
        long double bytes;
    } units[] = {
        {"", 1073741824},     {"B", 1},      {"K", 1024},      {"M", 1048576},      {"G", 1073741824},
        {"T", 1099511627776}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776}};
    if (strcmp(suffix, "%") == 0) return (long double)machine / 100;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(suffix, units[i].suffix) == 0) return units[i].bytes;
    }
    return 0;
}

int value_above_memory(const struct flag *flag, const char *text, struct sluice_error *e) {
    int64_t machine = sluice_memory_bytes();
    return fail(e, SLUICE_USAGE,
                "the budget is above the memory of this machine" WHERE "%s" FOUND "\"%s\"" EXPECTED
                "at most %" PRId64 "B (%.2fG)",
                flag->name, text, machine, (double)machine / 1073741824);
}

/* Parses a size into *number and returns the bytes per unit; 0 if text is not a size. */
static long double read_size(const char *text, int64_t machine, long double *number) {
    size_t digits = strspn(text, "0123456789.");
    char *end;
    if (!isdigit((unsigned char)*text) || digits > 40) return 0;
    *number = strtold(text, &end);
    long double unit = end == text + digits ? unit_bytes(end, machine) : 0;
    bool whole = unit != 1 || !memchr(text, '.', digits);
    return whole && *number * unit >= 1 ? unit : 0;
}

static const char size_expected[] = "more than 0, as 3G, 2.5G, 512M, 123456B, 80% or a bare number of GiB";

int value_size(const struct flag *flag, const char *text, int64_t *out, struct sluice_error *e) {
    int64_t machine = sluice_memory_bytes();
    long double number = 0, unit = read_size(text, machine, &number);
    if (unit == 0) return fail_value(e, flag->name, text, size_expected);
    if (number * unit > (long double)(1LL << 60)) return value_above_memory(flag, text, e);
    *out = (int64_t)(number * unit);
    return SLUICE_OK;
}

int value_device_size(const struct flag *flag, const char *text, struct device_size *out,
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

int value_sampler(const struct flag *flag, const char *text, const char **sampler, const char **schedule,
                  struct sluice_error *e) {
    char names[256];
    *schedule = NULL;
    *sampler = text;
    if (is_choice(flag, text)) return SLUICE_OK;
    *sampler = sampler_parse(text, schedule);
    return *sampler ? SLUICE_OK : fail_value(e, flag->name, text, sampler_list(names, sizeof names));
}

int value_schedule(const struct flag *flag, const char *text, const char **out, struct sluice_error *e) {
    char names[256];
    *out = text;
    if (is_choice(flag, text)) return SLUICE_OK;
    *out = schedule_parse(text);
    return *out ? SLUICE_OK : fail_value(e, flag->name, text, schedule_list(names, sizeof names));
}

int value_choice(const struct flag *flag, const char *text, struct sluice_error *e) {
    return is_choice(flag, text) ? SLUICE_OK : fail_value(e, flag->name, text, flag->choices);
}
