/* Finding the components of a model.
 *
 * A component is where its flag says; else in the folder of -m that Hugging Face's layout has for it; else in
 * whatever file under -m holds its tensors: the headers of all of them are read. */
#ifndef SLUICE_OPEN_COMPONENT_SEARCH_H
#define SLUICE_OPEN_COMPONENT_SEARCH_H

#include "engine/open/component_files.h"
#include "engine/sluice.h"

/* What names say; opens nothing. USAGE without any component, for a flag that no recipe has, or one given
 * twice; MISSING if -m is not there. */
enum status component_files_locate(struct sys *sys, const struct sluice_model_options *options,
                                   struct component_files *files, struct error *e);

/* Opens every component that a flag or a folder locates, and finds by content what then lacks; each family at
 * most once more than it has slots: that there are too many is refused if the pipeline wants that family. A
 * component that is not found is no error here, nor is one in the wrong place. *guess is pipeline_guess of
 * all that is found. UNSUPPORTED if two files, or two components of one file, could be the same component. */
enum status component_files_open(struct sys *sys, const struct sluice_model_options *options,
                                 struct component_files *files, const struct recipe **guess, struct error *e);

/* The path that a flag for that kind gave, or NULL. */
const char *parts_given(const struct sluice_model_options *options, enum family_kind kind);

#endif
