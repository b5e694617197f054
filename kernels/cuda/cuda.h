/* The CUDA device: hand-written kernels, cuBLASLt for large products, cuDNN for convolutions. For GPUs of
 * compute capability 8.0 and later.
 *
 * Operands of products are bf16, or f16 in precision f16, with f32 sums. They are rounded once (nearest even)
 * by their producer or by the operator (device->operands). Operands and probabilities of attention are bf16.
 * Precision int8 quantises operands of products and of large attention calls (linear_int8.h,
 * attention_int8.h).
 * Convolutions round to f16 if their input is bounded, else to TF32 (conv.h). All other activations are f32
 * (ops.h). */
#ifndef SLUICE_CUDA_CUDA_H
#define SLUICE_CUDA_CUDA_H

#include "engine/base/sys.h"
#include "kernels/device.h"

struct cuda_info {
    char name[128];
    int major, minor; /* compute capability */
    uint64_t bytes, free_bytes;
    bool compiles; /* the build has no machine code for this GPU: the driver compiles PTX when kernels load */
    char library[160]; /* versions of driver, CUDA runtime, cuBLASLt and cuDNN */
    char bus[32];      /* PCI bus id, as nvidia-smi -i takes it; empty: unknown */
    /* Libraries without kernels for this GPU, with the versions found and needed; empty: none. */
    char outdated[200];
};

/* Returns the number of GPUs, or 0 with the reason: build without CUDA, no driver, driver too old, no GPU. */
int cuda_count(char *why, size_t why_bytes);
/* True if this GPU exists and is supported. Creates no CUDA context. */
bool cuda_usable(int ordinal);
/* Describes supported GPU number ordinal. Fails with USAGE, DEVICE or MEMORY. */
enum status cuda_describe(int ordinal, struct cuda_info *info, struct error *e);

enum cuda_path { CUDA_H2D_PINNED, CUDA_H2D_PAGEABLE, CUDA_D2H_PINNED, CUDA_D2H_PAGEABLE, N_CUDA_PATHS };

/* Returns the name of a copy path, such as "h2d_pinned": host to device from pinned memory. */
const char *cuda_path_name(enum cuda_path path);
/* Measures the rate of back-to-back copies between host and GPU, each of `bytes` bytes. Allocates `bytes`
 * bytes on the host and on the GPU. Errors as cuda_open. */
enum status cuda_bus_rate(struct sys *sys, int ordinal, enum cuda_path path, uint64_t bytes,
                          double *bytes_per_second, struct error *e);

/* Finds by trial how many of `bytes` bytes of host memory can be pinned for GPU number ordinal. Errors as
 * cuda_open. */
enum status cuda_pinnable(int ordinal, uint64_t bytes, uint64_t *pinnable, struct error *e);

/* Opens GPU number ordinal. One thread at a time uses the device; only copies may come from any thread
 * (device.h). NULL with USAGE (no such GPU, or a build without CUDA), DEVICE (no driver, driver too old, GPU
 * below 8.0) or MEMORY. The device opens without cuBLASLt or cuDNN, but prepare() refuses the operators that
 * need the missing library. End with device->destroy. */
struct device *cuda_open(struct sys *sys, int ordinal, struct error *e);

/* Returns a CUDA device for planning only, which has costs but cannot run operators. Works without a GPU and
 * in every build. card: GPU model whose memory is assumed; NULL: unspecified. NULL with MEMORY. */
struct device *cuda_plan_device(struct sys *sys, const struct cuda_card *card, struct error *e);

#endif
