/* What the CUDA device's files share: the device, and one row of functions per operator.
 *
 * What an operator costs is in costs.c, which needs neither CUDA nor a GPU. The layout of its workspace is a
 * pure function of the call in the operator's header (linear.h for linear.cu, and so on), which costs.c and
 * the operator's run() both call, so they cannot disagree. */
#ifndef SLUICE_CUDA_OPERATORS_H
#define SLUICE_CUDA_OPERATORS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/cuda.h"
#include "kernels/ops.h"

#include <cuda_runtime_api.h>

struct products;
struct convolutions;

struct cuda {
    struct device device; /* first: a device is a cuda */
    struct sys *sys;
    int ordinal;
    cudaStream_t compute, copies;
    bool wide_tiles;                   /* attention.h */
    struct products *products;         /* products.h; NULL: cuBLASLt is not there */
    struct convolutions *convolutions; /* convolutions.h; NULL: cuDNN is not there */
    /* Why they are not there. What needs them is refused when it is prepared. */
    char lacks_products[160], lacks_convolutions[160];
};

/* prepare may be NULL. run queues the operator on the compute stream and never waits. Operands are what the
 * wrappers of ops.h let through. Rows may begin at any multiple of their element's size: wide loads only
 * where address and distance of rows allow, and with the bits of narrow ones (R1). */
struct cuda_operator {
    enum status (*prepare)(struct cuda *cuda, const struct op *op, struct error *e);
    enum status (*run)(struct cuda *cuda, const struct op *op, char *workspace, struct error *e);
    /* Kernels that run() may launch and that no other operator names, NULL last: their code is loaded before
     * the first run. NULL: there are none. */
    const void *const *kernels;
};

extern const struct cuda_operator cuda_linear, cuda_linear_few, cuda_attention, cuda_conv2d;
extern const struct cuda_operator cuda_rms_norm, cuda_layer_norm, cuda_group_statistics, cuda_group_norm;
extern const struct cuda_operator cuda_rope_table, cuda_rope, cuda_timestep;
extern const struct cuda_operator cuda_glu, cuda_add, cuda_copy, cuda_broadcast_row, cuda_relative_bias;
extern const struct cuda_operator cuda_patchify, cuda_unpatchify, cuda_latent_to_image, cuda_image_to_rgb;
extern const struct cuda_operator cuda_mean_down, cuda_repeat_up;

/* OK, or what the last launch failed with: MEMORY for what can be tried again, DEVICE for the rest. Resets
 * what can be. Every run() ends with it. */
enum status cuda_launched(const struct op *op, struct error *e);
/* The same for a call of the runtime. what: a noun. */
enum status cuda_check(cudaError_t code, const char *what, struct error *e);

#ifdef __cplusplus
}
#endif

#endif
