/* The only way from a kernel to CUDA.
 *
 * Under nvcc it is the CUDA runtime. CONFIG=emu puts test/emu/ before it on the include path: there
 * <cuda_runtime.h> is a stand-in that runs the same kernels on the CPU and brings its own LAUNCH and SMEM
 * macros, because no other compiler reads <<<>>> or extern __shared__. */
#ifndef SLUICE_CUDA_GPU_H
#define SLUICE_CUDA_GPU_H

#include <cuda_runtime.h>

#include <stdint.h>

#ifndef LAUNCH
/* Queues a kernel; templates in parentheses: LAUNCH((rows<4, true>), ...). Errors are read afterwards, with
 * cudaGetLastError. */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                               \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
/* T name[n], shared by the block; n a constant. */
#define SMEM_ARRAY(T, name, n) __shared__ __align__(16) T name[n]
/* T *name: the block's shared memory that the launch asked for, aligned to 16. Once a kernel. */
#define SMEM_DYN(T, name)                                                                                    \
    extern __shared__ __align__(16) unsigned char smem_dyn[];                                                \
    T *name = reinterpret_cast<T *>(smem_dyn)
#endif

/* A kernel's address, for lists of them. */
#define KERNEL(...) reinterpret_cast<const void *>(__VA_ARGS__)

enum { WARP = 32 };

#endif
