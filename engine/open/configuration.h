/* Where what shapes cannot tell comes from: config.json beside the weights, their metadata, or nothing, which
 * leaves the family's published values. */
#ifndef SLUICE_OPEN_CONFIGURATION_H
#define SLUICE_OPEN_CONFIGURATION_H

#include "models/models.h"

enum config_origin { CONFIG_PUBLISHED, CONFIG_BESIDE, CONFIG_METADATA };

/* In words: "config.json", "metadata", "published values". */
extern const char *const config_origin_word[];

/* A component in its files. */
struct config_place {
    const char *path; /* file or folder */
    const struct slot *slot;
    const struct tensor_index *index;
};

/* How pictures are prepared for a vision encoder says transformers' image processor, beside the weights or in
 * the pipeline's folders `processor` and `image_processor`: config->pictures. UNSUPPORTED for what is not
 * done here.
 *
 * In a folder of its own config.json is the component's; beside a file, and in metadata, it must name the
 * family's model or be an object under the name of the slot's folder or flag. */
enum status configuration_read(struct sys *sys, const struct config_place *place, struct config *config,
                               enum config_origin *origin, struct error *e);

/* A component of that slot before its index is set: all that the recipe, and no file, says of it. */
void configuration_begin(const struct recipe *recipe, int slot, struct sys *sys, struct component *c);

/* It lies in its pipeline's folder, which takes it for the class of its slot whatever its configuration says.
 */
void configuration_in_pipeline(struct component *c);

/* Binds a component of that slot whose index is set, with its configuration. UNSUPPORTED for quantised
 * weights. */
enum status configuration_bind(struct component *c, const char *path, const struct slot *slot,
                               enum config_origin *origin, struct error *e);
/* Only configures it: it owns nothing then. */
enum status configuration_look(struct component *c, const char *path, const struct slot *slot,
                               struct error *e);

#endif
