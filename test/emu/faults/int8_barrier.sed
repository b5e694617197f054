# Fault: a block of threads overwrites a stage of operands while some of its threads still load it.
/__syncthreads(); \/\* the next stage has arrived/d
