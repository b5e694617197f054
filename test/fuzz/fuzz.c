/* One libFuzzer target: TARGET is a name in targets.h. */
#include "test/fuzz/targets.h"

#ifndef TARGET /* default target for syntax checks, which define no TARGET */
#define TARGET target_gguf
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    TARGET(data, bytes);
    return 0;
}
