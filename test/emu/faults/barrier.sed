# Fault: a block of threads loads values while some of its threads still read keys.
/__syncthreads(); \/\* the copy of v has arrived/d
