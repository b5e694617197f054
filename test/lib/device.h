/* Returns the device that tests run on: the CPU, or the one named by SLUICE_TEST_DEVICE. */
#ifndef SLUICE_TEST_DEVICE_H
#define SLUICE_TEST_DEVICE_H

const char *test_device(void);

#endif
