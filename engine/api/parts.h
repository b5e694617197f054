/* The parts of a model: which file is which.
 *
 * A part is where its flag says; else in the folder of -m that Hugging Face's layout has for it; else in
 * whatever file under -m holds its tensors. The last is decided by content alone: the headers of all
 * candidates are read, and each family looks for its tell-tale tensors behind each of its prefixes. */
#ifndef SLUICE_API_PARTS_H
#define SLUICE_API_PARTS_H

#include "engine/sluice.h"
#include "models/models.h"

struct model_parts {
    bool wanted[N_ROLES];               /* what is looked for: all, or the decoder alone */
    char *path[N_ROLES];                /* owned; file, shard index or folder; NULL where there is none */
    struct tensor_index index[N_ROLES]; /* set by parts_open; one file's may borrow from an earlier role's */
    struct tensor_index unknown;        /* of -m, if that is one file in which nothing is known */
    struct error failure;               /* of the first file under -m that could not be opened */
    /* Tensors under -m that are no known part's: most often a part behind a prefix that nobody knows. */
    struct {
        char first[96]; /* the name of one */
        int n;
    } strangers;
    char *tokenizer, *scheduler, *pipeline, *defaults;
};

/* A role's folder in Hugging Face's layout. */
extern const char *const role_folder[N_ROLES];

/* What flags and names say of the wanted parts; opens nothing. USAGE without any part, MISSING if -m is not
 * there. */
enum status parts_locate(struct sys *sys, const struct sluice_model_options *options,
                         struct model_parts *parts, struct error *e);

/* Opens every part that is located, finds the others by content, and the tokenizer beside the text encoder. A
 * part that is not found is no error here: its path stays NULL. UNSUPPORTED if two files, or two parts of one
 * file, could be the same part. A part in the wrong slot is opened as what it is. */
enum status parts_open(struct sys *sys, const struct sluice_model_options *options, struct model_parts *parts,
                       struct error *e);

/* OK if every wanted part is found; else MISSING with all that are not, or the reason why a file that may be
 * one was not opened. */
enum status parts_check_found(const struct model_parts *parts, const char *model, struct error *e);
enum status parts_missing_tokenizer(const struct model_parts *parts, const struct recipe *recipe,
                                    const char *model, struct error *e);

/* The family whose tensors this view sees, or NULL. */
const struct family *parts_family(const struct tensor_index *view);

void parts_destroy(struct sys *sys, struct model_parts *parts);

/* Joins two parts of a path; freed with sys->release. NULL: no memory. */
char *path_join(struct sys *sys, const char *folder, const char *name);
bool path_exists(const char *path);
bool path_is_folder(const char *path);

#endif
