/* Requests and variations that the residency tests run for each fixture. */
#ifndef SLUICE_TEST_GATES_H
#define SLUICE_TEST_GATES_H

#include "engine/sluice.h"

#include <stdbool.h>

/* Extent of the fixture's tests in test_cuda_gate.c; CUDA_AND_THEN_LOST also loses the GPU at the end. */
enum cuda_extent { NOT_ON_CUDA, CUDA_BUDGETS_AND_PLANS, CUDA_EVERYTHING, CUDA_AND_THEN_LOST };

struct gate {
    struct sluice_request request; /* the main request; has input images if the recipe takes them */
    struct sluice_request other;   /* different request that the tests run between two runs of `request` */
    const struct sluice_request
        *shapes; /* further requests to test: batches, guidance, other sizes and prompt lengths */
    int n_shapes;
    int threads;
    bool always; /* true: `make check` runs the gate too, not only `make check-all`. Set for one fixture per
                    recipe, and for one that streams in every stage. */
    bool wide;   /* true: weights take more memory than activations, so every stage streams at some budgets */
    /* true: also run without decoding, so that the least budget is lower and more blocks stream. */
    bool no_decode;
    bool in_bf16; /* true: also run with compute precision bf16 */
    enum cuda_extent cuda;
    bool small; /* true: `request` is small enough for a GPU test; false: GPU tests run a smaller request */
};

extern const struct gate gate_zimage, gate_zimage_base, gate_zimage_wide;
extern const struct gate gate_flux, gate_flux_schnell, gate_flux_kontext, gate_flux_fill, gate_flux_redux,
    gate_flux_canny, gate_flux_wide, gate_control_flux, gate_control_flux_union, gate_control_flux_xlabs;
extern const struct gate gate_flux2_dev, gate_flux2_klein, gate_flux2_klein_base;
extern const struct gate gate_longcat_image, gate_longcat_image_edit;
extern const struct gate gate_chroma;
extern const struct gate gate_ovis_image;
extern const struct gate gate_krea2, gate_krea2_turbo;
extern const struct gate gate_hires, gate_sd1, gate_sd2, gate_sdxl, gate_inpaint, gate_refiner;
extern const struct gate gate_control_sd1, gate_control_union, gate_control_zimage;
extern const struct gate gate_qwen_image, gate_qwen_edit, gate_qwen_edit_plus;
extern const struct gate gate_qwen_image_21, gate_qwen_image_21_ref;
extern const struct gate gate_wan21, gate_wan_i2v, gate_wan_flf2v, gate_wan_ti2v, gate_wan22, gate_wan22_i2v,
    gate_wan_vace;
extern const struct gate gate_ltx2, gate_ltx23;
extern const struct gate gate_sd3_medium, gate_sd35_medium, gate_sd35_large;
extern const struct gate gate_anima;
extern const struct gate gate_control_qwen, gate_control_sd3, gate_control_sd35;
extern const struct gate gate_synthetic;

/* Fills the input images; call before running any request. */
void gates_begin(void);

#endif
