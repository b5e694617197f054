/* The components of a model: the family in each file, and the slot of a pipeline for each component. A file's
 * tensors decide the family, wherever the file was found (component_search.h). The flag or folder that led to
 * the file is recorded, for errors about components in the wrong place. */
#ifndef SLUICE_OPEN_COMPONENT_FILES_H
#define SLUICE_OPEN_COMPONENT_FILES_H

#include "engine/open/contents.h"
#include "engine/sluice.h"

/* Returns component flag i ("--vae") of all recipes, without duplicates; NULL after the last. Order:
 * denoisers, text encoders, vision encoders, autoencoders, tiny decoders, control networks, upscalers. */
const char *part_flag(int i);
bool part_flag_chooses(const char *flag, enum family_kind kind);
bool part_flag_takes(const char *flag, const struct family *family);

/* Writes the kind and the families that a flag accepts: "transformer (zimage, flux, unet, ... or sd3)". */
void part_flag_families(const char *flag, char *list, size_t bytes);
/* True if some recipe works without the component that the flag stands for. */
bool part_flag_optional(const char *flag);
void part_flag_list(char *list, size_t bytes);

/* True if a component flag has the value "none", which disables the component ("./none" is a file). */
bool part_is_none(const struct sluice_part *part);
bool part_disabled(const struct sluice_model_options *options, const struct slot *slot);

struct component_file {
    const struct family *family; /* family of the component; NULL: no family recognises the file's tensors */
    int opened, view; /* index of the file in component_files.opened, and of the component within the file */
    const char *prefix; /* prefix of the component's tensor names; NULL: none */
    const char *flag;   /* the flag that chose the file, or NULL */
    bool bundled;       /* `flag` chose the file for another component in the same file */
    const char *folder; /* component folder of Hugging Face's layout that holds the file, or NULL */
    bool misplaced;     /* `flag` or `folder` is meant for another family */
};

struct opened_file {
    char *path; /* path of the weight file, shard index or folder; owned */
    struct tensor_index index;
};

enum { COMPONENT_FILES_MAX = 64 };

struct component_files {
    const struct sluice_model_options *options; /* options of the caller, borrowed; may be NULL */
    const char *model;                          /* model path, the value of -m; or NULL */
    bool decodes_only;                          /* true for decoding alone: only a decoder is searched for */
    bool by_name;                               /* -m is a folder in Hugging Face's layout */
    bool has_variant;                           /* `variant` was read from the preferred denoiser */
    int variant;                                /* component.variant of the preferred denoiser */
    struct component_file file[COMPONENT_FILES_MAX];
    /* With decodes_only: the denoiser in the decoder's file, which identifies the model; or family NULL. */
    struct component_file bundled_denoiser;
    struct opened_file opened[COMPONENT_FILES_MAX];
    int n_files, n_opened;
    struct error failure; /* error of the first file under -m that could not be opened */
    /* Called with the error of each file or folder that cannot be opened; the search then continues. Set by
     * `inspect`. NULL: an error in a component's folder, or in a file chosen by a flag, ends the search. */
    void (*on_failure)(void *user, const struct error *e);
    void *user;
    /* Tensors in the files of -m that belong to no known component, mostly because of an unknown prefix. */
    struct {
        char first[96]; /* name of the first unknown tensor */
        int n;
    } unknown_tensors;
    char *scheduler;          /* path of scheduler_config.json, or NULL */
    char *pipeline;           /* path of model_index.json, or NULL */
    char *defaults;           /* path of sluice.json, or NULL */
    int n_declared_denoisers; /* number of denoisers in model_index.json, with or without folders */
    /* Folders of text and vision encoders, NULL-terminated. declared: folders named in model_index.json, and
     * existing folders that model_index.json does not mention. declared_absent: folders with [null, null] in
     * model_index.json, which are ignored even if they exist. */
    const char *declared[SLOTS_MAX + 1], *declared_absent[SLOTS_MAX + 1];
};

/* The preferred component of a kind: chosen by a flag, else by its folder, else found by content. NULL:
 * none. */
const struct component_file *component_files_find_kind(const struct component_files *files,
                                                       enum family_kind kind);

/* The tiny decoder that a component flag chose, or NULL. */
const struct component_file *component_files_find_tiny(const struct component_files *files);

/* Assigns a component to each slot of the recipe; NULL: no component fits, or the slot is disabled. The only
 * slot of a family gets the preferred component. If a family has several slots, components are assigned by
 * flag, else by folder, by tensor prefix, by words of the file's name (slot.name_words or the flag), or else
 * in order. slot.matches must accept the component in every case. */
void parts_assign(const struct component_files *files, const struct recipe *recipe,
                  const struct component_file *in[SLOTS_MAX]);
const struct component_file *parts_in_slot(const struct component_files *files, const struct recipe *recipe,
                                           int slot);

/* The slot of the file's family whose name_words occur in the file's name (WAN's "high", "low"); or NULL. */
const struct slot *part_slot_by_file_name(const struct component_files *files,
                                          const struct component_file *file);
/* True if the file's name has the name_words of another slot of the family, but not the given slot's
 * name_words. */
bool part_named_for_other_slot(const struct component_files *files, const struct component_file *file,
                               const struct slot *slot);
/* True if the name of the component's file or of the model's folder has the word (path_has_word). */
bool part_name_has_word(const struct component_files *files, const struct component_file *file,
                        const char *word);
/* Returns another slot's weights_name if the component's path has this word ("taesd3"). NULL: the path has no
 * such word, or also has the given slot's weights_name. */
const char *part_other_model_word(const struct component_files *files, const struct component_file *file,
                                  const struct slot *slot);
/* Counts the recipe's slots of a kind for which a component was found. A component chosen by a flag counts
 * only in the slot of that flag. */
int parts_of_kind(const struct component_files *files, const struct recipe *recipe, enum family_kind kind);

const char *component_files_path(const struct component_files *files, const struct component_file *file);
/* The view of the file's tensor index with the component's tensors; borrowed. */
struct tensor_index parts_view(const struct component_files *files, const struct component_file *file);

/* Adds an opened file. Takes ownership of the index, also on failure. Fails with LIMIT (too many files) or
 * MEMORY. */
enum status component_files_add_file(struct sys *sys, struct component_files *files, const char *path,
                                     struct tensor_index *index, struct error *e);
/* Adds a component of the file that was added last. LIMIT: too many components. */
enum status component_files_add(struct component_files *files, struct component_file file, struct error *e);

/* Gives the caller an index view with a component's tensors. The first view taken from a file owns the
 * index's memory and must outlive the other views. */
struct tensor_index component_files_take(struct component_files *files, const struct component_file *file);

void component_files_destroy(struct sys *sys, struct component_files *files);

#endif
