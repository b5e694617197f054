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

const char *format_text(const char *format, ...) {
    static char texts[64][512];
    static int next;
    char *text = texts[next++ % 64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof *texts, format, args);
    va_end(args);
    return text;
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
