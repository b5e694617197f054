/* The only header through which kernels include CUDA: the CUDA runtime under nvcc.
 *
 * CONFIG=emu puts test/emu/ first on the include path: its <cuda_runtime.h> runs the same kernels on the CPU
 * and defines its own LAUNCH and SMEM macros, because other compilers cannot parse <<<>>> or extern
 * __shared__. */
#ifndef SLUICE_CUDA_GPU_H
#define SLUICE_CUDA_GPU_H

#include <cuda_runtime.h>

#include <stdint.h>

#ifndef LAUNCH
/* Launches a kernel; put template names in parentheses: LAUNCH((rows<4, true>), ...). Check errors with
 * cudaGetLastError. */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                               \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
/* Static shared memory T name[n]; n is a constant. */
#define SMEM_ARRAY(T, name, n) __shared__ __align__(16) T name[n]
/* Dynamic shared memory T *name, aligned to 16 bytes. Once per kernel. */
#define SMEM_DYN(T, name)                                                                                    \
    extern __shared__ __align__(16) unsigned char smem_dyn[];                                                \
    T *name = reinterpret_cast<T *>(smem_dyn)
#endif

#define KERNEL(...) reinterpret_cast<const void *>(__VA_ARGS__)

enum { WARP = 32 };

#endif
