/* Fixtures: the models that every proof goes over. A proof is one program with a loop over these rows; a
 * family is a row for each of its recipes and what they share: suites of its blocks, its layouts, its
 * misfits. A family's own files are blocks_FAMILY.c, layouts_FAMILY.c and misfits_FAMILY.c beside this one.
 *
 *     test_blocks              blocks one by one against the reference, each on the reference's input
 *     test_golden              whole pipelines against the reference
 *     test_influence           that every tensor counts
 *     test_residency           that no plan changes a bit; test_cuda_gate the same on the CUDA device
 *     test_stored              pipelines from weights as people's files have them
 *     test_loras               pipelines with adapters, of every dialect
 *     test_layouts             other layouts of the same weights
 *     test_misfits             models that are nearly ones of the family */
#ifndef SLUICE_TEST_FIXTURES_H
#define SLUICE_TEST_FIXTURES_H

#include <stdbool.h>

#include "test/lib/model_paths.h"

struct gate;
struct golden;
struct layouts;
struct invalid_models;
struct named_recipe;
struct suite;
struct tolerance;

/* Weights as people's files have them. */
struct stored {
    const struct model_paths *flags; /* each part by its flag, below model/ */
    const char *text_encoder,
        *tokenizer; /* folders below model/ that Hugging Face's layout calls so; or NULL */
};

struct fixture {
    const char *name;                       /* and its folder of reference data in test/golden */
    const struct suite *const *blocks;      /* ends with NULL; NULL: no reference data */
    bool pipeline;                          /* there are data of whole runs, too */
    const struct tolerance *gpu_tolerances; /* of a GPU's pictures, before those of a suite; or NULL */
    const struct stored *stored;            /* these are of runs from stored weights */
    bool adapted;                           /* these are of runs with adapters */
    const struct gate *gate;                /* NULL: its residency is not tried */
    const struct layouts *layouts;          /* layouts are made from its model */
    const struct named_recipe *named;       /* what is said of its folder */
    const struct invalid_models *invalid_models;          /* are made from its model */
    const char *(*model)(void); /* writes the model and returns its folder; NULL: it lies with the data */
    /* Where these data are not of a whole model in model/: opens and closes what there is. */
    void (*open)(struct golden *g);
    void (*close)(struct golden *g);
};

extern const struct fixture fixtures[];
extern const int n_fixtures;

/* A program's arguments name fixtures; without any it is all of them. */
bool fixture_is_selected(const struct fixture *f, char **names);

/* The folder of its model, written if need be. */
const char *fixture_model(const struct fixture *f);

#endif
