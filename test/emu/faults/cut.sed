# Fault: truncating tensor cores keep only as many fraction bits as bf16.
s/BITS_KEPT = 23/BITS_KEPT = 7/
