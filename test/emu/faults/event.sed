# Copies do not wait for the operators that still read what they overwrite.
s/code = cudaStreamWaitEvent(s->copies, s->event\[event % EVENTS\], 0);/code = cudaSuccess;/
