#include "test/lib/device.h"

#include <stdlib.h>

const char *test_device(void) {
    const char *name = getenv("SLUICE_TEST_DEVICE");
    return name ? name : "cpu";
}
