/* Determines the recipe (pipeline) of a model from the components that were found. */
#ifndef SLUICE_OPEN_PIPELINE_H
#define SLUICE_OPEN_PIPELINE_H

#include "engine/open/component_files.h"
#include "engine/open/latent_file.h"

/* Guesses the recipe from the components found so far: the one with the most of its components present, among
 * recipes with the denoiser found (all recipes if none is found yet). NULL: no recipe has any of these
 * families. */
const struct recipe *pipeline_guess(const struct component_files *files);
/* Reads the variant of the preferred denoiser, if any, into files->variant. Ignores errors. */
void pipeline_detect_variant(struct sys *sys, struct component_files *files);
/* For decoding alone: the best recipe for the decoder found. Evidence, strongest first: a denoiser in the
 * same file, the pipeline's name, the decoder's configuration, the latent's metadata, its number of channels,
 * and a video recipe for a video. name: pipeline's name, "" if unknown. NULL: no decoder was found. *assumed:
 * recipes with another latent scale fit equally well. */
const struct recipe *pipeline_of_decoder(struct sys *sys, const struct component_files *files,
                                         const char *name, const struct latent_origin *latent, bool *assumed);

/* A missing component. */
struct missing_part {
    const struct slot *slot; /* slot of the missing component; NULL: the pipeline is unknown */
    const char *folder, *flag, *word;
};

/* Lists the missing components of that recipe, or of any pipeline (recipe NULL). If all text encoders are
 * optional and none is present, they all count as missing. Returns the number of missing components. */
int pipeline_missing(const struct component_files *files, const struct recipe *recipe,
                     struct missing_part missing[SLOTS_MAX]);

/* Fails with UNSUPPORTED if two files hold the same component and the recipe (NULL: any recipe) uses only
 * one. model: path of -m. */
enum status pipeline_check_duplicates(const struct component_files *files, const struct recipe *recipe,
                                      const char *model, struct error *e);

/* Fails with USAGE if a required component or all text encoders are disabled by a flag with the value "none".
 * model: path of -m, or NULL. */
enum status pipeline_check_disabled_parts(const struct sluice_model_options *options,
                                          const struct recipe *recipe, const char *model, struct error *e);

/* Checks the files that flags chose. UNSUPPORTED: a file holds another component; the error names both.
 * USAGE: the recipe (NULL: unknown) has no component for one of the flags. */
enum status pipeline_check_flags(const struct component_files *files, const struct recipe *recipe,
                                 struct error *e);

/* Checks that every component of the recipe (NULL: of any pipeline) is present. UNSUPPORTED and USAGE as
 * pipeline_check_flags and pipeline_check_disabled_parts, also for folders. MISSING: the error lists the
 * missing components, or the reason why a candidate file could not be read. model: path of -m, or NULL. */
enum status pipeline_check(const struct component_files *files, const struct recipe *recipe,
                           const char *model, struct error *e);

/* Reads _class_name of a model_index.json; "" if it has none. UNSUPPORTED: no recipe has that pipeline. */
enum { PIPELINE_NAME_BYTES = 64 };
enum status pipeline_read(struct sys *sys, const char *path, char name[PIPELINE_NAME_BYTES], struct error *e);

/* Chooses a recipe for a configured denoiser: the one with the most of its denoisers and decoders present.
 * name: the pipeline's name, "" if unknown. UNSUPPORTED: the named pipeline has another denoiser. */
enum status pipeline_choose(const struct component_files *files, const char *name,
                            const struct component *denoiser, const struct recipe **recipe, struct error *e);

/* True if the pipeline's name in model_index.json is valid for this model. A flag that replaces the denoiser
 * invalidates the name, unless it names an editing pipeline of the same family. */
bool pipeline_names(const struct component_files *files, const char *name);

/* Replaces the guessed recipe by the recipe that the denoiser's weights and the pipeline's name determine.
 * edit: value of --edit, which overrides the name, or NULL. USAGE: these weights have no such editing
 * pipeline. */
enum status pipeline_resolve(struct sys *sys, const struct component_files *files, const char *name,
                             const char *edit, const struct recipe **recipe, struct error *e);

/* Writes one line if a word of the model's name (recipe.name_word), or its absence, chose the recipe. */
bool pipeline_note_by_name(const struct recipe *recipe, char *line, size_t bytes);
/* Writes one line if other recipes have weights of the same shapes and no name decides. */
bool pipeline_note_ambiguous(const struct recipe *recipe, char *line, size_t bytes);

#endif
