/* Which pipeline the components make up: the recipe follows from what is found, never the other way round. */
#ifndef SLUICE_OPEN_PIPELINE_H
#define SLUICE_OPEN_PIPELINE_H

#include "engine/open/component_files.h"
#include "engine/open/latent_file.h"

/* The recipe that the families found so far point to: of those with this denoiser, else of all, the first
 * with the most of its encoders there. NULL: nothing points anywhere. */
const struct recipe *pipeline_guess(const struct component_files *files);
/* Looks into the denoiser that counts, if there is one, for which of its family's pipelines it can be. What
 * is wrong with it is said when it is opened. */
void pipeline_look(struct sys *sys, struct component_files *files);
/* Where only a decoder was looked for: the first recipe that decodes with it, of those that a denoiser in its
 * file, the pipeline of that name, its configuration and the latent say, in this order, and whose latents
 * have as many channels, if there are any; where these leave a choice, one of videos for a video. name: ""
 * where nothing names one. NULL: none was found. *assumed: another that it might as well be scales latents
 * otherwise.
 */
const struct recipe *pipeline_of_decoder(struct sys *sys, const struct component_files *files,
                                         const char *name, const struct latent_origin *latent, bool *assumed);

/* A component that was not found. */
struct missing_part {
    const struct slot *slot; /* NULL where nothing tells which pipeline it is */
    const char *folder, *flag, *word;
};

/* What a pipeline of that recipe lacks, or any pipeline where that is NULL: without any of several text
 * encoders, of which one is enough, it lacks all of them. Returns how many. */
int pipeline_missing(const struct component_files *files, const struct recipe *recipe,
                     struct missing_part missing[SLOTS_MAX]);

/* UNSUPPORTED if two files hold a component of which the recipe has use for one; NULL: of which any has.
 * model:
 * -m.
 */
enum status pipeline_check_twice(const struct component_files *files, const struct recipe *recipe,
                                 const char *model, struct error *e);

/* USAGE if a part is left out ("none") that a model of the recipe cannot be without, or all of its text
 * encoders are. model:
 * -m, or NULL. */
enum status pipeline_check_left_out(const struct sluice_model_options *options, const struct recipe *recipe,
                                    const char *model, struct error *e);

/* UNSUPPORTED where a flag chose what does not stand in its slot, naming what it is and what was wanted;
 * USAGE for the flag of a component that a pipeline of the recipe has not. recipe: NULL if nothing tells
 * which. */
enum status pipeline_check_flags(const struct component_files *files, const struct recipe *recipe,
                                 struct error *e);

/* OK if every component of the recipe is found; NULL: what every pipeline has. Else UNSUPPORTED where one
 * stands in the wrong place, naming what it is and what was wanted; USAGE for the flag of a component that
 * the pipeline has not; MISSING with all that are missing, or the reason why a file that may be one was not
 * opened. model:
 * -m, or NULL. */
enum status pipeline_check(const struct component_files *files, const struct recipe *recipe,
                           const char *model, struct error *e);

/* The pipeline that a model_index.json names; UNSUPPORTED for one that no recipe has, with the known ones.
 * name stays empty if the file names none. */
enum { PIPELINE_NAME_BYTES = 64 };
enum status pipeline_read(struct sys *sys, const char *path, char name[PIPELINE_NAME_BYTES], struct error *e);

/* The recipe for a configured denoiser, with the most of what draws there. name: the pipeline's, "" if
 * nothing names it. UNSUPPORTED for a pipeline that has other weights. */
enum status pipeline_choose(const struct component_files *files, const char *name,
                            const struct component *denoiser, const struct recipe **recipe, struct error *e);

/* Does a model_index.json of that name say which pipeline this is? It stands for the whole folder, so not
 * where a flag gives another denoiser; but who gives one beside an editing pipeline's parts means to edit. */
bool pipeline_names(const struct component_files *files, const char *name);

/* From the recipe that was guessed to the one that the denoiser's weights say, and that name where it names.
 * edit: what a flag calls it whatever it is named, or NULL; USAGE where these weights have no such recipe. */
enum status pipeline_settle(struct sys *sys, const struct component_files *files, const char *name,
                            const char *edit, const struct recipe **recipe, struct error *e);

/* One line for a recipe that a name told from another of the same weights, or told from none. */
bool pipeline_note_called(const struct recipe *recipe, char *line, size_t bytes);
/* One line for a recipe that nothing named, where others have weights of the same shapes. */
bool pipeline_note_alike(const struct recipe *recipe, char *line, size_t bytes);

#endif
