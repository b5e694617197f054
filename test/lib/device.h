/* Which device a test runs on: the CPU, or what SLUICE_TEST_DEVICE says. */
#ifndef SLUICE_TEST_DEVICE_H
#define SLUICE_TEST_DEVICE_H

#include <stdlib.h>

static inline const char *test_device(void) {
    const char *name = getenv("SLUICE_TEST_DEVICE");
    return name ? name : "cpu";
}

#endif
