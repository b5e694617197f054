/* Evenly spaced values, as the two libraries that diffusers makes its schedules with round them. */
#ifndef SLUICE_SAMPLE_LINSPACE_H
#define SLUICE_SAMPLE_LINSPACE_H

/* Value i of torch.linspace(from, to, n) in float32: from both ends towards the middle, with the fused
 * multiply-add that PyTorch's AVX2 and AVX-512 builds make of it (measured of 1 to 1/n: PyTorch 2, n to 130,
 * no difference; without it 102 differ). n from 1, i below it; of one it is `from`. */
float linspace_torch(float from, float to, int i, int n);
/* The same of numpy.linspace in float64, of which only the last is `to` exactly. */
double linspace_numpy(double from, double to, int i, int n);

#endif
