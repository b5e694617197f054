# Copies do not wait for the operators that still read what they overwrite.
s/code = cudaStreamWaitEvent(o->copies, o->event\[event % EVENTS\], 0);/code = cudaSuccess;/
