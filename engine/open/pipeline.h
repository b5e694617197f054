/* Determines the recipe (pipeline) of a model from the components that were found. */
#ifndef SLUICE_OPEN_PIPELINE_H
#define SLUICE_OPEN_PIPELINE_H

#include "engine/open/component_files.h"
#include "engine/open/latent_file.h"

/* Guesses the recipe from the components found so far: the recipe with the most components present, among the
 * recipes with the denoiser that was found (among all recipes if no denoiser was found). NULL: no recipe uses
 * a family that was found. */
const struct recipe *pipeline_guess(const struct component_files *files);
/* Reads the variant of the preferred denoiser into files->variant, if there is a denoiser. Ignores errors. */
void pipeline_detect_variant(struct sys *sys, struct component_files *files);
/* For decoding alone: the best recipe for the decoder found. Evidence, strongest first: a denoiser in the
 * decoder's file, the pipeline's name, the decoder's configuration, the latent's metadata, the latent's
 * number of channels, and several frames (a video recipe). name: pipeline's name, "" if unknown. NULL: no
 * decoder was found. *assumed: true if recipes with another latent scale fit equally well. */
const struct recipe *pipeline_of_decoder(struct sys *sys, const struct component_files *files,
                                         const char *name, const struct latent_origin *latent, bool *assumed);

/* A missing component. */
struct missing_part {
    const struct slot *slot; /* slot of the missing component; NULL: the pipeline is unknown */
    const char *folder, *flag, *word;
};

/* Lists the missing components of a recipe, or with recipe NULL the components that every pipeline needs. If
 * all text encoders are optional and none is present, all count as missing. Returns the number of missing
 * components. */
int pipeline_missing(const struct component_files *files, const struct recipe *recipe,
                     struct missing_part missing[SLOTS_MAX]);

/* Fails with UNSUPPORTED if two files hold the same component and the recipe (NULL: any recipe) has only one
 * slot for the component. model: path of -m. */
enum status pipeline_check_duplicates(const struct component_files *files, const struct recipe *recipe,
                                      const char *model, struct error *e);

/* Fails with USAGE if a required component or all text encoders are disabled by a flag with the value "none".
 * model: path of -m, or NULL. */
enum status pipeline_check_disabled_parts(const struct sluice_model_options *options,
                                          const struct recipe *recipe, const char *model, struct error *e);

/* Checks the files that flags chose. UNSUPPORTED: a file holds another component than its flag says; the
 * error names both components. USAGE: the recipe (NULL: unknown) has no component for one of the flags. */
enum status pipeline_check_flags(const struct component_files *files, const struct recipe *recipe,
                                 struct error *e);

/* Checks that every component of the recipe (NULL: of any pipeline) is present. UNSUPPORTED and USAGE as in
 * pipeline_check_flags and pipeline_check_disabled_parts, for components in folders too. MISSING: the error
 * lists the missing components, or the reason why a candidate file could not be read. model: path of -m, or
 * NULL. */
enum status pipeline_check(const struct component_files *files, const struct recipe *recipe,
                           const char *model, struct error *e);

/* Reads _class_name, the pipeline's name, from model_index.json; "" if absent. UNSUPPORTED: no recipe
 * implements the pipeline. */
enum { PIPELINE_NAME_BYTES = 64 };
enum status pipeline_read(struct sys *sys, const char *path, char name[PIPELINE_NAME_BYTES], struct error *e);

/* Chooses a recipe for a denoiser whose configuration was read: the recipe with the most denoisers and
 * decoders present. name: the pipeline's name, "" if unknown. UNSUPPORTED: the named pipeline has another
 * denoiser or, by model_index.json, reads other hidden states of the text encoder. */
enum status pipeline_choose(const struct component_files *files, const char *name,
                            const struct component *denoiser, const struct recipe **recipe, struct error *e);

/* True if the pipeline's name in model_index.json is valid for this model. If a flag replaces the denoiser,
 * the name is valid only for an editing pipeline of the same family. */
bool pipeline_names(const struct component_files *files, const char *name);

/* Replaces the guessed recipe by the recipe that the denoiser's weights and the pipeline's name determine.
 * edit: value of --edit, which overrides the name, or NULL. USAGE: no editing pipeline of this name uses the
 * denoiser's weights. */
enum status pipeline_resolve(struct sys *sys, const struct component_files *files, const char *name,
                             const char *edit, const struct recipe **recipe, struct error *e);

/* Writes one log line if the recipe was chosen because the model's name contains a
 * recipe_selection.name_word, or lacks the word. model: the model's name; a recipe without name_word has no
 * line if an alias is in that name. */
bool pipeline_note_by_name(const struct recipe *recipe, const char *model, char *line, size_t bytes);
/* Writes one log line if several recipes have weights of the same shapes and no name distinguishes the
 * recipes. */
bool pipeline_note_ambiguous(const struct recipe *recipe, char *line, size_t bytes);

#endif
