/* Texts and their order: see text.h. */
#include "engine/base/text.h"

#include <stdlib.h>

int sort_unlike(void *things, int n, size_t bytes, int (*compare)(const void *, const void *)) {
    const char *at = things;
    if (n > 1) qsort(things, (size_t)n, bytes, compare);
    for (int i = 1; i < n; i++)
        if (!compare(at + (size_t)(i - 1) * bytes, at + (size_t)i * bytes)) return i;
    return 0;
}
