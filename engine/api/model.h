/* An opened model: components matched to families, tokenizer, schedule and defaults. Immutable. */
#ifndef SLUICE_API_MODEL_H
#define SLUICE_API_MODEL_H

#include "engine/sluice.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer.h"
#include "models/models.h"

struct sluice_model {
    struct sys machine; /* used unless a test brings its own */
    struct sys *sys;
    char *name; /* the last part of its path */
    const struct recipe *recipe;
    struct component component[N_ROLES];
    struct tokenizer *tokenizer;
    double flow_shift;
    int width, height, steps; /* defaults */
    double cfg_scale;
    int size_step;       /* width and height are multiples of it */
    uint64_t host_bytes; /* our allocator's, held by the model */
    uint64_t open_bytes; /* what opening needed for a while beyond that */
    bool plain;          /* nothing is hoisted: only for the test that this changes no bit */
};

/* Where each part of a model is: the option that overrides it, or its folder in -m. */
struct model_parts {
    char *role[N_ROLES]; /* owned; a folder or a file; NULL where nothing is said about it */
    char *tokenizer, *scheduler, *pipeline, *defaults;
};

enum status model_find_parts(struct sys *sys, const struct sluice_model_options *options,
                             struct model_parts *parts, struct error *e);
void model_parts_destroy(struct sys *sys, struct model_parts *parts);

/* Opens a component's files and reads the config.json beside them; does not match or bind a family. */
enum status component_open_files(struct sys *sys, const char *path, struct component *c,
                                 struct config *config, struct error *e);

/* sys: NULL for the machine. The model keeps the pointer. */
enum status model_open(struct sys *sys, const struct sluice_model_options *options,
                       struct sluice_model **model, struct error *e);
void model_close(struct sluice_model *model);

/* Joins two parts of a path; freed with sys->release. NULL: no memory. */
char *path_join(struct sys *sys, const char *folder, const char *name);
bool path_exists(const char *path);

/* A copy of a public structure that may be shorter or longer than ours. */
void copy_sized(void *to, size_t to_bytes, const void *from);

/* The public face of an error. Returns its code. */
int publish_error(const struct error *e, struct sluice_error *public);

#endif
