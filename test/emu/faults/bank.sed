# Rows of keys follow each other in shared memory without a gap.
s/static constexpr int row = HEAD_DIM + 8;/static constexpr int row = HEAD_DIM;/
