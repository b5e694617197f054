/* Finds the components of a model in files: by flag, else in the component's folder of -m (Hugging Face's
 * layout), else in any file under -m with the component's tensors. Reads the headers of all files. */
#ifndef SLUICE_OPEN_COMPONENT_SEARCH_H
#define SLUICE_OPEN_COMPONENT_SEARCH_H

#include "engine/open/component_files.h"
#include "engine/sluice.h"

/* Checks flags and the layout of -m without opening a weight file. USAGE: no component given, an unknown
 * flag, a flag given twice, or -m is "/". MISSING: -m does not exist. */
enum status component_files_locate(struct sys *sys, const struct sluice_model_options *options,
                                   struct component_files *files, struct error *e);

/* Opens every component that a flag or a folder locates, then searches the files under -m for missing
 * components. To detect duplicates, the search accepts one component more per family than the recipes have
 * slots. *guess: the recipe guessed from the components (pipeline_guess). UNSUPPORTED: two files, or two
 * components of one file, could fill the same slot. Missing and misplaced components are reported later by
 * pipeline_check. */
enum status component_files_open(struct sys *sys, const struct sluice_model_options *options,
                                 struct component_files *files, const struct recipe **guess, struct error *e);

/* The path given by the flag for a kind of component (--vae for autoencoders), or NULL. */
const char *part_path_of_kind(const struct sluice_model_options *options, enum family_kind kind);

#endif
