/* Random noise as PyTorch's CPU generator draws it: uniforms match bit for bit, normals are computed in
 * double and rounded (PyTorch's normals differ between instruction sets by up to 1.9e-6). */
#ifndef SLUICE_SAMPLE_NOISE_H
#define SLUICE_SAMPLE_NOISE_H

#include <stdint.h>

/* State of MT19937, as in torch.Generator("cpu").manual_seed: only the lower 32 bits of the seed are used. */
struct generator {
    uint32_t state[624];
    int next;
};

void generator_seed(struct generator *g, uint64_t seed);
uint32_t generator_draw(struct generator *g);
/* One value of torch.rand: 24 bits, in [0, 1). */
float generator_uniform(struct generator *g);
/* Fills out with torch.randn's n values in memory order. For n >= 16 PyTorch transforms uniforms in groups of
 * 16, and draws the last 16 values again if n is not a multiple of 16. For n < 16 PyTorch draws pairs in
 * double. Source: ATen/native/cpu/DistributionTemplates.h. */
void generator_normals(struct generator *g, float *out, int64_t n);

#endif
