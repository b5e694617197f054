# Fault: the kernel processes one channel too many.
s/if (c >= channels) return;/if (c > channels) return;/
