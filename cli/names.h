/* Flags of other programs, mostly of stable-diffusion.cpp. Flags with the same meaning are accepted as
 * synonyms; for the others the error message says what to use instead. */
#ifndef SLUICE_CLI_NAMES_H
#define SLUICE_CLI_NAMES_H

/* Our flag with the same meaning as another program's; NULL if there is none. */
const char *name_ours(const char *typed);
/* What to use instead of another program's flag; NULL for an unknown flag. */
const char *name_answer(const char *typed);
/* Synonym i of our flag, counted from 0; NULL after the last. */
const char *name_other(const char *ours, int i);

#endif
