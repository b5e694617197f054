/* PyTorch's CPU random generator: MT19937 after Matsumoto and Nishimura, 1998. */
#include "engine/sample/noise.h"

#include <math.h>

#define TWO_PI 6.283185307179586476925286766559

void generator_seed(struct generator *g, uint64_t seed) {
    g->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < 624; i++)
        g->state[i] = 1812433253u * (g->state[i - 1] ^ (g->state[i - 1] >> 30)) + i;
    g->next = 624;
}

uint32_t generator_draw(struct generator *g) {
    if (g->next == 624) { /* generates the next 624 state words of MT19937 */
        for (int i = 0; i < 624; i++) {
            uint32_t y = (g->state[i] & 0x80000000u) | (g->state[(i + 1) % 624] & 0x7fffffffu);
            g->state[i] = g->state[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        g->next = 0;
    }
    uint32_t y = g->state[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

float generator_uniform(struct generator *g) {
    return (float)(generator_draw(g) & 0xffffff) * 0x1p-24f;
}

/* One value of torch.rand in double: 53 bits. */
static double uniform_double(struct generator *g) {
    uint64_t high = generator_draw(g), low = generator_draw(g);
    return (double)((high << 32 | low) & ((1ull << 53) - 1)) * 0x1p-53;
}

/* Box-Muller: turns 16 uniforms into 16 normals in place, cosines first, then sines. */
static void transform_sixteen(float *v) {
    for (int i = 0; i < 8; i++) {
        double radius = sqrt(-2 * log((double)(1 - v[i]))), angle = TWO_PI * (double)v[i + 8];
        v[i] = (float)(radius * cos(angle));
        v[i + 8] = (float)(radius * sin(angle));
    }
}

void generator_normals(struct generator *g, float *out, int64_t n) {
    for (int64_t i = 0; n < 16 && i < n; i += 2) {
        double u1 = uniform_double(g), u2 = uniform_double(g);
        double radius = sqrt(-2 * log1p(-u2)), angle = TWO_PI * u1;
        out[i] = (float)(radius * cos(angle));
        if (i + 1 < n) out[i + 1] = (float)(radius * sin(angle));
    }
    if (n < 16) return;
    for (int64_t i = 0; i < n; i++) out[i] = generator_uniform(g);
    for (int64_t i = 0; i + 16 <= n; i += 16) transform_sixteen(out + i);
    if (n % 16 == 0) return;
    for (int64_t i = n - 16; i < n; i++) out[i] = generator_uniform(g);
    transform_sixteen(out + n - 16);
}
