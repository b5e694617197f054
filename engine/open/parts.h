/* The parts of a model: which file holds which family.
 *
 * A part is where its flag says; else in the folder of -m that Hugging Face's layout has for it; else in
 * whatever file under -m holds its tensors. What a part is its content alone says, in all three: the place
 * where it was looked for is kept, so that what stands in the wrong one is named. */
#ifndef SLUICE_OPEN_PARTS_H
#define SLUICE_OPEN_PARTS_H

#include "engine/open/contents.h"
#include "engine/sluice.h"

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

/* Five flags, four folders; of what is searched for a family at most twice, and -m itself. */
enum { PARTS_MAX = 32 };

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

/* What names say; opens nothing. USAGE without any part, MISSING if -m is not there. */
enum status parts_locate(struct sys *sys, const struct sluice_model_options *options,
                         struct model_parts *parts, struct error *e);

/* Opens every part that a flag or a folder locates, and finds by content what then lacks. A part that is not
 * found is no error here, nor is one in the wrong place. UNSUPPORTED if two files, or two parts of one file,
 * could be the same part. */
enum status parts_open(struct sys *sys, const struct sluice_model_options *options, struct model_parts *parts,
                       struct error *e);

/* The part of that family, or kind, that counts: by flag before by folder before found; NULL: none. */
const struct part *parts_find(const struct model_parts *parts, const struct family *family);
const struct part *parts_find_kind(const struct model_parts *parts, enum family_kind kind);
const char *parts_path(const struct model_parts *parts, const struct part *part);

/* Adds the parts of an opened file; takes its index. */
enum status parts_add_file(struct sys *sys, struct model_parts *parts, const char *path,
                           struct tensor_index *index, struct error *e);
void parts_add(struct model_parts *parts, struct part part);

/* The part's view of its file. The first that takes from a file owns what the file's index holds, and must
 * last as long as the others. */
struct tensor_index parts_take(struct model_parts *parts, const struct part *part);

void parts_destroy(struct sys *sys, struct model_parts *parts);

#endif
