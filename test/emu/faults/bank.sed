# Fault: rows of keys in shared memory have no padding, so accesses conflict in banks.
s/static constexpr int row = HEAD_DIM + 8;/static constexpr int row = HEAD_DIM;/
