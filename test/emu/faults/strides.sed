# Fault: the fragment layout exchanges two k of a column of matrix b.
s/b\[p + 8\]\[g\] = T::low(word\[1\]), b\[p + 9\]\[g\] = T::high(word\[1\]);/b[p + 8][g] = T::high(word[1]), b[p + 9][g] = T::low(word[1]);/
