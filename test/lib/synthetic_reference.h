/* Computes the synthetic pipeline independently, in plain loops in double precision from the model's tensors.
 * It shares no layout, chunking, spans, calls or operators with the engine. */
#ifndef SLUICE_TEST_SYNTHETIC_REFERENCE_H
#define SLUICE_TEST_SYNTHETIC_REFERENCE_H

#include "engine/open/model.h"

enum { REFERENCE_PICTURES_MAX = 3 };

/* The inputs of a run besides its seed: the request and the token ids of its prompts. */
struct synthetic_input {
    const struct sluice_model *model;
    const struct sluice_request *request; /* batch must be 1 */
    struct {
        const int32_t *ids;
        int n;
    } tokens[3][2]; /* token ids by slot and prompt */
};

struct synthetic_reference {
    int32_t rows, columns, pooled_columns; /* sizes of the first prompt's conditioning */
    double *text, *pooled; /* conditioning [rows, columns], pooled embedding [pooled_columns] */
    double *latent;        /* denoised latent [C, F, Y, X] */
    double *frames;        /* video frames [frames, 3, height, width] */
};

/* Aborts the program if there is no memory. */
void synthetic_reference_open(struct synthetic_reference *truth, const struct synthetic_input *input);
void synthetic_reference_close(struct synthetic_reference *truth);

#endif
