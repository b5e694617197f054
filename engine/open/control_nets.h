/* Opens the control networks of a model (--control-net). */
#ifndef SLUICE_OPEN_CONTROL_NETS_H
#define SLUICE_OPEN_CONTROL_NETS_H

#include "engine/open/component_files.h"
#include "engine/open/model.h"

/* Opens the files of --control-net as m->component[MODEL_CONTROL + i], in the order of the flags. Call after
 * the pipeline's components are open. UNSUPPORTED: the network is for another denoiser. Also errors of
 * binding and of family_control.check. */
enum status control_nets_open(struct sluice_model *m, struct component_files *files, struct error *e);

/* The same for models without files (--family): --control-net has the name of a family
 * (published_bind_network). */
enum status control_nets_open_published(struct sluice_model *m, const struct sluice_model_options *options,
                                        struct error *e);

#endif
