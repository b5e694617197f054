/* The CUDA device: hand-written kernels, cuBLASLt for large products, cuDNN for convolutions.
 *
 * Products and attention have operands in bf16, rounded once, to nearest even, by whoever writes them or by
 * themselves (device->operands), and sum in f32; all other activations are f32 (ops.h). Attention's
 * probabilities are rounded likewise. Convolutions round to TF32. For GPUs of compute capability 8.0 and
 * later. */
#ifndef SLUICE_CUDA_CUDA_H
#define SLUICE_CUDA_CUDA_H

#include "engine/base/sys.h"
#include "kernels/device.h"

struct cuda_info {
    char name[128];
    int major, minor; /* compute capability */
    uint64_t bytes, free_bytes;
    bool compiles; /* this build has no machine code for it: the driver makes it of PTX when it loads kernels
                    */
    char library[160]; /* versions of driver, runtime, cuBLASLt and cuDNN */
};

/* How many GPUs there are; 0 with the reason in why: not in this build, no driver, driver too old, none. */
int cuda_count(char *why, size_t why_bytes);
/* Whether this GPU is there and will do. Makes no context. */
bool cuda_usable(int ordinal);
/* Of one that will do. USAGE, DEVICE, MEMORY. */
enum status cuda_describe(int ordinal, struct cuda_info *info, struct error *e);

enum cuda_path { CUDA_H2D_PINNED, CUDA_H2D_PAGEABLE, CUDA_D2H_PINNED, CUDA_D2H_PAGEABLE, N_CUDA_PATHS };

/* "h2d_pinned": from host to device, out of pinned memory. */
const char *cuda_path_name(enum cuda_path path);
/* How fast copies of so many bytes between host and GPU number ordinal are, one behind the other. Takes as
 * much of both memories. The errors of cuda_open. */
enum status cuda_bus_rate(struct sys *sys, int ordinal, enum cuda_path path, uint64_t bytes,
                          double *bytes_per_second, struct error *e);

/* Of so many bytes of the host's memory how many can be pinned together for that GPU, tried. The errors of
 * cuda_open. */
enum status cuda_pinnable(int ordinal, uint64_t bytes, uint64_t *pinnable, struct error *e);

/* Opens GPU number ordinal. Of one process one thread uses the device at a time, but for copies (device.h).
 * USAGE: there is no such GPU, or this build has no CUDA; DEVICE: no driver, one that is too old, a GPU below
 * 8.0; MEMORY. NULL then. Without cuBLASLt or cuDNN it opens: what needs them is refused by prepare. Ends
 * with device->destroy. */
struct device *cuda_open(struct sys *sys, int ordinal, struct error *e);

/* The same device as far as plans go: costs, and no way to run. Needs no GPU and is in every build. card:
 * whose memory it has; NULL: nobody says. MEMORY. */
struct device *cuda_planned(struct sys *sys, const struct cuda_card *card, struct error *e);

#endif
