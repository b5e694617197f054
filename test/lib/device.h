/* Which device a test runs on: the CPU, or what SLUICE_TEST_DEVICE says. */
#ifndef SLUICE_TEST_DEVICE_H
#define SLUICE_TEST_DEVICE_H

const char *test_device(void);

#endif
