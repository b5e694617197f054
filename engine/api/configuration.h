/* Where what shapes cannot tell comes from: config.json beside the weights, their metadata, or nothing, which
 * leaves the family's published values. */
#ifndef SLUICE_API_CONFIGURATION_H
#define SLUICE_API_CONFIGURATION_H

#include "models/models.h"

enum config_origin { CONFIG_PUBLISHED, CONFIG_BESIDE, CONFIG_METADATA };

/* In words: "config.json", "metadata", "published values". */
extern const char *const config_origin_word[];

/* path: the file or folder of the component. In a folder of its own config.json is the component's; beside a
 * file, and in metadata, it must name the family's model or be an object under the component's name. */
enum status configuration_read(struct sys *sys, const char *path, const struct tensor_index *index,
                               const struct family *family, struct config *config, enum config_origin *origin,
                               struct error *e);

#endif
