/* Finding parts by content: the headers of all files under -m are read. */
#ifndef SLUICE_OPEN_PART_SEARCH_H
#define SLUICE_OPEN_PART_SEARCH_H

#include "engine/open/parts.h"

/* model: a file or a folder. Adds the parts that neither a flag nor a folder gave, each family at most twice:
 * that there are two is for the pipeline to refuse, if it wants that family. Of a folder only lack of memory,
 * and too many files, end the search: one damaged file among many matters if a part is missing, and then it
 * is named (parts->failure). */
enum status part_search(struct sys *sys, const char *model, struct model_parts *parts, struct error *e);

#endif
