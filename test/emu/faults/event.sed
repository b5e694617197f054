# Fault: copies do not wait for operators that still read the overwritten weights.
s/code = cudaStreamWaitEvent(s->copies, s->event\[event % EVENTS\], 0);/code = cudaSuccess;/
