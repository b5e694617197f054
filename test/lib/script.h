/* Scripts of tests: text files of commands. One line is one command, an indented line continues the line
 * before, and a line that begins with # is a comment. Words are separated by white space; "a b" or `a b` is
 * one word. */
#ifndef SLUICE_TEST_SCRIPT_H
#define SLUICE_TEST_SCRIPT_H

#include <stdbool.h>

enum { WORDS_MAX = 600 };

struct command {
    char where[80]; /* FILE:LINE */
    const char *name;
    const char *word[WORDS_MAX + 1]; /* the words after the name; ended by NULL */
    int n;
    int arrow; /* index of the word "=>", which separates the test from the expectation; n: there is none */
};

struct script_command {
    const char *name;
    int before, after; /* least numbers of words before and after "=>"; after 0: "=>" may be absent */
    void (*run)(struct command *c);
};

/* If not NULL, only commands of this name run: a program thereby skips the fixtures that are not selected. */
extern const char *script_only;

/* Runs the commands of a file; prints FILE:LINE after each failed command. `commands` ends with a row without
 * a name. list: name of commands whose indented lines are separated by the word ";"; NULL: none. The words
 * stay valid until the program ends. */
void script_run(const char *path, const struct script_command *commands, const char *list);

bool is(const char *a, const char *b);

/* Returns the index of `word` in words [first, n), or n. */
int find_word(const char *const *words, int first, int n, const char *word);

#endif
