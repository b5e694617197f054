#ifndef SLUICE_TEST_ASSERT_OK_H
#define SLUICE_TEST_ASSERT_OK_H

#include "engine/base/error.h"

/* Fails the running cmocka test with the error's line, unless the code is OK. */
void assert_ok(const struct error *e);

#endif
