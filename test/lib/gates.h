/* What the residency gates vary of each fixture, and the requests that they run. */
#ifndef SLUICE_TEST_GATES_H
#define SLUICE_TEST_GATES_H

#include "engine/sluice.h"

#include <stdbool.h>

/* What test_cuda_gate.c runs of it; the last of all is lost with its GPU. */
enum cuda_extent { NOT_ON_CUDA, CUDA_BUDGETS_AND_PLANS, CUDA_EVERYTHING, CUDA_AND_THEN_LOST };

struct gate {
    struct sluice_request request; /* with pictures in, where its recipe takes them */
    struct sluice_request other;   /* that a session runs in between */
    const struct sluice_request
        *shapes; /* more of them: batches, guidance, shapes, prompts of other lengths */
    int n_shapes;
    int threads;
    bool always;    /* make check runs it, too: a fixture a recipe, and one whose every stage streams */
    bool wide;      /* weights are so many that every stage streams at some budgets */
    bool no_decode; /* once more without the decoder: the least is lower then, and more of the rest streams */
    bool in_bf16;   /* once more in the types that text encoders and transformers are published in */
    enum cuda_extent cuda;
    bool small; /* on a GPU the request is run as it is; of others a smaller one */
};

extern const struct gate gate_zimage, gate_zimage_wide, gate_flux, gate_flux_schnell, gate_flux_kontext,
    gate_flux_fill, gate_flux_wide, gate_sd1, gate_sd2, gate_sdxl, gate_inpaint, gate_refiner,
    gate_qwen_image, gate_qwen_edit, gate_qwen_edit_plus, gate_wan21, gate_wan_i2v, gate_wan_flf2v,
    gate_wan_ti2v, gate_wan22, gate_wan22_i2v, gate_wan_vace, gate_sd3_medium, gate_sd35_medium,
    gate_sd35_large, gate_synthetic;

/* Before any of their requests is run: fills the pictures. */
void gates_begin(void);

#endif
