/* The flags that choose parts of models, as the recipes' slots have them: nothing else lists them. */
#ifndef SLUICE_OPEN_PART_FLAGS_H
#define SLUICE_OPEN_PART_FLAGS_H

#include "models/models.h"

/* Flag number i, each once: those of denoisers, of encoders of prompts and what goes with them, of
 * autoencoders. NULL behind the last. */
const char *part_flag(int i);
/* Does it choose parts of that kind? */
bool part_flag_chooses(const char *flag, enum family_kind kind);
/* Is it that family's, in any recipe? */
bool part_flag_takes(const char *flag, const struct family *family);

/* "transformer (zimage or flux)": the families that a flag chooses among. */
void part_flag_families(const char *flag, char *list, size_t bytes);
/* "--vae, --llm ...": all of them. */
void part_flag_list(char *list, size_t bytes);

#endif
