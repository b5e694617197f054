#include "cli/families_tables.h"

#include "cli/fields.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { CELL = FAMILIES_CELL, LINE = 120, FAMILIES_OF_ONE = 32 };

/* Formats a time in one unit: "0.18 s", "3.1 s", "246 s", "25 min", "19 h", "18 days". */
static char *brief(double seconds, char out[CELL]) {
    static const struct {
        double seconds, most;
        const char *name;
    } units[] = {{1, 600, "s"}, {60, 180, "min"}, {3600, 72, "h"}, {86400, 0, "days"}};
    int u = 0;
    while (units[u].most > 0 && seconds / units[u].seconds >= units[u].most) u++;
    double n = seconds / units[u].seconds;
    snprintf(out, CELL, "%.*f %s", u || n >= 9.95 ? 0 : n >= 0.995 ? 1 : 2, n, units[u].name);
    return out;
}

static double gib(const json_t *plan, const char *memory, const char *kind) {
    return field_number(json_object_get(plan, memory), kind) / (1 << 30);
}

static bool fits(const json_t *plan) {
    return gib(plan, "least", "vram_bytes") <= gib(plan, "budget", "vram_bytes") &&
           gib(plan, "least", "ram_bytes") <= gib(plan, "budget", "ram_bytes");
}

static bool on_card(const json_t *plan) {
    return gib(plan, "budget", "vram_bytes") > 0;
}

char *families_least(const json_t *plan, char out[CELL]) {
    int n = on_card(plan) ? snprintf(out, CELL, "%.1f + ", gib(plan, "least", "vram_bytes")) : 0;
    snprintf(out + n, CELL - (size_t)n, "%.1f", gib(plan, "least", "ram_bytes"));
    return out;
}

char *families_times(const json_t *plan, char out[CELL]) {
    char step[CELL], all[CELL];
    snprintf(out, CELL, "%.40s, %.40s", brief(field_number(plan, "step_seconds"), step),
             brief(field_number(plan, "seconds"), all));
    if (!fits(plan)) snprintf(out, CELL, "-");
    return out;
}

static char *card(const json_t *plan, char out[CELL]) {
    const char *name = field_string(plan, "card");
    if (!strncmp(name, "GeForce ", 8)) name += 8;
    if (on_card(plan))
        snprintf(out, CELL, "%.*s", (int)strcspn(name, ","), name);
    else
        snprintf(out, CELL, "2 cores");
    return out;
}

char *families_files(const json_t *source, const char *quote, char out[CELL]) {
    const char *files = json_string_value(json_object_get(source, "files"));
    double megabytes = field_number(source, "megabytes");
    int n = files ? snprintf(out, CELL, "%s%.80s%s", quote, files, quote) : snprintf(out, CELL, "the folder");
    if (megabytes > 0) snprintf(out + n, CELL - (size_t)n, ", %.3g", megabytes / 1000);
    return out;
}

static const json_t *families_of(const json_t *root) {
    return json_object_get(root, "families");
}

static const json_t *plans_of(const json_t *family) {
    return json_object_get(family, "plans");
}

static void print_plans_row(const json_t *family, bool heads) {
    char cell[CELL] = "steps";
    size_t i;
    json_t *plan;
    if (!heads) snprintf(cell, sizeof cell, "%.0f", field_number(family, "steps"));
    printf("%-21s %5s", heads ? "family" : field_string(family, "name"), cell);
    json_array_foreach(plans_of(family), i, plan) {
        if (!i || !on_card(plan)) printf("  %-9s", heads ? "min GiB" : families_least(plan, cell));
        printf("  %-14s", heads ? card(plan, cell) : families_times(plan, cell));
    }
    printf("\n");
}

void families_print_plans(json_t *root) {
    const json_t *families = families_of(root);
    size_t i;
    json_t *family;
    print_plans_row(json_array_get(families, 0), true);
    json_array_foreach(families, i, family) print_plans_row(family, false);
    printf(
        "min GiB: minimum VRAM + RAM; on 2 cores only RAM. Other columns: predicted time per step, total.\n");
}

static char *size_and_steps(const json_t *family, char out[CELL]) {
    double frames = field_number(family, "frames");
    int n = snprintf(out, CELL, "%.0fx%.0f", field_number(family, "width"), field_number(family, "height"));
    if (frames > 1) n += snprintf(out + n, CELL - (size_t)n, " x %.0f", frames);
    snprintf(out + n, CELL - (size_t)n, ", %.0f", field_number(family, "steps"));
    return out;
}

static const char *short_flag(const char *flag) {
    static const char *const letters[][2] = {
        {"--negative-prompt", "-n"}, {"--init-img", "-i"}, {"--ref-image", "-r"}};
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (!strcmp(flag, letters[i][0])) return letters[i][1];
    return flag;
}

static void print_taken(const json_t *takes) {
    size_t i;
    json_t *take;
    json_array_foreach(takes, i, take) {
        const char *strong = field_flag(take, "needed") ? "**" : "";
        printf("%s%s`%s`%s", i ? " " : "", strong, short_flag(field_string(take, "flag")), strong);
    }
}

static void print_list(const json_t *families) {
    char cell[CELL];
    size_t i;
    json_t *family;
    printf("| `--family` | models | size, steps | inputs besides the prompt |\n|---|---|---|---|\n");
    json_array_foreach(families, i, family) {
        printf("| `%s` | %s | %s | ", field_string(family, "name"), field_string(family, "title"),
               size_and_steps(family, cell));
        print_taken(json_object_get(family, "takes"));
        printf(" |\n");
    }
}

/* Prints a word of a paragraph that is wrapped to a README's width. */
static void put_word(int *column, const char *word) {
    int bytes = (int)strlen(word);
    if (*column && *column + 1 + bytes > LINE - 1) *column = printf("\n ") - 1;
    *column += printf("%s%s", *column ? " " : "", word);
}

static void put_words(int *column, const char *text) {
    char word[CELL];
    for (int n; *text; text += n + (text[n] == ' ')) {
        n = (int)strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", n, text);
        put_word(column, word);
    }
}

static void put_name(int *column, const json_t *family, const char *after) {
    char word[CELL];
    snprintf(word, sizeof word, "`%s`%s", field_string(family, "name"), after);
    put_word(column, word);
}

/* Function type: writes one property of a family as a phrase to out; returns out. */
typedef const char *phrase(const json_t *family, char out[CELL]);

static const char *compared(const json_t *family, char out[CELL]) {
    const char *reference = json_string_value(json_object_get(family, "reference"));
    if (reference)
        snprintf(out, CELL, "compared with %.40s as whole pipelines:", reference);
    else
        snprintf(out, CELL, "compared part by part only, parts of `%.25s`:", field_string(family, "like"));
    return out;
}

static const char *layouts(const json_t *family, char out[CELL]) {
    size_t i, n = (size_t)snprintf(out, CELL, "opened from");
    json_t *layout;
    json_array_foreach(json_object_get(family, "layouts"), i, layout) {
        if (n < CELL)
            n += (size_t)snprintf(out + n, CELL - n, "%s %s", i ? "," : "", json_string_value(layout));
    }
    if (n < CELL) snprintf(out + n, CELL - n, ":");
    return out;
}

static bool is_first_with(const json_t *families, size_t of, phrase *what) {
    char a[CELL], b[CELL];
    what(json_array_get(families, of), a);
    for (size_t i = 0; i < of; i++)
        if (!strcmp(what(json_array_get(families, i), b), a)) return false;
    return true;
}

/* Prints the names of the families whose phrase equals text (matching), or of all other families. */
static void put_names(int *column, const json_t *families, phrase *what, const char *text, bool matching) {
    const json_t *last = NULL;
    char other[CELL];
    for (size_t i = 0; i < json_array_size(families); i++) {
        const json_t *family = json_array_get(families, i);
        if (!strcmp(what(family, other), text) != matching) continue;
        if (last) put_name(column, last, ",");
        last = family;
    }
    if (last) put_name(column, last, "");
}

/* Prints a list item per phrase with the names of the families that have the phrase; for a majority of
 * families prints "all but" and the remaining names. */
static void print_shared(const json_t *families, phrase *what) {
    for (size_t i = 0; i < json_array_size(families); i++) {
        char text[CELL], other[CELL];
        int column = 0, n = 0, all = (int)json_array_size(families);
        if (!is_first_with(families, i, what)) continue;
        put_word(&column, "-");
        put_words(&column, what(json_array_get(families, i), text));
        for (int k = 0; k < all; k++) n += !strcmp(what(json_array_get(families, (size_t)k), other), text);
        if (2 * n > all) put_words(&column, n < all ? "all but" : "all");
        put_names(&column, families, what, text, 2 * n <= all);
        printf("\n");
    }
}

static bool same_source(const json_t *a, const json_t *b) {
    return json_equal(json_object_get(a, "repository"), json_object_get(b, "repository")) &&
           json_equal(json_object_get(a, "files"), json_object_get(b, "files")) &&
           json_equal(json_object_get(a, "flag"), json_object_get(b, "flag"));
}

static bool has_source(const json_t *family, const json_t *source) {
    size_t i;
    json_t *own;
    json_array_foreach(json_object_get(family, "sources"), i, own) if (same_source(own, source)) return true;
    return false;
}

static bool same_denoiser(const json_t *a, const json_t *b) {
    return json_equal(json_object_get(a, "denoiser"), json_object_get(b, "denoiser"));
}

/* Prints the families that use a source of files, or "all `NAME` families" if every family with the denoiser
 * NAME uses the source. */
static void print_of(const json_t *families, const json_t *family, const json_t *source) {
    const json_t *with[FAMILIES_OF_ONE], *other;
    int n = 0, all = 0;
    size_t i;
    json_array_foreach(families, i, other) {
        if (!same_denoiser(other, family)) continue;
        all++;
        if (has_source(other, source) && n < FAMILIES_OF_ONE) with[n++] = other;
    }
    if (n == all && n > 1) printf("all `%s` families", field_string(family, "denoiser"));
    for (int k = 0; k < n && (n < all || n == 1); k++)
        printf("%s`%s`", k ? ", " : "", field_string(with[k], "name"));
}

static void print_source(const json_t *families, const json_t *family, const json_t *source) {
    const char *flag = json_string_value(json_object_get(source, "flag"));
    char cell[CELL];
    printf("| ");
    print_of(families, family, source);
    printf(" | `%s` | `%s` | %s |\n", flag ? flag : "-m", field_string(source, "repository"),
           families_files(source, "`", cell));
}

/* True if an earlier family with the same denoiser lists the source. */
static bool is_listed_before(const json_t *families, size_t family, const json_t *source) {
    const json_t *own = json_array_get(families, family);
    for (size_t i = 0; i < family; i++) {
        const json_t *other = json_array_get(families, i);
        if (same_denoiser(other, own) && has_source(other, source)) return true;
    }
    return false;
}

static void print_where(const json_t *families) {
    size_t i, k;
    json_t *family, *source;
    printf("| `--family` | flag | on Hugging Face | files, GB |\n|---|---|---|---|\n");
    json_array_foreach(families, i, family) {
        json_array_foreach(json_object_get(family, "sources"), k, source) {
            if (!is_listed_before(families, i, source)) print_source(families, family, source);
        }
    }
}

static void print_plan_row(const json_t *family, bool heads) {
    char cell[CELL];
    size_t i;
    json_t *plan;
    printf(heads ? "| `--family`" : "| `%s`", field_string(family, "name"));
    json_array_foreach(plans_of(family), i, plan) {
        const char *minimum = on_card(plan) ? "VRAM + RAM" : "RAM";
        if (!i || !on_card(plan)) printf(" | %s", heads ? minimum : families_least(plan, cell));
        printf(" | %s", heads ? card(plan, cell) : families_times(plan, cell));
    }
    printf(" |\n");
}

static void print_plans_table(const json_t *families) {
    size_t i;
    json_t *family;
    printf("VRAM + RAM and RAM: minimum, GiB. Other columns: predicted time per step, total.\n\n");
    print_plan_row(json_array_get(families, 0), true);
    printf("|---|---|");
    json_array_foreach(plans_of(json_array_get(families, 0)), i, family) printf("---|");
    printf("---|\n");
    json_array_foreach(families, i, family) print_plan_row(family, false);
}

/* Prints the plan commands of the first family as examples; for other families only the name differs. */
static void print_commands(const json_t *families) {
    size_t i;
    json_t *plan;
    json_array_foreach(plans_of(json_array_get(families, 0)), i, plan)
        printf("    %s\n", field_string(plan, "command"));
}

void families_markdown(json_t *root) {
    const json_t *families = families_of(root);
    print_list(families);
    printf("\n");
    print_shared(families, compared);
    print_shared(families, layouts);
    printf("\n");
    print_where(families);
    printf("\n");
    print_plans_table(families);
    printf("\n");
    print_commands(families);
}
