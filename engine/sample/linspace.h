/* Evenly spaced values with the rounding of torch.linspace and numpy.linspace, as in diffusers' schedules. */
#ifndef SLUICE_SAMPLE_LINSPACE_H
#define SLUICE_SAMPLE_LINSPACE_H

/* Value i of torch.linspace(from, to, n) in float32: from both ends towards the middle, with the fused
 * multiply-add of PyTorch's AVX2 and AVX-512 builds (equal to PyTorch 2 from 1 to 1/n for n up to 130;
 * without fused multiply-adds 102 of the values differ). n >= 1, 0 <= i < n. For n = 1 the value is `from`.
 */
float linspace_torch(float from, float to, int i, int n);
/* Value i of numpy.linspace(from, to, n) in float64; only the last value is exactly `to`. */
double linspace_numpy(double from, double to, int i, int n);

#endif
