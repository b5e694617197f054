/* Which pipeline the parts make up: the recipe follows from what is found, never the other way round. */
#ifndef SLUICE_OPEN_PIPELINE_H
#define SLUICE_OPEN_PIPELINE_H

#include "engine/open/parts.h"

/* The recipe that the families found so far point to: the denoiser's (recipes that share it differ in no
 * family), else the one with most of its text encoders there. NULL: nothing points anywhere. */
const struct recipe *pipeline_guess(const struct model_parts *parts);

/* Is a part of that recipe still missing? */
bool pipeline_lacks(const struct model_parts *parts);

/* UNSUPPORTED if two files hold a part that is wanted. model: -m. */
enum status pipeline_check_twice(const struct model_parts *parts, const char *model, struct error *e);

/* OK if every wanted part is found. Else UNSUPPORTED where one stands in the wrong place, naming what it is
 * and what was wanted; USAGE for the flag of a part that the pipeline has not; MISSING with all that are
 * missing, or the reason why a file that may be one was not opened. model: -m, or NULL. */
enum status pipeline_check(const struct model_parts *parts, const char *model, struct error *e);

/* Which slots of the recipe that is pointed to are missing; returns how many are. */
int pipeline_missing(const struct model_parts *parts, bool missing[SLOTS_MAX]);

/* The pipeline that a model_index.json names; UNSUPPORTED for one that no recipe has, with the known ones.
 * name stays empty if the file names none. */
enum { PIPELINE_NAME_BYTES = 64 };
enum status pipeline_read(struct sys *sys, const char *path, char name[PIPELINE_NAME_BYTES], struct error *e);

/* The recipe for a bound denoiser. name: the pipeline's, "" if nothing names it. UNSUPPORTED for a pipeline
 * that has other weights. */
enum status pipeline_choose(const char *name, const struct component *denoiser, const struct recipe **recipe,
                            struct error *e);

/* One line for a recipe that nothing named, where others have weights of the same shapes. */
bool pipeline_note_alike(const struct recipe *recipe, char *line, size_t bytes);

#endif
