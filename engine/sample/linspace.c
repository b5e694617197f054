/* The compiler flags forbid contracting a * b + c to fused multiply-adds, so only calls of fmaf fuse. */
#include "engine/sample/linspace.h"

#include <math.h>

float linspace_torch(float from, float to, int i, int n) {
    if (n == 1) return from;
    float step = (to - from) / (float)(n - 1);
    return i < n / 2 ? fmaf(step, (float)i, from) : fmaf(-step, (float)(n - i - 1), to);
}

double linspace_numpy(double from, double to, int i, int n) {
    if (n == 1) return from;
    return i + 1 == n ? to : i * ((to - from) / (n - 1)) + from;
}
