# Fault: the next tile of keys overwrites this one while some warps still read it.
/__syncthreads(); \/\* the copy of v has arrived; k is no longer used/d
