/* A component's configuration (settings that tensor shapes do not determine): from config.json in the
 * weights' folder, else from the file's metadata, else the family's published values. */
#ifndef SLUICE_OPEN_CONFIGURATION_H
#define SLUICE_OPEN_CONFIGURATION_H

#include "models/models.h"

enum config_origin { CONFIG_PUBLISHED, CONFIG_JSON_FILE, CONFIG_METADATA };

/* Returns the name of a configuration's origin, for messages: "config.json", "metadata", "published
 * values". */
extern const char *const config_origin_word[];

/* Places to search for a component's configuration. */
struct config_place {
    const char *path; /* path of the weights: a file or a folder */
    const struct slot *slot;
    const struct tensor_index *index;
};

/* Reads the configuration of a component; *config is empty if no file has a configuration.
 *
 * A config.json in the component's own folder is accepted without checks. A config.json next to a single
 * weight file, or a configuration in metadata, is checked. It must name the family's model, or be an object
 * under the name of the slot's folder or flag. For a vision encoder also reads transformers' image processor
 * into config->pictures, from the component's folder or the pipeline's folders `processor`,
 * `image_processor` and `text_processor`. UNSUPPORTED: unsupported preprocessing. */
enum status configuration_read(struct sys *sys, const struct config_place *place, struct config *config,
                               enum config_origin *origin, struct error *e);

/* True if the configuration's model name, or general.architecture, is the family's. */
bool configuration_names(const struct config *config, const struct family *family);

/* Initialises a component with the recipe's values for the slot. The caller sets the tensor index
 * afterwards. */
void configuration_begin(const struct recipe *recipe, int slot, struct sys *sys, struct component *c);

/* Marks a component as found in a pipeline's component folder, so that the class name in config.json is
 * ignored. */
void configuration_in_pipeline(struct component *c);

/* Reads the configuration of a component and binds the component's weights. The tensor index must be set.
 * UNSUPPORTED: unknown quantisation. */
enum status configuration_bind(struct component *c, const char *path, const struct slot *slot,
                               enum config_origin *origin, struct error *e);
/* Reads the configuration and derives the component's sizes, without binding weights: *c owns no memory. */
enum status configuration_apply(struct component *c, const char *path, const struct slot *slot,
                                struct error *e);

#endif
