/* attention_groups.h */
#include "test/device/attention_groups.h"

#include "kernels/cuda/operators.h"

extern "C" void attention_in_groups(struct device *device, const struct op *op, uint64_t records_max,
                                    void *workspace, struct error *e) {
    struct int8_attention_layout layout = int8_attention_layout_limited(op, records_max);
    cuda_attention_int8_run(reinterpret_cast<struct cuda *>(device), op, &layout,
                            static_cast<char *>(workspace), e);
}
