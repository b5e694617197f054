# Tensor cores that cut off keep as many bits as bf16 has.
s/BITS_KEPT = 23/BITS_KEPT = 7/
