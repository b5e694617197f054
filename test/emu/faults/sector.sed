# Fault: neighbouring threads of a block read distant parts of a row.
/first_quad() {/,/}/s/+ threadIdx.x;/+ threadIdx.x % 32 * (blockDim.x \/ 32) + threadIdx.x \/ 32;/
