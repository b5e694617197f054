/* Shared by the CUDA device's files: the device struct and a table row of functions per operator.
 *
 * costs.c computes an operator's workspace and needs neither CUDA nor a GPU. The operator's header (linear.h
 * for linear.cu, and so on) defines the workspace layout as a pure function of the call; costs.c and run()
 * both use it, so they agree. */
#ifndef SLUICE_CUDA_OPERATORS_H
#define SLUICE_CUDA_OPERATORS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/ops.h"

#include <cuda_runtime_api.h>

struct products;
struct convolutions;

struct cuda {
    struct device device; /* first member: struct device casts to struct cuda */
    struct sys *sys;
    int ordinal;
    cudaStream_t compute, copies;
    int multiprocessors;               /* selects the tile of int8 products, not their results */
    bool tiles_chosen, wide_tiles;     /* attention uses ATTENTION_WIDE_TILES; valid once tiles_chosen */
    struct products *products;         /* cuBLASLt; NULL: the library is missing */
    struct convolutions *convolutions; /* cuDNN; NULL: the library is missing */
    /* Reasons why a library is missing. prepare() refuses operators that need the library. */
    char cublaslt_missing[160], cudnn_missing[160];
};

/* Functions of one operator. prepare may be NULL. run queues the operator on the compute stream and never
 * waits. Operands have passed the checks of wrappers.c. Rows may start at any multiple of the element size:
 * vectorised loads are used only where address and row stride allow, with the same bits as scalar loads. */
struct cuda_operator {
    enum status (*prepare)(struct cuda *cuda, const struct op *op, struct error *e);
    enum status (*run)(struct cuda *cuda, const struct op *op, char *workspace, struct error *e);
    /* NULL-terminated lists of kernels that run() may launch and that no other operator lists. Their code is
     * loaded before the first run. NULL: none. */
    const void *const *kernels[2];
};

extern const struct cuda_operator cuda_linear, cuda_linear_few, cuda_attention, cuda_conv2d;
extern const struct cuda_operator cuda_rms_norm, cuda_layer_norm, cuda_group_statistics, cuda_group_norm,
    cuda_group_range;
extern const struct cuda_operator cuda_rope_table, cuda_rope_axis, cuda_rope, cuda_timestep;
extern const struct cuda_operator cuda_glu, cuda_add, cuda_copy, cuda_broadcast_row, cuda_relative_bias;
extern const struct cuda_operator cuda_patchify, cuda_unpatchify, cuda_latent_to_image, cuda_image_to_rgb;
extern const struct cuda_operator cuda_mean_down, cuda_repeat_up, cuda_add_positions;
extern const struct cuda_operator cuda_map, cuda_snake, cuda_sinc_up;

struct int8_attention_layout;
/* Attention in int8 mode, for calls of attention_is_int8 (attention_int8.h), and its kernels. */
enum status cuda_attention_int8_run(struct cuda *cuda, const struct op *op,
                                    const struct int8_attention_layout *layout, char *workspace,
                                    struct error *e);
extern const void *const cuda_attention_int8_kernels[];

/* Returns the status of the last kernel launch: MEMORY for errors that a retry can solve, DEVICE for all
 * others. Clears the CUDA error. Every run() ends with this call. */
enum status cuda_launched(const struct op *op, struct error *e);
/* Converts the result of a CUDA runtime call to a status. what: the failed call, a noun for the message. */
enum status cuda_check(cudaError_t code, const char *what, struct error *e);
/* Sets the most bytes of dynamic shared memory that a kernel may use, and requests the largest shared memory
 * carveout: with a smaller one, fewer thread blocks fit on a multiprocessor. what: the kernel, for messages.
 */
enum status cuda_allow_shared(const void *kernel, int bytes, const char *what, struct error *e);

#ifdef __cplusplus
}
#endif

#endif
