# Operators do not wait for the copy of what they read.
s/code = cudaStreamWaitEvent(o->compute, o->fence\[fence % FENCES\], 0);/code = cudaSuccess;/
