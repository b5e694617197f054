/* One target under libFuzzer: TARGET is one of targets.h. */
#include "test/fuzz/targets.h"

#ifndef TARGET /* where the compiler is only asked for its opinion */
#define TARGET target_gguf
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    TARGET(data, bytes);
    return 0;
}
