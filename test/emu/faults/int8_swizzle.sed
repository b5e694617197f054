# Fault: pieces of rows in shared memory lie in order, so accesses conflict in banks.
s/return row \* BLOCK_K + (piece ^ (row \/ 2 % 4)) \* 16;/return row * BLOCK_K + piece * 16;/
