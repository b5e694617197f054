# Neighbouring threads of a block are far from each other in a row.
/first_quad() {/,/}/s/+ threadIdx.x;/+ threadIdx.x % 32 * (blockDim.x \/ 32) + threadIdx.x \/ 32;/
