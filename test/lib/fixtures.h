/* Fixtures: the models that the test programs run over. Each test program loops over the rows of this table.
 * A family adds one row per recipe. Its recipes share a script of test/models/layouts.
 *
 *     test_blocks              each block against the reference, on the reference's input
 *     test_golden              whole pipelines against the reference
 *     test_every_tensor_matters every tensor influences the result
 *     test_residency           no plan changes a bit; test_cuda_gate: the same on the CUDA device
 *     test_mixed_types         pipelines from quantised and repacked weight files
 *     test_loras               pipelines with adapters of every file format
 *     test_layouts             other file layouts of the same weights, and invalid models: scripts name the
 *                              fixtures */
#ifndef SLUICE_TEST_FIXTURES_H
#define SLUICE_TEST_FIXTURES_H

#include <stdbool.h>

#include "engine/sluice.h"
#include "test/lib/model_paths.h"

struct gate;
struct golden;
struct tolerance;

/* Files of a fixture in formats of model hubs (GGUF, fp8, ComfyUI). */
struct stored {
    /* Path of each component's weight file, by its command line flag, relative to model/. */
    const struct model_paths *flags;
    const char *text_encoder,
        *tokenizer; /* tokenizer folders below model/; NULL: the folders of the Hugging Face layout */
};

struct fixture {
    const char *name; /* name of the fixture and of its reference data's folder in test/golden */
    bool pipeline;    /* the reference data contain whole pipeline runs */
    /* The reference data have no block tests (blocks.json), which other pipelines have: whole pipelines alone
     * compare the fixture. */
    bool without_blocks;
    /* Tolerances for GPUs instead of those of the block suites, or NULL. */
    const struct tolerance *gpu_tolerances;
    /* Files of other formats that the reference's runs use; NULL: those in model/. */
    const struct stored *stored;
    /* Name of the fixture with the model in model/; NULL: this fixture has its own. */
    const char *model_of;
    /* Folders of control networks in the fixture's folder, in the order of "network" in its cases. */
    const char *control_nets[SLUICE_CONTROLS_MAX];
    const char *redux;       /* folder of Flux Redux in the fixture's folder; NULL: none */
    const char *upscaler;    /* folder of the latent upscaler in the fixture's folder; NULL: none */
    bool without_bf16;       /* tested in f32 alone: the arithmetic is that of the model's own fixture */
    bool has_adapters;       /* the reference's runs use adapters */
    const struct gate *gate; /* requests of the residency test; NULL: not tested */
    const char *(*model)(
        void); /* writes the model and returns its folder; NULL: the model is in the reference data */
    /* Open and close reference data of block tests that have no whole model in model/; NULL for all others.
     */
    void (*open)(struct golden *g);
    void (*close)(struct golden *g);
};

extern const struct fixture fixtures[];
extern const int n_fixtures;

/* True if the program's arguments name this fixture, or if there are no arguments. */
bool fixture_is_selected(const struct fixture *f, char **names);

/* Returns the folder of the fixture's model, which is written first if necessary. */
const char *fixture_model(const struct fixture *f);

#endif
