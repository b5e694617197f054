#include "test/lib/script.h"

#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCRIPTS = 32 };

const char *script_only;
static char *texts[SCRIPTS]; /* texts of all scripts, into which words point */
static int n_texts;

bool is(const char *a, const char *b) {
    return !strcmp(a, b);
}

int find_word(const char *const *words, int first, int n, const char *word) {
    while (first < n && !is(words[first], word)) first++;
    return first;
}

/* Splits the text of a command in place. */
static void split(char *text, struct command *c) {
    c->name = NULL;
    c->n = 0;
    for (text += strspn(text, " \n"); *text; text += strspn(text, " \n")) {
        const char *ends = *text == '"' ? "\"" : *text == '`' ? "`" : " \n";
        text += *ends != ' ';
        if (c->n == WORDS_MAX) abort();
        if (!c->name)
            c->name = text;
        else
            c->word[c->n++] = text;
        text += strcspn(text, ends);
        if (*text) *text++ = 0;
    }
    c->word[c->n] = NULL;
    c->arrow = find_word(c->word, 0, c->n, "=>");
}

static void run_command(char *text, const char *path, int line, const struct script_command *commands) {
    static struct command c;
    const char *file = strrchr(path, '/');
    snprintf(c.where, sizeof c.where, "%s:%d", file ? file + 1 : path, line);
    split(text, &c);
    while (commands->name && !is(commands->name, c.name)) commands++;
    if (script_only && !is(script_only, c.name)) return;
    int before = n_failed;
    if (check(commands->name && c.arrow >= commands->before &&
                  c.n - c.arrow >= commands->after + (commands->after > 0),
              "unknown command, or too few words: %s", c.name))
        commands->run(&c);
    if (n_failed > before) printf("in %s: %s\n", c.where, c.name);
}

void script_run(const char *path, const struct script_command *commands, const char *list) {
    size_t bytes;
    char *text = read_file(path, &bytes), *command = NULL;
    int line = 0, first = 0;
    if (!check(text && n_texts < SCRIPTS, "cannot read %s", path)) exit(finish());
    texts[n_texts++] = text;
    for (char *at = text, *next; *at; at = next) {
        next = at + strcspn(at, "\n");
        next += *next == '\n';
        line++;
        if (at[strspn(at, " ")] == '#') memset(at, ' ', strcspn(at, "\n"));
        if (at[strspn(at, " ")] == '\n') continue;
        if (*at == ' ') {
            if (list && command && !strncmp(command, list, strlen(list))) *at = ';';
            continue;
        }
        if (at > text) at[-1] = 0;
        if (command) run_command(command, path, first, commands);
        command = at;
        first = line;
    }
    if (command) run_command(command, path, first, commands);
}
