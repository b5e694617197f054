/* Flow matching: see flow.h. Plain loops on the host: contraction into fused multiply-adds is off for the
 * whole build. */
#include "engine/sample/flow.h"

#include <math.h>

/* torch.linspace(1, 1/n, n) in float32: from both ends towards the middle, with the fused multiply-add that
 * PyTorch's AVX2 and AVX-512 builds make of it (measured: PyTorch 2, n to 130, no difference; without it 102
 * differ). */
static float linspace_down(int i, int n) {
    float end = (float)(1.0 / n);
    if (n == 1) return 1;
    float step = (end - 1) / (float)(n - 1);
    return i < n / 2 ? fmaf(step, (float)i, 1) : fmaf(-step, (float)(n - i - 1), end);
}

void flow_schedule(int n, double shift, float *sigmas, float *timesteps) {
    float s = (float)shift, less_one = (float)(shift - 1);
    for (int i = 0; i < n; i++) {
        float u = linspace_down(i, n);
        sigmas[i] = s * u / (1 + less_one * u);
        timesteps[i] = sigmas[i] * 1000;
    }
    sigmas[n] = 0;
}

void flow_guide(float *cond, const float *uncond, int64_t n, double scale) {
    float g = (float)(scale - 1);
    for (int64_t i = 0; i < n; i++) cond[i] = cond[i] + g * (cond[i] - uncond[i]);
}

void flow_step(float *sample, const float *velocity, int64_t n, float sigma, float next) {
    float step = next - sigma;
    for (int64_t i = 0; i < n; i++) sample[i] = sample[i] + step * velocity[i];
}
