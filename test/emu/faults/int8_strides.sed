# Fault: the fragment layout exchanges the two halves of k of matrix b.
s/unpack_s8(b\[lane \/ 4\] + lane % 4 \* 4 + 16 \* half, all/unpack_s8(b[lane \/ 4] + lane % 4 * 4 + 16 - 16 * half, all/
