/* The components of a model: which file holds which family, and which slot of a pipeline each is for. What a
 * component is its content alone says, wherever it was found (component_search.h): the place where it was
 * looked for is kept, so that what stands in the wrong one is named. */
#ifndef SLUICE_OPEN_COMPONENT_FILES_H
#define SLUICE_OPEN_COMPONENT_FILES_H

#include "engine/open/contents.h"
#include "engine/sluice.h"

/* The flags that choose components are those of the recipes' slots; nothing else lists them. Number i, each
 * once: those of denoisers, of encoders of prompts and what goes with them, of autoencoders, of tiny
 * decoders. NULL behind the last. */
const char *part_flag(int i);
/* Does it choose components of that kind? */
bool part_flag_chooses(const char *flag, enum family_kind kind);
/* Is it that family's, in any recipe? */
bool part_flag_takes(const char *flag, const struct family *family);

/* "transformer (zimage, flux, unet, qwen_image, wan or sd3)": the families that a flag chooses among. */
void part_flag_families(const char *flag, char *list, size_t bytes);
/* May a model of some recipe be without what it chooses? */
bool part_flag_optional(const char *flag);
/* "--vae, --llm ...": all of them. */
void part_flag_list(char *list, size_t bytes);

/* Is "none" given in place of a path: is that part left out? A file of that name is "./none". */
bool part_is_none(const struct sluice_part *part);
bool part_left_out(const struct sluice_model_options *options, const struct slot *slot);

struct component_file {
    const struct family *family; /* NULL: tensors that nobody knows, or none */
    int opened, view;            /* whose, and as which view of it */
    const char *prefix;          /* of its tensors' names; NULL: none */
    const char *flag;            /* that chose its file, or NULL */
    bool with;                   /* it chose another slot's part of it, beside which this lies */
    const char *folder;          /* of Hugging Face's layout in which it lies, or NULL */
    bool misplaced;              /* neither its flag nor its folder */
};

struct opened_file {
    char *path; /* owned; file, shard index or folder */
    struct tensor_index index;
};

enum { COMPONENT_FILES_MAX = 64 };

struct component_files {
    const struct sluice_model_options *options; /* of whoever looks; NULL: none */
    const char *model;                          /* -m, the options'; or NULL */
    bool decodes_only;                          /* only a decoder is looked for */
    bool by_name;                               /* -m is a folder in Hugging Face's layout */
    bool has_variant;                           /* the denoiser that counts has been looked into */
    int variant;                                /* and this is its */
    struct component_file file[COMPONENT_FILES_MAX];
    /* Where only a decoder is looked for: a denoiser in its file, which tells whose it is. */
    struct component_file beside;
    struct opened_file opened[COMPONENT_FILES_MAX];
    int n_files, n_opened;
    struct error failure; /* of the first file under -m that could not be opened */
    /* Tensors under -m that are no known component's: most often a component behind a prefix that nobody
     * knows. */
    struct {
        char first[96]; /* the name of one */
        int n;
    } strangers;
    char *scheduler, *pipeline, *defaults; /* files, or NULL */
    int denoisers_named;                   /* by model_index.json, whether they are there or not */
    /* Folders of encoders that it names, or that are there without it; and those that it says are not there,
     * whatever lies there. NULL-terminated. */
    const char *named[SLOTS_MAX + 1], *nulled[SLOTS_MAX + 1];
};

/* The component of that family, or kind, that counts: by flag before by folder before found; NULL: none. */
const struct component_file *component_files_find(const struct component_files *files,
                                                  const struct family *family);
const struct component_file *component_files_find_kind(const struct component_files *files,
                                                       enum family_kind kind);

/* The tiny decoder that a flag brings; NULL: none does. */
const struct component_file *component_files_find_tiny(const struct component_files *files);

/* Which component stands in each slot of the recipe; NULL: none. Where a family has one slot it is the
 * component of that family that counts; where it has several their flags, else folders, else prefixes say
 * which component is for which, or their files' names, of which words may be the slots' or their flags', else
 * the slots take them in their order; what a slot says of content holds in any case. Nothing stands where a
 * part is left out. */
void parts_assign(const struct component_files *files, const struct recipe *recipe,
                  const struct component_file *in[SLOTS_MAX]);
const struct component_file *parts_in_slot(const struct component_files *files, const struct recipe *recipe,
                                           int slot);

/* Of the slots of its family that only names tell apart, the one that its name is of; or NULL. */
const struct slot *parts_called(const struct component_files *files, const struct component_file *file);
/* Is it called as another slot of that family is, and not as this one? */
bool parts_is_called_otherwise(const struct component_files *files, const struct component_file *file,
                               const struct slot *slot);
/* Does the name of its file say that word, between other characters than letters and digits, or the name of
 * the model that it is of? */
bool parts_name_says(const struct component_files *files, const struct component_file *file,
                     const char *word);
/* What other slots' components are known as, and its path says; NULL: nothing, or also this slot's own. */
const char *parts_misnamed(const struct component_files *files, const struct component_file *file,
                           const struct slot *slot);
/* How many of the recipe's components of that kind are there: those that a flag chooses by their own. */
int parts_of_kind(const struct component_files *files, const struct recipe *recipe, enum family_kind kind);

const char *component_files_path(const struct component_files *files, const struct component_file *file);
/* What is seen of its file, borrowed. */
struct tensor_index parts_view(const struct component_files *files, const struct component_file *file);

/* Adds an opened file; takes its index, also on failure. */
enum status component_files_add_file(struct sys *sys, struct component_files *files, const char *path,
                                     struct tensor_index *index, struct error *e);
/* Adds a component of the file added last. */
enum status component_files_add(struct component_files *files, struct component_file file, struct error *e);

/* The component's view of its file. The first that takes from a file owns what the file's index holds, and
 * must last as long as the others. */
struct tensor_index component_files_take(struct component_files *files, const struct component_file *file);

void component_files_destroy(struct sys *sys, struct component_files *files);

#endif
