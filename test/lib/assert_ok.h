#ifndef SLUICE_TEST_ASSERT_OK_H
#define SLUICE_TEST_ASSERT_OK_H

#include "engine/base/error.h"

/* Fails the cmocka test that runs, with the error's line. */
void assert_ok(const struct error *e);

#endif
