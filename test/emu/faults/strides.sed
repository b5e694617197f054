# Fault: the fragment layout exchanges two k of a column of matrix b.
s/b\[p + 8\]\[g\] = low_half(word\[1\]), b\[p + 9\]\[g\] = high_half(word\[1\]);/b[p + 8][g] = high_half(word[1]), b[p + 9][g] = low_half(word[1]);/
