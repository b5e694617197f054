# A block goes on to its values while some of it still reads keys.
/__syncthreads(); \/\* v has arrived/d
