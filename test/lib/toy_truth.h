/* The toy pipeline computed once more, in plain loops in double, from the model's tensors: neither layout,
 * chunks, spans, calls nor operators are the engine's. */
#ifndef SLUICE_TEST_TOY_TRUTH_H
#define SLUICE_TEST_TOY_TRUTH_H

#include "engine/open/model.h"

enum { TRUTH_PICTURES_MAX = 3 };

/* What a run is given, beside its seed what its tokenizers made of the prompts. */
struct toy_input {
    const struct sluice_model *model;
    const struct sluice_request *request; /* of one image */
    struct {
        const int32_t *ids;
        int n;
    } tokens[3][2]; /* of slot, of prompt */
};

struct toy_truth {
    int32_t rows, columns; /* of what the denoisers see of the first prompt */
    double *text, *pooled; /* [rows, columns], [columns] */
    double *latent;        /* [C, F, Y, X] */
    double *frames;        /* [frames, 3, height, width] */
};

/* Ends the program without memory. */
void toy_truth_open(struct toy_truth *truth, const struct toy_input *input);
void toy_truth_close(struct toy_truth *truth);

#endif
