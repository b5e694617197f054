/* Scripts of tests: text files of commands. One line is one command of words, an indented line continues the
 * line before, and # begins a line of comment. Words are separated by white space; "a b" or `a b` is one
 * word. */
#ifndef SLUICE_TEST_SCRIPT_H
#define SLUICE_TEST_SCRIPT_H

#include <stdbool.h>

enum { WORDS_MAX = 600 };

struct command {
    char where[80]; /* FILE:LINE */
    const char *name;
    const char *word[WORDS_MAX + 1]; /* the words after the name; ended by NULL */
    int n;
    int arrow; /* index of the word "=>", which separates what is tested from what is expected; else n */
};

struct script_command {
    const char *name;
    int least; /* number of words after the name */
    void (*run)(struct command *c);
};

/* If not NULL, only commands of this name run, for tests of a part of a script. */
extern const char *script_only;

/* Runs the commands of a file. `commands` ends with a row without a name. In commands whose name is `list`
 * each indented line begins with the word ";". The words stay valid until the program ends. */
void script_run(const char *path, const struct script_command *commands, const char *list);

bool is(const char *a, const char *b);

/* Returns the index of the word from `first` on, or n. */
int find_word(const char *const *words, int first, int n, const char *word);

#endif
