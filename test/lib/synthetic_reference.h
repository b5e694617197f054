/* The synthetic pipeline computed once more, in plain loops in double, from the model's tensors: neither layout,
 * chunks, spans, calls nor operators are the engine's. */
#ifndef SLUICE_TEST_SYNTHETIC_REFERENCE_H
#define SLUICE_TEST_SYNTHETIC_REFERENCE_H

#include "engine/open/model.h"

enum { TRUTH_PICTURES_MAX = 3 };

/* What a run is given, beside its seed what its tokenizers made of the prompts. */
struct synthetic_input {
    const struct sluice_model *model;
    const struct sluice_request *request; /* of one image */
    struct {
        const int32_t *ids;
        int n;
    } tokens[3][2]; /* of slot, of prompt */
};

struct synthetic_reference {
    int32_t rows, columns; /* of what the denoisers see of the first prompt */
    double *text, *pooled; /* [rows, columns], [columns] */
    double *latent;        /* [C, F, Y, X] */
    double *frames;        /* [frames, 3, height, width] */
};

/* Ends the program without memory. */
void synthetic_reference_open(struct synthetic_reference *truth, const struct synthetic_input *input);
void synthetic_reference_close(struct synthetic_reference *truth);

#endif
