/* Dims and settings of a component: read from tensors and configuration, chosen for a synthetic component,
 * and written as config.json, as the table rows of its family say (dimension.h). Binding: the blocks of a
 * component with the places of their weights in files. */
#ifndef SLUICE_RUN_COMPONENT_H
#define SLUICE_RUN_COMPONENT_H

#include "engine/run/family.h"

/* Reads dims and settings from index and configuration, then calls the family's own checks. */
enum status component_configure(struct component *c, const struct config *config, struct error *e);
/* Sets the dims and settings of a synthetic component. chosen: one value for each table row with a name;
 * NULL: published values. */
void component_derive(struct component *c, const int *chosen);
/* Writes the common config.json of n components, with the first one's model type. Returns like snprintf. */
int component_write_config(const struct component *const *components, int n, char *out, size_t out_bytes);
/* Writes a vision encoder's preprocessor_config.json. Returns like snprintf. */
int component_write_pictures(const struct component *c, char *out, size_t out_bytes);
/* Configures and binds a component whose family and index are set. UNUSED if a scale tensor is not used,
 * because quantised weights are wrong without it; other unused tensors are counted. On failure the caller
 * destroys the component. */
enum status component_bind(struct component *c, const struct config *config, struct error *e);

#endif
