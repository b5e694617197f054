/* The parts of a model: which file holds which family, and which slot of a pipeline each is for. What a part
 * is its content alone says, wherever it was found (part_search.h): the place where it was looked for is
 * kept, so that what stands in the wrong one is named. */
#ifndef SLUICE_OPEN_PARTS_H
#define SLUICE_OPEN_PARTS_H

#include "engine/open/contents.h"

/* The flags that choose parts are those of the recipes' slots; nothing else lists them. Number i, each once:
 * those of denoisers, of encoders of prompts and what goes with them, of autoencoders. NULL behind the last.
 */
const char *part_flag(int i);
/* Does it choose parts of that kind? */
bool part_flag_chooses(const char *flag, enum family_kind kind);
/* Is it that family's, in any recipe? */
bool part_flag_takes(const char *flag, const struct family *family);

/* "transformer (zimage or flux)": the families that a flag chooses among. */
void part_flag_families(const char *flag, char *list, size_t bytes);
/* "--vae, --llm ...": all of them. */
void part_flag_list(char *list, size_t bytes);

struct part {
    const struct family *family; /* NULL: tensors that nobody knows, or none */
    int file, view;              /* whose, and as which part of it */
    const char *prefix;          /* of its tensors' names; NULL: none */
    const char *flag;            /* that chose its file, or NULL */
    const char *folder;          /* of Hugging Face's layout in which it lies, or NULL */
    bool misplaced;              /* neither its flag nor its folder */
};

struct part_file {
    char *path; /* owned; file, shard index or folder */
    struct tensor_index index;
};

enum { PARTS_MAX = 64 };

struct model_parts {
    bool decodes_only; /* only a decoder is looked for */
    bool by_name;      /* -m is a folder in Hugging Face's layout */
    struct part part[PARTS_MAX];
    struct part_file file[PARTS_MAX];
    int n_parts, n_files;
    struct error failure; /* of the first file under -m that could not be opened */
    /* Tensors under -m that are no known part's: most often a part behind a prefix that nobody knows. */
    struct {
        char first[96]; /* the name of one */
        int n;
    } strangers;
    char *scheduler, *pipeline, *defaults; /* files, or NULL */
};

/* The part of that family, or kind, that counts: by flag before by folder before found; NULL: none. */
const struct part *parts_find(const struct model_parts *parts, const struct family *family);
const struct part *parts_find_kind(const struct model_parts *parts, enum family_kind kind);

/* Which part stands in each slot of the recipe; NULL: none. Where a family has one slot it is the part of
 * that family that counts; where it has several their flags, else folders, else prefixes say which part is
 * for which, else the slots take them in their order; what a slot says of content holds in any case. */
void parts_assign(const struct model_parts *parts, const struct recipe *recipe,
                  const struct part *in[SLOTS_MAX]);
const struct part *parts_in_slot(const struct model_parts *parts, const struct recipe *recipe, int slot);

const char *parts_path(const struct model_parts *parts, const struct part *part);
/* What is seen of its file, borrowed. */
struct tensor_index parts_view(const struct model_parts *parts, const struct part *part);

/* Adds an opened file; takes its index, also on failure. */
enum status parts_add_file(struct sys *sys, struct model_parts *parts, const char *path,
                           struct tensor_index *index, struct error *e);
/* Adds a part of the file added last. */
enum status parts_add(struct model_parts *parts, struct part part, struct error *e);

/* The part's view of its file. The first that takes from a file owns what the file's index holds, and must
 * last as long as the others. */
struct tensor_index parts_take(struct model_parts *parts, const struct part *part);

void parts_destroy(struct sys *sys, struct model_parts *parts);

#endif
