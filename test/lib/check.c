#include "test/lib/check.h"

#include "test/lib/temporary_folder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int n_passed, n_failed;

bool check(bool good, const char *format, ...) {
    if (good) {
        n_passed++;
        return true;
    }
    n_failed++;
    va_list args;
    va_start(args, format);
    fputs("FAILED ", stdout);
    vprintf(format, args);
    puts("");
    va_end(args);
    fflush(stdout);
    return false;
}

bool thorough(void) {
    return getenv("THOROUGH") != NULL;
}

int count_open_files(void) {
    return count_files("/proc/self/fd");
}

int finish(void) {
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
