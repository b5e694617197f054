#include "test/lib/assert_ok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

void assert_ok(const struct error *e) {
    char line[1200];
    if (e->code != OK) fail_msg("%s", error_line(e, line, sizeof line));
}
