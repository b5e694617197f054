/* Flags of other programs, mostly stable-diffusion.cpp: synonyms of our flags, or advice in the error. */
#ifndef SLUICE_CLI_FLAG_SYNONYMS_H
#define SLUICE_CLI_FLAG_SYNONYMS_H

/* Our flag with the same meaning as another program's; NULL if there is none. */
const char *flag_synonym_target(const char *typed);
/* What to use instead of another program's flag; NULL for an unknown flag. */
const char *foreign_flag_advice(const char *typed);
/* Synonym i of our flag, counted from 0; NULL after the last. */
const char *flag_synonym(const char *ours, int i);

#endif
