/* Number parsing, size formatting and sorting: implements text.h. */
#include "engine/base/text.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

double text_number(const char *text, char **end) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
    if (!plain) {
        if (end) *end = (char *)(uintptr_t)text;
        return NAN;
    }
    double number = strtod_l(text, end, plain);
    freelocale(plain);
    return number;
}

int sort_find_duplicate(void *things, int n, size_t bytes, int (*compare)(const void *, const void *)) {
    const char *at = things;
    if (n > 1) qsort(things, (size_t)n, bytes, compare);
    for (int i = 1; i < n; i++)
        if (!compare(at + (size_t)(i - 1) * bytes, at + (size_t)i * bytes)) return i;
    return 0;
}

char *size_text(uint64_t bytes, char out[SIZE_TEXT_BYTES]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    double size = (double)bytes;
    for (; size >= 1024 && unit < 4; unit++) size /= 1024;
    int decimals = !unit || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    snprintf(out, SIZE_TEXT_BYTES, "%.*f %s", decimals, size, units[unit]);
    return out;
}
