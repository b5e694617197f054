#ifndef SLUICE_TEST_ASSERT_OK_H
#define SLUICE_TEST_ASSERT_OK_H

#include "engine/base/error.h"

/* Fails the running cmocka test unless the status code is OK; the failure shows the error as one line. */
void assert_ok(const struct error *e);

#endif
