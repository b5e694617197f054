/* Flags under the names that people bring from other programs, from stable-diffusion.cpp most of all: those
 * that mean one of ours work, the others are answered. */
#ifndef SLUICE_CLI_NAMES_H
#define SLUICE_CLI_NAMES_H

/* The long name of our flag that means the same; NULL if none does. */
const char *name_ours(const char *typed);
/* What to do here instead, for a flag that means none of ours; NULL if it is not known. */
const char *name_answer(const char *typed);
/* Other name i of that flag of ours, from 0; NULL behind the last. */
const char *name_other(const char *ours, int i);

#endif
