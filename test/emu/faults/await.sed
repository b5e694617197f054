# Fault: operators do not wait for the copy of their weights.
s/code = cudaStreamWaitEvent(s->compute, s->fence\[fence % FENCES\], 0);/code = cudaSuccess;/
