# Fault: the mean of the keys is not subtracted, so that the bias of channels takes most of the 8 bits.
s/v\[i\] = there ? v\[i\] - mean\[i\] : 0;/v[i] = there ? v[i] - 0 * mean[i] : 0;/
